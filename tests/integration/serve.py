#!/usr/bin/env python3
"""Tests `seer serve` as a trainer uses it: the responses of `seer rollout` bit for bit, the control flow of a synchronous trainer, bad
input, clients that disconnect. usage: serve.py SEER_PROGRAM"""
import array, base64, concurrent.futures, contextlib, json, math, os, resource, shutil, socket, struct, subprocess, tempfile
import threading, time, unittest

from served import ENDLESS, LONG, MACHINE, MODEL, PATIENCE_S, ROOT, SEER, Served, ServedCase, wide
from turned_model import converted_model, turned_model

PROMPTS = f"{ROOT}/deploy/examples/scratchpad/prompts.jsonl"


def rollout(folder, *options):
    """The responses of `seer rollout`, by group and sample."""
    out = f"{folder}/out.jsonl"
    subprocess.run([SEER, "rollout", "--model", MODEL, "--prompts", PROMPTS, "--limit", "6", "--group-size", "4", "--max-tokens", "300",
                    "--instances", "1", *MACHINE, "--out", out, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(out) as lines:
        return [json.loads(line) for line in lines]


class ServeTest(ServedCase):
    def test_responses_are_those_of_seer_rollout_bit_for_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            right = rollout(folder)

        def ask(r):
            return self.served.generate(r["prompt_ids"], sampling_params={"max_new_tokens": 300, "sampling_seed": r["seed"]})

        with concurrent.futures.ThreadPoolExecutor(len(right)) as pool:
            for r, found in zip(right, pool.map(ask, right)):
                self.assertEqual(found["output_ids"], r["output_ids"])
                logprobs = found["meta_info"]["output_token_logprobs"]
                self.assertEqual([token for _, token, _ in logprobs], r["output_ids"])
                self.assertEqual([value for value, _, _ in logprobs], r["logprobs"])
                self.assertEqual(found["meta_info"]["finish_reason"]["type"], r["finish_reason"])
                self.assertEqual(found["text"], r["text"])
                self.assertEqual(found["meta_info"]["weight_version"], "1")

    def test_it_takes_more_connections_than_a_shell_lets_it_open(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = min(64, soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        try:
            served = Served()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.addCleanup(served.stop)
        with contextlib.ExitStack() as idle:
            for _ in range(min(2 * few, hard // 2)):
                idle.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            self.assertEqual(served.call("GET", "/health")[0], 200)

    def test_decimals_of_sampling_are_taken_as_they_are_written(self):
        with tempfile.TemporaryDirectory() as folder:
            right = rollout(folder, "--temperature", "0.7", "--top-p", "0.93", "--min-p", "0.015", "--repetition-penalty", "1.05")
        sampling = {"temperature": 0.7, "top_p": 0.93, "min_p": 0.015, "repetition_penalty": 1.05, "max_new_tokens": 300}
        for r in right[::5]:
            found = self.served.generate(r["prompt_ids"], sampling_params={**sampling, "sampling_seed": r["seed"]})
            self.assertEqual(found["output_ids"], r["output_ids"])
            self.assertEqual([value for value, _, _ in found["meta_info"]["output_token_logprobs"]], r["logprobs"])

    def test_the_ids_that_top_p_kept_come_as_slime_reads_them(self):
        def kept_of(answer):
            meta = answer["meta_info"]
            ids, offsets = (array.array("i", base64.b64decode(meta[f"top_p_token_{name}"])) for name in ("ids", "offsets"))
            self.assertEqual((len(offsets), offsets[0], offsets[-1]), (len(answer["output_ids"]) + 1, 0, len(ids)))
            return [list(ids[begin:end]) for begin, end in zip(offsets, offsets[1:])]

        prompt = [2, 3, 4, 5]
        params = {"max_new_tokens": 300, "sampling_seed": 4, "temperature": 1.3, "top_p": 0.8, "ignore_eos": True}
        asking = {**params, "custom_params": {"return_top_p_token_ids": True}}
        plain, answer = self.served.generate(prompt, sampling_params=params), self.served.generate(prompt, sampling_params=asking)
        self.assertEqual(answer["output_ids"], plain["output_ids"])
        self.assertNotIn("top_p_token_ids", plain["meta_info"])
        kept = kept_of(answer)
        self.assertGreater(max(map(len, kept)), 1)
        logprobs = [[value for value, _, _ in a["meta_info"]["output_token_logprobs"]] for a in (plain, answer)]
        for token, ids, all_ids, among_kept in zip(answer["output_ids"], kept, *logprobs):
            self.assertIn(token, ids)
            self.assertEqual(ids, sorted(set(ids)))
            share = math.exp(all_ids - among_kept)  # of the kept ids in all
            self.assertTrue(0.8 - 1e-5 <= share <= 1 + 1e-5, share)
            if len(ids) == 1:
                self.assertEqual(among_kept, 0)
        other = Served("--drafting", "grouped", "--chunk-tokens", "16")
        self.addCleanup(other.stop)
        for found in [other.generate(prompt, sampling_params=asking), *other.generate(prompt, sampling_params={**asking, "n": 4})[:1]]:
            self.assertEqual(found["meta_info"]["top_p_token_ids"], answer["meta_info"]["top_p_token_ids"])
            self.assertEqual(found["meta_info"]["output_token_logprobs"], answer["meta_info"]["output_token_logprobs"])
        greedy = self.served.generate(prompt, sampling_params={**asking, "temperature": 0, "top_p": 1})
        self.assertEqual(kept_of(greedy), [[token] for token in greedy["output_ids"]])

        connection = self.served.connect()
        connection.request("POST", "/generate", json.dumps({"input_ids": prompt, "sampling_params": asking, "stream": True, "incremental": True}))
        events = connection.getresponse().read().decode().split("\n\n")[:-2]
        connection.close()
        streamed = [ids for event in events for ids in kept_of(json.loads(event.removeprefix("data: ")))]
        self.assertEqual(streamed, kept)

    def test_n_responses_are_those_of_the_seeds_that_follow(self):
        ids, params = [2, 3, 4], {"max_new_tokens": 40, "sampling_seed": 70}
        several = self.served.generate(ids, sampling_params={**params, "n": 3})
        alone = [self.served.generate(ids, sampling_params={**params, "sampling_seed": 70 + i}) for i in range(3)]
        self.assertEqual([r["output_ids"] for r in several], [r["output_ids"] for r in alone])

    def test_prompt_tokens_that_were_cached_are_told(self):
        ids = [2 + i % 30 for i in range(75)]  # used by no other test
        cached = [self.served.generate(ids, sampling_params={"max_new_tokens": 4})["meta_info"]["cached_tokens"] for _ in range(3)]
        self.assertEqual(cached[0], 0)
        self.assertEqual(max(cached), 64)  # of two instances, one computed it before: its whole blocks

    def test_a_list_of_prompts_is_answered_in_order(self):
        lists = [[2, 3, 4], [9, 8, 7, 6]]
        params = {"max_new_tokens": 12, "temperature": 0}
        answers = self.served.generate(lists, sampling_params=params)
        self.assertEqual([r["output_ids"] for r in answers], [self.served.generate(ids, sampling_params=params)["output_ids"] for ids in lists])
        self.assertEqual([r["meta_info"]["prompt_tokens"] for r in answers], [3, 4])

    def test_a_stream_grows_and_ends_with_the_whole_response(self):
        connection = self.served.connect()
        params = {"max_new_tokens": 200, "sampling_seed": 3, "ignore_eos": True}
        connection.request("POST", "/generate", json.dumps({"input_ids": [2, 3], "sampling_params": params, "stream": True, "return_logprob": True}))
        parts = connection.getresponse().read().decode().split("\n\n")
        connection.close()
        self.assertEqual(parts[-2:], ["data: [DONE]", ""])
        answers = [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]
        for before, after in zip(answers, answers[1:]):  # one or more, as they come about; client.py sees one grow
            self.assertEqual(after["output_ids"][:len(before["output_ids"])], before["output_ids"])
            self.assertIsNone(before["meta_info"]["finish_reason"])
        for before, after in zip(answers, answers[1:-1]):  # an event repeats all tokens, so it has 1/32 more of them
            self.assertGreaterEqual(32 * len(after["output_ids"]), 33 * len(before["output_ids"]) - 31)
        whole = self.served.generate([2, 3], sampling_params=params)
        self.assertEqual(answers[-1]["output_ids"], whole["output_ids"])
        self.assertEqual(answers[-1]["meta_info"]["output_token_logprobs"], whole["meta_info"]["output_token_logprobs"])

    def test_thousands_of_broken_connections_leave_nothing_and_delay_nobody(self):
        long = {"max_new_tokens": 1500, "ignore_eos": True}
        whole = json.dumps({"input_ids": [2, 3, 4], "sampling_params": long})
        request = f"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: {len(whole)}\r\n\r\n{whole}".encode()
        params = {"max_new_tokens": 600, "ignore_eos": True, "sampling_seed": 8}
        right = self.served.generate([5, 6, 7], sampling_params=params)["output_ids"]
        self.served.generate([2, 3, 4], sampling_params={**long, "n": 12})  # more than KV holds: none of its pages is new afterwards
        files = lambda: len(os.listdir(f"/proc/{self.served.process.pid}/fd"))
        address, reset = ("127.0.0.1", self.served.port), struct.pack("ii", 1, 0)

        def rss():
            with open(f"/proc/{self.served.process.pid}/statm", encoding="ascii") as sizes:
                return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        def break_off(count):
            for i in range(count):
                with socket.create_connection(address) as connection:
                    connection.send(request if i % 8 == 0 else request[:i * 7 % len(request)])
                    if i % 2:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)

        with concurrent.futures.ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as slow:
            for i in range(200):  # who never say all that they want
                slow.enter_context(socket.create_connection(address)).send(request[:1 + i])
            other = pool.submit(self.served.generate, [5, 6, 7], sampling_params=params)
            grown = []
            for _ in range(6):
                bytes_before = rss()
                break_off(1000)
                grown.append(rss() - bytes_before)
            self.assertEqual(other.result()["output_ids"], right)
            self.assertEqual(self.served.call("GET", "/health")[0], 200)
        self.served.wait_until(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 0)
        self.assertLess(min(grown), 1 << 20)
        self.served.wait_until(lambda _: files() < 150)

    def test_a_body_that_takes_long_to_read_delays_nobody(self):
        answers, begun = [], time.monotonic()
        large = [("/generate", '{"input_ids": [' + "2," * 3_000_000 + "2]}"), ("/v1/completions", '{"prompt": "' + "a" * 4_000_000 + '"}'),
                 ("/seer/v1/rollouts", '{}\n{"prompt_ids": [' + "2," * 3_000_000 + "2]}")]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            posts = [pool.submit(self.served.call, "POST", path, body) for path, body in large]
            while not all(post.done() for post in posts):
                begin = time.monotonic()
                self.assertEqual(self.served.call("GET", "/health")[0], 200)
                answers.append(time.monotonic() - begin)
        took_s = time.monotonic() - begun
        for post in posts:
            status, answer = post.result()
            self.assertEqual(status, 400)
            self.assertIn("expected less than 4096", answer["error"]["message"])
        self.assertLess(sorted(answers)[len(answers) // 2], took_s / 10)  # whatever the machine's own speed

    @contextlib.contextmanager
    def slow_client(self, served):
        """A client that has read the first byte of a long answer."""
        body = json.dumps({"input_ids": [2, 3], "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True, "temperature": 5, "top_p": 0.9999, "n": 16,
                                                                    "custom_params": {"return_top_p_token_ids": True}}}).encode()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", served.port))
            client.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            client.recv(1)
            yield client

    def test_a_server_that_is_ended_sends_the_answers_that_it_has(self):
        served = Served()
        with self.slow_client(served) as client:
            served.process.terminate()
            time.sleep(1)
            self.assertIsNone(served.process.poll())
            client.settimeout(PATIENCE_S)
            answer = client.makefile("rb").read()
        head, _, answer = answer.partition(b"\r\n\r\n")
        self.assertIn(b"Content-Length: %d\r\n" % len(answer), head + b"\r\n")
        self.assertEqual(len(json.loads(answer)), 16)
        self.assertEqual(served.stop(), 0)

    def test_a_request_that_comes_while_a_paused_server_ends_does_not_wait(self):
        served = Served()
        self.addCleanup(served.stop)
        with self.slow_client(served):  # so that the server does not end before
            served.post("/pause_generation")
            connection = served.connect()
            self.addCleanup(connection.close)
            connection.timeout = PATIENCE_S
            connection.request("GET", "/health")
            connection.getresponse().read()
            served.process.terminate()
            time.sleep(0.5)  # it has ended what waited
            connection.request("POST", "/generate", json.dumps({"input_ids": [2, 3]}))
            self.assertEqual(json.load(connection.getresponse())["meta_info"]["finish_reason"]["type"], "abort")

    def test_events_of_a_stream_that_waited_for_new_weights_name_their_version(self):
        served = Served()
        self.addCleanup(served.stop)
        served.post("/pause_generation")
        connection = served.connect()
        connection.request("POST", "/generate", json.dumps({"input_ids": [2, 3], "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}, "stream": True}))
        served.wait_until(lambda load: load["num_waiting_reqs"] == 1)
        served.post("/update_weights_from_disk", {"model_path": MODEL, "weight_version": "2", "mode": "retract"})
        served.post("/continue_generation")
        events = connection.getresponse().read().decode().split("\n\n")[:-2]
        connection.close()
        self.assertEqual({json.loads(event.removeprefix("data: "))["meta_info"]["weight_version"] for event in events}, {"2"})

    def test_fields_of_logprobs_count_only_where_these_are_asked_for(self):
        answer = self.served.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}, "logprob_start_len": 0, "top_logprobs_num": 5})
        self.assertNotIn("output_token_logprobs", answer["meta_info"])

    def test_what_is_wrong_is_said_in_one_sentence(self):
        for body, sentence in [
            ("{", "1:2"),
            ("[1]", "the body is array: expected a JSON object"),
            ("", "neither input_ids nor text: expected one of them"),
            ({}, "neither input_ids nor text"),
            ({"input_ids": [1], "text": "1"}, "both input_ids and text"),
            (b'{"text": "\xff"}', "body:1:11: the text is not UTF-8"),
            ("[" * 100_000, "lists and objects are nested deeper than 500"),
            ('{"input_ids": [1], "sampling_params": {"temperature": NaN}}', "malformed JSON after "),
            ({"input_ids": []}, "input_ids is empty: expected a prompt"),
            ({"input_ids": [1, 99999]}, "token id 99999 at place 1 of the prompt"),
            ({"input_ids": [1, -4]}, "input_ids[1] is -4: expected a token id"),
            ({"input_ids": [1, 2.0]}, "input_ids[1] is 2.0: expected a token id"),
            ({"input_ids": [1 << 64]}, "input_ids[0] is 1.8446744073709552e+19: expected a token id"),
            ({"input_ids": "1"}, "input_ids is string: expected a list of token ids"),
            ({"input_ids": [[1], []]}, "the prompt is empty"),
            ({"input_ids": [1] * 4096}, "the prompt has 4096 tokens: expected less than 4096"),
            ({"input_ids": [1] * 200_000}, "the prompt has 200000 tokens"),
            ({"text": ""}, "the prompt is empty"),
            ({"text": ["1", 5]}, "text is 5: expected text"),
            ({"input_ids": [1], "sampling_params": 5}, "sampling_params is number: expected an object"),
            ({"input_ids": [1], "sampling_param": {}}, 'field "sampling_param" is not known: did you mean sampling_params?'),
            ({"input_ids": [1], "max_new_tokens": 3}, "max_new_tokens is beside sampling_params: expected in it"),
            ({"input_ids": [[1], [2]], "sampling_params": [{}]}, "sampling_params has 1 entries: expected 2, one for each prompt"),
            ({"input_ids": [[1], [2]], "rid": ["a"]}, "rid has 1 entries: expected 2"),
            ({"input_ids": [1], "rid": {}}, "rid is object: expected text"),
            ({"input_ids": [1], "rid": "r" * 2000}, "rid has 2000 bytes: expected at most 1024"),
            ({"input_ids": [1], "group_id": "g" * 2000}, "group_id has 2000 bytes: expected at most 1024"),
            ({"input_ids": [1], "return_logprob": "yes"}, "return_logprob is \"yes\": expected true or false"),
            ({"input_ids": [1], "logprob_mode": "odd"}, "logprob_mode is \"odd\": expected \"processed\" or \"raw\""),
            ({"input_ids": [1], "priority": 1e30}, "priority is 1e+30: expected an integer"),
            ({"input_ids": [1], "stream": True, "sampling_params": {"n": 2}}, "stream is for one response"),
            ('{"input_ids": [1], "sampling_params": {"temperature": 1e400}}', "temperature is 1e+400: expected a number"),
            ({"input_ids": [1], "sampling_params": {"top_p": -0.0}}, "top_p is -0.0: expected a number, above 0"),
            ({"input_ids": [1], "sampling_params": {"top_k": -2}}, "top_k is -2: expected"),
            ({"input_ids": [1], "sampling_params": {"n": 0}}, "n is 0: expected"),
            ({"input_ids": [1], "sampling_params": {"n": 1_000_000}}, "n is 1000000: expected"),
            ({"input_ids": [1], "sampling_params": {"sampling_seed": 1 << 64}}, "sampling_seed is 1.8446744073709552e+19: expected"),
            ({"input_ids": [1], "sampling_params": {"stop_token_ids": [99999]}}, "stop_token_ids has 99999: expected ids below"),
            ({"input_ids": [1], "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens is -1: expected"),
            ({"input_ids": [1], "sampling_params": {"temperature": "hot"}}, "temperature is \"hot\": expected"),
            ({"input_ids": [1], "sampling_params": {"custom_params": [1]}}, "custom_params is array: expected an object"),
            ({"input_ids": [1], "sampling_params": {"custom_params": {"other": 1}}}, "custom_params.other is not supported"),
            ({"input_ids": [1], "sampling_params": {"custom_params": {"return_top_p_token_ids": 1}}}, "return_top_p_token_ids is 1: expected true or false"),
            ({"input_ids": [1], "sampling_params": {"custom_params": {"return_top_p_token_ids": True}}}, "sampling: top_p is 1, expected a number below 1"),
            ({"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}, "max_new_tokens is 0: expected"),
            ({"input_ids": [1], "sampling_params": {"frequency_penalty": 0.5}}, "frequency_penalty is 0.5: expected 0"),
            ({"input_ids": [1], "sampling_params": {"regex": "a*"}}, "regex is not supported"),
            ({"input_ids": [1], "sampling_params": {"temprature": 0}}, "or sampling_seed; did you mean temperature?"),
            ({"input_ids": [1], "sampling_params": {"min_new_tokens": 5, "max_new_tokens": 1}}, "min_new_tokens is 5: expected at most max_new_tokens, which is 1"),
            ({"input_ids": [1], "regex": "[0-9]"}, "regex is not supported"),
            ({"input_ids": [1], "length_penalty": 2}, "length_penalty is 2: expected 1"),
            ({"input_ids": [1], "logit_bias": {"5": 1}}, "logit_bias is object: expected {}"),
            ({"input_ids": [1], "sampling_params": {"max_tokens": 5}}, "sampling_params has \"max_tokens\": expected max_new_tokens, "),
            ({"input_ids": [1], "image_data": ["x"]}, "image_data is not supported"),
            ({"input_ids": [1], "return_hidden_states": True}, "return_hidden_states is not supported"),
            ({"input_ids": [1], "return_logprob": True, "logprob_start_len": 0}, "logprob_start_len is 0: expected -1"),
            ({"input_ids": [1], "return_logprob": True, "top_logprobs_num": 5}, "top_logprobs_num is 5: expected 0"),
            ({"input_ids": [1], "stream": "yes"}, "stream is \"yes\": expected true or false"),
        ]:
            with self.subTest(body=str(body)[:80]):
                status, answer = self.served.call("POST", "/generate", body)
                self.assertEqual(status, 400)
                self.assertIn(sentence, answer["error"]["message"])
        for path in ("/nothing", "/%67enerate", "/" + "x" * 20_000):
            status, answer = self.served.call("GET", path)
            self.assertEqual((status, answer["error"]["type"]), (404, "invalid_request_error"))
            self.assertLess(len(answer["error"]["message"]), 100)
        self.assertEqual(self.served.call("PUT", "/v1/completions", {})[0], 404)
        # These are fine: what is at the edge of what is wrong.
        for body in ('{"input_ids": [1], "input_ids": [2], "sampling_params": {"max_new_tokens": 1, "temperature": -0.0, "sampling_seed": -0}}',
                     {"input_ids": [1] * 4095, "sampling_params": {"max_new_tokens": 100}}):
            self.assertEqual(self.served.call("POST", "/generate", body)[0], 200)
        for path, why in (("/update_weights_from_tensor", "send new weights to /update_weights_from_disk"), ("/load_lora_adapter", "LoRA")):
            status, answer = self.served.call("POST", path, {})
            self.assertEqual(status, 501)
            self.assertIn(why, answer["error"]["message"])
        for path, body, sentence in [
            ("/abort_request", {}, "neither rid nor abort_all"),
            ("/abort_request", {"rid": [1]}, "rid is array: expected text"),
            ("/abort_request", {"abort_all": 1}, "abort_all is 1: expected true or false"),
            ("/abort_request", {"rid": "a", "abort_al": True}, "field \"abort_al\" is not known: did you mean abort_all?"),
            ("/pause_generation", {"mod": "retract"}, "field \"mod\" is not known: did you mean mode?"),
            ("/workers", {"url": "http://a:1", "kidn": "vllm"}, "field \"kidn\" is not known: did you mean kind?"),
            ("/abort_request", "{", "body:1:2"),
            ("/pause_generation", {"mode": "x"}, "mode is \"x\": expected abort, retract or in_place"),
            ("/pause_generation", "[", "body:1: expected a JSON object, found array"),
            ("/workers", {}, "url is missing"),
            ("/workers", {"url": [1]}, "url is array: expected text"),
            ("/workers", {"url": "u" * 5000}, "url has 5000 bytes: expected at most 2048"),
        ]:
            with self.subTest(path=path, body=str(body)[:80]):
                status, answer = self.served.call("POST", path, body)
                self.assertEqual(status, 400)
                self.assertIn(sentence, answer["error"]["message"])

    def test_bytes_that_are_no_request_end_their_connection_alone(self):
        for garbage in [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"A" * 100_000, b"POST /generate HTTP/1.1\r\nContent-Length: -1\r\n\r\n"]:
            with socket.create_connection(("127.0.0.1", self.served.port), timeout=PATIENCE_S) as connection:
                with contextlib.suppress(ConnectionError, OSError):  # the server may end it while this writes
                    connection.sendall(garbage)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
        self.assertEqual(self.served.call("GET", "/health")[0], 200)

    def test_several_requests_on_one_connection_are_answered_in_order(self):
        request = lambda ids: (lambda body: f"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n{body}")(
            json.dumps({"input_ids": ids, "sampling_params": {"max_new_tokens": 3, "temperature": 0}}))
        with socket.create_connection(("127.0.0.1", self.served.port), timeout=60) as connection:
            connection.sendall((request([2, 3]) + request([2, 3, 4])).encode())
            lines = connection.makefile("rb")
            lengths = []
            for _ in range(2):
                size = 0
                while (line := lines.readline().strip()):
                    if line.lower().startswith(b"content-length:"):
                        size = int(line.split(b":")[1])
                lengths.append(json.loads(lines.read(size))["meta_info"]["prompt_tokens"])
        self.assertEqual(lengths, [2, 3])


class RunningTest(ServedCase):
    """What happens to requests that run."""
    is_wide = True

    def in_background(self, count, params, **fields):
        pool = concurrent.futures.ThreadPoolExecutor(count)
        self.addCleanup(pool.shutdown)
        body = {"sampling_params": {**params, "sampling_seed": 5}, **fields}
        return [pool.submit(self.served.generate, [2, 3, 4, 5 + i], **body) for i in range(count)]

    def test_an_abort_answers_with_partial_tokens_and_leaves_others_alone(self):
        mine, other = self.in_background(3, ENDLESS, rid="mine"), self.in_background(1, ENDLESS, rid="other")
        self.served.wait_until(lambda load: load["num_running_reqs"] == 4)
        self.served.post("/abort_request", {"rid": "mine"})
        aborted = [answer.result() for answer in mine]
        self.assertEqual({answer["meta_info"]["finish_reason"]["type"] for answer in aborted}, {"abort"})
        self.assertFalse(other[0].done())
        self.assertEqual(self.served.post("/abort_request", {"abort_all": True})["aborted"], 1)
        self.assertEqual(other[0].result()["meta_info"]["finish_reason"]["type"], "abort")
        self.served.wait_until(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 0)

    def test_a_client_that_goes_away_ends_its_request(self):
        body = json.dumps({"input_ids": [2, 3, 4], "sampling_params": ENDLESS})
        ended = lambda: self.served.call("GET", "/seer/v1/status")[1]["responses"]
        before = ended()
        for _ in range(20):
            connection = self.served.connect()
            connection.request("POST", "/generate", body)
            connection.close()
        self.served.wait_until(lambda load: ended()["abort"] == before["abort"] + 20)
        self.assertEqual({**ended(), "abort": 0}, {**before, "abort": 0})

    def test_while_generation_is_paused_requests_are_held_and_health_is_green(self):
        running = self.in_background(1, LONG)
        self.served.wait_until(lambda load: load["num_running_reqs"] == 1)
        self.assertEqual(self.served.call("GET", "/flush_cache")[0], 400)
        self.served.post("/pause_generation", {"mode": "retract"})
        self.assertEqual(self.served.load()["num_running_reqs"], 0)
        held = self.in_background(1, LONG)
        self.served.wait_until(lambda load: load["num_waiting_reqs"] == 2)
        self.assertEqual(self.served.call("GET", "/health_generate")[0], 200)
        self.assertEqual(self.served.call("GET", "/flush_cache")[0], 200)  # slime waits for that, while new requests come
        self.served.post("/continue_generation")
        for answer in running + held:  # the first one began anew, unseen
            self.assertEqual(answer.result()["meta_info"]["finish_reason"]["type"], "length")
        self.assertEqual(running[0].result()["output_ids"], held[0].result()["output_ids"])
        self.assertEqual(self.served.call("GET", "/flush_cache")[0], 200)


class WeightsTest(unittest.TestCase):
    def setUp(self):
        self.served = Served(*wide())
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(self.served.stop)

    def test_the_flow_of_a_synchronous_trainer(self):
        """As slime does it: register, generate, abort until idle, pause, flush, update from disk, continue, ask for the version."""
        s = self.served
        info = s.call("GET", "/server_info")[1]
        self.assertEqual((info["tp_size"], info["enable_memory_saver"], info["disaggregation_mode"]), (1, False, None))
        # Without a registration, as after a restart of the server, it lists itself, so that an abort of all workers finds it.
        for host in f"127.0.0.1:{s.port}", f"localhost:{s.port}":
            found = s.call("GET", "/workers", headers={"Host": host})[1]
            self.assertEqual((found["urls"], [worker["url"] for worker in found["workers"]], found["total"]), ([f"http://{host}"], [f"http://{host}"], 1))
        self.assertIn(s.call("POST", "/workers", {"url": f"http://127.0.0.1:{s.port}", "worker_type": "regular"})[0], (200, 202))
        self.assertEqual([w["url"] for w in s.call("GET", "/workers")[1]["workers"]], [f"http://127.0.0.1:{s.port}"])
        self.assertEqual(s.call("DELETE", "/workers/worker-9")[0], 404)
        params = {"max_new_tokens": 30, "temperature": 0}
        for step in range(1, 4):
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                done = list(pool.map(lambda i: s.generate([2, 3, 4], sampling_params={**params, "sampling_seed": i}), range(8)))
                long = pool.submit(s.generate, [2, 3], sampling_params=ENDLESS)
                s.until_running([long])
                s.post("/abort_request", {"abort_all": True})
                s.wait_until(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 0)
                self.assertEqual(long.result()["meta_info"]["finish_reason"]["type"], "abort")
            self.assertEqual({r["meta_info"]["weight_version"] for r in done}, {str(step)})
            s.post("/pause_generation", {})
            self.assertEqual(s.call("GET", "/flush_cache")[0], 200)
            answer = s.post("/update_weights_from_disk", {"model_path": MODEL, "weight_version": str(step + 1)})
            self.assertTrue(answer["success"])
            s.post("/continue_generation")
            self.assertEqual(s.call("GET", "/get_weight_version")[1], {"weight_version": str(step + 1)})

    def test_the_dtype_is_that_of_the_weights_as_stored(self):
        self.assertEqual(self.served.call("GET", "/server_info")[1]["dtype"], "bfloat16")
        for stored, dtype in ("F32", "float32"), ("F16", "float16"):
            with self.subTest(dtype=dtype):
                served = Served("--model", converted_model(f"{self.folder.name}/{dtype}", stored))
                self.addCleanup(served.stop)
                self.assertEqual(served.call("GET", "/server_info")[1]["dtype"], dtype)

    def test_an_update_that_fails_leaves_the_old_weights_serving(self):
        s = self.served
        bad = f"{self.folder.name}/bad"
        shutil.copytree(MODEL, bad)
        os.truncate(next(f"{bad}/{name}" for name in os.listdir(bad) if name.endswith(".safetensors")), 1000)
        pipe = f"{self.folder.name}/pipe"
        os.mkdir(pipe)
        os.mkfifo(f"{pipe}/model.safetensors")  # whoever opens it waits for a writer
        before = s.generate([2, 3], sampling_params={"max_new_tokens": 9, "temperature": 0})
        for body, sentence in [({"model_path": bad}, "safetensors"), ({"model_path": "/nowhere"}, "/nowhere"), ({}, "model_path is missing"),
                               ({"model_path": pipe}, "model.safetensors is not a file"), ({"model_path": ["a"]}, "model_path is array: expected text"),
                               ({"model_path": "p" * 5000}, "model_path has 5000 bytes"), ({"model_path": MODEL + "\0x"}, "none of them 0"),
                               ({"model_path": MODEL, "weight_version": -1}, "weight_version is -1: expected a number up to"),
                               ({"model_path": MODEL, "weight_version": "9" * 20}, "expected a number up to"),
                               ({"model_path": MODEL, "weight_version": "v" * 300}, "a name of at most 256 bytes"),
                               ({"model_path": MODEL, "weight_version": 1.5}, "weight_version is 1.5: expected text or an integer"),
                               ({"model_path": MODEL, "weight_verison": 7}, "field \"weight_verison\" is not known: did you mean weight_version?"),
                               ({"model_path": MODEL, "mod": "retract"}, "field \"mod\" is not known: did you mean mode?"),
                               ({"model_path": MODEL, "weight_version": ""}, "weight_version is empty: expected a number or a name"),
                               ("{", "body:1:2"), ({"model_path": MODEL, "weight_version": 0}, "expected one above 1"),
                               ({"model_path": MODEL, "weight_version": 1}, "expected one above 1")]:
            with self.subTest(body=body):
                status, answer = s.call("POST", "/update_weights_from_disk", body)
                self.assertEqual((status, answer["success"]), (400, False))
                self.assertIn(sentence, answer["message"])
        self.assertEqual(s.generate([2, 3], sampling_params={"max_new_tokens": 9, "temperature": 0})["output_ids"], before["output_ids"])
        self.assertEqual(s.call("GET", "/get_weight_version")[1], {"weight_version": "1"})

    def test_an_update_may_have_all_fields_of_sglang(self):
        served = Served()
        try:
            others = {"load_format": "auto", "is_async": False, "torch_empty_cache": True, "keep_pause": False, "recapture_cuda_graph": False, "token_step": 3,
                      "flush_cache": True, "manifest": None, "trainer": "mine"}
            self.assertTrue(served.post("/update_weights_from_disk", {"model_path": MODEL, "weight_version": "5", "abort_all_requests": True, **others})["success"])
            self.assertEqual(served.call("GET", "/get_weight_version")[1], {"weight_version": "5"})
        finally:
            served.stop()

    def test_more_memory_than_the_machine_has_is_refused_before_anything_is_allocated(self):
        for command, more, sentence in (("serve", ["--dram-bytes", "1024TiB"], "--dram-bytes 1125899906842624 for --nodes 1 may take 1.0 PiB of memory"),
                                        ("serve", ["--instances", "2", "--kv-bytes", "512TiB"], "--kv-bytes 562949953421312 for --instances 2 may take 1.0 PiB"),
                                        ("node", ["--instances", "2", "--kv-bytes", "512TiB"], "--kv-bytes 562949953421312 for --instances 2 may take 1.0 PiB")):
            with self.subTest(command=command, more=more):
                ended = subprocess.run([SEER, command, "--model", MODEL, "--listen", "127.0.0.1:0", *more], capture_output=True, text=True, timeout=60)
                self.assertEqual(ended.returncode, 2, ended.stderr)
                self.assertIn(sentence, ended.stderr)

    def test_a_trainer_that_counts_from_one_as_slime_does_gets_the_labels_that_it_gave(self):
        s = self.served
        for _ in range(2):  # slime started again
            for step in range(1, 5):
                s.post("/update_weights_from_disk", {"model_path": MODEL, "weight_version": str(step)})
                self.assertEqual(s.call("GET", "/get_weight_version")[1], {"weight_version": str(step)})
                self.assertEqual(s.generate([2, 3], sampling_params={"max_new_tokens": 2})["meta_info"]["weight_version"], str(step))

    def test_running_requests_are_aborted_start_again_or_end_with_the_old_weights(self):
        s = self.served
        version = 1
        for mode, said in (("abort", {"mode": "abort"}), ("retract", {"mode": "retract"}), ("drain", {"mode": "drain"}),
                           ("abort", {"abort_all_requests": True}), ("drain", {"abort_all_requests": False})):
            with self.subTest(said=said), concurrent.futures.ThreadPoolExecutor(4) as pool:
                params = LONG if mode == "drain" else ENDLESS
                answers = [pool.submit(s.generate, [2, 3, 4], sampling_params={**params, "sampling_seed": i}) for i in range(4)]
                s.until_running(answers)
                self.assertTrue(s.post("/update_weights_from_disk", {"model_path": MODEL, **said})["success"])
                self.assertEqual(s.post("/abort_request", {"abort_all": True})["aborted"], 4 if mode == "retract" else 0)
                metas = [a.result()["meta_info"] for a in answers]
                self.assertEqual({m["finish_reason"]["type"] for m in metas}, {"length" if mode == "drain" else "abort"})
                self.assertEqual({m["weight_version"] for m in metas}, {str(version + (mode == "retract"))})
                version += 1
        status, answer = s.call("POST", "/update_weights_from_disk", {"model_path": MODEL, "mode": "in_place"})
        self.assertEqual((status, answer["message"]), (400, 'mode is "in_place": expected abort, retract or drain'))
        status, answer = s.call("POST", "/update_weights_from_disk", {"model_path": MODEL, "mode": "drain", "abort_all_requests": True})
        self.assertEqual((status, answer["message"]), (400, 'abort_all_requests is true, and mode is "drain": expected one of them alone'))
        status, answer = s.call("POST", "/update_weights_from_disk", {"model_path": MODEL, "version": 50})
        self.assertEqual((status, answer["message"]), (400, "version is unknown: expected weight_version"))

    def test_requests_that_wait_while_generation_is_paused_get_the_weights_that_come_meanwhile(self):
        s = self.served
        with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(3) as pool:
            new = turned_model(work)
            for mode in ("abort", "retract"):
                with self.subTest(mode=mode):
                    version = s.call("GET", "/get_weight_version")[1]["weight_version"]
                    running = pool.submit(s.generate, [2, 3, 4], sampling_params={**ENDLESS, "sampling_seed": 1})
                    s.until_running([running])
                    s.post("/pause_generation", {"mode": mode})
                    held = pool.submit(s.generate, [2, 3, 4], sampling_params={"max_new_tokens": 4, "sampling_seed": 2})
                    s.wait_until(lambda load: load["num_waiting_reqs"] == (1 if mode == "abort" else 2))
                    answer = s.post("/update_weights_from_disk", {"model_path": new, "weight_version": f"after-{mode}"})
                    self.assertTrue(answer["success"], answer)
                    s.post("/continue_generation", {})
                    meta = held.result()["meta_info"]
                    self.assertEqual((meta["finish_reason"]["type"], meta["weight_version"]), ("length", f"after-{mode}"))
                    self.assertEqual(s.post("/abort_request", {"abort_all": True})["aborted"], 0 if mode == "abort" else 1)
                    meta = running.result()["meta_info"]
                    self.assertEqual((meta["finish_reason"]["type"], meta["weight_version"]), ("abort", version if mode == "abort" else f"after-{mode}"))

    def test_updates_under_load_mix_no_versions_and_lose_nothing(self):
        s = self.served
        models = [turned_model(self.folder.name), MODEL]  # of even versions, and of odd ones
        stop = threading.Event()
        answers = []  # of each client, by its prompt

        def generate(i):
            return s.generate([2, 3, 4 + i], sampling_params={"max_new_tokens": 60, "temperature": 0})

        def update(version):
            self.assertTrue(s.post("/update_weights_from_disk", {"model_path": models[version % 2]})["success"])
            self.assertEqual(s.call("GET", "/get_weight_version")[1], {"weight_version": str(version)})

        def client(i):
            while not stop.is_set():
                answers.append((i, generate(i)))

        def whole():
            return [a["meta_info"]["weight_version"] for _, a in list(answers) if a["meta_info"]["finish_reason"]["type"] != "abort"]

        odd = [generate(i)["output_ids"] for i in range(6)]
        update(2)
        right = [[generate(i)["output_ids"] for i in range(6)], odd]
        self.assertNotEqual(*right)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            clients = [pool.submit(client, i) for i in range(6)]
            try:
                for version in range(3, 13):
                    update(version)
                    if version % 3 == 0:  # others come while all is being aborted
                        s.wait_until(lambda _: str(version) in whole())
            finally:
                stop.set()
            for ended in clients:
                ended.result()  # it lost no answer
        self.assertTrue({"3", "6", "9", "12"} <= set(whole()))
        for i, answer in answers:
            ids, of = answer["output_ids"], right[int(answer["meta_info"]["weight_version"]) % 2][i]
            is_whole = answer["meta_info"]["finish_reason"]["type"] != "abort"
            self.assertEqual(ids, of if is_whole else of[:len(ids)])


class AccessTest(unittest.TestCase):
    def test_a_request_without_the_token_is_refused(self):
        with tempfile.NamedTemporaryFile("w") as token:
            token.write("a-token-of-24-characters\n")
            token.flush()
            served = Served("--token-file", token.name)
            try:
                body = {"input_ids": [2], "sampling_params": {"max_new_tokens": 1}}
                for path in ("/generate", "/v1/completions", "/seer/v1/rollouts", "/seer/v1/weights", "/update_weights_from_disk", "/metrics", "/none"):
                    for header in ({}, {"Authorization": "Bearer a-token-of-24-characterz"}, {"Authorization": "a-token-of-24-characters"}):
                        status, answer = served.call("POST", path, body, header)
                        self.assertEqual((status, answer["error"]["type"]), (401, "invalid_request_error"))
                        self.assertIn("the token is missing or wrong", answer["error"]["message"])
                self.assertEqual(served.call("POST", "/generate", body, {"Authorization": "Bearer a-token-of-24-characters"})[0], 200)
                self.assertEqual(served.call("GET", "/health")[0], 200)
            finally:
                served.stop()

    def test_an_address_of_other_hosts_and_a_port_in_use_are_refused_with_a_sentence(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            for listen, sentence in [("0.0.0.0:0", "other hosts can reach this address"),
                                     (f"127.0.0.1:{taken.getsockname()[1]}", "Address already in use"), ("127.0.0.1", "--listen")]:
                run = subprocess.run([SEER, "serve", "--model", MODEL, "--listen", listen], capture_output=True, text=True, timeout=60)
                self.assertNotEqual(run.returncode, 0)
                self.assertIn(sentence, run.stderr)
                self.assertEqual(run.stderr.count("\n"), 1)

    def test_sigterm_lets_requests_that_run_end(self):
        served = Served(*wide())
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(served.generate, [2, 3], sampling_params=LONG)
            served.until_running([answer])
            self.assertEqual(served.stop(), 0)
            self.assertEqual(answer.result()["meta_info"]["finish_reason"]["type"], "length")


if __name__ == "__main__":
    unittest.main()
