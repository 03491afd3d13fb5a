"""The rollout figures of the paper (v3), and how each is taken from simulated runs.

A row is a figure of the paper and a function of runs with the same seed: speed-ups and tails are against veRL under the same
lengths. `iterations`: over how many iterations the paper's figure is a mean.
"""

# Figure 8, bar labels: seconds of an iteration (mean of 5), and of its last 10 % of requests. Seer is with drafting.
FIGURE8 = {
    "moonlight": {"verl": (3910, 1817), "seer+sd": (2181, 278)},
    "qwen2-vl-72b": {"verl": (3957, 2301), "seer+sd": (1922, 123)},
    "kimi-k2": {"verl": (12202, 3144), "seer+sd": (8267, 850)},
}
# Section 4.2.2 and Figure 3: one iteration of Qwen2-VL-72B under veRL. 37 % idle are 1580 s; the gap is from the first instance
# that is done to the last; the last 5 % of the requests started at 42 % of the time, on average.
FIGURE3 = {"preemptions": 13686, "idle_share": 0.37, "instance_gap": 0.70, "late_start_share": 0.42}
# Table 4, throughput in the 5th iteration.
TABLE4 = {
    "moonlight": {"divided": 1.41, "seer": 1.47, "seer+sd": 1.90},
    "qwen2-vl-72b": {"divided": 1.42, "seer": 1.56, "seer+sd": 2.04},
    "kimi-k2": {"divided": 1.16, "seer": 1.27, "seer+sd": 1.53},
}
TABLE4_NAMES = {"divided": "+divided", "seer": "+context (seer)", "seer+sd": "+grouped SD (seer+sd)"}
# Figure 7, throughput by group size, mean of 5 iterations.
FIGURE7_POLICIES = ["verl+sd", "streamrl-oracle", "streamrl-oracle+sd", "seer+sd"]
FIGURE7 = {
    "moonlight": {8: [1.16, 1.21, 1.62, 1.78], 16: [1.34, 1.30, 1.56, 1.83]},
    "qwen2-vl-72b": {8: [1.14, 1.33, 1.46, 1.82], 16: [1.08, 1.43, 1.57, 2.04]},
    "kimi-k2": {8: [1.26, 0.99, 1.09, 1.48], 16: [1.22, 0.94, 1.02, 1.44]},
}
# Figure 10, Qwen2-VL-72B: throughput and tail, of veRL's.
FIGURE10 = {"divided": (1.42, 0.79), "seer": (1.56, 0.11), "oracle": (1.63, 0.00)}
# Figure 11: speed-up over no drafting and mean acceptance length, in one iteration under veRL, of the usual way to draft for the
# model (suffixes of the own text, a draft model, multi-token prediction) and of drafts from the group. The lengths are inputs.
FIGURE11 = {
    "moonlight": {"verl+sd": (1.18, 1.67), "verl+group": (1.26, 1.89)},
    "qwen2-vl-72b": {"verl+sd": (1.06, 2.19), "verl+group": (1.38, 2.15)},
    "kimi-k2": {"verl+sd": (1.22, 1.74), "verl+group": (1.25, 1.77)},
}
FIGURE11_NAMES = {"verl+sd": "vanilla", "verl+group": "grouped"}

POLICIES = ["verl", "divided", "divided-rr", "las", "seer", "seer+", "oracle"]
GROUP_SIZE = {"moonlight": 8, "qwen2-vl-72b": 16, "kimi-k2": 8}

# The fit of the veRL row: the grid, and what it is held against.
SIGMAS = {"moonlight": [0.6, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6, 2.0], "qwen2-vl-72b": [0.85, 1.0, 1.15, 1.3, 1.6, 2.0], "kimi-k2": [0.7, 0.85, 1.0]}
ICCS = {"moonlight": [0.5, 0.73, 0.9, 0.97], "qwen2-vl-72b": [0.5, 0.73, 0.9, 0.97], "kimi-k2": [0.5, 0.73, 0.9]}
RESERVES = {"moonlight": [0.1, 0.3, 0.4, 0.5]}  # shares of GPU memory that are not the engine's. veRL's default leaves it half
VERIFY_ROW = ("moonlight", 1.16)  # Figure 7, groups of 8: verl+sd over verl; the only row that the verify factor is fitted to
WATERMARKS = {"qwen2-vl-72b": [0.0, 0.0005, 0.001, 0.002, 0.005, 0.01]}  # preemptions are published for this workload only


