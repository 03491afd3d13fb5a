#!/usr/bin/env python3
"""The paper's Table 4 and Figures 3, 7, 8, 10 and 11 (v3 numbering) beside `seer simulate`.

With --fit: fits the spread of lengths `sigma`, their correlation within a group `icc`, `time-scale`, (Qwen2-VL-72B) the share of KV
that stays free when veRL admits a request and (Moonlight) the share of GPU memory that is not the engine's, on the veRL row alone,
and writes them into deploy/sim/*.toml. With --fit-verify: finds the factor of steps that verify drafts (verify_factor of
deploy/sim/hardware.json) that gives the paper's verl+sd row of Moonlight, and prints it. Without either:
predicts every row with the shipped values, over seeds that the fit has not seen, and prints it beside the paper's. The paper's
Table 2 (how many draft tokens are accepted) is an input of the simulator. A run is one process with one seed. --runs keeps all
runs, and a later call with that file adds missing ones (use a new file for a new build). Tables are made of all runs in it. --trial
shows what other values would do to all rows: whether one of them explains the rows that miss.

usage: reproduce.py SEER_PROGRAM --fit --fit-seeds 5 --runs fit.jsonl
       reproduce.py SEER_PROGRAM --seeds 20 --draft-seeds 5 --runs runs.jsonl --out rows.json
       reproduce.py SEER_PROGRAM --trial verify-factor=1.3 --workloads kimi-k2 --seeds 3 --draft-seeds 3 --runs runs.jsonl
       reproduce.py SEER_PROGRAM --correlations 0.1,0.3,0.5,0.73,0.9 --workloads moonlight --seeds 10 --runs runs.jsonl
"""
import argparse, json, math, os, re, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor

from paper_rows import FIGURE3, FIGURE8, ICCS, POLICIES, RESERVES, SIGMAS, VERIFY_ROW, WATERMARKS, cases, rows_of

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../deploy/sim")
FIRST_SEED = 1000  # of the predictions; the fit uses 1, 2, ...
USUAL_RESERVE = 0.5  # veRL: gpu_memory_utilization 0.5
PUBLISHED_ICC = 0.73  # TailSieve: (65 % by prompt + 7 % interaction) / 98 % of the variance of the lengths
COSTS = {"verify-factor", "dense-verify-factor"}  # constants of the engine, not of the workload
CLOSE = 0.05  # relative: the fit does not tell apart what is by so little further from the paper's
TAIL_KEPT = 0.1  # relative: as far may a fit to the preemptions move the tail
# Student's t, 97.5 %, for 1, 2, ... degrees of freedom.
T975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
        2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]


# ---- runs ----

def workload_text(name, values):
    """The shipped workload with some keys replaced."""
    text = open(os.path.join(DEPLOY, name + ".toml")).read()
    for key, value in values.items():
        text, count = re.subn(rf"(?m)^{key} = [^#\n]*", lambda _: f"{key} = {value!r} ".ljust(28), text)
        if count != 1:
            sys.exit(f"{name}.toml: expected one key {key}, found {count}")
    return text


def workload_values(name):
    """The shipped numbers, by key."""
    return {k: float(v) for k, v in re.findall(r"(?m)^([a-z-]+) = ([0-9.]+)", workload_text(name, {}))}


