#!/usr/bin/env python3
"""Tests the rollouts of deploy/client with a real `seer serve`. client.py has its other methods. usage: client_rollouts.py SEER_PROGRAM"""
import array, asyncio, concurrent.futures, contextlib, socket, tempfile, unittest

from client_case import ServedTest, Token, any_rollout, is_idle, wait_until
from served import ENDLESS, ENDLESS_LINE, LONG_LINE, PATIENCE_S, Served

import seer_client
from seer_client import AsyncClient, Client


class RolloutsTest(ServedTest):
    is_wide = True
    GROUPS = [{"id": f"p{i}", "prompt_ids": [2, 3, 4 + i], "n": 3, "max_tokens": 120, "level": 1.5} for i in range(4)]

    def whole(self):
        """What a rollout of GROUPS gives, by group and sample."""
        return {(r.group, r.index): (r.tokens, r.logprobs, r.text, r.seed) for r in self.client.rollout(self.GROUPS)}

    def test_a_rollout_gives_each_response_once_with_what_its_prompt_line_carries(self):
        rollout = self.client.rollout(self.GROUPS[:2], n=1, sampling={"temperature": 0.5}, seed=3)
        found = list(rollout)
        self.assertEqual([r.seq for r in found], list(range(1, 7)))
        self.assertEqual(sorted((r.group, r.index, r.id) for r in found), [(g, s, f"p{g}") for g in range(2) for s in range(3)])
        for r in found:
            self.assertEqual((r.meta["level"], r.prompt_ids, r.prompt_tokens, r.rid), (1.5, [2, 3, 4 + r.group], 3, rollout.rollout_id))
            alone = self.client.generate(r.prompt_ids, sampling={"max_new_tokens": 120, "temperature": 0.5, "sampling_seed": r.seed})
            self.assertEqual((r.tokens, r.logprobs, r.finish_reason, r.weight_version), (alone.tokens, alone.logprobs, alone.finish_reason, "1"))
        self.assertEqual((rollout.summary["given"], rollout.seq), (6, 6))

    def test_the_responses_of_a_group_come_together_if_asked_for(self):
        right = self.whole()
        found = list(self.client.rollout(self.GROUPS, stream="group"))
        self.assertEqual([r.seq for r in found], list(range(1, 13)))
        self.assertEqual([r.index for r in found], [0, 1, 2] * 4)
        self.assertEqual([r.group for r in found[::3]], [r.group for r in found[2::3]])
        # Seeds of lines with ids depend on these and on the server's seed alone.
        self.assertEqual({(r.group, r.index): (r.tokens, r.logprobs, r.text, r.seed) for r in found}, right)

    def test_a_rollout_whose_connections_end_again_and_again_comes_whole(self):
        right = self.whole()
        client, proxy = self.proxied([0, 40, 3000, 1, 9000, 400, 6000])
        rollout = client.rollout(self.GROUPS)
        found = list(rollout)
        self.assertEqual([r.seq for r in found], list(range(1, 13)))
        self.assertEqual({(r.group, r.index): (r.tokens, r.logprobs, r.text, r.seed) for r in found}, right)
        self.assertGreater(proxy.connections, 6)

    def test_groups_are_added_and_cancelled_and_the_rollout_goes_on_without_its_iterator(self):
        with self.client.rollout([], n=2, sampling=LONG_LINE, open=True, rollout_id="grows") as rollout:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                first = pool.submit(next, rollout)
                wait_until(self.client, lambda load: any_rollout(self.served, "grows"))
                self.assertEqual(rollout.add([{"id": "a b", "prompt_ids": [2, 3]}]), 0)
                self.assertEqual(rollout.add([{"prompt_ids": [4]}, {"prompt_ids": [5], "n": 1}]), 1)
                wait_until(self.client, lambda load: load.running == 5)
                rollout.cancel("a b")
                self.assertEqual((first.result().id, first.result().is_aborted), ("a b", True))
        rollout.finish()
        again = self.client.attach("grows", 2)
        found = list(again)
        self.assertEqual(sorted(r.group for r in found), [0, 1, 1, 2])
        self.assertEqual([r.finish_reason for r in found if r.group > 0], ["length"] * 3)
        again.acknowledge()
        self.assertEqual(again.progress()["acknowledged"], 5)
        again.delete()
        self.assertSays(seer_client.Refused, "there is no rollout \"grows\"", again.progress)

    def test_any_call_makes_a_rollout_that_was_not_begun(self):
        rollout = self.client.rollout([], open=True, n=1, sampling={"max_tokens": 8})
        self.assertEqual(rollout.add([{"prompt": "a"}]), 0)
        self.assertEqual(rollout.add([{"prompt": "b", "n": 2}]), 1)
        rollout.finish()
        given = [(r.seq, r.group) for r in rollout]
        self.assertEqual(([seq for seq, _ in given], sorted(group for _, group in given)), ([1, 2, 3], [0, 1, 1]))
        whole = self.whole()
        for name, call in [("progress", lambda rollout: rollout.progress()), ("acknowledge", lambda rollout: rollout.acknowledge()),
                           ("cancel", lambda rollout: rollout.cancel("p1")), ("finish", lambda rollout: rollout.finish())]:
            with self.subTest(call=name):
                rollout = self.client.rollout(self.GROUPS)
                call(rollout)
                found = {(r.group, r.index): (r.tokens, r.logprobs, r.text, r.seed) for r in rollout}
                self.assertEqual({key: value for key, value in found.items() if key[0] != 1}, {key: value for key, value in whole.items() if key[0] != 1})
                self.assertEqual(len(found), 12)
        rollout = self.client.rollout(self.GROUPS, rollout_id="gone")
        rollout.delete()
        self.assertSays(seer_client.Refused, "there is no rollout \"gone\"", lambda: next(rollout))
        refused = self.client.rollout([{"n": 1}])
        for call in (refused.progress, refused.finish, lambda: next(refused)):
            self.assertSays(seer_client.Refused, "body:2: neither prompt nor prompt_ids", call)

    def test_a_rollout_is_made_once_by_calls_whose_connections_end(self):
        for end in (0, 40, 300):
            with self.subTest(end=end):
                client, proxy = self.proxied([end])
                rollout = client.rollout(self.GROUPS, rollout_id=f"once-{end}", open=True)
                with contextlib.suppress(seer_client.ConnectionLost):
                    rollout.progress()
                self.assertEqual(rollout.add([{"prompt_ids": [7], "n": 1, "max_tokens": 5}]), 4)
                rollout.finish()
                self.assertEqual([r.seq for r in rollout], list(range(1, 14)))

    def test_making_a_rollout_does_not_queue_behind_responses(self):
        with Client(self.client.address, connections_max=1) as client:
            with client.generate([2, 3, 4], sampling=ENDLESS, stream=True) as stream:
                next(stream)
                rollout = client.rollout([], open=True)
                self.assertEqual(rollout.add([{"prompt_ids": [2], "n": 1, "max_tokens": 5}]), 0)
                rollout.finish()
            self.assertEqual([r.group for r in rollout], [0])

    def test_asyncio_callers_may_add_before_they_iterate(self):
        async def run():
            async with AsyncClient(self.client.address) as client:
                rollout = client.rollout([], open=True, n=1, sampling={"max_tokens": 8})
                first = await asyncio.wait_for(asyncio.gather(*(rollout.add([{"prompt": text}]) for text in "abc")), PATIENCE_S)
                await rollout.finish()
                return sorted(first), sorted([r.group async for r in rollout])
        self.assertEqual(asyncio.run(run()), ([0, 1, 2], [0, 1, 2]))

    def test_wrong_groups_and_names_are_not_sent(self):
        client, proxy = self.proxied()
        fields = "expected a dict with the fields of a prompt line"
        good = {"prompt_ids": [2]}
        for sentence, groups in [
            (f"group 0 is a str: {fields}", "abc"), (f"group 0 is a str: {fields}", ["abc"]), (f"group 0 is a str: {fields}", {"prompt": "a"}),
            (f"group 1 is a list: {fields}", [good, [2, 3]]), (f"group 1 is a NoneType: {fields}", [good, None]),
            ("groups is 7: expected a list of dicts", 7), ("groups is None: expected a list of dicts", None),
            ("group 1: prompt_ids[1] is 3.5: expected a token id", [good, {"prompt_ids": [2, 3.5]}]),
            ("group 0: prompt_ids[0] is 'a': expected a token id", [{"prompt_ids": "a"}]),
            ("group 0: prompt_ids is 2: expected token ids", [{"prompt_ids": 2}]),
            ("group 1: field 'level': Out of range float", [good, {**good, "level": float("nan")}]),
            ("group 0: field 'level': Out of range float", [{**good, "level": [1, {"deep": float("inf")}]}]),
            ("group 0: field 'answer': Object of type Token is not JSON", [{**good, "answer": Token(1)}]),
            ("group 0: keys must be str", [{**good, (1, 2): 3}]),
        ]:
            with self.subTest(sentence=sentence):
                self.assertSays(ValueError, sentence, lambda: client.rollout(groups))
                self.assertSays(ValueError, sentence, lambda: client.attach("a").add(groups))
        for sentence, call in [
            ("n is 1.5: expected an integer", lambda: client.rollout([good], n=1.5)),
            ("sampling: field 'top_p': Out of range float", lambda: client.rollout([good], sampling={"top_p": float("nan")})),
            ("the rollout: field 'seed': Object of type Token", lambda: client.rollout([good], seed=Token(1))),
            ("stop_when is a int: expected a dict", lambda: client.rollout([good], stop_when=3)),
            ("from_seq is '2': expected an integer", lambda: client.attach("a", "2")),
            ("seq is '2': expected an integer", lambda: client.attach("a").acknowledge("2")),
        ]:
            with self.subTest(sentence=sentence):
                self.assertSays(ValueError, sentence, call)
        for name in ("é", "a b", "", "a/b", "a\n", "x/progress HTTP/1.1\r\nX-A: b", "a" * 129, 7):
            sentence = f"rollout_id is {name!r}"[:200] + ": expected 1 to 128 letters, digits, dots, dashes and underscores"
            with self.subTest(name=name):
                self.assertSays(ValueError, sentence, lambda: client.rollout([good], rollout_id=name))
                self.assertSays(ValueError, sentence, lambda: client.attach(name))
        self.assertEqual(proxy.connections, 0)
        longest = "azAZ09._-" + "a" * 119
        self.assertEqual(len(list(client.rollout([{**good, "n": 1, "max_tokens": 2}], rollout_id=longest))), 1)
        self.assertEqual(client.attach(longest).progress()["rollout_id"], longest)

    def test_the_prompt_ids_of_a_group_may_be_a_tensor(self):
        right = self.whole()
        for tensor in (lambda ids: array.array("i", ids), lambda ids: tuple(map(Token, ids))):
            groups = [{**group, "prompt_ids": tensor(group["prompt_ids"])} for group in self.GROUPS]
            found = list(self.client.rollout(groups))
            self.assertEqual({(r.group, r.index): (r.tokens, r.logprobs, r.text, r.seed) for r in found}, right)

    def test_what_is_refused_is_the_servers_sentence(self):
        self.assertSays(seer_client.Refused, "body:2: neither prompt nor prompt_ids", lambda: next(self.client.rollout([{"n": 1}])))
        self.assertSays(seer_client.Refused, "there is no rollout \"nowhere\"", lambda: next(self.client.attach("nowhere")))
        self.assertSays(seer_client.Refused, "expect_weight_version is 9", lambda: next(self.client.rollout(self.GROUPS, expect_weight_version=9)))

    def test_a_server_that_does_not_come_back_is_an_error_after_a_while(self):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = f"127.0.0.1:{closed.getsockname()[1]}"
        with Client(address, retries=0) as client:
            self.assertSays(seer_client.CannotConnect, "cannot connect", lambda: next(client.rollout(self.GROUPS, reconnect_s=0.2)))

    def test_a_rollout_that_is_deleted_ends_its_iterator(self):
        rollout = self.client.rollout([{"prompt_ids": [2], "n": 2, **ENDLESS_LINE}])
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(next, rollout)
            wait_until(self.client, lambda load: load.running == 2)
            rollout.delete()
            self.assertSays(seer_client.ServerFailed, "the rollout was deleted", first.result)
        wait_until(self.client, is_idle)

    def test_asyncio_callers_have_the_same_methods(self):
        async def run():
            async with AsyncClient(self.client.address) as client:
                rollout = client.rollout(self.GROUPS)
                return {(r.group, r.index): (r.tokens, r.logprobs, r.text, r.seed) async for r in rollout}
        self.assertEqual(asyncio.run(run()), self.whole())


