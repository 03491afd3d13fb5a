#!/usr/bin/env python3
"""Tests deploy/client with a real `seer serve`: methods, groups, streams, errors, lost connections. client_rollouts.py has
rollouts, trainers.py the adapters.
usage: client.py SEER_PROGRAM"""
import array, asyncio, concurrent.futures, contextlib, importlib.util, os, shutil, socket, subprocess, sys, tempfile, threading, unittest, unittest.mock

from client_case import FIRST_EVENT, Proxy, Refusing, ServedTest, Token, any_rollout, is_idle, wait_until
from served import ENDLESS, LONG, MODEL, PATIENCE_S, ROOT, Served, wide, wide_model
from weights import read_tensors

import seer_client
from seer_client import AsyncClient, Client, SeerError

SHORT = {"max_new_tokens": 20, "sampling_seed": 7}
TOKEN = "a-token-of-24-characters"


class EndsTest(ServedTest):
    """What is given up here is given up at the server, too."""
    is_wide = True

    def aborted(self):
        return self.served.call("GET", "/seer/v1/status")[1]["responses"]["abort"]

    def assertAborts(self, count, give_up):
        before = self.aborted()
        give_up()
        wait_until(self.client, is_idle)
        self.assertEqual(self.aborted() - before, count)

    def test_a_group_whose_consumer_is_cancelled_ends(self):
        async def consume():
            async with AsyncClient(f"127.0.0.1:{self.served.port}") as client:
                group = client.generate_group([2, 3, 4], 3, sampling=ENDLESS)
                first = asyncio.ensure_future(group.__anext__())
                await asyncio.to_thread(wait_until, self.client, lambda load: load.running == 3)
                first.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await first
        self.assertAborts(3, lambda: asyncio.run(consume()))

    def test_closing_a_client_ends_a_stream_between_two_steps(self):
        def give_up():
            client = Client(f"127.0.0.1:{self.served.port}")
            responses = client.generate([2, 3, 4], stream=True, sampling=ENDLESS)
            next(responses)
            client.close()
        self.assertAborts(1, give_up)

    def test_closing_a_client_ends_the_calls_of_other_threads_and_those_that_they_make_next(self):
        for _ in range(5):
            client = Client(f"127.0.0.1:{self.served.port}")

            def work():
                while True:
                    try:
                        client.generate([2, 3, 4], sampling=SHORT)
                    except seer_client.ClientUnusable as closed:
                        return str(closed)
                    except SeerError:
                        pass
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                ends = [pool.submit(work) for _ in range(8)]
                threading.Event().wait(0.1)
                client.close()
                self.assertEqual({end.result(timeout=PATIENCE_S) for end in ends}, {"this client was closed"})

    def test_a_client_is_refused_in_a_forked_process(self):
        with self.client._lock:  # as another thread may hold it
            child = os.fork()
            if child == 0:
                try:
                    self.client.close()  # leaves the connections to its own process
                    self.client.health()
                except seer_client.ClientUnusable as error:
                    os._exit(0 if "belongs to another process" in str(error) else 1)
                os._exit(2)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(self.client.health())

    def test_a_forked_process_that_forgets_a_client_leaves_its_parents_connections_alone(self):
        client = Client(f"127.0.0.1:{self.served.port}", timeout_s=PATIENCE_S)
        client.generate([2, 3, 4], sampling=SHORT)
        child = os.fork()
        if child == 0:
            del client
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(client.generate([2, 3, 4], sampling=SHORT).tokens), 20)
        client.close()

    def test_an_iterator_can_be_closed_at_any_moment(self):
        line = b'{"type": "accepted", "rollout_id": "any"}\n'
        answer = (b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n",
                  b"%x\r\n%s\r\n" % (len(line), line))

        async def close_after(turns, parts, close):
            answered = asyncio.Event()

            async def serve(reader, writer):
                await reader.readuntil(b"\r\n\r\n")
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                answered.set()
                await reader.read()
                writer.close()
            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                rollout = AsyncClient("127.0.0.1:%d" % server.sockets[0].getsockname()[1]).rollout([], open=True, rollout_id="any")
                step = asyncio.ensure_future(rollout.__anext__())
                await answered.wait()
                for _ in range(turns):
                    await asyncio.sleep(0)
                ended = asyncio.ensure_future(close(rollout, step))
                self.assertTrue((await asyncio.wait([ended], timeout=PATIENCE_S))[0], f"it hangs when closed {turns} turns after {len(parts)} parts")
                await ended

        async def close_only(rollout, step):
            await rollout.aclose()
            with self.assertRaises(StopAsyncIteration):
                await step

        async def cancel_first(rollout, step):
            step.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await step
            await rollout.aclose()
        for turns in range(12):
            for parts in (answer, [b"".join(answer)]):
                for close in (close_only, cancel_first):
                    asyncio.run(close_after(turns, parts, close))

    def test_a_step_that_is_given_up_is_left_to_the_next_one(self):
        async def poll(client, responses):
            await client.pause("retract")  # so that the first steps wait in vain
            found, given_up = [], 0
            while True:
                try:
                    found.append(await asyncio.wait_for(responses.__anext__(), 0.003))
                except asyncio.TimeoutError:
                    given_up += 1
                    if given_up == 5:
                        await client.resume()
                except StopAsyncIteration:
                    return found

        async def poll_all():
            async with AsyncClient(f"127.0.0.1:{self.served.port}") as client:
                sampling = {"max_new_tokens": 1000, "ignore_eos": True}
                rollout = client.rollout([{"prompt_ids": [2, 3, 4], "n": 4, "sampling": sampling}])
                for responses in (rollout, client.generate_group([2, 3, 4], 4, sampling=sampling)):
                    self.assertEqual(len(await poll(client, responses)), 4)
                self.assertEqual(rollout.summary["responses"], 4)
                last = (await poll(client, client.stream([2, 3, 4], sampling=SHORT)))[-1]
                self.assertEqual((len(last.tokens), last.finish_reason), (20, "length"))
        asyncio.run(poll_all())

    def test_an_iterator_that_is_forgotten_ends_its_requests(self):
        async def forget():
            async with AsyncClient(f"127.0.0.1:{self.served.port}") as client:
                for count, make in ((2, lambda: client.generate_group([2, 3, 4], 2, sampling=ENDLESS)), (1, lambda: client.stream([2, 3, 4], sampling=ENDLESS))):
                    responses = make()
                    with self.assertRaises(asyncio.TimeoutError):
                        while True:
                            await asyncio.wait_for(responses.__anext__(), 0.0001)
                    await asyncio.to_thread(wait_until, self.client, lambda load: load.running == count)
                    del responses
                    await asyncio.to_thread(wait_until, self.client, is_idle)
        self.assertAborts(3, lambda: asyncio.run(forget()))

    def test_a_client_that_cannot_be_used_any_more_says_why(self):
        address = f"127.0.0.1:{self.served.port}"
        closed, client = Client(address), AsyncClient(address)
        closed.close()
        for call in (closed.health, lambda: closed.generate([2]), lambda: closed.generate([2], stream=True), lambda: closed.rollout([])):
            self.assertSays(seer_client.ClientUnusable, "this client was closed", call)
        own_loop = asyncio.new_event_loop()
        self.addCleanup(own_loop.close)
        self.assertTrue(own_loop.run_until_complete(client.health()))

        async def use_elsewhere():
            rollout = client.rollout([{"prompt_ids": [2]}])
            for call in (client.health, lambda: client.generate([2]), rollout.progress, rollout.__anext__, client.generate_group([2], 2).__anext__):
                with self.assertRaises(seer_client.ClientUnusable) as raised:
                    await call()
                self.assertIn("this client belongs to another event loop", str(raised.exception))
        asyncio.run(use_elsewhere())
        own_loop.run_until_complete(client.close())

        async def use_closed():
            client = AsyncClient(address)
            await client.close()
            for call in (client.health, client.rollout([{"prompt_ids": [2]}]).__anext__):
                with self.assertRaises(seer_client.ClientUnusable) as raised:
                    await call()
                self.assertEqual(str(raised.exception), "this client was closed")
        asyncio.run(use_closed())

    def test_closing_an_iterator_ends_a_step_of_another_thread(self):
        with concurrent.futures.ThreadPoolExecutor(3) as pool, Client(f"127.0.0.1:{self.served.port}") as client:
            stream = client.generate([2, 3, 4], sampling=ENDLESS, stream=True)
            group = client.generate_group([2, 3, 4], 2, sampling=ENDLESS)
            rollout = client.rollout([], open=True, rollout_id="waits")
            steps = [pool.submit(list, responses) for responses in (stream, group, rollout)]
            wait_until(self.client, lambda load: load.running == 3 and any_rollout(self.served, "waits"))
            for responses in (rollout, group, stream):
                responses.close()
            self.assertEqual([step.result(timeout=PATIENCE_S) for step in steps[1:]], [[], []])
            parts = steps[0].result(timeout=PATIENCE_S)  # none, if it was closed before the first came
            self.assertLess(len(parts[-1].tokens) if parts else 0, ENDLESS["max_new_tokens"])
        wait_until(self.client, is_idle)