def cases(name, without_drafting):
    """What is simulated of a workload. POLICY@N: in groups of N, as many requests; verl+group: `verl` drafting from the group."""
    if without_drafting:
        return POLICIES
    other = 24 - GROUP_SIZE[name]
    drafting = ["seer+sd", "streamrl-oracle", "verl+group", "verl+sd", "streamrl-oracle+sd", "seer++sd"]
    return drafting + [f"{policy}@{other}" for policy in ["verl"] + FIGURE7_POLICIES]


def speedup(baseline, run):
    return baseline["total_s"] / run["total_s"]


def rows_of(name):
    """(figure, row, paper's value or None, iterations, cases, function of a run of each case)"""
    for policy, (total_s, tail_s) in FIGURE8[name].items():
        yield "Figure 8", f"{policy}: total, s", total_s, 5, [policy], lambda run: run["total_s"]
        yield "Figure 8", f"{policy}: tail, s", tail_s, 5, [policy], lambda run: run["tail_s"]
    (verl_total, verl_tail), (_, seer_tail) = FIGURE8[name].values()
    yield "Figure 8", "verl: tail / total", verl_tail / verl_total, 5, ["verl"], lambda run: run["tail_s"] / run["total_s"]
    yield ("Figure 8", "tail cut by seer+sd", 1 - seer_tail / verl_tail, 5, ["verl", "seer+sd"],
           lambda verl, run: 1 - run["tail_s"] / verl["tail_s"])
    for policy, paper in TABLE4[name].items():
        yield "Table 4", TABLE4_NAMES[policy], paper, 1, ["verl", policy], speedup
    yield "Table 4", "+grouped SD over +context", TABLE4[name]["seer+sd"] / TABLE4[name]["seer"], 1, ["seer", "seer+sd"], speedup
    for policy in ["divided-rr", "las", "seer+", "oracle"]:
        yield "Table 4", f"({policy})", None, 1, ["verl", policy], speedup
    yield "Table 4", "(seer++sd)", None, 1, ["verl", "seer++sd"], speedup
    yield "Table 4", "(lower bound, without drafting)", None, 1, ["verl"], lambda verl: verl["total_s"] / verl["bound_total_s"]
    for size, papers in FIGURE7[name].items():
        at = "" if size == GROUP_SIZE[name] else f"@{size}"
        for policy, paper in zip(FIGURE7_POLICIES, papers):
            yield "Figure 7", f"G={size} {policy}", paper, 5, ["verl" + at, policy + at], speedup
    if name == "qwen2-vl-72b":
        for policy, (ratio, tail) in FIGURE10.items():
            yield "Figure 10", f"{policy}: throughput", ratio, 1, ["verl", policy], speedup
            yield "Figure 10", f"{policy}: tail of veRL's", tail, 1, ["verl", policy], lambda verl, run: run["tail_s"] / verl["tail_s"]
        for key, paper in FIGURE3.items():
            yield "Figure 3", f"verl: {key}", paper, 1, ["verl"], lambda run, key=key: run[key]
    for policy, (ratio, accepted) in FIGURE11[name].items():
        yield "Figure 11", f"{FIGURE11_NAMES[policy]}: speed-up", ratio, 1, ["verl", policy], speedup
        yield "Figure 11", f"{FIGURE11_NAMES[policy]}: accepted", accepted, 1, [policy], lambda run: run["acceptance_length"]
    for policy in POLICIES:
        yield "Policies", f"{policy}: tail of veRL's", None, 1, ["verl", policy], lambda verl, run: run["tail_s"] / verl["tail_s"]
        yield "Policies", f"{policy}: share of the bound", None, 1, [policy], lambda run: run["bound_total_s"] / run["total_s"]
    for one, other in [("seer", "divided"), ("seer", "divided-rr"), ("seer+", "seer"), ("seer+", "divided-rr"), ("seer+", "oracle")]:
        paper = TABLE4[name]["seer"] / TABLE4[name]["divided"] if (one, other) == ("seer", "divided") else None
        yield "Policies", f"{one} over {other}", paper, 1, [other, one], speedup
    for policy in ["verl", "verl+sd", "verl+group"]:
        yield "Policies", f"{policy}: preemptions", None, 1, [policy], lambda run: run["preemptions"]