class RoomTest(unittest.TestCase):
    def test_a_server_without_room_has_an_error_of_its_own_and_takes_more_once_responses_are_acknowledged(self):
        served = Served("--kept-bytes", "1MiB")
        self.addCleanup(served.stop)
        groups = [{"prompt_ids": [2, 3], "n": 3, "max_tokens": 2, "of_mine": "x" * 400_000}]
        with Client(f"127.0.0.1:{served.port}") as client:
            first = client.rollout(groups, open=True)
            self.assertEqual([next(first).seq for _ in range(3)], [1, 2, 3])
            with self.assertRaises(seer_client.NoRoom) as raised:
                list(client.rollout(groups))
            self.assertEqual(raised.exception.status, 429)
            self.assertIn("acknowledge responses, or delete rollouts", str(raised.exception))
            first.acknowledge()
            self.assertEqual(len(list(client.rollout(groups))), 3)
            first.close()


class RestartTest(unittest.TestCase):
    def test_an_iterator_goes_on_when_the_server_was_killed_and_started_again_at_its_address(self):
        with tempfile.TemporaryDirectory() as folder:
            options = ["--journal", f"{folder}/journal"]
            try:
                served = Served(*options)
            except RuntimeError as error:
                if "needs RocksDB" in str(error):
                    self.skipTest(str(error))
                raise
            groups = [{"prompt_ids": [2, 3, 4 + i], "n": 4, "max_tokens": 1200} for i in range(5)]
            try:
                with Client(f"127.0.0.1:{served.port}") as client:
                    right = {(r.group, r.index): (r.tokens, r.logprobs) for r in client.rollout(groups)}
                    rollout = client.rollout(groups)
                    found = [next(rollout), next(rollout)]
                    served.kill()
                    served = Served(*options, "--listen", f"127.0.0.1:{served.port}")
                    found += rollout
                self.assertEqual([r.seq for r in found], list(range(1, 21)))
                self.assertEqual({(r.group, r.index): (r.tokens, r.logprobs) for r in found}, right)
            finally:
                served.kill()


if __name__ == "__main__":
    unittest.main()