class Runs:
    """Simulated iterations by what went into them: workload, values in place of the shipped ones, case (cases()) and seed."""

    def __init__(self, program, path, jobs):
        self.program, self.path, self.pool, self.done = program, path, ThreadPoolExecutor(jobs), {}
        if path and os.path.exists(path):
            for record in map(json.loads, open(path)):
                self.done[record["work"], record["seed"]] = record["run"]

    def work(self, name, values, case):
        return json.dumps([name, case, {**workload_values(name), **values}], sort_keys=True)

    def by_seed(self, name, values, case, first, last):
        work = self.work(name, values, case)
        return {seed: run for (w, seed), run in self.done.items() if w == work and first <= seed <= last}

    def add_missing(self, wanted):
        """wanted: (name, values, case, seed), in the order in which they are to run."""
        keys = {(self.work(*w[:3]), w[3]): w for w in wanted}
        missing = {key: w for key, w in keys.items() if key not in self.done}
        for (work, seed), run in zip(missing, self.pool.map(lambda w: self.simulate(*w), missing.values())):
            self.done[work, seed] = run
            if self.path:
                with open(self.path, "a") as file:
                    file.write(json.dumps({"work": work, "seed": seed, "run": run}) + "\n")

    def simulate(self, name, values, case, seed):
        policy, _, group_size = case.partition("@")
        if group_size:
            shipped = workload_values(name)
            requests = shipped["groups"] * shipped["group-size"]
            values = {**values, "groups": round(requests / int(group_size)), "group-size": int(group_size)}
        with tempfile.TemporaryDirectory() as folder:
            workload, report, page, hardware, errors = (os.path.join(folder, f) for f in (name + ".toml", "report.json", "page.html",
                                                                                          "hardware.json", "errors"))
            values, text = dict(values), ""
            costs = {key.replace("-", "_"): {"value": values.pop(key), "source": "a trial of the fit"} for key in COSTS & values.keys()}
            options = [w for key in values.keys() - workload_values(name).keys() for w in (f"--{key}", str(values.pop(key)))]
            if costs:
                json.dump({"costs": costs}, open(hardware, "w"))
                text = 'hardware-file = "hardware.json"\n'
            open(workload, "w").write(workload_text(name, values).replace("[workload]\n", "[workload]\n" + text))
            command = [self.program, "simulate", "--workload", workload, "--seed", str(seed), "--seeds", "1", "--report", report,
                       "--html", page, "--policies", policy.replace("+group", "+sd"), *options]
            if policy.endswith("+group"):
                command += ["--drafter", "group"]
            status, cpu_s, peak_bytes = run_measured(command, errors)
            if status != 0:
                raise RuntimeError(f"{name} {case} seed {seed}: {open(errors).read()}")
            (row,) = json.load(open(report))
            run = {key: value["mean"] for key, value in row.items() if isinstance(value, dict)}
            run |= {"instance_gap": instance_gap(open(page).read()), "cpu_s": cpu_s, "peak_bytes": peak_bytes}
        print(f"  {name} {case} seed {seed}: {run['total_s']:.0f} s, tail {run['tail_s']:.0f} s", file=sys.stderr, flush=True)
        return run


def run_measured(command, errors):
    """Exit status, seconds of user and system time, and the most memory that was resident."""
    with open(errors, "w") as file:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss


def instance_gap(page):
    """The share of the time that is left when the first instance is done. The page has a text per instance, two characters for
    the KV used in each of equal spans of time, which keeps changing while the instance runs."""
    data = json.loads(re.search(r'<script type="application/json" id=data>(.*?)</script>', page, re.S).group(1))
    gap = 0
    for row in data[0]["policies"][0]["kv"]["rows"]:
        levels = [row[i : i + 2] for i in range(0, len(row), 2)]
        same = next((i for i, level in enumerate(reversed(levels)) if level != levels[-1]), len(levels))
        gap = max(gap, (same - 1) / len(levels))
    return gap


def mean(values):
    return sum(values) / len(values)


# ---- the fit ----

def fit(runs, name, seeds):
    """The values of the veRL row: sigma and icc on a grid, by the share of the tail (and, for the workload of Figure 3, the idle
    share, the gap between instances and the start of the last requests); there also the watermark, by preemptions; time-scale by
    the total, which it multiplies."""
    total_s, tail_s = FIGURE8[name]["verl"]
    paper = {"tail_share": tail_s / total_s, **(FIGURE3 if name in WATERMARKS else {})}
    fixed = {"time-scale": 1.0, "watermark-share": 0.0}

    def verl(values):
        runs.add_missing([(name, values, "verl", seed) for seed in range(1, seeds + 1)])
        found = list(runs.by_seed(name, values, "verl", 1, seeds).values())
        figures = {"tail_share": mean([r["tail_s"] for r in found]) / mean([r["total_s"] for r in found]),
                   **{key: mean([r[key] for r in found]) for key in ["total_s", *FIGURE3]}}
        print(f"{name} {values}: " + ", ".join(f"{k} {v:.3g}" for k, v in figures.items()), flush=True)
        return figures

    def off(found, keys):
        return sum(abs(math.log((found[key] + 1e-9) / paper[key])) for key in keys)

    shares = [key for key in paper if key != "preemptions"]
    def point_values(point):
        sigma, icc, reserve = point
        return {**fixed, "sigma": sigma, "icc": icc, **({} if reserve is None else {"kv-reserve-share": reserve})}

    grid = {point: verl(point_values(point)) for point in
            [(s, i, r) for r in RESERVES.get(name, [None]) for s in SIGMAS[name] for i in ICCS[name]]}
    # Many points give the same tail: of those about as close as the closest, the one nearest veRL's default of memory, then
    # nearest the published correlation.
    closest = min(off(found, shares) for found in grid.values())
    chosen = min((point for point in grid if off(grid[point], shares) <= closest + CLOSE),
                 key=lambda point: (abs((point[2] or USUAL_RESERVE) - USUAL_RESERVE), abs(point[1] - PUBLISHED_ICC), off(grid[point], shares)))
    values, found = point_values(chosen), grid[chosen]
    if name in WATERMARKS:
        trials = {share: verl({**values, "watermark-share": share}) for share in WATERMARKS[name]}
        keeps_tail = [share for share in trials if abs(math.log(trials[share]["tail_share"] / found["tail_share"])) <= TAIL_KEPT]
        values["watermark-share"] = min(keeps_tail, key=lambda share: off(trials[share], ["preemptions"]))
        found = trials[values["watermark-share"]]
    values["time-scale"] = round(total_s / found["total_s"], 3)
    print(f"{name}: {values}; tail {found['tail_share']:.1%} of the total (paper {paper['tail_share']:.1%})", flush=True)
    return values


