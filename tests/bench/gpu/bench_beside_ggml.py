#!/usr/bin/env python3
"""Steps of the CPU engine beside those of ggml, the kernels of llama.cpp, in turn: the shape of Qwen2.5-0.5B with random weights, bf16,
int8 and w8a8 (ggml: q8_0), contexts of 64 tokens. Prints JSON: tokens/s, their ratio in each round, and shares of the machine's limits as
bench_engine defines them.

    bench_beside_ggml.py BIN MODEL [--rounds 4] [--threads 2] [--dtypes bf16,int8] [--cases decode1,decode16,decode64,prefill512]

BIN is the folder of bench_engine and ggml_steps, which is built where CMake finds ggml (-DCMAKE_PREFIX_PATH=...). MODEL is what
`/usr/bin/python3 tests/oracle/make_model.py MODEL 0.5b` made. Where other programs run, put `chrt -f 10` before the command.
"""
import argparse
import json
import re
import statistics
import subprocess

STEPS = {"decode1": 12, "decode16": 4}  # of each program in a round; of others, 3


def last_line(command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bin")
    p.add_argument("model")
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--threads", default="2")
    p.add_argument("--dtypes", default="bf16,int8")
    p.add_argument("--cases", default="decode1,decode16,decode64,prefill512")
    o = p.parse_args()
    points = {(dtype, case): [] for dtype in o.dtypes.split(",") for case in o.cases.split(",")}
    for _ in range(o.rounds):
        for (dtype, case), pairs in points.items():
            phase, count = re.fullmatch(r"(decode|prefill)(\d+)", case).groups()
            steps = str(STEPS.get(case, 3))
            shape = ["--batch", count, "--context", "64", "--prefill", "0"] if phase == "decode" else ["--batch", "1", "--context", "0", "--prefill", count]
            ggml = last_line([f"{o.bin}/ggml_steps", "bf16" if dtype == "bf16" else "q8_0", case, steps, o.threads])
            seer = last_line([f"{o.bin}/bench_engine", "--model", o.model, "--threads", o.threads, *shape, "--verify-rows", "0", "--dtype", dtype,
                              "--rounds", steps, "--json"])
            pairs.append((ggml, seer))
    for (dtype, case), pairs in points.items():
        middle = lambda values: round(statistics.median(values), 3)
        ratios = [seer["tokens_per_s"] / ggml["tokens_per_s"] for ggml, seer in pairs]
        print(json.dumps({
            "bench": "beside_ggml", "dtype": dtype, "case": case, "isa": pairs[0][1]["isa"], "threads": int(o.threads), "rounds": o.rounds,
            "ggml_tokens_per_s": middle([ggml["tokens_per_s"] for ggml, _ in pairs]),
            "tokens_per_s": middle([seer["tokens_per_s"] for _, seer in pairs]), "ratio": middle(ratios),
            "ratios": [round(ratio, 2) for ratio in ratios], "bandwidth_share": middle([seer["bandwidth_share"] for _, seer in pairs]),
            "peak_share": middle([seer["peak_share"] for _, seer in pairs]), "ggml_buffers_mb": pairs[0][0]["buffers_mb"]}))


if __name__ == "__main__":
    main()