class ResponsesTest(ServedTest):
    is_wide = True

    def test_a_response_is_what_the_server_says(self):
        found = self.client.generate([2, 3, 4], sampling=SHORT, rid="mine")
        right = self.served.generate([2, 3, 4], sampling_params=SHORT)
        meta = right["meta_info"]
        self.assertEqual(found.tokens, right["output_ids"])
        self.assertEqual(found.logprobs, [value for value, _, _ in meta["output_token_logprobs"]])
        self.assertEqual((found.text, found.finish_reason, found.seed), (right["text"], meta["finish_reason"]["type"], 7))
        self.assertEqual((found.weight_version, found.prompt_tokens, found.cached_tokens, found.rid), ("1", 3, 0, "mine"))
        self.assertGreater(found.total_s, 0)
        self.assertEqual(self.client.generate(input_ids=[2, 3, 4], sampling=SHORT, logprobs=False).logprobs, None)

    def test_a_prompt_may_be_text(self):
        found = self.client.generate("2 + 3 =", sampling=SHORT)
        self.assertEqual(found.tokens, self.served.post("/generate", {"text": "2 + 3 =", "sampling_params": SHORT})["output_ids"])

    def test_what_stopped_a_response_is_said(self):
        first = self.client.generate([2, 3, 4], sampling={**SHORT, "ignore_eos": True}).tokens[0]
        found = self.client.generate([2, 3, 4], sampling={**SHORT, "stop_token_ids": [first]})
        self.assertEqual((found.finish_reason, found.matched, found.tokens), ("stop", first, [first]))

    def test_a_group_is_the_responses_of_seeds_that_follow(self):
        found = list(self.client.generate_group([2, 3, 4], 6, sampling=SHORT))
        self.assertEqual(sorted(r.index for r in found), list(range(6)))
        for r in found:
            alone = self.client.generate([2, 3, 4], sampling={**SHORT, "sampling_seed": 7 + r.index})
            self.assertEqual((r.seed, r.tokens, r.logprobs), (7 + r.index, alone.tokens, alone.logprobs))

    def test_responses_of_a_group_come_as_they_finish(self):
        with self.client.generate_group([2, 3, 4], 2, sampling={**ENDLESS, "sampling_seed": 1}, rid="endless") as group:
            short = self.client.generate([2, 3, 4], sampling=SHORT)
            self.assertEqual(short.finish_reason, "length")
            wait_until(self.client, lambda load: load.running == 2)
            self.assertEqual(self.client.abort("endless"), 2)
            self.assertEqual([r.is_aborted for r in group], [True, True])

    def test_a_group_larger_than_the_pool_comes_whole_over_the_connections_of_the_pool(self):
        client, proxy = self.proxied(connections_max=3)
        self.assertEqual(sorted(r.index for r in client.generate_group([2, 3], 9, sampling=SHORT)), list(range(9)))
        self.assertLessEqual(proxy.connections, 3)

    def test_requests_one_after_the_other_share_a_connection(self):
        client, proxy = self.proxied()
        for _ in range(10):
            client.generate([2, 3], sampling=SHORT)
        self.assertEqual(proxy.connections, 1)

    def test_control_does_not_queue_behind_responses(self):
        with Client(self.client.address, connections_max=1) as client:
            group = client.generate_group([2, 3, 4], 2, sampling=ENDLESS, rid="long")
            wait_until(client, lambda load: load.running == 1)
            client.abort("long")  # the second one is sent after it
            wait_until(client, lambda load: load.running == 1)
            group.close()
        wait_until(self.client, is_idle)

    def test_a_stream_grows_and_ends_with_the_whole_response(self):
        params = {"max_new_tokens": 200, "sampling_seed": 3, "ignore_eos": True}
        with self.client.generate([2, 3], sampling=ENDLESS, stream=True) as stream:
            grown = [next(stream) for _ in range(3)]
        self.assertEqual([part.finish_reason for part in grown], [None] * 3)
        self.assertEqual(len({len(part.tokens) for part in grown}), 3)
        parts = list(self.client.generate([2, 3], sampling=params, stream=True))  # one or more, as they come about
        self.assertEqual([part.finish_reason for part in parts[:-1]], [None] * (len(parts) - 1))
        for of in (grown, parts):
            for before, after in zip(of, of[1:]):
                self.assertEqual(after.tokens[:len(before.tokens)], before.tokens)
        whole = self.client.generate([2, 3], sampling=params)
        self.assertEqual((parts[-1].tokens, parts[-1].logprobs, parts[-1].finish_reason), (whole.tokens, whole.logprobs, "length"))

    def test_what_is_closed_early_ends_on_the_server(self):
        stream = self.client.generate([2, 3, 4], sampling=ENDLESS, stream=True)
        self.assertIsNone(next(stream).finish_reason)
        group = self.client.generate_group([2, 3, 4], 4, sampling=ENDLESS)
        wait_until(self.client, lambda load: load.running == 5)
        stream.close()
        group.close()
        wait_until(self.client, is_idle)
        self.assertEqual((list(stream), list(group)), ([], []))

    def test_closing_a_client_ends_what_it_asked_for(self):
        client = Client(self.client.address)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.generate, [2, 3, 4], sampling=ENDLESS)
            wait_until(self.client, lambda load: load.running == 1)
            client.close()
            self.assertIsInstance(asked.exception(), seer_client.ConnectionLost)
        wait_until(self.client, is_idle)
        self.assertSays(seer_client.ClientUnusable, "this client was closed", client.health)

    def test_asyncio_callers_have_the_same_methods(self):
        async def run():
            async with AsyncClient(self.client.address) as client:
                group = [r async for r in client.generate_group([2, 3, 4], 3, sampling=SHORT)]
                parts = [r async for r in client.stream([2, 3, 4], sampling=SHORT)]
                return group, parts, await client.load()
        group, parts, load = asyncio.run(run())
        self.assertEqual(next(r.tokens for r in group if r.index == 0), parts[-1].tokens)
        self.assertTrue(is_idle(load))

    def test_a_refusal_is_the_servers_sentence(self):
        for prompt, sampling, sentence in [
            ([], {}, " is empty"),
            ([1, 99999], {}, "token id 99999 at place 1 of the prompt"),
            ([1] * 40_000, {}, "the prompt has 40000 tokens"),
            ([1], {"temperature": "hot"}, "temperature is \"hot\": expected"),
            ([1], {"frequency_penalty": 0.5}, "frequency_penalty is 0.5: expected 0"),
            ([1], {"regex": "a*"}, "regex is not supported"),
        ]:
            with self.subTest(sentence=sentence):
                self.assertSays(seer_client.Refused, sentence, lambda: self.client.generate(prompt, sampling=sampling))
                self.assertSays(seer_client.Refused, sentence, lambda: list(self.client.generate(prompt, sampling=sampling, stream=True)))
                self.assertSays(seer_client.Refused, sentence, lambda: list(self.client.generate_group(prompt, 3, sampling=sampling)))

    def test_wrong_arguments_are_not_sent(self):
        client = self.client
        for sentence, call in [
            ("neither prompt nor input_ids", lambda: client.generate()),
            ("both prompt and input_ids", lambda: client.generate("a", input_ids=[1])),
            ("sampling: 'max_token' is not known", lambda: client.generate("a", sampling={"max_token": 3})),
            ("sampling: n is 4", lambda: client.generate("a", sampling={"n": 4})),
            ("n is 0: expected 1", lambda: client.generate_group("a", 0)),
            ("n is '3': expected an integer", lambda: client.generate_group("a", "3")),
            ("prompt[1] is 1.5: expected a token id", lambda: client.generate([3, 1.5])),
            ("input_ids[0] is 'a': expected a token id", lambda: client.generate(input_ids=["a"])),
            ("prompt[0] is 1.5: expected a token id", lambda: client.generate([1.5], stream=True)),
            ("prompt[0] is 1.5: expected a token id", lambda: client.generate_group([1.5], 2)),
            ("prompt is 7: expected token ids", lambda: client.generate(7)),
            ("prompt is b'abc': expected token ids", lambda: client.generate(b"abc")),
            ("prompt is {2}: expected token ids", lambda: client.generate({2})),
            ("input_ids is bytearray(b'a'): expected token ids", lambda: client.generate(input_ids=bytearray(b"a"))),
            ("prompt is {2: 3}: expected token ids", lambda: client.generate_group({2: 3}, 2)),
            ("group 0: prompt_ids is b'abc': expected token ids", lambda: client.rollout([{"prompt_ids": b"abc"}])),
            ("folder is None: expected a path", lambda: client.update_weights(None)),
            ("folder is 3: expected a path", lambda: client.update_weights(3)),
            ("sampling is a list: expected a dict", lambda: client.generate("a", sampling=["temperature"])),
            ("sampling: field 'temperature': Out of range float", lambda: client.generate("a", sampling={"temperature": float("nan")})),
            ("sampling: field 'stop': Object of type Token", lambda: client.generate_group("a", 2, sampling={"stop": Token(1)})),
            ("sampling: sampling_seed is 'x': expected an integer", lambda: client.generate_group("a", 2, sampling={"sampling_seed": "x"})),
            ("POST /generate: Object of type Token is not JSON", lambda: client.generate("a", rid=Token(1))),
            ("POST /abort_request: Object of type Token is not JSON", lambda: client.abort(Token(1))),
            ("version is 1.5: expected an integer", lambda: client.update_weights(MODEL, 1.5)),
            ("version is 1.5: expected an integer", lambda: client.update_weights_from_tensors([], 1.5)),
            ("tensors is 3: expected (name, dtype, shape, data) of each", lambda: client.update_weights_from_tensors(3)),
            ("tensor 1 is a tuple: expected (name, dtype, shape, data)",
             lambda: client.update_weights_from_tensors([("a", "F32", [1], bytes(4)), ("b", "F32", [1])])),
            ("tensor 0: name is 1: expected text", lambda: client.update_weights_from_tensors([(1, "F32", [1], bytes(4))])),
            ("tensor a: shape is 1: expected integers", lambda: client.update_weights_from_tensors([("a", "F32", 1, bytes(4))])),
            ("tensor a: shape is [1.5]: expected integers", lambda: client.update_weights_from_tensors([("a", "F32", [1.5], bytes(4))])),
            ("tensor a: data is a list: expected a contiguous buffer", lambda: client.update_weights_from_tensors([("a", "F32", [1], [0.0])])),
            ("mode is 'keep': expected 'abort', 'retract' or 'drain'", lambda: client.update_weights(MODEL, mode="keep")),
            ("neither rid nor all", lambda: client.abort()),
            ("neither rid nor all", lambda: client.abort("")),
            ("both rid and all", lambda: client.abort("a", all=True)),
            ("address 'nowhere': expected HOST:PORT", lambda: Client("nowhere")),
            ("address 'ftp://a:1'", lambda: Client("ftp://a:1")),
            ("address 'a:1/b'", lambda: Client("a:1/b")),
            ("address None: expected HOST:PORT", lambda: Client(None)),
            ("connections_max is 0", lambda: Client("a:1", connections_max=0)),
            ("connections_max is '5': expected an integer", lambda: Client("a:1", connections_max="5")),
            ("retries is 1.5: expected an integer", lambda: AsyncClient("a:1", retries=1.5)),
            ("timeout_s is '5': expected seconds, more than 0", lambda: Client("a:1", timeout_s="5")),
            ("timeout_s is -1: expected seconds, more than 0", lambda: AsyncClient("a:1", timeout_s=-1)),
            ("timeout_s is None: expected seconds, more than 0", lambda: Client("a:1", timeout_s=None)),
            ("the token is a int: expected text", lambda: Client("a:1", 5)),
            ("the token is empty", lambda: Client("a:1", "x\r\ny")),
            ("tls_ca 'nope.pem': expected a PEM file with certificates: No such file", lambda: Client("a:1", tls_ca="nope.pem")),
            (f"tls_ca {__file__!r}: expected a PEM file with certificates: ", lambda: Client("a:1", tls_ca=__file__)),
            ("tls_ca 7: expected a PEM file with certificates: ", lambda: Client("a:1", tls_ca=7)),
        ]:
            with self.subTest(sentence=sentence):
                self.assertSays(ValueError, sentence, call)

    def test_a_prompt_may_be_a_tensor(self):
        right = self.client.generate([2, 3, 4], sampling=SHORT).tokens
        for ids in (array.array("i", [2, 3, 4]), [Token(2), Token(3), Token(4)], range(2, 5)):
            with self.subTest(ids=ids):
                self.assertEqual(self.client.generate(ids, sampling=SHORT).tokens, right)
                self.assertEqual(next(self.client.generate_group(ids, 1, sampling=SHORT)).tokens, right)

    def test_threads_may_share_an_iterator(self):
        whole = self.client.generate([2, 3], sampling={**SHORT, "ignore_eos": True})
        with concurrent.futures.ThreadPoolExecutor(4) as pool, Client(self.client.address) as client:
            def shared(responses):
                parts = [pool.submit(list, responses) for _ in range(4)]
                return [response for part in parts for response in part.result(timeout=PATIENCE_S)]
            self.assertEqual(sorted(r.index for r in shared(client.generate_group([2, 3], 6, sampling=SHORT))), list(range(6)))
            grown = shared(client.generate([2, 3], sampling={**SHORT, "ignore_eos": True}, stream=True))
            self.assertEqual([r.tokens for r in grown if r.finish_reason is not None], [whole.tokens])
            parts = [len(r.tokens) for r in grown if r.finish_reason is None]
            self.assertEqual(len(set(parts)), len(parts))
            rollout = client.rollout([{"prompt_ids": [2, 3 + i], "n": 5, "max_tokens": 20} for i in range(3)])
            self.assertEqual(sorted(r.seq for r in shared(rollout)), list(range(1, 16)))
            self.assertEqual(rollout.summary["given"], 15)

    REFUSED = {  # iterators that fail, and what their error says
        "rollout": (lambda client: client.rollout([{"n": 1}]), "neither prompt nor prompt_ids"),
        "group": (lambda client: client.generate_group([1, 99999], 3), "token id 99999"),
    }

    def test_threads_that_share_an_iterator_all_hear_of_its_error(self):
        makers = {**self.REFUSED, "stream": (lambda client: client.generate([1, 99999], stream=True), "token id 99999")}
        with concurrent.futures.ThreadPoolExecutor(3) as pool, Client(self.client.address) as client:
            for what, (make, sentence) in makers.items():
                with self.subTest(what=what):
                    responses = make(client)
                    ends = [pool.submit(list, responses) for _ in range(3)]
                    for end in ends:
                        self.assertSays(seer_client.Refused, sentence, lambda: end.result(timeout=PATIENCE_S))
                    self.assertSays(seer_client.Refused, sentence, lambda: next(responses))
                    responses.close()
                    self.assertEqual(list(responses), [])

    def test_tasks_that_share_an_iterator_all_hear_of_its_error(self):
        makers = {**self.REFUSED, "stream": (lambda client: client.stream([1, 99999]), "token id 99999")}

        async def all_of(responses):
            return [r async for r in responses]

        async def run():
            async with AsyncClient(self.client.address) as client:
                for what, (make, sentence) in makers.items():
                    responses = make(client)
                    for error in await asyncio.gather(*(all_of(responses) for _ in range(3)), return_exceptions=True):
                        with self.subTest(what=what):
                            self.assertIsInstance(error, seer_client.Refused)
                            self.assertIn(sentence, str(error))
        asyncio.run(run())

    def test_tasks_may_share_an_iterator(self):
        async def run():
            async def all_of(responses):
                return [r async for r in responses]

            async def shared(responses):
                parts = await asyncio.wait_for(asyncio.gather(*(all_of(responses) for _ in range(4))), PATIENCE_S)
                return [response for part in parts for response in part]
            async with AsyncClient(self.client.address) as client:
                group = await shared(client.generate_group([2, 3], 6, sampling=SHORT))
                stream = await shared(client.stream([2, 3], sampling=SHORT))
                rollout = await shared(client.rollout([{"prompt_ids": [2, 3], "n": 9, "max_tokens": 20}]))
            return sorted(r.index for r in group), [r.finish_reason is None for r in stream].count(False), sorted(r.seq for r in rollout)
        self.assertEqual(asyncio.run(run()), (list(range(6)), 1, list(range(1, 10))))