def fit_verify(runs, seeds):
    """The factor with which verl+sd gains over verl what the paper says, by halving an interval."""
    name, paper = VERIFY_ROW
    low, high = 1.0, 2.0
    while high - low > 0.01:
        factor = round((low + high) / 2, 3)
        for case in ["verl", "verl+sd"]:
            runs.add_missing([(name, {"verify-factor": factor} if case == "verl+sd" else {}, case, seed) for seed in range(1, seeds + 1)])
        plain = runs.by_seed(name, {}, "verl", 1, seeds)
        found = runs.by_seed(name, {"verify-factor": factor}, "verl+sd", 1, seeds)
        gain = mean([plain[seed]["total_s"] / found[seed]["total_s"] for seed in found])
        print(f"verify_factor {factor}: verl+sd {gain:.3f} of verl (paper {paper})", flush=True)
        low, high = (factor, high) if gain > paper else (low, factor)
    return (low + high) / 2


def ship(name, values):
    """Writes fitted values and where they come from into the workload's file."""
    text = workload_text(name, values)
    for key in values if name in WATERMARKS else values.keys() - {"watermark-share"}:
        by = {"watermark-share": "preemptions, as far as its tail stays", "icc": f"total, tail; ties go to {PUBLISHED_ICC}"}.get(key, "total, tail")
        note = f"# fitted on the paper's veRL row ({by}) by tests/bench/paper/reproduce.py"
        text = re.sub(rf"(?m)^({key} = [^#\n]*?) *#.*$", lambda m: m.group(1).ljust(28) + note, text)
    open(os.path.join(DEPLOY, name + ".toml"), "w").write(text)


# ---- the tables ----

def interval(values, iterations):
    """Mean, half of its 95 % interval, and half of that in which the mean of so many further iterations would fall."""
    if len(values) < 2:
        return mean(values), None, None
    m = mean(values)
    deviation = math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - 1))
    t = T975[min(len(values) - 1, len(T975)) - 1]
    return m, t * deviation / math.sqrt(len(values)), t * deviation * math.sqrt(1 / len(values) + 1 / iterations)


def predicted_rows(runs, name, values):
    by_case = {}
    for figure, row, paper, iterations, needed, function in rows_of(name):
        for case in needed:
            if case not in by_case:
                by_case[case] = runs.by_seed(name, values, case, FIRST_SEED, FIRST_SEED + 999)
        seeds = sorted(set.intersection(*(set(by_case[case]) for case in needed)))
        if not seeds:
            continue
        m, ci95, spread = interval([function(*(by_case[case][seed] for case in needed)) for seed in seeds], iterations)
        mark = ""
        if paper is not None and ci95 is not None and abs(paper - m) > ci95:
            mark = "miss, within the spread of iterations" if abs(paper - m) <= spread else "miss"
        yield {"workload": name, "figure": figure, "row": row, "paper": paper, "mean": m, "ci95": ci95, "spread95": spread,
               "iterations_of_paper": iterations, "seeds": len(seeds), "mark": mark}


def figure_text(value):
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"


def print_rows(rows):
    """A table per figure, the workloads below each other."""
    for figure in dict.fromkeys(row["figure"] for row in rows):
        print(f"\n{figure:46}{'paper':>8}{'simulated':>18}{'off':>8}{'seeds':>7}")
        for row in (row for row in rows if row["figure"] == figure):
            off = f"{row['mean'] / row['paper'] - 1:+.0%}" if row["paper"] else "-"
            found = figure_text(row["mean"]) + (f" ± {figure_text(row['ci95'])}" if row["ci95"] is not None else "")
            print(f"{row['workload']:14}{row['row']:32}{figure_text(row['paper']):>8}{found:>18}{off:>8}{row['seeds']:>7}  {row['mark']}")


