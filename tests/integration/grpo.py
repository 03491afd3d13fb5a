#!/usr/bin/env python3
"""deploy/examples/grpo: a short run with two policies, what ends a run, and that servers end with it. Needs torch, else skipped."""
import json, os, select, signal, subprocess, sys, tempfile, unittest

from python_with import python_with
from served import ROOT, SEER

GRPO = f"{ROOT}/deploy/examples/grpo/grpo.py"
TINY = ["--steps", "2", "--groups", "3", "--group-size", "4", "--terms", "2-4", "--held-out", "2", "--max-new", "400"]
PYTHON = python_with("torch")


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(child) for child in f.read().split()]


class Grpo(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = folder.name
        self.command = [PYTHON, GRPO, "--seer", SEER, "--out", self.out, *TINY]

    def run_grpo(self, *options):
        return subprocess.run([*self.command, *options], capture_output=True, text=True, timeout=200)

    def assert_ends(self, sentence, *options):
        ran = self.run_grpo(*options)
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn(sentence, ran.stderr)
        self.assertNotIn("Traceback", ran.stderr)

    def test_two_policies_and_one_give_the_same(self):
        both = self.run_grpo()
        self.assertEqual(both.returncode, 0, both.stderr)
        with open(f"{self.out}/steps.jsonl", encoding="utf-8") as f:
            steps = [json.loads(line) for line in f]
        self.assertEqual([step["weight_version"] for step in steps], [1, 2])
        for step in steps:
            self.assertEqual(set(step["rollout_s"]), {"verl", "seer"})
            self.assertEqual(step["responses"], 12)
            self.assertGreater(step["logprob_diff_max"], 0)  # two programs that round differently were compared
        with open(f"{self.out}/summary.json", encoding="utf-8") as f:
            digest = json.load(f)["weights_digest"]
        for weights in ("folder", "memory"):
            alone = self.run_grpo("--policy", "seer", "--weights", weights)
            self.assertEqual(alone.returncode, 0, alone.stderr)
            with open(f"{self.out}/summary.json", encoding="utf-8") as f:
                self.assertEqual(json.load(f)["weights_digest"], digest)

    def test_log_probabilities_too_far_apart_end_the_run(self):
        self.assert_ends("expected at most 1e-09", "--logprob-diff", "1e-9", "--policy", "seer")

    def test_bad_options(self):
        self.assert_ends("expected the program seer", "--seer", "/nowhere")
        self.assert_ends("seer serve did not start: ", "--server-options", "--instances 0")
        self.assert_ends("--group-size is 1: expected at least 2", "--group-size", "1")
        self.assert_ends("expected LOW-HIGH within", "--terms", "9-2")
        self.assert_ends("expected a whole number of at least 0", "--held-out", "-1")

    def test_servers_end_with_sigterm(self):
        process = subprocess.Popen([*self.command, "--steps", "1000"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.assertTrue(select.select([process.stdout], [], [], 100)[0], "no step was over after 100 s")
        servers = children(process.pid)
        self.assertEqual(len(servers), 2)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=120), 128 + signal.SIGTERM)
        for server in servers:
            self.assertFalse(os.path.exists(f"/proc/{server}"))


if __name__ == "__main__":
    if PYTHON is None:
        print("skipped: no Python here has torch (Debian, Ubuntu: python3-torch)")
        sys.exit(77)
    unittest.main(verbosity=2)
