#!/usr/bin/env python3
"""`seer serve` under load. Prints JSON:
  throughput    output tokens per second through the front door beside `seer rollout` on the same prompts, seeds and machine; and CPU time
                of both, that of this client counted to the front door: other programs on the machine hardly change it
  held          many requests at once on one process: all answered, its memory, /health meanwhile
  streams       streams of /generate with log-probabilities: CPU time of the server's HTTP thread, per token and per event
  gone          clients that connect, send a request and disconnect: memory and open files after each part of them
usage: bench_serve.py [--requests N] [--streams N] [--gone N] [--pairs N] [--policy NAME] [--seer PROGRAM]
With --policy auto each side measures steps and may choose another limit than the other; a named policy takes that out of the ratio."""
import argparse, asyncio, json, multiprocessing, os, resource, statistics, subprocess, sys, tempfile, time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
options = argparse.ArgumentParser(usage=__doc__)
options.add_argument("--requests", type=int, default=10_000)
options.add_argument("--streams", type=int, default=64)
options.add_argument("--gone", type=int, default=100_000)
options.add_argument("--pairs", type=int, default=3)
options.add_argument("--policy", default="auto", help="of both sides of the throughput part")
options.add_argument("--limit", type=int, default=40, help="prompts of the throughput part")
options.add_argument("--seer", default=f"{ROOT}/build/release/bin/seer")
asked = options.parse_args()
sys.argv = [sys.argv[0], asked.seer]
sys.path.insert(0, f"{ROOT}/tests/integration")
from served import MODEL, Served

PROMPTS = f"{ROOT}/deploy/examples/scratchpad/prompts.jsonl"
MACHINE = ["--instances", "2", "--threads-per-instance", "1", "--kv-bytes", "96MiB", "--dram-bytes", "64MiB", "--drafting", "off"]