class ControlTest(ServedTest):
    is_wide = True

    def test_health_info_and_load(self):
        self.assertTrue(self.client.health())
        info = self.client.info()
        self.assertEqual((info.model_name, info.weight_version, info.context_tokens_max), ("scratchpad-1m8", "1", 32768))
        self.assertEqual(os.path.realpath(info.model_path), os.path.realpath(wide_model()))
        self.assertTrue(is_idle(self.client.load()))

    def test_an_abort_answers_with_partial_tokens_and_leaves_others_alone(self):
        mine = self.client.generate_group([2, 3, 4], 3, sampling=ENDLESS, rid="mine-1")
        other = self.client.generate([2, 3, 4], sampling=ENDLESS, rid="other", stream=True)
        next(other)
        wait_until(self.client, lambda load: load.running == 4)
        self.assertEqual(self.client.abort("mine"), 3)
        for r in mine:
            self.assertTrue(r.is_aborted)
            self.assertEqual(len(r.logprobs), len(r.tokens))
        self.assertEqual(self.client.load().running, 1)
        self.client.abort(all=True)
        self.assertEqual(list(other)[-1].finish_reason, "abort")
        wait_until(self.client, is_idle)
        self.assertEqual(self.client.abort("mine"), 0)

    def test_while_generation_is_paused_requests_are_held(self):
        running = self.client.generate_group([2, 3, 4], 1, sampling={**LONG, "sampling_seed": 5})
        wait_until(self.client, lambda load: load.running == 1)
        self.assertSays(seer_client.NotIdle, "responses are not over", self.client.flush)
        self.client.pause("retract")
        held = self.client.generate_group([2, 3, 4], 1, sampling={**LONG, "sampling_seed": 5})
        wait_until(self.client, lambda load: load.waiting == 2)
        self.client.flush()
        self.client.resume()
        self.assertEqual(next(running).tokens, next(held).tokens)
        self.client.flush()
        self.assertSays(seer_client.Refused, "mode is \"x\": expected abort", lambda: self.client.pause("x"))


