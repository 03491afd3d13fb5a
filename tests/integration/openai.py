#!/usr/bin/env python3
"""Tests OpenAI's interface of `seer serve`: completions, chats, streams, errors. usage: openai.py SEER_PROGRAM"""
import concurrent.futures, json, os, shutil, tempfile, unittest

from served import ENDLESS_LINE, MODEL, Served, wide

NAME = "scratchpad-1m8"
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}"
            "{% if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}"
            "{% if reasoning_effort %}effort: {{ reasoning_effort }}\n{% endif %}{% if add_generation_prompt %}assistant: {% endif %}")


def parts_of(data):
    """The answers in a stream."""
    parts = data.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""], parts[-2:]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


class OpenaiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = f"{cls.folder.name}/{NAME}"
        shutil.copytree(MODEL, cls.model)
        with open(f"{cls.model}/chat_template.jinja", "w") as file:
            file.write(TEMPLATE)
        cls.served = Served("--model", cls.model)

    @classmethod
    def tearDownClass(cls):
        code = cls.served.stop()
        cls.folder.cleanup()
        if code != 0:
            raise AssertionError(f"exit code {code}")

    def complete(self, prompt, **fields):
        return self.served.post("/v1/completions", {"model": NAME, "prompt": prompt, **fields})

    def test_the_model_is_listed_under_its_name(self):
        self.assertEqual([m["id"] for m in self.served.call("GET", "/v1/models")[1]["data"]], [NAME])
        self.assertEqual(self.served.call("GET", f"/v1/models/{NAME}")[1]["id"], NAME)
        self.assertEqual(self.served.call("GET", "/v1/models/" + NAME.replace("-", "%2D"))[1]["id"], NAME)
        self.assertEqual(self.served.call("GET", "/v1/models/other")[0], 404)

    def test_a_completion_has_the_tokens_of_generate(self):
        for sampling in [{"temperature": 0}, {"temperature": 0.7, "top_p": 0.93, "min_p": 0.01, "seed": 12}]:
            with self.subTest(sampling=sampling):
                params = {"max_new_tokens": 50, **{name if name != "seed" else "sampling_seed": value for name, value in sampling.items()}}
                right = self.served.generate([2, 3, 4], sampling_params=params)
                answer = self.complete([2, 3, 4], max_tokens=50, logprobs=1, return_token_ids=True, **sampling)
                choice = answer["choices"][0]
                self.assertEqual(choice["token_ids"], right["output_ids"])
                self.assertEqual(choice["prompt_token_ids"], [2, 3, 4])
                self.assertEqual(choice["logprobs"]["token_logprobs"], [value for value, _, _ in right["meta_info"]["output_token_logprobs"]])
                self.assertEqual(choice["text"], right["text"])
                self.assertEqual("".join(choice["logprobs"]["tokens"][:10]), choice["text"][:len("".join(choice["logprobs"]["tokens"][:10]))])
                self.assertEqual(choice["finish_reason"], right["meta_info"]["finish_reason"]["type"])
                self.assertEqual(answer["usage"], {"prompt_tokens": 3, "completion_tokens": len(right["output_ids"]),
                                                   "total_tokens": 3 + len(right["output_ids"]), "prompt_tokens_details": {"cached_tokens": 0}})

    def test_usage_counts_the_tokens_whose_kv_was_there(self):
        prompt = [2 + i % 50 for i in range(100)]
        for n in (1, 2):
            self.complete(prompt, n=n, max_tokens=4)
        known = self.served.generate(prompt, sampling_params={"max_new_tokens": 4})["meta_info"]["cached_tokens"]
        self.assertGreaterEqual(known, 80)
        details = {"cached_tokens": known}
        self.assertEqual(self.complete(prompt, max_tokens=4)["usage"]["prompt_tokens_details"], details)
        self.assertEqual(self.complete([prompt, [3, 4, 5]], n=2, max_tokens=4)["usage"]["prompt_tokens_details"], details)

    def test_choices_are_in_the_order_of_prompts_and_seeds(self):
        answer = self.complete([[2, 3], [4, 5, 6]], n=2, seed=40, max_tokens=12, return_token_ids=True)
        alone = [self.complete(ids, seed=seed, max_tokens=12, return_token_ids=True)["choices"][0]["token_ids"]
                 for ids in ([2, 3], [4, 5, 6]) for seed in (40, 41)]
        self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2, 3])
        self.assertEqual([c["token_ids"] for c in answer["choices"]], alone)

    def test_a_stream_joins_to_the_whole_answer(self):
        fields = {"n": 2, "seed": 7, "max_tokens": 150, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
        whole = self.complete("2+3", **fields)
        body = {"model": NAME, "prompt": "2+3", **fields, "stream": True, "stream_options": {"include_usage": True}}
        status, data = self.served.call("POST", "/v1/completions", body)
        self.assertEqual(status, 200)
        *parts, last = parts_of(data)
        self.assertEqual((last["choices"], last["usage"]), ([], whole["usage"]))
        for right in whole["choices"]:
            mine = [p["choices"][0] for p in parts if p["choices"][0]["index"] == right["index"]]
            self.assertGreaterEqual(len(mine), 1)  # as they come about
            self.assertEqual("".join(c["text"] for c in mine), right["text"])
            self.assertEqual([id for c in mine for id in c["token_ids"]], right["token_ids"])
            self.assertEqual([v for c in mine for v in c["logprobs"]["token_logprobs"]], right["logprobs"]["token_logprobs"])
            self.assertEqual([c["finish_reason"] for c in mine][-1], right["finish_reason"])

    def test_a_stop_string_ends_the_text_before_it(self):
        fields = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
        text = self.complete([2, 3, 4], **fields)["choices"][0]["text"]
        stop = text[5:8]
        answer = self.complete([2, 3, 4], stop=[stop, "never there"], **fields)["choices"][0]
        self.assertEqual((answer["finish_reason"], answer["stop_reason"]), ("stop", stop))
        self.assertEqual(answer["text"], text[:text.index(stop)])
        parts = parts_of(self.served.call("POST", "/v1/completions", {"prompt": [2, 3, 4], "stop": stop, "stream": True, **fields})[1])
        self.assertEqual("".join(p["choices"][0]["text"] for p in parts), text[:text.index(stop)])
        kept = self.complete([2, 3, 4], stop=stop, include_stop_str_in_output=True, **fields)["choices"][0]["text"]
        self.assertTrue(kept.startswith(text[:text.index(stop)] + stop))

    def test_the_one_candidate_of_a_token_is_itself(self):
        fields = {"max_tokens": 3, "seed": 4, "ignore_eos": True}
        logprobs = self.complete([2, 3, 4], logprobs=1, **fields)["choices"][0]["logprobs"]
        self.assertEqual(logprobs["top_logprobs"], [{token: value} for token, value in zip(logprobs["tokens"], logprobs["token_logprobs"])])
        for no_candidates in (0, True):
            self.assertIsNone(self.complete([2, 3, 4], logprobs=no_candidates, **fields)["choices"][0]["logprobs"]["top_logprobs"])
        chat = {"messages": [{"role": "user", "content": "2+3"}], "logprobs": True, **fields}
        for token in self.served.post("/v1/chat/completions", {"top_logprobs": 1, **chat})["choices"][0]["logprobs"]["content"]:
            self.assertEqual(token["top_logprobs"], [{name: token[name] for name in ("token", "logprob", "bytes")}])
        for token in self.served.post("/v1/chat/completions", chat)["choices"][0]["logprobs"]["content"]:
            self.assertEqual(token["top_logprobs"], [])

    def test_values_of_other_programs_that_ask_for_nothing_are_taken(self):
        ignored = {"store": False, "user": "me", "metadata": {}, "service_tier": "auto", "parallel_tool_calls": True, "cache_salt": "a"}
        nothing = {**ignored, "top_a": 0, "do_sample": True, "num_beams": 1, "typical_p": 1.0, "early_stopping": False, "length_penalty": 1, "max_new_tokens": None, "extra_body": {}}
        self.assertEqual(self.served.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, **nothing})[0], 200)

    def test_a_chat_is_a_completion_of_what_its_template_makes(self):
        messages = [{"role": "system", "content": "Count."}, {"role": "user", "content": "2+3"}]
        fields = {"temperature": 0, "max_tokens": 30, "return_token_ids": True}
        prompt = "system: Count.\nuser: 2+3\nassistant: "
        right = self.complete(prompt, **fields)["choices"][0]
        answer = self.served.post("/v1/chat/completions", {"model": NAME, "messages": messages, "logprobs": True, **fields})
        choice = answer["choices"][0]
        self.assertEqual(choice["message"], {"role": "assistant", "content": right["text"]})
        self.assertEqual(choice["token_ids"], right["token_ids"])
        self.assertEqual(len(choice["logprobs"]["content"]), len(right["token_ids"]))
        parts = parts_of(self.served.call("POST", "/v1/chat/completions", {"messages": messages, "stream": True, **fields})[1])
        self.assertEqual(parts[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual("".join(p["choices"][0]["delta"]["content"] for p in parts), right["text"])
        self.assertNotIn("role", parts[-1]["choices"][0]["delta"])
        self.assertNotIn("prompt_token_ids", choice)
        for place, given in (("answer", answer), ("first part", parts[0])):
            with self.subTest(place=place):
                self.assertEqual(given["prompt_token_ids"], right["prompt_token_ids"])
        self.assertTrue(all("prompt_token_ids" not in part for part in parts[1:]))

    def test_arguments_of_earlier_tool_calls_come_as_text_and_are_what_the_text_says(self):
        def prompt_of(calls, **fields):
            messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": calls}]
            return self.served.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "return_token_ids": True, **fields})["prompt_token_ids"]

        def ids_of(text):
            return self.complete(text, max_tokens=1, return_token_ids=True)["choices"][0]["prompt_token_ids"]
        begin, end = "user: a\nassistant: b", "\nassistant: "
        for given, shown in (('{"a": 1}', '{"a": 1}'), ({"a": 1}, '{"a": 1}'), ("[2]", "[2]"), ("", "{}"), (None, "{}"), ("no JSON", '"no JSON"')):
            with self.subTest(given=given):
                self.assertEqual(prompt_of([{"type": "function", "function": {"name": "f", "arguments": given}}]), ids_of(f"{begin}{shown}{end}"))
        for none in ([], None):
            self.assertEqual(prompt_of(none), ids_of(f"{begin}{end}"))
        nothing = {"messages": [{"role": "user", "content": None}, {"role": "user"}], "max_tokens": 1, "return_token_ids": True}
        self.assertEqual(self.served.post("/v1/chat/completions", nothing)["prompt_token_ids"], ids_of("user: \nuser: \nassistant: "))
        status, answer = self.served.call("POST", "/v1/chat/completions", {"messages": [
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}]})
        self.assertEqual((status, "messages[0].tool_calls: " in answer["error"]["message"]), (400, True), answer)

    def test_a_template_gets_the_reasoning_effort(self):
        fields = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "return_token_ids": True}
        ids = [self.served.post("/v1/chat/completions", {**fields, **more})["prompt_token_ids"]
               for more in ({}, {"reasoning_effort": "low"}, {"chat_template_kwargs": {"reasoning_effort": "low"}},
                            {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}})]
        self.assertNotEqual(ids[0], ids[1])
        self.assertEqual(ids[1], ids[2])
        self.assertEqual(ids[1], ids[3])

    def test_an_abort_answers_with_what_there_is(self):
        served = Served(*wide())
        self.addCleanup(served.stop)
        body = {"prompt": [2, 3], "request_id": "mine", **ENDLESS_LINE}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(served.post, "/v1/completions", body)
            served.until_running([answer])
            served.post("/abort_request", {"rid": "mine"})
            self.assertEqual(answer.result()["choices"][0]["finish_reason"], "abort")
        connection = served.connect()
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True, "return_token_ids": True}))
        lines = filter(None, (line.strip() for line in connection.getresponse()))
        part = lambda: json.loads(next(lines).removeprefix(b"data: "))["choices"][0]
        for _ in range(3):  # it grows
            choice = part()
            self.assertIsNone(choice["finish_reason"])
            self.assertGreater(len(choice["token_ids"]), 0)
        served.post("/abort_request", {"rid": "mine"})
        while choice["finish_reason"] is None:
            choice = part()
        self.assertEqual(choice["finish_reason"], "abort")

    def test_what_is_wrong_is_said_in_openais_shape(self):
        chat, complete = "/v1/chat/completions", "/v1/completions"
        message = {"role": "user", "content": "hi"}
        for path, body, status, sentence in [
            (complete, "{", 400, "1:2"),
            (complete, "", 400, "prompt is missing"),
            (complete, {}, 400, "prompt is missing"),
            (complete, b'{"prompt": "\xff"}', 400, "body:1:13: the text is not UTF-8"),
            (complete, '{"a":' * 100_000, 400, "lists and objects are nested deeper than 500"),
            (complete, {"prompt": 5}, 400, "prompt is 5: expected text or a list of token ids"),
            (complete, {"prompt": ""}, 400, "the prompt is empty"),
            (complete, {"prompt": [1, "a"]}, 400, "prompt[1] is \"a\": expected a token id"),
            (complete, {"prompt": [99999]}, 400, "token id 99999 at place 0 of the prompt"),
            (complete, {"prompt": [1] * 5000}, 400, "the prompt has 5000 tokens"),
            (complete, {"prompt": "a" * 200_000}, 400, "the prompt has 200000 tokens"),
            (complete, {"prompt": "a", "model": ["x"]}, 400, "model is array: expected text"),
            (complete, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens is 0: expected an integer, at least 1"),
            (complete, {"prompt": "a", "max_tokens": 5, "max_completion_tokens": 0}, 400, "max_completion_tokens is 0: expected an integer, at least 1"),
            (complete, {"prompt": "a", "temprature": 0.5}, 400, "field \"temprature\" is not known: did you mean temperature?"),
            (chat, {"messages": [message], "sead": 1}, 400, "field \"sead\" is not known: did you mean seed?"),
            (complete, {"prompt": "a", "n": 0}, 400, "n is 0: expected"),
            (complete, {"prompt": "a", "n": 1_000_000}, 400, "n is 1000000: expected"),
            (complete, {"prompt": "a", "seed": 1 << 64}, 400, "seed is 1.8446744073709552e+19: expected"),
            (complete, '{"prompt": "a", "temperature": 1e400}', 400, "temperature is 1e+400: expected"),
            (complete, {"prompt": "a", "stream": "yes"}, 400, "stream is \"yes\": expected true or false"),
            (complete, {"prompt": "a", "stream_options": 5}, 400, "stream_options is 5: expected an object"),
            (complete, {"prompt": "a", "stop_token_ids": [1e400]}, 400, "malformed JSON"),
            (complete, {"prompt": "a", "request_id": "r" * 2000}, 400, "request_id has 2000 bytes"),
            (complete, {"prompt": "a", "model": "gpt-9"}, 404, "model is \"gpt-9\": expected \"scratchpad-1m8\""),
            (complete, {"prompt": "a", "logprobs": 5}, 400, "logprobs is 5: expected at most 1"),
            (complete, {"prompt": "a", "echo": True}, 400, "echo is not supported"),
            (complete, {"prompt": "a", "truncate_prompt_tokens": 5}, 400, "truncate_prompt_tokens is not supported"),
            (chat, {"messages": [message], "chat_template": "x"}, 400, "chat_template is not supported"),
            (chat, {"messages": [message], "add_special_tokens": True}, 400, "add_special_tokens is true: expected false"),
            (complete, {"prompt": "a", "min_tokens": 1, "min_new_tokens": 1}, 400, "min_tokens and min_new_tokens are both given"),
            (complete, {"prompt": "a", "max_tokens": 2, "min_new_tokens": 5}, 400, "min_new_tokens is 5: expected at most max_tokens, which is 2"),
            (complete, {"prompt": "a", "max_new_tokens": 5}, 400, "max_new_tokens is not supported: use max_tokens"),
            (complete, {"prompt": "a", "thinking_token_budget": 5}, 400, "thinking_token_budget is not supported: use max_tokens"),
            (complete, {"prompt": "a", "num_beams": 4}, 400, "num_beams is not supported: responses are sampled one by one"),
            (complete, {"prompt": "a", "do_sample": False}, 400, "do_sample is not supported: use temperature (0: greedy)"),
            (complete, {"prompt": "a", "typical_p": 0.5}, 400, "typical_p is not supported: use top_p, top_k or min_p"),
            (complete, {"prompt": "a", "sampling_params": {"top_k": 1}}, 400, "sampling_params is not supported: give its fields beside the prompt"),
            (chat, {"messages": [message], "extra_body": {"top_k": 1}}, 400, "extra_body is not supported: give its fields beside the prompt"),
            (complete, {"prompt": "a", "best_of": 3}, 400, "best_of is 3: expected 1, which is n"),
            (complete, {"prompt": "a", "temperature": -0.5}, 400, "temperature is -0.5: expected"),
            (complete, {"prompt": "a", "max_tokens": 2.5}, 400, "max_tokens is 2.5: expected"),
            (complete, {"prompt": "a", "logit_bias": {"5": 1}}, 400, "logit_bias"),
            (chat, "{", 400, "1:2"),
            (chat, {}, 400, "messages is missing"),
            (chat, {"messages": [message], "model": "gpt-9"}, 404, "model is \"gpt-9\": expected"),
            (chat, {"messages": [message], "max_completion_tokens": 0}, 400, "max_completion_tokens is 0: expected"),
            (chat, {"messages": [{"role": "user", "content": "a" * 5000}]}, 400, "expected less than 4096"),
            (chat, {"prompt_token_ids": "x"}, 400, "prompt_token_ids is string: expected a list of token ids"),
            (chat, {"prompt_token_ids": [99999]}, 400, "token id 99999 at place 0 of the prompt"),
            (chat, {"messages": [message], "top_logprobs": 3}, 400, "top_logprobs is 3: expected at most 1"),
            (chat, {"messages": []}, 400, "messages is array: expected a list of at least one message"),
            (chat, {"messages": [5]}, 400, "messages[0]: expected an object with a role"),
            (chat, {"messages": [message], "tool_choice": "required"}, 400, "tool_choice is \"required\""),
            (chat, {"messages": [message], "response_format": {"type": "json_object"}}, 400, "response_format"),
            (chat, {"messages": [message], "chat_template_kwargs": 1}, 400, "chat_template_kwargs is 1: expected an object"),
        ]:
            with self.subTest(body=str(body)[:80]):
                found, answer = self.served.call("POST", path, body)
                self.assertEqual(found, status, answer)
                self.assertIn(sentence, answer["error"]["message"])
                self.assertEqual(answer["error"]["type"], "invalid_request_error")


class NoTemplateTest(unittest.TestCase):
    def test_a_model_without_a_chat_template_says_so_and_takes_token_ids(self):
        served = Served()
        try:
            status, answer = served.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
            self.assertEqual(status, 400)
            self.assertIn("has no chat template", answer["error"]["message"])
            self.assertTrue(served.post("/v1/chat/completions", {"prompt_token_ids": [2, 3], "max_tokens": 3})["choices"][0]["message"])
        finally:
            served.stop()


if __name__ == "__main__":
    unittest.main()