def print_costs(runs, names):
    """What the runs cost: each is one process with one thread that computes."""
    costs = {}
    for (work, _), run in runs.done.items():
        name, case, _ = json.loads(work)
        if name in names and "cpu_s" in run:
            costs.setdefault((name, case), []).append((run["cpu_s"], run["peak_bytes"]))
    print(f"\n{'Cost of a run':46}{'median, s':>11}{'most, s':>9}{'most, MB':>10}{'runs':>6}")
    for (name, case), values in sorted(costs.items()):
        seconds = sorted(cpu_s for cpu_s, _ in values)
        print(f"{name:14}{case:32}{seconds[len(seconds) // 2]:>11.1f}{seconds[-1]:>9.1f}{max(b for _, b in values) / 1e6:>10.0f}{len(values):>6}")
    print(f"all {sum(map(len, costs.values()))} runs: {sum(s for values in costs.values() for s, _ in values) / 60:.0f} min of one core")


def print_correlations(runs, name, iccs, seeds):
    """Policies by the correlation within groups, all else as shipped: throughput of `divided`'s, and their tails of veRL's."""
    cases_ = [policy for policy in POLICIES if policy != "las"]
    runs.add_missing([(name, {"icc": icc}, case, seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds) for icc in iccs for case in cases_])
    rows = []
    print(f"\n{name}, throughput of that of `divided` (tail of veRL's), {seeds} seeds\n{'icc':>6}" + "".join(f"{c:>22}" for c in cases_))
    for icc in iccs:
        found = {case: runs.by_seed(name, {"icc": icc}, case, FIRST_SEED, FIRST_SEED + seeds - 1) for case in cases_}
        line = f"{icc:>6}"
        for case in cases_:
            m, ci95, _ = interval([found["divided"][s]["total_s"] / found[case][s]["total_s"] for s in found[case]], 1)
            tail = mean([found[case][s]["tail_s"] / found["verl"][s]["tail_s"] for s in found[case]])
            rows.append({"workload": name, "icc": icc, "policy": case, "of_divided": m, "ci95": ci95, "tail_of_verl": tail, "seeds": seeds})
            line += f"{f'{m:.2f} ± {ci95 or 0:.2f} ({tail:.2f})':>22}"
        print(line)
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("--workloads", default=",".join(FIGURE8))
    p.add_argument("--fit", action="store_true", help="fit, write deploy/sim/*.toml, and stop")
    p.add_argument("--fit-verify", action="store_true", help="fit verify_factor, print it, and stop")
    p.add_argument("--fit-seeds", type=int, default=5)
    p.add_argument("--seeds", type=int, default=20, help="0: only print what --runs has")
    p.add_argument("--draft-seeds", type=int, default=5, help="of rows with drafting, and of the other group size")
    p.add_argument("--cases", help="simulate these of the policies only, e.g. seer+sd")
    p.add_argument("--trial", default="", help="KEY=VALUE,...: with these in place of the shipped: keys of a workload, [dense-]verify-factor, or "
                   "options of seer simulate, e.g. verify-factor=1.3,sigma=1.1")
    p.add_argument("--correlations", help="compare policies at these values of icc instead")
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--runs", help="FILE.jsonl that keeps all runs")
    p.add_argument("--out", help="FILE.json for the rows")
    o = p.parse_args()
    began = time.monotonic()
    trial = {key: json.loads(value) for key, value in (item.split("=") for item in o.trial.split(",") if item)}
    runs, rows = Runs(o.program, o.runs, o.jobs), []
    if o.fit_verify:
        print(f"verify_factor: {fit_verify(runs, o.fit_seeds):.2f}")
        return
    for name in o.workloads.split(","):
        if o.fit:
            ship(name, fit(runs, name, o.fit_seeds))
        elif o.correlations:
            rows += print_correlations(runs, name, [float(icc) for icc in o.correlations.split(",")], o.seeds)
        else:
            for without_drafting, seeds in [(True, o.seeds), (False, o.draft_seeds if o.seeds else 0)]:
                chosen = [case for case in cases(name, without_drafting) if not o.cases or case in o.cases.split(",")]
                runs.add_missing([(name, trial, case, FIRST_SEED + i) for i in range(seeds) for case in chosen])
            rows += predicted_rows(runs, name, trial)
    if not o.fit and not o.correlations:
        print_rows(rows)
        print_costs(runs, o.workloads.split(","))
    print(f"this call took {(time.monotonic() - began) / 60:.1f} min")
    if o.out:
        json.dump(rows, open(o.out, "w"), indent=1)


main()