class WeightsTest(ServedTest):
    is_wide = True

    def test_versions_are_those_of_the_server(self):
        start = int(self.client.weight_version())
        self.assertEqual(self.client.update_weights(MODEL), str(start + 1))
        self.assertEqual(self.client.update_weights(MODEL, start + 5), str(start + 5))
        self.assertEqual(self.client.update_weights(MODEL, "step-3"), "step-3")
        self.assertEqual(self.client.generate([2, 3], sampling=SHORT).weight_version, "step-3")
        self.assertEqual(self.client.info().weight_version, "step-3")
        responses = list(self.client.rollout([{"prompt_ids": [2, 3]}], n=2, sampling={"max_tokens": 4}))
        self.assertEqual([(r.weight_version, r.meta["weight_version"]) for r in responses], [("step-3", start + 6)] * 2)

    def test_an_update_that_is_refused_leaves_the_old_weights(self):
        before = self.client.weight_version()
        for folder, version, sentence in [("/nowhere", None, "/nowhere"), (MODEL, 1, "expected one above"), ("", None, "model_path is missing")]:
            with self.subTest(sentence=sentence):
                self.assertSays(seer_client.WeightsRefused, sentence, lambda: self.client.update_weights(folder, version))
        self.assertEqual(self.client.weight_version(), before)

    def test_the_status_tells_why_an_update_is_refused(self):
        tensors = [("a", "F32", [2], bytes(8))]
        for status in (400, 408, 409):
            for what, answer, update in [
                    ("folder", {"success": False, "message": "so"}, lambda client: client.update_weights(MODEL)),
                    ("tensors", {"error": {"message": "so"}}, lambda client: client.update_weights_from_tensors(tensors))]:
                with self.subTest(what=what, status=status), contextlib.closing(Refusing(status, answer)) as refusing:
                    with Client(refusing.address) as client, self.assertRaises(seer_client.WeightsRefused) as raised:
                        update(client)
                    self.assertEqual((raised.exception.status, str(raised.exception)), (status, "so"))

    def test_a_refusal_while_the_trainer_gathers_the_next_tensor_is_heard(self):
        def tensors(refusing):
            """The connection has ended when the second tensor comes."""
            yield "first", "F32", [2], bytes(8)
            self.assertTrue(refusing.has_answered.wait(PATIENCE_S))
            for size in (2, 1 << 20):
                yield "second", "F32", [size], bytes(4 * size)

        async def update(address, given):
            async with AsyncClient(address) as client:
                await client.update_weights_from_tensors(given)

        async def with_pauses(given):
            for tensor in given:
                yield tensor
                await asyncio.sleep(0.01)

        def threads(address, given):
            with Client(address) as client:
                client.update_weights_from_tensors(given)
        for what, run in [("threads", threads), ("a generator that blocks the loop", lambda address, given: asyncio.run(update(address, given))),
                          ("an asynchronous generator", lambda address, given: asyncio.run(update(address, with_pauses(given))))]:
            refusing = Refusing(408, {"error": {"message": "nothing came for 1 s"}}, after=b"first")
            with self.subTest(what=what), contextlib.closing(refusing):
                with self.assertRaises(seer_client.WeightsRefused) as raised:
                    run(refusing.address, tensors(refusing))
                self.assertEqual((raised.exception.status, str(raised.exception)), (408, "nothing came for 1 s"))

    def test_an_update_answers_what_runs_with_its_tokens(self):
        group = self.client.generate_group([2, 3, 4], 4, sampling=ENDLESS)
        wait_until(self.client, lambda load: load.running == 4)
        before = self.client.weight_version()
        self.client.update_weights(MODEL)
        for r in group:
            self.assertEqual((r.finish_reason, r.weight_version), ("abort", before))

    def test_an_update_whose_answer_is_lost_is_not_sent_twice(self):
        before = int(self.client.update_weights(MODEL))  # numbers of updates that fail are left out
        client, proxy = self.proxied(ends=[None, 0])
        client.health()  # leaves a connection open; the update takes a new one
        self.assertSays(seer_client.ConnectionLost, "before it answered", lambda: client.update_weights(MODEL))
        self.assertEqual(proxy.connections, 2)
        wait_until(self.client, is_idle)
        self.assertLessEqual(int(self.client.weight_version()), before + 1)


