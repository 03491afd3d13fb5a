#!/usr/bin/env python3
"""Many weight updates of `seer serve` under load, from one source or from several in turn. Prints JSON:
  mixed         whole responses that are not those of the weights which their weight_version names: 0 if no response mixes versions
  update_ms     by source: an update, from request to answer; copy_ms: copying the weights' file from memory to memory, in the same run
  rss_mib       memory of the server after each tenth of the updates; uploads_left: memory of uploads that it still has at the end
sources: folder; shm: a folder in /dev/shm; stream: sent as one body; tensors: sent tensor by tensor by the Python client; group: over a
  gloo group of torch, in parts of 512 MiB (needs a Python with torch; --mode is not for it)
usage: bench_updates.py [--source folder,shm,stream,tensors,group] [--updates N] [--clients N] [--mode abort|retract|drain]
                        [--model DIR] [--seer PROGRAM]"""
import argparse, json, os, shutil, statistics, sys, tempfile, threading, time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
options = argparse.ArgumentParser(usage=__doc__)
options.add_argument("--source", default="folder")
options.add_argument("--updates", type=int, default=1000)
options.add_argument("--clients", type=int, default=8)
options.add_argument("--mode", choices=["abort", "retract", "drain"], default="abort")
options.add_argument("--model", help="with one model.safetensors [the shipped one]")
options.add_argument("--seer", default=f"{ROOT}/build/release/bin/seer")
asked = options.parse_args()
sys.argv = [sys.argv[0], asked.seer]
sys.path[:0] = [f"{ROOT}/tests/integration", f"{ROOT}/deploy/client"]
if "group" in asked.source.split(","):
    import torch  # before weights_group looks for a Python that has it
import served
served.MODEL = asked.model or served.MODEL  # before others take it from there
from seer_client import Client
from served import MODEL, Served
from turned_model import turned_model
from weights import memories_of, read_tensors

SAMPLING = {"max_new_tokens": 40, "temperature": 0}
PART_BYTES = 512 << 20  # slime's --update-weight-buffer-size


def prompt_of(client):
    return [2, 3, 4 + client % 16]


def expected(server):
    return [tuple(server.generate(prompt_of(client), sampling_params=SAMPLING)["output_ids"]) for client in range(asked.clients)]


def copy_ms(path):
    with open(path, "rb") as file:
        data = bytearray(file.read())
    took = []
    for _ in range(20):
        begin = time.perf_counter()
        bytes(data)
        took.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(took)


class Sources:
    """The ways to one of the two sets of weights, by name: how to change to it."""

    def __init__(self, server, folders, shm, has_group):
        self.server, self.client = server, Client(f"127.0.0.1:{server.port}")
        self.folders = {"folder": folders, "shm": [shutil.copytree(folder, f"{shm}/{i}") for i, folder in enumerate(folders)]}
        self.tensors = [read_tensors(folder) for folder in folders]
        self.bodies = []
        for folder in folders:
            with open(f"{folder}/model.safetensors", "rb") as file:
                self.bodies.append(file.read())
        if has_group:
            from weights_group import Member, Trainer
            self.member, self.trainer = Member(f"127.0.0.1:{server.port}"), Trainer(server.port)
            self.trainer.join()

    def send_over_group(self, tensors):
        self.server.post("/pause_generation")
        part, part_bytes = [], 0
        for tensor in tensors:
            if part and part_bytes + len(tensor[3]) > PART_BYTES:
                self.trainer.send(part, None)
                part, part_bytes = [], 0
            part.append(tensor)
            part_bytes += len(tensor[3])
        self.trainer.send(part, None)
        self.server.post("/continue_generation")

    def close(self):
        self.client.close()
        if hasattr(self, "member"):
            self.trainer.leave()
            self.member.stop()

    def update(self, source, i):
        if source == "stream":
            self.server.post(f"/seer/v1/weights?mode={asked.mode}", self.bodies[i])
        elif source == "tensors":
            self.client.update_weights_from_tensors(self.tensors[i], mode=asked.mode)
        elif source == "group":
            self.send_over_group(self.tensors[i])
        else:
            self.server.post("/update_weights_from_disk", {"model_path": self.folders[source][i], "mode": asked.mode})


def main():
    names = asked.source.split(",")
    with tempfile.TemporaryDirectory() as work, tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        folders = [MODEL, turned_model(work)]  # odd versions have the weights of the first, even ones those of the second
        right = []
        for folder in folders:
            server = Served("--model", folder)
            right.append(expected(server))
            server.stop()
        server = Served()
        sources = Sources(server, folders, shm, "group" in names)
        over = threading.Event()
        answers = []

        def client(i):
            while not over.is_set():
                answer = server.generate(prompt_of(i), sampling_params=SAMPLING)
                meta = answer["meta_info"]
                whole = meta["finish_reason"]["type"] != "abort"
                is_right = tuple(answer["output_ids"]) == right[(int(meta["weight_version"]) - 1) % 2][i] if whole else None
                answers.append((whole, is_right))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(asked.clients)]
        for thread in threads:
            thread.start()
        took, rss = {name: [] for name in names}, []
        for version in range(2, asked.updates + 2):
            source = names[(version // 2) % len(names)]  # each has both sets of weights in turn
            begin = time.perf_counter()
            sources.update(source, (version - 1) % 2)
            took[source].append((time.perf_counter() - begin) * 1e3)
            if (version - 1) % max(1, asked.updates // 10) == 0:
                with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
                    rss.append(int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024)
        over.set()
        for thread in threads:
            thread.join()
        version = server.call("GET", "/get_weight_version")[1]["weight_version"]
        sources.close()
        left = memories_of(server)
        code = server.stop()
        print(json.dumps({
            "updates": asked.updates, "mode": asked.mode, "version": version, "exit_code": code, "responses": len(answers),
            "aborted": sum(not whole for whole, _ in answers), "mixed": sum(is_right is False for _, is_right in answers),
            "weights_differ": right[0] != right[1], "update_ms": {
                name: {"p50": statistics.median(ms), "p99": sorted(ms)[int(len(ms) * 0.99)]} for name, ms in took.items()},
            "copy_ms": copy_ms(f"{MODEL}/model.safetensors"), "rss_mib": rss, "uploads_left": left}, indent=1))


main()
