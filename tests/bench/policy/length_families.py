#!/usr/bin/env python3
"""Measures the gain of policies over `divided-rr` with lengths that they do and do not assume.

Runs `seer simulate` on a small cluster (Moonlight on 8 H800, 100 groups of 8) for families of response lengths and for
several correlations within a group (icc). Each policy gets the same lengths as `divided-rr` under the same seed. A speedup is the
ratio of their totals: the mean of its logarithm over the seeds, with its 95 % interval (Student's t).

  lognormal   what the estimates of `seer` and `seer+` assume
  bimodal     a tenth of the requests is four times as long, whatever their group
  runaway     2 % of the requests run to the limit, whatever their group
  drift       groups grow longer, e^1.5-fold from the first to the last: early finishes mislead

usage: length_families.py SEER_PROGRAM [--seeds 10] [--icc 0.3,0.5,0.7,0.9,0.95] [--families ...] [--policies ...]
       [--groups 100] [--instances 8] [--unexplained X] [--json]
"""
import argparse, json, math, os, subprocess, sys, tempfile

FAMILIES = {"lognormal": {}, "bimodal": {"long-share": 0.1, "long-ratio": 4.0}, "runaway": {"runaway-share": 0.02},
            "drift": {"drift": 1.5}}
BASE = "divided-rr"
T_975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
         2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]  # by degrees of freedom


def report_of(program, *options):
    """Of `seer simulate`, a row per policy."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        done = subprocess.run([program, "simulate", *options, "--report", report], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        with open(report, encoding="utf-8") as file:
            return json.load(file)


def simulate(o, folder, family, icc, seed):
    """Total and tail of each policy, in seconds."""
    keys = {"gpu": "H800", "model": "Moonlight", "instances": o.instances, "groups": o.groups, "group-size": 8,
            "prompt-tokens": 512, "max-gen": 65536, "avg-gen": 22386.0, "sigma": 0.7, "icc": icc, **FAMILIES[family]}
    workload = os.path.join(folder, "workload.toml")
    with open(workload, "w") as file:
        file.write("[workload]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    rows = report_of(o.program, "--workload", workload, "--policies", ",".join(o.policies), "--seeds", "1", "--seed", str(seed),
                     "--unexplained", str(o.unexplained))
    return {row["policy"]: (row["total_s"]["mean"], row["tail_s"]["mean"]) for row in rows}


def interval(values):
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, math.inf
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    degrees = len(values) - 1
    return mean, (T_975[degrees - 1] if degrees <= len(T_975) else 1.96) * deviation / math.sqrt(len(values))


def cell(runs, policy, family, icc):
    mean, half = interval([math.log(run[BASE][0] / run[policy][0]) for run in runs])
    verdict = "wins" if mean > half else "loses" if mean < -half else "even"
    finite = math.isfinite(half)
    return {"family": family, "icc": icc, "policy": policy, "seeds": len(runs), "speedup_vs_divided_rr": math.exp(mean),
            "low": math.exp(mean - half) if finite else None, "high": math.exp(mean + half) if finite else None,
            "verdict": verdict, "total_s": interval([run[policy][0] for run in runs])[0],
            "tail_s": interval([run[policy][1] for run in runs])[0]}


def print_table(o, cells):
    print("speedup over divided-rr [95 % interval]; + and - where the interval lies on one side of 1\n")
    shown = [p for p in o.policies if p != BASE]
    print(f"{'family':11}{'icc':>5}" + "".join(f"{p:>22}" for p in shown))
    for family in o.families:
        for icc in o.icc:
            line = f"{family:11}{icc:>5}"
            for policy in shown:
                c = next(c for c in cells if (c["family"], c["icc"], c["policy"]) == (family, icc, policy))
                around = f" [{c['low']:.2f}, {c['high']:.2f}]" if c["low"] else ""
                line += f"{c['speedup_vs_divided_rr']:.2f}{around} {'+-='[['wins', 'loses', 'even'].index(c['verdict'])]}".rjust(22)
            print(line)
    for policy in shown:
        print(f"\n{policy}:")
        for verdict in ("wins", "loses", "even"):
            where = [f"{c['family']} {c['icc']}" for c in cells if c["policy"] == policy and c["verdict"] == verdict]
            print(f"  {verdict:6}{', '.join(where) or 'nowhere'}")


def main():
    names = lambda text: text.split(",")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("--seeds", type=int, default=10)
    p.add_argument("--icc", type=lambda text: [float(x) for x in text.split(",")], default=[0.3, 0.5, 0.7, 0.9, 0.95])
    p.add_argument("--families", type=names, default=list(FAMILIES))
    p.add_argument("--policies", type=names, default=[BASE, "las", "seer", "seer+", "oracle"])
    p.add_argument("--groups", type=int, default=100)
    p.add_argument("--instances", type=int, default=8)
    p.add_argument("--unexplained", type=float, default=1.0)
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    if BASE not in o.policies:
        p.error(f"--policies: expected {BASE} among them")
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for family in o.families:
            for icc in o.icc:
                print(f"  {family}, icc {icc}", file=sys.stderr)
                runs = [simulate(o, folder, family, icc, seed) for seed in range(1, o.seeds + 1)]
                cells += [cell(runs, policy, family, icc) for policy in o.policies if policy != BASE]
    if o.json:
        for c in cells:
            print(json.dumps(c))
    else:
        print_table(o, cells)


if __name__ == "__main__":
    main()
