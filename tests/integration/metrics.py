#!/usr/bin/env python3
"""What `seer serve` tells of itself: /metrics, the dashboard that reads it, /seer/v1/status and the log. usage: metrics.py SEER_PROGRAM"""
import concurrent.futures, contextlib, json, re, subprocess, tempfile, threading, time, unittest

from served import ENDLESS, PATIENCE_S, ROOT, SEER, Served, wide

ALIASES = {"num_running_reqs", "num_queue_reqs", "token_usage", "gen_throughput", "cache_hit_rate", "spec_accept_length"}
HAS_METRICS = not re.search(r"prometheus-cpp +missing", subprocess.run([SEER, "doctor"], capture_output=True, text=True, check=True).stdout)


class Text:
    """Metrics as Prometheus reads them."""

    def __init__(self, text):
        self.values, self.types = {}, {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                name, kind = line.split()[2:]
                self.types[name] = kind
            elif not line.startswith("#"):
                series, value = re.fullmatch(r"([a-z_:]+(?:\{.*\})?) (\S+)", line).groups()
                assert series not in self.values, f"{series} is there twice"
                self.values[series] = float(value)

    def sum(self, name, *labels):
        """Over all series of this name with these labels."""
        return sum(value for series, value in self.values.items()
                   if re.match(name + r"(\{|$)", series) and all(label in series for label in labels))


def until(what):
    end = time.monotonic() + PATIENCE_S
    while not (found := what()):
        if time.monotonic() > end:
            raise AssertionError(f"not so in {PATIENCE_S} s")
        time.sleep(0.05)
    return found


class ServeCase(unittest.TestCase):
    options = []

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.log = f"{cls.folder.name}/log"
        cls.served = Served("--log-level", "info", "--log-file", cls.log, *cls.options)

    @classmethod
    def tearDownClass(cls):
        code = cls.served.stop()
        cls.folder.cleanup()
        if code != 0:
            raise AssertionError(f"exit code {code}")

    def metrics(self):
        status, text = self.served.call("GET", "/metrics")
        self.assertEqual(status, 200, text)
        return Text(text)

    def status(self, first_sample=0):
        status, answer = self.served.call("GET", f"/seer/v1/status?first_sample={first_sample}")
        self.assertEqual(status, 200, answer)
        return answer

    def lines(self, event):
        with open(self.log) as lines:
            return [line for line in lines if f" {event} " in line]

    @contextlib.contextmanager
    def load(self, clients):
        """So many clients ask again and again. Has the number of responses that they got, once it is over."""
        stop, answers = threading.Event(), []

        def ask(i):
            while not stop.is_set():
                answers.append(self.served.generate([2, 3, 4, 5 + i], sampling_params={"max_new_tokens": 1500, "ignore_eos": True}))

        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            running = [pool.submit(ask, i) for i in range(clients)]
            try:
                yield answers
            finally:
                stop.set()
                for client in running:
                    client.result()


@unittest.skipIf(HAS_METRICS, "this build has metrics")
class WithoutTest(ServeCase):
    def test_one_sentence_says_what_is_missing(self):
        status, answer = self.served.call("GET", "/metrics")
        self.assertEqual(status, 501)
        self.assertEqual(answer["error"]["message"], "metrics need prometheus-cpp, but this build was made without it")
        self.assertIn("instances", self.status())


@unittest.skipUnless(HAS_METRICS, "this build has no prometheus-cpp")
class MetricsTest(ServeCase):
    options = ["--drafting", "grouped", "--draft-profile", f"{ROOT}/tests/integration/free_rows.json"]

    def test_counters_grow_by_what_was_answered(self):
        before = self.metrics()
        self.served.generate([2, 3, 4], sampling_params={"max_new_tokens": 40, "ignore_eos": True, "n": 3})
        self.served.call("GET", "/nothing-of-that-name")
        after = self.metrics()
        grown = lambda name, *labels: after.sum(name, *labels) - before.sum(name, *labels)
        self.assertEqual(grown("seer_gateway_requests_total"), 1)
        self.assertEqual(grown("seer_gateway_responses_total", 'finish="length"'), 3)
        self.assertEqual(grown("seer_gateway_responses_total"), 3)
        self.assertEqual(grown("seer_gateway_output_tokens_total"), 120)
        self.assertEqual(grown("seer_gateway_prompt_tokens_total"), 3)
        self.assertEqual(grown("seer_http_requests_total", 'path="/generate"', 'status="2xx"'), 1)
        self.assertEqual(grown("seer_http_requests_total", 'path="other"', 'status="4xx"'), 1)
        self.assertEqual(grown("seer_http_requests_total", 'path="/metrics"', 'status="2xx"'), 1)
        for name in ("first_token_seconds", "latency_seconds", "output_tokens"):
            self.assertEqual(grown(f"seer_response_{name}_count"), 3)
        self.assertEqual(grown("seer_response_output_tokens_sum"), 120)
        self.assertLess(grown("seer_response_first_token_seconds_sum"), grown("seer_response_latency_seconds_sum"))
        until(lambda: self.metrics().sum("seer_instance_output_tokens_total") - before.sum("seer_instance_output_tokens_total") >= 120)

    def test_what_runs_is_seen_while_it_runs_by_both_names(self):
        names = ("gen_throughput", "num_running_reqs", "token_usage")
        with self.load(6):
            found = until(lambda: (lambda m: m if all(m.sum(f"sglang:{name}") > 0 for name in names) else None)(self.metrics()))
        self.assertEqual({name.removeprefix("sglang:") for name in found.types if name.startswith("sglang:")}, ALIASES)
        self.assertTrue(all('{model_name="scratchpad-1m8"}' in series for series in found.values if series.startswith("sglang:")))
        self.assertEqual(found.sum("sglang:num_running_reqs"), found.sum("seer_gateway_open_responses", 'state="running"'))
        self.assertEqual(found.sum("sglang:num_running_reqs") + found.sum("sglang:num_queue_reqs"), found.sum("seer_gateway_open_responses"))
        self.assertGreater(found.sum("seer_gateway_oldest_request_seconds"), 0)
        self.assertEqual(found.sum("seer_fleet_instances_up"), 2)
        after = until(lambda: (lambda m: m if m.sum("seer_draft_verifies_total") > 0 else None)(self.metrics()))
        self.assertGreater(after.sum("sglang:spec_accept_length"), 1)
        self.assertLessEqual(after.sum("seer_draft_accepted_tokens_total"), after.sum("seer_draft_tokens_total"))
        until(lambda: self.metrics().sum("seer_gateway_open_responses") == 0)

    def test_the_dashboard_asks_for_what_is_exported(self):
        self.served.generate([2, 3], sampling_params={"max_new_tokens": 3})
        exported = set(until(lambda: (lambda m: m if m.sum("seer_instance_steps_total") > 0 else None)(self.metrics())).types)
        with open(f"{ROOT}/deploy/grafana/seer.json") as file:
            dashboard = json.load(file)
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        queries += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
        self.assertGreater(len(queries), 30)
        asked = set()
        for query in queries:
            names = {re.sub(r"(_bucket|_sum|_count)$", "", name) for name in re.findall(r"(?:seer|sglang)[a-z_:]+", query)}
            self.assertTrue(names, query)
            self.assertEqual(query.count("("), query.count(")"), query)
            asked |= names
        self.assertEqual(asked - exported, set())

    def test_a_label_has_nothing_that_a_client_sent(self):
        for i in range(50):
            self.served.call("GET", f"/made-up-{i}")
            self.served.call("GET", f"/workers/{i}")
        self.served.generate([2, 3], rid="my-rid", sampling_params={"max_new_tokens": 1})
        text = self.served.call("GET", "/metrics")[1]
        for secret in ("made-up", "my-rid"):
            self.assertNotIn(secret, text)
        self.assertLess(len(text), 60_000)


class StatusTest(ServeCase):
    options = wide()

    def test_figures_and_history_follow_a_run(self):
        is_seen = lambda s: s["responses"]["running"] > 0 and any(sample[3] > 0 and sample[4] > 0 for sample in s["history"]["samples"])
        with self.load(4) as answers:
            seen = until(lambda: (lambda s: s if is_seen(s) else None)(self.status()))
        self.assertEqual(seen["model"], "scratchpad-1m8")
        self.assertEqual([i["id"] for i in seen["instances"]], [0, 1])
        self.assertEqual(seen["instances_expected"], 2)
        self.assertGreater(seen["kv"]["device"]["bytes"], 0)
        self.assertGreater(seen["kv"]["dram"]["bytes"], 0)
        after = until(lambda: (lambda s: s if s["rollouts"] and s["rollouts"][-1]["ended"] >= len(answers) else None)(self.status()))
        rollout = after["rollouts"][-1]
        self.assertEqual(rollout["responses"], rollout["ended"])
        self.assertGreater(rollout["tokens_per_s"], 0)
        self.assertGreater(rollout["busy_s"], rollout["tail_s"])
        self.assertGreaterEqual(after["responses"]["length"], len(answers))
        last = after["history"]["next_sample"]
        more = until(lambda: (lambda h: h if h["samples"] else None)(self.status(last)["history"]))
        self.assertEqual(more["first_sample"], last)
        self.assertLess(len(more["samples"]), 10)
        self.assertEqual(self.served.call("GET", "/seer/v1/status?first_sample=x")[0], 400)

    def test_what_does_not_end_well_leaves_a_line_with_its_name(self):
        ask = lambda i: self.served.generate([2, 3, 4, i], rid='mine \x1b[2J"\nx', sampling_params=ENDLESS)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            self.served.until_running([pool.submit(ask, i) for i in (5, 6)])
            self.served.post("/abort_request", {"rid": "mine"})
        self.served.generate([2, 3], rid="ends-well", sampling_params={"max_new_tokens": 2})
        aborted = self.lines("request_aborted")
        self.assertEqual(len(aborted), 2)
        for line in aborted:
            self.assertRegex(line, r'^\S+ info request_aborted ticket=\d+ rid="mine \\x1b\[2J\\" x" aborted=1 responses=1$')
        connection = self.served.connect()
        connection.request("POST", "/generate", json.dumps({"input_ids": [2, 3], "rid": "goes", "sampling_params": ENDLESS}))
        self.served.wait_until(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 1)
        connection.close()
        until(lambda: self.lines("request_cancelled"))
        self.assertRegex(self.lines("request_cancelled")[0], r"request_cancelled ticket=\d+ rid=goes responses_left=1$")
        self.assertEqual(self.served.call("POST", "/generate", {"input_ids": []})[0], 400)
        self.assertRegex(self.lines("http_refused")[-1], r'http_refused path=/generate status=400 error="input_ids is empty: expected a prompt"$')
        with open(self.log) as lines:
            self.assertNotIn("ends-well", lines.read())


class AccessTest(unittest.TestCase):
    def test_figures_need_the_token_and_the_page_does_not(self):
        with tempfile.NamedTemporaryFile("w") as token:
            token.write("a-token-of-24-characters\n")
            token.flush()
            served = Served("--token-file", token.name)
            try:
                status, page = served.call("GET", "/")
                self.assertEqual(status, 200)
                self.assertTrue(page.startswith("<!doctype html>"))
                bearer = {"Authorization": "Bearer a-token-of-24-characters"}
                for path in ("/metrics", "/seer/v1/status", "/?x=1"):
                    self.assertEqual(served.call("GET", path)[0], 401, path)
                self.assertEqual(served.call("GET", "/seer/v1/status", None, bearer)[0], 200)
                status, text = served.call("GET", "/metrics", None, bearer)
                self.assertEqual(status, 200 if HAS_METRICS else 501)
                if HAS_METRICS:
                    self.assertEqual(Text(text).sum("seer_http_requests_total", 'status="4xx"'), 3)
            finally:
                served.stop()


if __name__ == "__main__":
    unittest.main()
