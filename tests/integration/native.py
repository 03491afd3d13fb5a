#!/usr/bin/env python3
"""Rollouts of `seer serve`: the responses of `seer rollout` bit for bit, clients that go away and come back, groups that come and are
cancelled, bad input, a server that is killed, and a disk that is full. usage: native.py SEER_PROGRAM"""
import contextlib, json, os, shutil, socket, subprocess, tempfile, threading, unittest

from served import ENDLESS_LINE, LONG_LINE, MACHINE, MODEL, ROOT, SEER, Served, ServedCase, wide, wide_model
from turned_model import turned_model

PROMPTS = f"{ROOT}/deploy/examples/scratchpad/prompts.jsonl"
PATH = "/seer/v1/rollouts"
COMPARED = 6000  # tokens of responses that go on after a restart; the server died before so many
VARYING = ("seq", "queue_s", "run_s", "chunks", "migrations", "preemptions")  # of a line, from run to run


def exact(lines):
    """Responses by group and sample, without what may differ from run to run."""
    return {(r["group"], r["sample"]): {name: value for name, value in r.items() if name not in VARYING} for r in lines}


def rollout(prompts, *options, model=MODEL):
    """The responses of `seer rollout` to these prompt lines."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/prompts.jsonl", "w") as file:
            file.write("".join(line + "\n" for line in prompts))
        subprocess.run([SEER, "rollout", "--model", model, "--prompts", f"{folder}/prompts.jsonl", "--instances", "1", *MACHINE, "--policy", "seer",
                        "--out", f"{folder}/out.jsonl", *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(f"{folder}/out.jsonl") as lines:
            return exact(json.loads(line) for line in lines)


def example_prompts(count):
    with open(PROMPTS) as lines:
        return [line.strip() for line, _ in zip(lines, range(count))]


def body_of(head, prompts):
    return "\n".join([json.dumps(head), *prompts])


class Stream:
    """The lines of a stream, as they come."""

    def __init__(self, served, method, path, body=None):
        self.connection = served.connect()
        self.connection.request(method, path, body)
        self.answer = self.connection.getresponse()
        if self.answer.status != 200:
            raise AssertionError(f"{path}: {self.answer.status} {self.answer.read()}")

    def line(self):
        text = self.answer.readline()
        return json.loads(text) if text else None

    def rest(self):
        return [json.loads(line) for line in self.answer]

    def close(self):
        # http.client's close() alone would keep the socket while its answer is referred to.
        self.connection.sock and self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.answer.close()
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.close()


def whole(served, method, path, body=None):
    with Stream(served, method, path, body) as stream:
        return stream.rest()


class NativeCase(ServedCase):
    def refused(self, status, sentence, method, path, body=None):
        found, answer = self.served.call(method, path, body)
        self.assertEqual((found, type(answer)), (status, dict), answer)
        self.assertIn(sentence, answer["error"]["message"])
        self.assertEqual(answer["error"]["message"].count("\n"), 0)


class NativeTest(NativeCase):
    def test_responses_are_those_of_seer_rollout_bit_for_bit(self):
        prompts = example_prompts(6) + [
            '{"id": "a", "prompt": "A03 B09 sum\\n", "n": 2, "temperature": 0.7, "top_p": 0.93, "level": 1.50, "type": "sum"}',
            '{"id": 7, "prompt_ids": [2, 3, 4], "n": 1, "seed": 11, "max_tokens": 40, "stop_token_ids": [5]}']
        right = rollout(prompts, "--group-size", "4", "--max-tokens", "200", "--seed", "3", "--min-p", "0.015")
        head = {"rollout_id": "exact", "seed": 3, "defaults": {"n": 4, "max_tokens": 200, "min_p": 0.015}}
        lines = whole(self.served, "POST", PATH, body_of(head, prompts))
        self.assertEqual((lines[0]["type"], lines[0]["responses"]), ("accepted", 27))
        self.assertEqual([r["seq"] for r in lines[1:-1]], list(range(1, 28)))
        self.assertEqual(exact(lines[1:-1]), right)
        self.assertEqual((lines[-1]["type"], lines[-1]["given"]), ("done", 27))
        # The groups in the first line itself give the same.
        head |= {"rollout_id": "list", "groups": [json.loads(line) for line in prompts]}
        self.assertEqual(exact(whole(self.served, "POST", PATH, json.dumps(head))[1:-1]), right)

    def test_groups_can_come_as_one_line_each(self):
        prompts = [prompt[:-1] + ', "length_hint": 30}' for prompt in example_prompts(5)]
        right = rollout(prompts, "--group-size", "3", "--max-tokens", "60")
        head = {"rollout_id": "together", "stream": "group", "defaults": {"n": 3, "max_tokens": 60}}
        lines = whole(self.served, "POST", PATH, body_of(head, prompts))
        groups = lines[1:-1]
        self.assertEqual([(g["type"], len(g["responses"])) for g in groups], [("group", 3)] * 5)
        self.assertEqual([g["seq"] for g in groups], [3, 6, 9, 12, 15])
        self.assertEqual([[(r["group"], r["sample"]) for r in g["responses"]] for g in groups], [[(g["group"], i) for i in range(3)] for g in groups])
        self.assertEqual(exact(r for g in groups for r in g["responses"]), right)
        self.assertEqual(whole(self.served, "GET", f"{PATH}/together?from_seq=7"), lines[3:])
        self.refused(400, "stream is \"all\": expected \"sample\" or \"group\"", "POST", PATH, body_of({"stream": "all"}, prompts))
        self.refused(400, "length_hint is 0", "POST", PATH, '{}\n{"prompt": "1", "length_hint": 0}')

    def test_raw_logprobs_are_those_of_the_flag(self):
        prompts = example_prompts(2)
        right = rollout(prompts, "--group-size", "2", "--max-tokens", "50", "--temperature", "0.5", "--raw-logprobs")
        head = {"defaults": {"n": 2, "max_tokens": 50, "temperature": 0.5}, "logprobs": "raw"}
        self.assertEqual(exact(whole(self.served, "POST", PATH, body_of(head, prompts))[1:-1]), right)

    def test_logprobs_can_be_left_out_or_be_over_the_ids_that_top_p_kept(self):
        prompts, defaults = example_prompts(3), {"n": 2, "max_tokens": 50, "top_p": 0.8}
        plain, without, kept = (exact(whole(self.served, "POST", PATH, body_of({"defaults": defaults, "logprobs": mode}, prompts))[1:-1])
                                for mode in ("processed", "none", "kept"))
        for at, r in plain.items():
            del r["logprobs"]
            self.assertEqual(without[at], r)
            ids, logprobs = kept[at].pop("kept_ids"), kept[at].pop("logprobs")
            self.assertEqual(kept[at], r)
            self.assertEqual((len(ids), len(logprobs)), (len(r["output_ids"]),) * 2)
            for token, of_token, logprob in zip(r["output_ids"], ids, logprobs):
                self.assertIn(token, of_token)
                self.assertEqual(logprob == 0, len(of_token) == 1)

    def test_a_rollout_outlives_its_client_and_the_same_request_attaches_to_it(self):
        body = body_of({"rollout_id": "left", "defaults": {"n": 4, "max_tokens": 300}}, example_prompts(6))
        with Stream(self.served, "POST", PATH, body) as stream:
            self.assertEqual(stream.line()["type"], "accepted")
            first = stream.line()
        lines = whole(self.served, "POST", PATH, body)
        self.assertEqual((lines[0]["type"], lines[1]), ("accepted", first))
        self.assertEqual([r["seq"] for r in lines[1:-1]], list(range(1, 25)))
        self.assertEqual(whole(self.served, "GET", f"{PATH}/left?from_seq=20"), lines[20:])
        self.refused(409, "there is a rollout \"left\" already, made by another request", "POST", PATH, body + "\n")

    def test_groups_come_while_it_is_open_and_it_ends_when_it_is_closed(self):
        prompts = example_prompts(5)
        right = rollout(prompts, "--group-size", "2", "--max-tokens", "60")
        with Stream(self.served, "POST", PATH, json.dumps({"rollout_id": "grows", "open": True, "defaults": {"n": 2, "max_tokens": 60}})) as stream:
            self.assertEqual(stream.line()["groups"], 0)
            path = f"{PATH}/grows/groups"
            self.assertEqual(self.served.post(path, "\n".join(prompts[:2])), {"rollout_id": "grows", "first_group": 0, "groups": 2})
            responses = [stream.line() for _ in range(4)]
            self.assertEqual(self.served.post(path + "?first_group=2", "\n\n".join(prompts[2:]))["first_group"], 2)
            self.assertEqual(self.served.post(path + "?first_group=2", "\n".join(prompts[2:]))["groups"], 3)  # again: not added twice
            self.assertEqual(self.served.post(f"{PATH}/grows/close")["open"], False)
            *more, done = stream.rest()
        self.assertEqual(exact(responses + more), right)
        self.assertEqual((done["type"], done["groups"], done["given"]), ("done", 5, 10))
        self.refused(409, "the rollout is closed: no groups can be added", "POST", path, prompts[0])

    def test_acknowledged_responses_are_forgotten_and_progress_is_told(self):
        body = body_of({"rollout_id": "acked", "defaults": {"n": 3, "max_tokens": 20}}, example_prompts(2))
        lines = whole(self.served, "POST", PATH, body)
        self.assertEqual(self.served.post(f"{PATH}/acked/ack", {"seq": 4})["acknowledged"], 4)
        self.assertEqual([r.get("seq") for r in whole(self.served, "GET", f"{PATH}/acked")], [5, 6, None])
        self.refused(400, "from_seq is 4: expected at least 5, since earlier responses were acknowledged", "GET", f"{PATH}/acked?from_seq=4")
        state = self.served.call("GET", f"{PATH}/acked/progress")[1]
        self.assertEqual((state["type"], state["given"], state["output_tokens"]), ("done", 6, sum(len(r["output_ids"]) for r in lines[1:-1])))
        self.assertIn(state, self.served.call("GET", PATH)[1]["rollouts"])
        with Stream(self.served, "POST", f"{PATH}?progress_s=1", json.dumps({"rollout_id": "waits", "open": True})) as stream:
            self.assertEqual([stream.line()["type"] for _ in range(3)], ["accepted", "progress", "progress"])
        self.served.call("DELETE", f"{PATH}/waits")

    def test_a_slow_reader_gets_all_of_a_stream_that_is_larger_than_its_buffers(self):
        prompts = [json.dumps({"prompt_ids": [2, 3, 4], "n": 60, "max_tokens": 900, "ignore_eos": True, "carried": "x" * 400_000})]
        with Stream(self.served, "POST", PATH, body_of({"rollout_id": "slow"}, prompts)) as stream:
            stream.line()
            while self.served.call("GET", f"{PATH}/slow/progress")[1]["type"] != "done":
                threading.Event().wait(0.05)
            *lines, done = stream.rest()
        self.assertEqual([r["seq"] for r in lines], list(range(1, 61)))
        self.assertEqual({len(r["carried"]) for r in lines}, {400_000})
        self.served.call("DELETE", f"{PATH}/slow")

    def test_what_is_wrong_is_said_in_one_sentence_and_nothing_is_begun(self):
        good = '{"prompt_ids": [2]}'
        before = self.served.call("GET", PATH)[1]
        for first, rest, sentence in [
            ("", "", "body:1: the line is empty"),
            ("{", "", "body:1:2: malformed JSON: the line ends too early"),
            ("[]", "", "body:1: expected a JSON object, found array"),
            ({"rollout_id": "a/b"}, good, "rollout_id is \"a/b\": expected 1 to 128 letters"),
            ({"rollout_id": 7}, good, "body:1: rollout_id is 7: expected text"),
            ({"rolout_id": "a"}, good, "body:1: field rolout_id is not known: expected rollout_id, open"),
            ({"open": 1}, good, "body:1: open is 1: expected true or false"),
            ({"seed": -1}, good, "body:1: seed is -1: expected an integer of at least 0"),
            ({"defaults": 5}, good, "body:1: defaults is 5: expected an object"),
            ({"defaults": {"max_new_tokens": 5}}, good, "defaults has max_new_tokens: use max_tokens"),
            ({"defaults": {"temperature": "hot"}}, good, "temperature is \"hot\": expected a number"),
            ({"logprobs": "all"}, good, "logprobs is \"all\": expected \"processed\", \"raw\", \"none\" or \"kept\""),
            ({"logprobs": "kept"}, good, "sampling: top_p is 1, expected a number below 1"),
            ({"stop_when": 3}, good, "stop_when is 3: expected an object of groups, samples or deadline_s"),
            ({"stop_when": {}}, good, "stop_when is object: expected an object of groups, samples or deadline_s"),
            ({"stop_when": {"groups": 0}}, good, "stop_when.groups is 0: expected an integer of at least 1"),
            ({"stop_when": {"deadline_s": 1e9}}, good, "stop_when.deadline_s is 1"),
            ({"stop_when": {"tokens": 1}}, good, "field stop_when.tokens is not known: expected groups, samples or deadline_s"),
            ({"groups": {}}, good, "groups is object: expected a list of objects"),
            ({"groups": [{"prompt_ids": [2]}, 5]}, "", "groups:2: expected a JSON object, found number"),
            ({"groups": [{"prompt_ids": [2], "id": 1}, {"prompt_ids": [2], "id": 1}]}, "", "groups:2: id 1 is that of line 1 already"),
            ({}, "", "the rollout has no groups: expected some, or \"open\": true"),
            ({}, f"{good}\n\ngarbage", "body:4:1: malformed JSON after g"),
            ({}, f"{good}\n{{}}", "body:3: neither prompt nor prompt_ids nor messages"),
            ({}, '{"prompt_ids": [2, 99999]}', "body:2: token id 99999 at place 1 of the prompt"),
            ({}, json.dumps({"prompt_ids": [2] * 5000}), "body:2: the prompt has 5000 tokens"),
            ({}, '{"prompt_ids": [2], "seq": 1}', "body:2: field seq would clash with the response's own"),
            ({}, '{"messages": [{"role": "user", "content": "a"}]}', "body:2: messages need a chat template, and scratchpad-1m8 has none"),
            ({}, '{"prompt_ids": [2], "n": 300000}\n' * 2, "body:3: the request asks for 600000 responses up to here: expected at most 500000"),
            ({"defaults": {"stop_token_ids": [5] * 10_000}}, f"{good}\n" * 1000, "body:421: the stops of all groups take 16800000 bytes up to here"),
            ('{"a":' * 2000, good, "body:1: lists and objects are nested deeper than 1000"),
            ('{"seed": 1, "seed": 2}', good, "body:1: field seed is given twice"),
            ({"priority": -4294967297}, good, "priority is -4294967297: expected an integer of at least -2147483648"),
            ({"seed": 1 << 64}, good, "body:1: seed is 1.8446744073709552e+19: expected an integer"),
            ({}, '{"prompt_ids": []}', "body:2: the prompt is empty"),
            ({}, '{"prompt": "\udcff"}', "body:2:13: the text is not UTF-8"),
            ({}, '{"prompt_ids": [2, -1]}', "body:2: prompt_ids[1] is -1: expected a token id"),
            ({}, '{"prompt_ids": [2], "n": 0}', "body:2: n is 0: expected"),
            ({}, '{"prompt_ids": [2], "max_tokens": 0}', "body:2: max_tokens is 0: expected"),
            ({}, '{"prompt_ids": [2], "temperature": 1e400}', "body:2: temperature is 1e400: expected a number"),
            ({}, '{"prompt_ids": [2], "stop_token_ids": [99999]}', "body:2: stop_token_ids has 99999: expected ids below"),
            ({"groups": [{"prompt_ids": [2], "id": 1}]}, '{"prompt_ids": [2], "id": 1}', "id 1 is given twice"),
        ]:
            with self.subTest(first=str(first)[:60], rest=rest[:60]):
                head = first if isinstance(first, str) else json.dumps(first)
                self.refused(400, sentence, "POST", PATH, f"{head}\n{rest}".encode(errors="surrogateescape"))
        self.refused(400, "from_seq is 2: expected 1, since the rollout is not there yet", "POST", f"{PATH}?from_seq=2", body_of({}, [good]))
        self.refused(409, "expect_weight_version is 9, and version 1 runs", "POST", PATH, body_of({"expect_weight_version": 9}, [good]))
        self.assertEqual(self.served.call("GET", PATH)[1], before)

    def test_a_request_sent_again_attaches_even_if_the_version_that_it_expected_is_over(self):
        served = Served()
        self.addCleanup(served.stop)
        body = body_of({"rollout_id": "kept", "expect_weight_version": "1", "defaults": {"n": 2, "max_tokens": 20}}, ['{"id": "a", "prompt_ids": [2, 3]}'])
        samples = [[line for line in whole(served, "POST", PATH, body) if "output_ids" in line]]
        served.post("/update_weights_from_disk", {"model_path": MODEL})
        samples.append([line for line in whole(served, "POST", PATH, body) if "output_ids" in line])
        self.assertEqual(len(samples[0]), 2)
        self.assertEqual(samples[0], samples[1])
        served.call("DELETE", f"{PATH}/kept")
        status, answer = served.call("POST", PATH, body)
        self.assertEqual((status, answer["error"]["message"]), (409, "body:1: expect_weight_version is 1, and version 2 runs"))

    def test_a_rollout_that_expects_weights_is_not_started_again_with_others(self):
        served = Served(*wide())
        self.addCleanup(served.stop)
        prompts = [json.dumps({"prompt_ids": [2, 3, 4], "n": 2, **LONG_LINE})]
        with Stream(served, "POST", PATH, body_of({"rollout_id": "any"}, prompts)) as free, \
             Stream(served, "POST", PATH, body_of({"rollout_id": "first", "expect_weight_version": "1"}, prompts)) as bound:
            bound.line()
            served.post("/update_weights_from_disk", {"model_path": MODEL, "mode": "retract"})
            self.assertEqual([(r["finish_reason"], r["output_ids"], r["error"]) for r in bound.rest()[:-1]],
                             [("error", [], "it is for weight version 1 alone, and version 2 runs")] * 2)
            self.assertEqual([(r["weight_version"], len(r["output_ids"])) for r in free.rest()[1:-1]], [(2, LONG_LINE["max_tokens"])] * 2)

    def test_what_is_wrong_of_a_rollout_that_is_there_is_said_too(self):
        self.served.call("DELETE", f"{PATH}/there")
        whole(self.served, "POST", PATH, body_of({"rollout_id": "there", "defaults": {"n": 1, "max_tokens": 2}}, ['{"id": "a", "prompt_ids": [2]}']))
        with Stream(self.served, "POST", PATH, body_of({"rollout_id": "open", "open": True, "defaults": {"n": 1, "max_tokens": 2}},
                                                      ['{"id": "a", "prompt_ids": [2]}'])):
            for status, sentence, method, path, body in [
                (404, "there is no rollout \"x\"", "GET", "/x", None),
                (404, "there is no rollout \"x\"", "GET", "/x/progress", None),
                (404, "there is no rollout \"x\"", "POST", "/x/groups", "{}"),
                (404, "there is no rollout \"x\"", "POST", "/x/close", None),
                (404, "there is no rollout \"x\"", "POST", "/x/ack", {"seq": 1}),
                (404, "there is no rollout \"x\"", "DELETE", "/x/groups/1", None),
                (404, "there is no rollout \"x\"", "DELETE", "/x", None),
                (404, "the rollout has no group \"7\"", "DELETE", "/open/groups/7", None),
                (404, "no group of the rollout has the id 0; group 0 is named by its own, \"a\"", "DELETE", "/open/groups/0", None),
                (404, "no PUT /seer/v1/rollouts/open", "PUT", "/open", None),
                (400, "from_seq is \"0\": expected an integer, at least 1", "GET", "/there?from_seq=0", None),
                (400, "from_seq is \"-1\"", "GET", "/there?from_seq=-1", None),
                (400, "from_seq is \"x\"", "GET", "/there?from_seq=x", None),
                (400, 'the query has "from": expected from_seq, progress_s', "GET", "/there?from=2", None),
                (400, "from_seq is 3: expected at most 2, the next response", "GET", "/there?from_seq=3", None),
                (400, "progress_s is \"0\": expected an integer, at least 1 and at most 86400", "GET", "/there?progress_s=0", None),
                (400, "seq is missing", "POST", "/there/ack", {}),
                (400, "field \"sec\" is not known: expected seq", "POST", "/there/ack", {"seq": 1, "sec": 2}),
                (400, "seq is 2: expected at most 1, the last response that was given", "POST", "/there/ack", {"seq": 2}),
                (400, "seq is \"1\": expected an integer", "POST", "/there/ack", {"seq": "1"}),
                (400, "on_cancel is \"keep\": expected drop or return_partial", "DELETE", "/there?on_cancel=keep", None),
                (409, "group \"a\" is over", "DELETE", "/there/groups/a", None),
                (409, "the rollout is closed: no groups can be added", "POST", "/there/groups", '{"prompt_ids": [2]}'),
                (409, "id \"a\" is that of group 0 already", "POST", "/open/groups", '{"id": "a", "prompt_ids": [2]}'),
                (400, "body:2:1: malformed JSON", "POST", "/open/groups", '{"prompt_ids": [2]}\nx'),
                (400, "body:2: id 1 is that of line 1 already", "POST", "/open/groups", '{"id": 1, "prompt_ids": [2]}\n{"id": 1, "prompt_ids": [2]}'),
                (400, "the body has no groups", "POST", "/open/groups", "\n"),
                (409, "first_group is 9: expected 1", "POST", "/open/groups?first_group=9", '{"prompt_ids": [2]}'),
            ]:
                with self.subTest(path=path, body=str(body)[:60]):
                    self.refused(status, sentence, method, PATH + path, body)
            self.assertEqual(self.served.call("GET", f"{PATH}/open/progress")[1]["groups"], 1)
        self.served.call("DELETE", f"{PATH}/open")


class RunningTest(NativeCase):
    """Rollouts that are ended while they run."""
    is_wide = True

    def test_a_group_that_is_cancelled_comes_with_what_it_has_and_others_go_on(self):
        prompts = [json.dumps({"id": name, "prompt_ids": [2, 3, 4], "n": 2, **ENDLESS_LINE}) for name in ("a/b c", "d")] + [
            json.dumps({"prompt_ids": [5, 6], "n": 1, **ENDLESS_LINE})]
        with Stream(self.served, "POST", PATH, body_of({"rollout_id": "cut"}, prompts)) as stream:
            stream.line()
            self.served.wait_until(lambda load: load["num_running_reqs"] >= 5)
            self.assertEqual(self.served.call("DELETE", f"{PATH}/cut/groups/a%2Fb%20c")[0], 200)
            ended = [stream.line() for _ in range(2)]
            self.assertEqual([(r["id"], r["finish_reason"]) for r in ended], [("a/b c", "abort")] * 2)
            self.refused(409, "group \"a/b c\" is over", "DELETE", f"{PATH}/cut/groups/a%2Fb%20c")
            self.assertEqual(self.served.call("DELETE", f"{PATH}/cut?on_cancel=return_partial")[0], 200)
            *rest, done = stream.rest()
        begin_of_d = rollout([json.dumps({**json.loads(prompts[1]), "max_tokens": 1000})], "--seed", "1")
        self.assertEqual(sorted(r["group"] for r in rest), [1, 1, 2])
        for r in rest:
            if r["group"] == 1:
                right = begin_of_d[(0, r["sample"])]
                self.assertEqual(r["output_ids"][:1000], right["output_ids"][:len(r["output_ids"])])
        self.assertEqual(({r["finish_reason"] for r in rest}, done["aborted"]), ({"abort"}, 5))

    def test_a_rollout_ends_once_enough_groups_or_samples_are_whole(self):
        short = [json.dumps({"id": f"short {i}", "prompt_ids": [2 + i], "max_tokens": 5, "ignore_eos": True}) for i in range(2)]
        long = json.dumps({"id": "long", "prompt_ids": [2, 3, 4], **ENDLESS_LINE})
        for stop, whole_least in (({"groups": 2}, 4), ({"samples": 3}, 3), ({"groups": 3, "samples": 4}, 4)):
            with self.subTest(stop):
                head = {"defaults": {"n": 2}, "open": True, "stop_when": stop}
                accepted, *responses, done = whole(self.served, "POST", PATH, body_of(head, [*short, long]))
                self.assertEqual((done["type"], done["stopped"], done["open"], len(responses)), ("done", True, False, 6))
                self.assertGreaterEqual(sum(r["finish_reason"] == "length" for r in responses), whole_least)
                cut = [r for r in responses if r["id"] == "long"]
                self.assertEqual([r["finish_reason"] for r in cut], ["abort", "abort"])
                self.assertLess(max(len(r["output_ids"]) for r in cut), ENDLESS_LINE["max_tokens"])
                self.refused(409, "the rollout is closed", "POST", f"{PATH}/{accepted['rollout_id']}/groups", long)

    def test_a_rollout_ends_when_its_time_is_over_unless_it_is_whole_before(self):
        head = {"defaults": {"n": 1500, **ENDLESS_LINE}, "stop_when": {"deadline_s": 1}}
        _, *responses, done = whole(self.served, "POST", PATH, body_of(head, ['{"prompt_ids": [2]}']))
        self.assertEqual((done["stopped"], len(responses)), (True, 1500))
        self.assertGreater(done["aborted"], 0)
        head = {"defaults": {"n": 2, "max_tokens": 5}, "stop_when": {"deadline_s": 60, "groups": 2}}
        self.assertFalse(whole(self.served, "POST", PATH, body_of(head, ['{"prompt_ids": [2]}']))[-1]["stopped"])

    def test_a_deleted_rollout_ends_and_is_gone(self):
        prompts = [json.dumps({"prompt_ids": [2, 3, 4], "n": 4, **ENDLESS_LINE})]
        with Stream(self.served, "POST", PATH, body_of({"rollout_id": "gone"}, prompts)) as stream:
            stream.line()
            self.assertEqual(self.served.call("DELETE", f"{PATH}/gone")[1]["type"], "deleted")
            self.assertEqual(stream.rest()[-1], {"type": "error", "message": "the rollout was deleted"})
        self.served.wait_until(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 0)
        self.refused(404, "there is no rollout \"gone\"", "GET", f"{PATH}/gone")


class RoomTest(unittest.TestCase):
    def test_a_server_without_room_refuses_more_until_responses_are_acknowledged(self):
        served = Served("--kept-bytes", "1MiB")
        try:
            big = [json.dumps({"prompt_ids": [2, 3], "n": 3, "max_tokens": 2, "text_of_mine": "x" * 400_000})]
            with Stream(served, "POST", PATH, body_of({"rollout_id": "big", "open": True}, big)) as stream:
                self.assertEqual([stream.line().get("seq") for _ in range(4)], [None, 1, 2, 3])
                status, answer = served.call("POST", PATH, body_of({"rollout_id": "more"}, big))
                self.assertEqual(status, 429)
                self.assertIn("acknowledge responses, or delete rollouts", answer["error"]["message"])
                served.post(f"{PATH}/big/ack", {"seq": 3})
            whole(served, "POST", PATH, body_of({"rollout_id": "more"}, big))
            whole(served, "POST", PATH, body_of({"rollout_id": "third"}, big))  # "more" is over and was sent
            self.assertEqual([s["rollout_id"] for s in served.call("GET", PATH)[1]["rollouts"]], ["big", "third"])
        finally:
            served.stop()


class ChatTest(unittest.TestCase):
    def test_conversations_are_prompts_of_the_models_template(self):
        with tempfile.TemporaryDirectory() as folder:
            model = f"{folder}/scratchpad-1m8"
            shutil.copytree(MODEL, model)
            with open(f"{model}/chat_template.jinja", "w") as file:
                file.write("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
            prompts = [json.dumps({"messages": [{"role": "user", "content": text}], "level": 3}) for text in ("2+3", "A03 B09")]
            right = rollout(prompts, "--group-size", "2", "--max-tokens", "40", model=model)
            served = Served("--model", model)
            try:
                head = {"defaults": {"n": 2, "max_tokens": 40}}
                self.assertEqual(exact(whole(served, "POST", PATH, body_of(head, prompts))[1:-1]), right)
            finally:
                served.stop()


class JournalTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.options = ["--journal", f"{folder.name}/journal", "--chunk-tokens", "64"]
        run = subprocess.run([SEER, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", *MACHINE, "--journal", "/proc/none"], capture_output=True, text=True)
        if "needs RocksDB" in run.stderr:
            self.skipTest(run.stderr)

    def test_a_rollout_goes_on_after_the_server_was_killed_again_and_again(self):
        prompts = example_prompts(10)
        right = rollout(prompts, "--group-size", "6", "--max-tokens", "1200", "--chunk-tokens", "64")
        body = body_of({"rollout_id": "step", "open": True, "defaults": {"n": 6, "max_tokens": 1200}}, prompts[:8])
        got, kills, tokens_before = {}, 0, []
        served = Served(*self.options)
        try:
            with Stream(served, "POST", PATH, body) as stream:
                stream.line()
                served.post(f"{PATH}/step/groups?first_group=8", "\n".join(prompts[8:]))
                while kills < 4:
                    for _ in range(4):  # more responses, then it is killed
                        r = stream.line()
                        got[r["seq"]] = r
                    served.kill()
                    kills += 1
                    served = Served(*self.options)
                    stream.close()
                    state = served.call("GET", f"{PATH}/step/progress")[1]
                    self.assertGreaterEqual(state["given"], len(got))  # what a client was sent is there
                    stream = Stream(served, "GET", f"{PATH}/step?from_seq={len(got) + 1}")
                served.post(f"{PATH}/step/groups?first_group=8", "\n".join(prompts[8:]))  # as a client does that got no answer
                served.post(f"{PATH}/step/close")
                *rest, done = stream.rest()
                stream.close()
            for r in rest:
                self.assertNotIn(r["seq"], got)
                got[r["seq"]] = r
            self.assertEqual(sorted(got), list(range(1, 61)))
            self.assertEqual(exact(got.values()), right)
            self.assertEqual((done["given"], done["groups"]), (60, 10))
            # All of it again, from the first on, and after one more restart.
            again = whole(served, "GET", f"{PATH}/step?from_seq=1")
            served.kill()
            served = Served(*self.options)
            self.assertEqual(whole(served, "GET", f"{PATH}/step?from_seq=1"), again)
            self.assertEqual(whole(served, "POST", PATH, body)[1:], again)
            self.assertEqual([got[seq] for seq in sorted(got)], again[:-1])
        finally:
            served.kill()

    def test_groups_that_come_as_one_line_each_are_whole_over_kills(self):
        prompts = example_prompts(8)
        head = {"rollout_id": "grouped", "defaults": {"n": 6, "max_tokens": 600, "top_p": 0.99}, "logprobs": "kept"}
        undisturbed = Served()
        right = exact(whole(undisturbed, "POST", PATH, body_of(head, prompts))[1:-1])
        undisturbed.kill()
        served = Served(*self.options)
        lines = {}
        try:
            stream = Stream(served, "POST", PATH, body_of({**head, "stream": "group"}, prompts))
            stream.line()
            for _ in range(3):
                line = stream.line()
                lines[line["seq"]] = line
                served.kill()
                served = Served(*self.options)
                stream.close()
                stream = Stream(served, "GET", f"{PATH}/grouped?from_seq={max(lines) + 1}")
            *rest, done = stream.rest()
            stream.close()
            for line in rest:
                self.assertNotIn(line["seq"], lines)
                lines[line["seq"]] = line
            self.assertEqual(sorted(lines), list(range(6, 49, 6)))
            self.assertEqual(exact(r for line in lines.values() for r in line["responses"]), right)
            self.assertEqual(done["given"], 48)
        finally:
            served.kill()

    def serve(self, *options, model=None):
        """A server with the journal, and room for ENDLESS responses."""
        return Served(*self.options, "--model", model or wide_model(), "--kv-bytes", "64MiB", *options)

    @contextlib.contextmanager
    def begun(self, served, body):
        """A rollout of which the journal has tokens."""
        size = lambda: sum(entry.stat().st_size for entry in os.scandir(f"{self.options[1]}/db") if entry.name.endswith(".log"))
        before = size()
        with Stream(served, "POST", PATH, body) as stream:
            stream.line()
            served.wait_until(lambda _: size() > before + len(body) + 4096)
            yield

    def assertMakes(self, served, rollout_id, groups, *options, model=None):
        """The rollout goes on, and what it makes begins as that which `seer rollout` makes of these groups. Returns its last line."""
        served.until_made(2000)
        self.assertEqual(served.call("DELETE", f"{PATH}/{rollout_id}?on_cancel=return_partial")[0], 200)
        *lines, done = whole(served, "GET", f"{PATH}/{rollout_id}")
        right = rollout([json.dumps({**json.loads(line), "max_tokens": COMPARED}) for line in groups], *options, model=model or wide_model())
        self.assertEqual(sorted((r["group"], r["sample"]) for r in lines), sorted(right))
        for r in lines:
            begin = right[r["group"], r["sample"]]
            self.assertEqual([r[name] for name in ("seed", "prompt_ids", "weight_version")], [begin[name] for name in ("seed", "prompt_ids", "weight_version")])
            for name in ("output_ids", "logprobs"):
                self.assertEqual(r[name][:COMPARED], begin[name][:len(r[name])])
        return done

    def resume(self, *options, model=None):
        """A server with the same journal, and what it says of the rollouts that it goes on with."""
        log = f"{self.options[1]}.log"
        with contextlib.suppress(FileNotFoundError):
            os.remove(log)
        served = self.serve(*options, "--log-level", "info", "--log-file", log, model=model)
        with open(log) as lines:
            return served, next(line for line in lines if "rollouts_resumed" in line)

    def test_responses_that_were_begun_go_on_with_the_tokens_they_had(self):
        prompt = json.dumps({"prompt_ids": [2, 3, 4], "n": 2, **ENDLESS_LINE})
        served = self.serve()
        with self.begun(served, body_of({"rollout_id": "long"}, [prompt])):
            served.kill()
        served, resumed = self.resume()
        try:
            self.assertRegex(resumed, r"groups=1 tokens=[1-9]\d+")
            self.assertEqual(self.assertMakes(served, "long", [prompt])["given"], 2)
        finally:
            served.kill()

    def test_sigterm_does_not_wait_for_rollouts_that_the_journal_keeps(self):
        prompts = [json.dumps({**json.loads(prompt), "n": 4, **ENDLESS_LINE}) for prompt in example_prompts(2)]
        served = self.serve()
        with Stream(served, "POST", PATH, body_of({"rollout_id": "kept"}, prompts)) as stream:
            stream.line()
            served.wait_until(lambda load: load["num_running_reqs"] == 8)
            self.assertEqual(served.stop(), 0)
        served, resumed = self.resume()
        try:
            self.assertRegex(resumed, r"groups=2 tokens=\d+")
            self.assertMakes(served, "kept", prompts)
        finally:
            served.stop()

    def test_with_other_weights_after_the_restart_what_was_begun_starts_anew(self):
        prompts = [json.dumps({"prompt_ids": [2, 3, 4 + i], "n": 2, **ENDLESS_LINE}) for i in range(2)]
        turned = self.turned_weights()
        for name, version in (("other version", "9"), ("same version", "1")):
            with self.subTest(name):
                rollout_id = f"turn-{version}"
                served = self.serve()
                with self.begun(served, body_of({"rollout_id": rollout_id}, prompts)):
                    served.post("/pause_generation", {"mode": "retract"})  # and start anew here, too
                    served.post("/continue_generation")
                    served.wait_until(lambda load: load["num_running_reqs"] == 4)
                    served.kill()
                served, resumed = self.resume("--weight-version", version, model=turned)
                try:
                    self.assertRegex(resumed, r"groups=2 tokens=0\b")
                    self.assertMakes(served, rollout_id, prompts, "--weight-version", version, model=turned)
                finally:
                    served.stop()

    def test_tokens_of_weights_that_came_while_it_ran_are_gone_on_with_too(self):
        prompts = [json.dumps({"prompt_ids": [2, 3, 4], "n": 2, **ENDLESS_LINE})]
        served = self.serve()
        self.assertTrue(served.post("/update_weights_from_disk", {"model_path": MODEL, "weight_version": "5"})["success"])
        with self.begun(served, body_of({"rollout_id": "new"}, prompts)):
            served.kill()
        served, resumed = self.resume("--weight-version", "5")
        try:
            self.assertRegex(resumed, r"groups=1 tokens=[1-9]\d+")
            self.assertMakes(served, "new", prompts, "--weight-version", "5")
        finally:
            served.stop()

    def begun_with(self, weights, label, groups):
        """A server that was killed while it made a rollout that expects these weights, and came back with those of its start. Returns it,
        and what it said of the rollout."""
        served = self.serve()
        self.assertTrue(served.post("/update_weights_from_disk", {"model_path": weights, "weight_version": label})["success"])
        body = body_of({"rollout_id": "expects", "expect_weight_version": label, "open": True}, groups)
        with self.begun(served, body):
            served.kill()
        served, _ = self.resume()
        self.addCleanup(served.stop)
        return served, served.call("GET", f"{PATH}/expects/progress")[1]

    def new_weights(self, served, weights, label):
        self.assertTrue(served.post("/update_weights_from_disk", {"model_path": weights, "weight_version": label})["success"])

    def turned_weights(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return turned_model(folder.name, wide_model())

    def test_a_rollout_that_expects_weights_waits_for_them_after_a_restart(self):
        turned = self.turned_weights()
        groups = [json.dumps({"id": i, "prompt_ids": [2, 3, 4 + i], "n": 2, **ENDLESS_LINE}) for i in range(3)]
        served, state = self.begun_with(turned, "12", groups[:2])
        self.assertEqual((state["waits_for_version"], state["given"]), ("12", 0))
        with open(f"{self.options[1]}.log") as lines:
            self.assertIn("rollout_waits rollout_id=expects groups=2 for_version=12 weight_version=1", lines.read())
        served.post(f"{PATH}/expects/groups", groups[2])
        self.new_weights(served, MODEL, "11")
        whole(served, "POST", PATH, body_of({"rollout_id": "any"}, ['{"prompt_ids": [2], "n": 1, "max_tokens": 5}']))  # others do not wait
        state = served.call("GET", f"{PATH}/expects/progress")[1]
        self.assertEqual((state["waits_for_version"], state["given"]), ("12", 0))
        self.new_weights(served, turned, "12")
        done = self.assertMakes(served, "expects", groups, "--weight-version", "12", model=turned)
        self.assertNotIn("waits_for_version", done)

    def test_a_rollout_that_expects_weights_ends_when_later_ones_come(self):
        turned = self.turned_weights()
        groups = [json.dumps({"prompt_ids": [2, 3, 4], "n": 2, **ENDLESS_LINE})]
        for label, later in (("12", "13"), ("step-12", "step-13")):
            with self.subTest(label):
                served, state = self.begun_with(turned, label, groups)
                self.assertEqual(state["waits_for_version"], label)
                self.new_weights(served, turned, later)
                served.post(f"{PATH}/expects/groups", groups[0])  # too late as well
                served.post(f"{PATH}/expects/close")
                *lines, done = whole(served, "GET", f"{PATH}/expects")
                self.assertEqual([(r["finish_reason"], r["output_ids"], r["error"]) for r in lines],
                                 [("error", [], f"the rollout expects weight version {label}, and version {later} runs")] * 4)
                self.assertEqual((done["failed"], "waits_for_version" in done), (4, False))
                served.call("DELETE", f"{PATH}/expects")
                served.stop()

    def test_groups_that_wait_for_weights_can_be_cancelled(self):
        groups = [json.dumps({"id": i, "prompt_ids": [2, 3, 4], "n": 2, **ENDLESS_LINE}) for i in range(3)]
        served, _ = self.begun_with(MODEL, "12", groups)
        self.assertEqual(served.call("DELETE", f"{PATH}/expects/groups/1")[1]["aborted"], 2)
        self.assertEqual(served.call("DELETE", f"{PATH}/expects/groups/1")[0], 409)
        self.assertEqual(served.call("DELETE", f"{PATH}/expects?on_cancel=return_partial")[1]["aborted"], 6)
        *lines, done = whole(served, "GET", f"{PATH}/expects")
        self.assertEqual([(r["id"], r["finish_reason"], r["output_ids"]) for r in lines], [(i, "abort", []) for i in (1, 1, 0, 0, 2, 2)])
        self.assertNotIn("waits_for_version", done)

    @contextlib.contextmanager
    def full(self, disk):
        """Nothing more fits on it."""
        with open(f"{disk}/filler", "wb", buffering=0) as filler:
            for size in (1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(b"x" * size)
        yield
        os.remove(f"{disk}/filler")

    def journal_failed(self, served):
        status, text = served.call("GET", "/metrics")
        return [line for line in text.splitlines() if line.startswith("seer_journal_failed")] if status == 200 else None

    def test_after_the_disk_was_full_rollouts_are_taken_in_and_kept_again(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder.name], capture_output=True).returncode != 0:
            self.skipTest("mounting a small tmpfs needs root")
        self.addCleanup(subprocess.run, ["umount", folder.name], check=True)
        self.options[1] = f"{folder.name}/journal"
        short = [json.dumps({"prompt_ids": [2, 3, 4], "n": 2, "max_tokens": 20, "ignore_eos": True, "of_mine": "x" * 8192})] * 2  # more than a page
        body = lambda name, **head: body_of({"rollout_id": name, **head}, short)
        served = Served(*self.options)
        try:
            before = whole(served, "POST", PATH, body("acknowledged"))
            whole(served, "POST", PATH, body("deleted"))
            with Stream(served, "POST", PATH, body_of({"rollout_id": "runs", "open": True}, [json.dumps({"prompt_ids": [2, 3], "n": 2, "max_tokens": 1500, "ignore_eos": True})])) as runs:
                runs.line()
                with self.full(folder.name):
                    for _ in range(2):
                        status, answer = served.call("POST", PATH, body("refused"))
                        self.assertEqual(status, 503)
                        self.assertRegex(answer["error"]["message"], r"^the journal cannot be written, so no groups are taken in: journal \S+: .*No space left")
                    self.assertEqual(served.call("POST", f"{PATH}/runs/groups", short[0])[0], 503)
                    self.assertIn(self.journal_failed(served), (None, ["seer_journal_failed 1"]))
                    given = [runs.line() for _ in range(2)]  # what runs goes on
                    served.post(f"{PATH}/acknowledged/ack", {"seq": 3})
                    self.assertEqual(served.call("DELETE", f"{PATH}/deleted")[0], 200)
                served.post(f"{PATH}/runs/groups", short[0])
                given += [runs.line() for _ in range(2)]
            self.assertIn(self.journal_failed(served), (None, ["seer_journal_failed 0"]))
            after = whole(served, "POST", PATH, body("refused"))
            self.assertEqual(after[-1]["given"], 4)
            served.kill()
            served = Served(*self.options)
            self.assertEqual(sorted(s["rollout_id"] for s in served.call("GET", PATH)[1]["rollouts"]), ["acknowledged", "refused", "runs"])
            self.assertEqual(whole(served, "GET", f"{PATH}/refused"), after[1:])
            self.assertEqual(whole(served, "GET", f"{PATH}/acknowledged")[0], before[4])
            served.post(f"{PATH}/runs/close")
            self.assertEqual(whole(served, "GET", f"{PATH}/runs")[:-1], given)
        finally:
            served.kill()

    def test_a_folder_of_another_model_or_in_use_is_refused_with_a_sentence(self):
        served = Served(*self.options)
        try:
            run = subprocess.run([SEER, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", *MACHINE, *self.options], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn("journal", run.stderr)
            self.assertEqual(run.stderr.count("\n"), 1)
        finally:
            served.stop()


if __name__ == "__main__":
    unittest.main()
