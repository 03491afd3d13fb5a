#!/usr/bin/env python3
"""What each part of `seer+` is worth: simulates the paper's workloads with a part left out (`--without`), and with what it is made of.

Prints JSON, a line per workload and variant: how much longer its total and its tail are than those of `seer+` under the same seeds (mean
of the logarithm of their ratio, with its 95 % interval), and how many chunks moved.

usage: seer_plus_parts.py SEER_PROGRAM [--seeds 8] [--seed 1000] [--workloads ...] [--jobs 2]
"""
import argparse, concurrent.futures, json, math

from length_families import interval, report_of

WORKLOADS = ["moonlight", "qwen2-vl-72b", "kimi-k2"]
PARTS = ["need", "yield", "nearby", "spread"]  # and probes, where lengths are predicted
WHOLE = "seer+"
VARIANTS = {  # policy and options
    WHOLE: ["seer+"],
    "divided-rr": ["divided-rr"],
    "divided-rr that fills KV": ["divided-rr", "--reserve", "0.1"],
    "las that fills KV": ["las", "--reserve", "0.1"],
    "without all parts": ["seer+", "--without", ",".join(PARTS)],
    **{f"without {part}": ["seer+", "--without", part] for part in PARTS},
    "without filling KV": ["seer+", "--reserve", "1"],
    "with predicted lengths": ["seer+", "--unexplained", "0"],
    "with predicted lengths, without probes": ["seer+", "--unexplained", "0", "--without", "probes"],
}


def simulate(program, workload, variant, seed):
    policy, *options = VARIANTS[variant]
    return report_of(program, "--workload", workload, "--policies", policy, "--seeds", "1", "--seed", str(seed), *options)[0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("--seeds", type=int, default=8)
    p.add_argument("--seed", type=int, default=1000)
    p.add_argument("--workloads", type=lambda text: text.split(","), default=WORKLOADS)
    p.add_argument("--jobs", type=int, default=2)
    o = p.parse_args()
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        for workload in o.workloads:
            seeds = range(o.seed, o.seed + o.seeds)
            runs = {variant: [pool.submit(simulate, o.program, workload, variant, seed) for seed in seeds] for variant in VARIANTS}
            whole = [run.result() for run in runs[WHOLE]]
            for variant, found in runs.items():
                line = {"bench": "seer_plus_parts", "workload": workload, "variant": variant, "seeds": o.seeds}
                pairs = list(zip(whole, [run.result() for run in found]))
                for figure in ("total_s", "tail_s"):
                    mean, half = interval([math.log(other[figure]["mean"] / of_whole[figure]["mean"]) for of_whole, other in pairs])
                    line[figure.replace("_s", "_ratio")] = [round(math.exp(mean), 4), round(math.exp(mean) * half, 4)]
                line["migrations"] = round(sum(other["migrations"]["mean"] for _, other in pairs) / o.seeds)
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