class LostConnectionsTest(ServedTest):
    is_wide = True

    def test_a_request_is_sent_again_until_something_is_answered(self):
        client, proxy = self.proxied(ends=[0, 0])
        self.assertEqual(client.generate([2, 3], sampling=SHORT).tokens, self.client.generate([2, 3], sampling=SHORT).tokens)
        self.assertEqual(proxy.connections, 3)

    def test_retries_are_bounded(self):
        client, proxy = self.proxied(ends=[0] * 9, retries=2)
        self.assertSays(seer_client.ConnectionLost, "before it answered", lambda: client.generate([2, 3], sampling=SHORT))
        self.assertEqual(proxy.connections, 3)

    def test_a_host_that_does_not_answer_is_tried_again(self):
        silent = socket.create_server(("127.0.0.1", 0), backlog=0)
        address = silent.getsockname()
        waiting = []
        with contextlib.ExitStack() as stack, unittest.mock.patch("seer_http.CONNECT_S", 0.2):
            stack.enter_context(silent)
            with contextlib.suppress(OSError):
                for _ in range(100):  # those that are not accepted; then the next one is not answered
                    waiting.append(stack.enter_context(socket.create_connection(address, timeout=0.2)))
            self.assertLess(len(waiting), 100)
            with Client(f"127.0.0.1:{address[1]}", retries=1) as client:
                self.assertSays(seer_client.CannotConnect, "no answer within 0.2 s", client.health)
            with Client(f"127.0.0.1:{address[1]}", retries=20) as client, concurrent.futures.ThreadPoolExecutor() as pool:
                health = pool.submit(client.health)
                with self.assertRaises(concurrent.futures.TimeoutError):
                    health.result(timeout=0.5)
                silent.close()
                proxy = Proxy(self.served.port, listen_port=address[1])
                self.addCleanup(proxy.close)
                health.result(timeout=PATIENCE_S)

    def test_what_a_full_server_refuses_is_sent_again_if_it_asks_for_that(self):
        for fields, connections in [(b"Retry-After: 1\r\n", 3), (b"", 1)]:
            full = Refusing(503, {"error": {"message": "there is no room"}}, fields=fields)
            self.addCleanup(full.close)
            with self.subTest(fields), Client(full.address, retries=2) as client:
                self.assertSays(seer_client.ServerFailed, "there is no room", lambda: client.generate([2, 3]))
                self.assertEqual(full.connections, connections)

    def test_an_answer_that_breaks_off_is_an_error_and_not_asked_for_again(self):
        for end, sentence in [(10, "in the head of the answer"), (150, "in the middle of the answer")]:
            with self.subTest(end=end):
                client, proxy = self.proxied(ends=[end])
                self.assertSays(seer_client.ConnectionLost, sentence, lambda: client.generate([2, 3], sampling=SHORT))
                self.assertEqual(proxy.connections, 1)

    def test_a_stream_that_breaks_off_is_an_error_after_what_came(self):
        client, proxy = self.proxied(ends=[FIRST_EVENT])
        stream = client.generate([2, 3], sampling=ENDLESS, stream=True)
        self.assertIsNone(next(stream).finish_reason)
        self.assertSays(seer_client.ConnectionLost, "in the middle of the answer", lambda: list(stream))
        self.assertEqual(proxy.connections, 1)
        wait_until(self.client, is_idle)

    def test_an_answer_that_is_late_is_an_error(self):
        with Client(self.client.address, timeout_s=0.05) as client:
            self.client.pause("retract")
            self.assertSays(seer_client.TimedOut, "no answer within 0.05 s", lambda: client.generate([2, 3], sampling=SHORT))
            self.client.resume()
        wait_until(self.client, is_idle)

    def test_what_is_no_seer_serve_is_an_error(self):
        with socket.create_server(("127.0.0.1", 0)) as listener, concurrent.futures.ThreadPoolExecutor(1) as pool:
            def answer():
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"SSH-2.0-x\r\n\r\n")
            pool.submit(answer)
            with Client(f"127.0.0.1:{listener.getsockname()[1]}") as client:
                self.assertSays(seer_client.BadAnswer, "expected an HTTP/1.1 answer, found 'SSH-2.0-x'", client.info)

    def test_a_server_that_is_killed_ends_what_was_asked_of_it(self):
        served = Served(*wide())
        with Client(f"127.0.0.1:{served.port}", retries=1) as client:
            stream = client.generate([2, 3, 4], sampling=ENDLESS, stream=True)
            next(stream)
            group = client.generate_group([2, 3, 4], 4, sampling=ENDLESS)
            wait_until(client, lambda load: load.running == 5)
            served.kill()
            self.assertSays(seer_client.ConnectionLost, "in the middle of the answer", lambda: list(stream))
            self.assertSays(seer_client.CannotConnect, f"cannot connect to http://127.0.0.1:{served.port}", lambda: list(group))
            self.assertSays(seer_client.CannotConnect, "cannot connect", lambda: next(group))  # for others who share it
            self.assertSays(seer_client.CannotConnect, "cannot connect", client.health)


class AccessTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def serve(self, *options):
        served = Served(*options)
        self.addCleanup(served.stop)
        return served

    def test_a_wrong_token_is_an_error_of_its_own(self):
        token = f"{self.folder.name}/token"
        with open(token, "w") as file:
            file.write(TOKEN + "\n")
        address = f"127.0.0.1:{self.serve('--token-file', token).port}"
        for wrong in (None, TOKEN[:-1] + "z"):
            with Client(address, wrong) as client:
                self.assertTrue(client.health())
                for call in (lambda: client.generate([2, 3]), lambda: next(client.generate([2, 3], stream=True)), client.info,
                             lambda: client.update_weights(MODEL)):
                    with self.assertRaises(seer_client.WrongToken) as raised:
                        call()
                    self.assertEqual(raised.exception.status, 401)
        with Client(address, TOKEN + "\n") as client:
            self.assertEqual(len(list(client.generate_group([2, 3], 4, sampling=SHORT))), 4)

    @unittest.skipUnless(shutil.which("openssl"), "needs openssl")
    def test_over_tls_only_the_given_certificates_are_trusted(self):
        for name in ("server", "other"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                            "/CN=seer", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{self.folder.name}/{name}.key", "-out",
                            f"{self.folder.name}/{name}.pem"], check=True, stderr=subprocess.DEVNULL)
        certificate, key = f"{self.folder.name}/server.pem", f"{self.folder.name}/server.key"
        address = f"127.0.0.1:{self.serve('--tls-cert', certificate, '--tls-key', key).port}"
        with Client(address, tls_ca=certificate) as client:
            self.assertEqual(client.address, f"https://{address}")
            self.assertEqual(len(list(client.generate_group([2, 3], 4, sampling=SHORT))), 4)
            self.assertGreater(len(list(client.generate([2, 3], sampling=SHORT, stream=True))), 0)
            self.assertEqual(client.update_weights_from_tensors(read_tensors(MODEL)), "2")
        for untrusting in (Client(address, tls_ca=f"{self.folder.name}/other.pem"), Client(f"https://{address}")):
            with untrusting as client, self.assertRaises(seer_client.CannotConnect) as raised:
                client.health()
            self.assertIn("certificate verify failed", str(raised.exception))
        with self.assertRaises(ValueError):
            Client(f"http://{address}", tls_ca=certificate)


class InstallTest(unittest.TestCase):
    @unittest.skipUnless(all(importlib.util.find_spec(name) for name in ("pip", "setuptools", "wheel")), "needs pip, setuptools and wheel")
    def test_pip_installs_it_and_nothing_else_is_needed(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(f"{ROOT}/deploy/client", f"{folder}/client")  # pip builds in the folder
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index", "--target", f"{folder}/to",
                            f"{folder}/client"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            program = ("import importlib.metadata as m, seer_client, seer_slime, seer_verl; print(seer_client.__file__, "
                       "[e.value for e in m.distribution('seer-client').entry_points if e.group == 'verl.plugins'])")
            run = subprocess.run([sys.executable, "-c", program], cwd=folder, env={**os.environ, "PYTHONPATH": f"{folder}/to"}, check=True,
                                 capture_output=True, text=True)
            self.assertEqual(run.stdout.strip(), f"{folder}/to/seer_client.py ['seer_verl']")


if __name__ == "__main__":
    unittest.main()