def process_figures(pid):
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    with open(f"/proc/{pid}/stat") as stat:
        ticks = stat.read().rsplit(")", 1)[1].split()
    return {"rss_mib": int(fields["VmRSS"].split()[0]) / 1024, "rss_mib_max": int(fields["VmHWM"].split()[0]) / 1024,
            "files": len(os.listdir(f"/proc/{pid}/fd")), "cpu_s": (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")}


def http_bytes(path, body):
    text = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: seer\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


async def answer_of(reader):
    """The body of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    if " 200 " not in lines[0]:
        raise RuntimeError(lines[0])
    size = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
    return await reader.readexactly(size)


async def ask(port, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await answer_of(reader)
    finally:
        writer.close()


async def watch_health(port, over):
    """Milliseconds of each look, each on a connection of its own, and in a process of its own: this one is busy."""
    took = []
    while not over.is_set():
        begin = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: seer\r\n\r\n")
        await answer_of(reader)
        writer.close()
        took.append((time.monotonic() - begin) * 1e3)
        await asyncio.sleep(0.05)
    return took


def health_process(port, over, out):
    out.send(asyncio.run(watch_health(port, over)))


def shares(values):
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p99": ordered[int(len(ordered) * 0.99)], "max": ordered[-1], "looks": len(ordered)}


def rollout_lines(folder, limit):
    out = f"{folder}/out.jsonl"
    subprocess.run([asked.seer, "rollout", "--model", MODEL, "--prompts", PROMPTS, "--limit", str(limit), "--group-size", "8",
                          "--max-tokens", "1024", *MACHINE, "--policy", asked.policy, "--out", out, "--report", f"{folder}/report.json"],
                         check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(out) as lines, open(f"{folder}/report.json") as report:
        return [json.loads(line) for line in lines], json.load(report)


async def send_all(port, lines):
    bodies = [http_bytes("/generate", {"input_ids": r["prompt_ids"], "return_logprob": True,
                                       "sampling_params": {"max_new_tokens": 1024, "sampling_seed": r["seed"]}}) for r in lines]
    begin = time.monotonic()
    answers = await asyncio.gather(*(ask(port, body) for body in bodies))
    return [json.loads(a) for a in answers], time.monotonic() - begin


def served_figures(lines):
    served = Served(*MACHINE, "--policy", asked.policy)
    try:
        cpu_s, client_s = process_figures(served.process.pid)["cpu_s"], time.process_time()
        answers, seconds = asyncio.run(send_all(served.port, lines))
        client_s = time.process_time() - client_s
        return answers, seconds, process_figures(served.process.pid)["cpu_s"] - cpu_s, client_s
    finally:
        served.stop()


def throughput():
    """The sides of a pair take turns in being first. A rollout before all pairs gives the prompts, seeds and responses."""
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        lines = rollout_lines(folder, asked.limit)[0]
        for pair in range(asked.pairs):
            if pair % 2 == 0:
                report = rollout_lines(folder, asked.limit)[1]
            answers, seconds, cpu_s, client_s = served_figures(lines)
            if pair % 2 == 1:
                report = rollout_lines(folder, asked.limit)[1]
            tokens = report["output_tokens"]
            pairs.append({"responses": len(lines), "differences": sum(a["output_ids"] != r["output_ids"] for a, r in zip(answers, lines)),
                          "tokens_per_s": {"served": tokens / seconds, "rollout": report["tokens_per_s"],
                                           "ratio": tokens / seconds / report["tokens_per_s"]},
                          "cpu_us_per_token": {"served": cpu_s / tokens * 1e6, "client": client_s / tokens * 1e6,
                                               "rollout": report["cpu_total_s"] / tokens * 1e6}})
    cpu = [pair["cpu_us_per_token"] for pair in pairs]
    return {"pairs": pairs, "ratio_median": statistics.median(pair["tokens_per_s"]["ratio"] for pair in pairs),
            "cpu_ratio_median": statistics.median(c["rollout"] / (c["served"] + c["client"]) for c in cpu)}


async def hold(served, count):
    """Paused first, so that all requests are held at once; then generation goes on."""
    over = multiprocessing.Event()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    health = multiprocessing.Process(target=health_process, args=(served.port, over, sender))
    health.start()
    bodies = [http_bytes("/generate", {"input_ids": [2 + i % 200, 3, 4 + i // 200], "sampling_params": {"max_new_tokens": 16, "ignore_eos": True}})
              for i in range(count)]
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, served.post, "/pause_generation")
    answers = [asyncio.create_task(ask(served.port, body)) for body in bodies]
    await loop.run_in_executor(None, served.wait_until, lambda load: load["num_waiting_reqs"] == count)
    held = process_figures(served.process.pid)
    begin = time.monotonic()
    await loop.run_in_executor(None, served.post, "/continue_generation")
    whole = sum(len(json.loads(text)["output_ids"]) == 16 for text in await asyncio.gather(*answers))
    seconds = time.monotonic() - begin
    over.set()
    looks = receiver.recv()
    health.join()
    return {"requests": count, "answered_whole": whole, "rss_mib_while_held": held["rss_mib"], "files_while_held": held["files"],
            "answered_in_s": seconds, "health_ms": shares(looks)}


def http_thread_cpu_s(pid):
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as stat:
            name, fields = stat.read().split("(", 1)[1].rsplit(")", 1)
        if name == "seer.http":
            ticks = fields.split()
            return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    raise RuntimeError("the server has no thread seer.http")


async def read_stream(port, number, tokens, incremental):
    """How many events came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    writer.write(http_bytes("/generate", {"input_ids": [2 + number % 200, 3, 4], "return_logprob": True, "stream": True, "incremental": incremental,
                                          "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}))
    await reader.readuntil(b"\r\n\r\n")
    events = 0
    while size := int(await reader.readline(), 16):
        events += (await reader.readexactly(size + 2)).count(b"data: ")
    writer.close()
    return events


async def stream(served, count, incremental, tokens=1000):
    begin = http_thread_cpu_s(served.process.pid)
    events = sum(await asyncio.gather(*(read_stream(served.port, i, tokens, incremental) for i in range(count))))
    cpu_us = (http_thread_cpu_s(served.process.pid) - begin) * 1e6
    return {"streams": count, "tokens": count * tokens, "events": events, "http_us_per_token": cpu_us / count / tokens, "http_us_per_event": cpu_us / events}


async def go_away(port, count):
    """Clients that ask for a long response and leave at once."""
    body = http_bytes("/generate", {"input_ids": [2, 3, 4], "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}})
    limit = asyncio.Semaphore(64)

    async def one():
        async with limit:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(body)
            await writer.drain()
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(count)))


def main():
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    result = {"throughput": throughput()} if asked.pairs > 0 else {}
    served = Served(*MACHINE)
    if asked.requests > 0:
        result["held"] = asyncio.run(hold(served, asked.requests))
        result["held"]["rss_mib_max"] = process_figures(served.process.pid)["rss_mib_max"]
    if asked.streams > 0:
        result["streams"] = {name: asyncio.run(stream(served, asked.streams, name == "incremental")) for name in ("repeated", "incremental")}
    parts = 10
    gone = []
    for _ in range(parts if asked.gone > 0 else 0):
        asyncio.run(go_away(served.port, asked.gone // parts))
        served.wait_until(lambda load: load["num_reqs"] == 0)
        figures = process_figures(served.process.pid)
        gone.append({"rss_mib": figures["rss_mib"], "files": figures["files"]})
    if gone:
        result["gone"] = {"clients": asked.gone, "after_each_part": gone}
    result["exit_code"] = served.stop()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
