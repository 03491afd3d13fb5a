#!/usr/bin/env python3
"""Tests deploy/client's adapters for slime and verl, and the requests of AReaL, with a real `seer serve`.
usage: trainers.py SEER_PROGRAM"""
import asyncio, base64, concurrent.futures, contextlib, os, socket, sys, tempfile, threading, types, unittest, unittest.mock

from client import SHORT, ServedTest, is_idle, wait_until
from client_case import Proxy
from served import ENDLESS, MODEL, PATIENCE_S, Served
import seer_client, seer_http, seer_slime, seer_verl, stand_ins
from turned_model import converted_model


class Words:
    """A tokenizer."""

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return [len(word) for word in text.split()]


class SlimeTest(ServedTest):
    is_wide = True

    def args(self, **fields):
        return types.SimpleNamespace(sglang_router_ip="127.0.0.1", sglang_router_port=self.served.port, n_samples_per_prompt=4,
                                     use_rollout_routing_replay=False, **fields)

    def run_group(self, args, group, params):
        """As slime's loop does."""
        async def run():
            calls = [seer_slime.generate(args, s, dict(params, sampling_seed=i), evaluation=False) for i, s in enumerate(group)]
            try:
                return await asyncio.gather(*calls)
            finally:
                await seer_slime.close()
        with stand_ins.slime_modules(Words()):
            return asyncio.run(run())

    def samples(self, count, **fields):
        return [stand_ins.Sample(group_index=3, index=i, prompt="a bb ccc", session_id=f"s{i}", **fields) for i in range(count)]

    def test_a_group_of_samples_gets_its_responses(self):
        params = {"max_new_tokens": 30, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop": None, "stop_token_ids": None,
                  "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False}
        for i, sample in enumerate(self.run_group(self.args(), self.samples(4), params)):
            right = self.client.generate([1, 2, 3], sampling={**params, "sampling_seed": i})
            self.assertEqual(sample.tokens, [1, 2, 3] + right.tokens)
            self.assertEqual((sample.rollout_log_probs, sample.response, sample.response_length), (right.logprobs, right.text, len(right.tokens)))
            self.assertEqual(sample.weight_versions, ["1"])
            self.assertEqual(sample.status.name, {"length": "TRUNCATED", "stop": "COMPLETED"}[right.finish_reason])

    def test_what_was_aborted_goes_on_with_what_is_left_of_its_limit(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.run_group, self.args(), self.samples(4), ENDLESS)
            wait_until(self.client, lambda load: load.running == 4)
            self.client.abort("s")
            group = asked.result()
        self.assertEqual({s.status.name for s in group}, {"ABORTED"})
        had = [s.response_length for s in group]
        limit = max(had) + 10
        for sample, before in zip(self.run_group(self.args(), group, {**ENDLESS, "max_new_tokens": limit, "min_new_tokens": limit}), had):
            self.assertEqual((sample.status.name, sample.response_length), ("TRUNCATED", limit))
            self.assertEqual(len(sample.tokens), 3 + limit)
        again = self.samples(1, tokens=[1, 2, 3, 9], response_length=1)
        self.assertEqual(self.run_group(self.args(), again, {"max_new_tokens": 1})[0].status.name, "TRUNCATED")

    def test_the_ids_that_top_p_kept_reach_the_sample(self):
        params = {"max_new_tokens": 5, "top_p": 0.9, "ignore_eos": True, "custom_params": {"return_top_p_token_ids": True}}
        for sample in self.run_group(self.args(), self.samples(2), params):
            ids, offsets = (base64.b64decode(text) for text in (sample.rollout_top_p_token_ids, sample.rollout_top_p_token_offsets))
            self.assertEqual(len(offsets), 4 * (5 + 1))
            self.assertEqual(len(ids), 4 * int.from_bytes(offsets[-4:], "little"))

    def test_what_cannot_be_done_is_refused_at_once(self):
        params = {"max_new_tokens": 3}
        for args, sample, given, sentence in [
            (self.args(), self.samples(1, multimodal_inputs={"images": ["x"]}), params, "multimodal"),
            (self.args(), self.samples(1, status=stand_ins.Sample.Status.COMPLETED), params, "expected PENDING or ABORTED"),
            (self.args(), self.samples(1), {**params, "custom_params": {"other": True}}, "custom_params.other is not supported"),
        ]:
            with self.subTest(sentence=sentence), self.assertRaises((ValueError, seer_client.Refused)) as raised:
                self.run_group(args, sample, given)
            self.assertIn(sentence, str(raised.exception))

    def test_a_server_that_is_away_for_a_minute_is_waited_for(self):
        scale = 10  # all waits are so much shorter
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        args = types.SimpleNamespace(**{**vars(self.args()), "sglang_router_port": port})
        back = threading.Timer(60 / scale, lambda: self.addCleanup(Proxy(self.served.port, listen_port=port).close))
        self.addCleanup(back.join)
        back.start()
        with unittest.mock.patch.multiple(seer_http, RETRY_WAIT_S=seer_http.RETRY_WAIT_S / scale, RETRY_WAIT_S_MAX=seer_http.RETRY_WAIT_S_MAX / scale):
            samples = self.run_group(args, self.samples(2), {"max_new_tokens": 3, "ignore_eos": True})
        self.assertEqual([sample.response_length for sample in samples], [3, 3])


class VerlTest(ServedTest):
    is_wide = True

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        self.rollout_registry = {}
        stack.enter_context(stand_ins.verl_modules(self.rollout_registry))
        self.config = types.SimpleNamespace(custom={"seer_address": f"127.0.0.1:{self.served.port}", "seer_weights_dir": self.folder.name},
                                            prompt_length=100, response_length=24, max_num_seqs=64, n=4,
                                            checkpoint_engine=types.SimpleNamespace(update_weights_bucket_megabytes=1))
        seer_verl.register()
        for name in ("SeerReplica", "SeerSingleTurnAgentLoop"):  # made anew, of these stand-ins
            vars(seer_verl).pop(name, None)

    @contextlib.asynccontextmanager
    async def replica(self):
        replica = stand_ins.RolloutReplicaRegistry.get("seer")(0, self.config, None)
        await replica.init_hybrid(None)
        try:
            yield replica
        finally:
            await replica.servers[0].close.remote()
            stand_ins.ActorClass.named.clear()

    def test_a_replica_is_the_server(self):
        async def run():
            async with self.replica() as replica:
                self.assertEqual(replica._server_address, f"127.0.0.1:{self.served.port}")
                params = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
                generate = replica._server_handle.generate.remote
                whole = await generate(request_id="a", prompt_ids=[2, 3, 4], sampling_params={**params, "seed": 7}, image_data=None, video_data=None)
                right = self.client.generate([2, 3, 4], sampling={"max_new_tokens": 24, "sampling_seed": 7})
                self.assertEqual((whole.token_ids, whole.log_probs, whole.stop_reason), (right.tokens, right.logprobs, "completed"))
                short = await generate(request_id="b", prompt_ids=[2, 3], sampling_params={"max_tokens": 3, "ignore_eos": True})
                self.assertEqual((len(short.token_ids), short.log_probs), (3, None))
                full = await generate(request_id="b", prompt_ids=[2] * 124, sampling_params=params)
                self.assertEqual(full.token_ids, [])
                for fields, sentence in [({"image_data": ["x"]}, "text only"), ({"sampling_params": {"prompt_logprobs": 1}}, "prompt_logprobs")]:
                    with self.assertRaisesRegex(ValueError, sentence):
                        await generate(**{"request_id": "c", "prompt_ids": [2], "sampling_params": params, **fields})
        asyncio.run(run())

    def test_verls_ignore_eos_counts_unless_a_request_says_otherwise(self):
        self.config.ignore_eos, self.config.response_length = True, 900

        async def run():
            async with self.replica() as replica:
                generate = replica._server_handle.generate.remote
                for own in ({}, {"ignore_eos": False}):
                    with self.subTest(own=own):
                        found = await generate(request_id="a", prompt_ids=[2, 3, 4], sampling_params={"seed": 7, **own})
                        right = self.client.generate([2, 3, 4], sampling={"max_new_tokens": 900, "sampling_seed": 7, "ignore_eos": not own})
                        self.assertEqual(found.token_ids, right.tokens)
                        self.assertEqual(len(right.tokens) == 900, not own)
        asyncio.run(run())

    def test_with_full_determinism_the_order_of_arrival_does_not_matter(self):
        self.config.full_determinism, self.config.seed = True, 42
        turns = [("det-0", [2, 3, 4]), ("det-1", [2, 3, 4]), ("det-1", [2, 3, 4, 5])]

        async def answers(order):
            async with self.replica() as replica:
                generate, found = replica._server_handle.generate.remote, {}
                for i in order:
                    found[i] = (await generate(request_id=turns[i][0], prompt_ids=turns[i][1], sampling_params={"ignore_eos": True})).token_ids
                given = await generate(request_id="det-0", prompt_ids=[2, 3, 4], sampling_params={"ignore_eos": True, "seed": 7})
                return found, given.token_ids
        first, given = asyncio.run(answers([0, 1, 2]))
        self.assertEqual(asyncio.run(answers([2, 0, 1])), (first, given))
        self.assertNotEqual(first[0], first[1])
        self.assertEqual(given, self.client.generate([2, 3, 4], sampling={"max_new_tokens": 24, "ignore_eos": True, "sampling_seed": 7}).tokens)
        seeds = {seer_verl._seed_of_request(seed, rid, length) for seed in (42, 43) for rid in ("det-0", "det-1") for length in (3, 4)}
        self.assertEqual((len(seeds), max(seeds) < 1 << 63), (8, True))
        self.config.seed = 43
        self.assertNotEqual(asyncio.run(answers([0, 1, 2]))[0], first)

    def test_verls_lower_priorities_go_first(self):
        sent = []

        class ClientRecorder:
            async def generate(self, **fields):
                sent.append(fields["priority"])
                return types.SimpleNamespace(tokens=[5], logprobs=None, is_aborted=False, weight_version="1")

        async def run():
            server = seer_verl.SeerServer(self.config.custom, 100, 24)
            server._client = ClientRecorder()
            for priority in (-2, 0, 3):
                await server.generate([2], {}, "a", priority=priority)
        asyncio.run(run())
        self.assertEqual(sent, [2, 0, -3])

    def test_an_abort_holds_later_requests_until_generation_resumes(self):
        async def run():
            async with self.replica() as replica:
                generate = replica._server_handle.generate.remote
                long = asyncio.ensure_future(generate(request_id="a", prompt_ids=[2, 3, 4], sampling_params={**ENDLESS, "logprobs": True}))
                await asyncio.to_thread(wait_until, self.client, lambda load: load.running == 1)
                await replica.abort_all_requests()
                aborted = await long
                self.assertEqual((aborted.stop_reason, len(aborted.token_ids)), ("aborted", len(aborted.log_probs)))
                later = asyncio.ensure_future(generate(request_id="a", prompt_ids=[2, 3, 4], sampling_params={"max_tokens": 3}))
                await asyncio.to_thread(wait_until, self.client, lambda load: load.waiting == 1)
                await replica.resume_generation()
                self.assertEqual((await later).stop_reason, "completed")
        asyncio.run(run())

    def test_generation_resumes_whatever_the_number_of_requests_that_wait_for_it(self):
        async def run():
            async with self.replica() as replica:
                actor = replica._server_handle
                await replica.abort_all_requests()
                waiting = [asyncio.ensure_future(actor.generate.remote(request_id=f"r{i}", prompt_ids=[2, 3, 4], sampling_params={"max_tokens": 3}))
                           for i in range(30)]
                await asyncio.sleep(0)  # each has asked for its slot
                try:
                    await asyncio.wait_for(replica.resume_generation(), PATIENCE_S)
                except asyncio.TimeoutError:
                    for request in waiting:
                        request.cancel()
                    raise
                self.assertEqual({found.stop_reason for found in await asyncio.gather(*waiting)}, {"completed"})
        self.addCleanup(self.client.resume)
        with unittest.mock.patch.object(stand_ins.RolloutReplica, "max_concurrency", 20):
            asyncio.run(run())

    def test_a_group_is_named_once(self):
        sent = []

        class GroupRecorder:
            async def generate(self, **fields):
                sent.append({name: fields.get(name) for name in ("group_id", "group_size")})

        async def run():
            loop = seer_verl.SeerSingleTurnAgentLoop(GroupRecorder(), self.config)
            await loop.run({}, raw_prompt=[2, 3], uid="u-1", session_id=0)
            await loop.server_manager.generate(prompt_ids=[2, 3, 4])
        asyncio.run(run())
        self.assertEqual(sent, [{"group_id": "u-1", "group_size": 4}, {"group_id": None, "group_size": None}])

    def adapter(self, rank):
        module, name = self.rollout_registry["seer", "async"].rsplit(".", 1)
        os.environ["RANK"] = str(rank)
        self.addCleanup(os.environ.pop, "RANK", None)
        return getattr(sys.modules[module], name)(config=self.config, model_config=None, device_mesh=None)

    def test_the_weights_of_a_step_come_through_a_folder(self):
        read = []

        def weights():
            for name, tensor in stand_ins.read_tensors(f"{MODEL}/model.safetensors"):
                read.append(name)
                yield name, tensor

        async def run():
            leader, other = self.adapter(0), self.adapter(1)
            before = self.client.generate([2, 3, 4], sampling=SHORT)
            for step in (0, 1, 1):
                await other.update_weights(weights(), peft_config=None, base_sync_done=True, global_steps=step)
                await leader.update_weights(weights(), peft_config=None, base_sync_done=True, global_steps=step)
                self.assertEqual(len(os.listdir(self.folder.name)), 1)
                async with self.replica() as replica:
                    found = await replica._server_handle.generate.remote(request_id="a", prompt_ids=[2, 3, 4], sampling_params={
                        "logprobs": True, "seed": 7, "max_tokens": 20})
                self.assertEqual((found.token_ids, found.log_probs), (before.tokens, before.logprobs))
                self.assertEqual(found.extra_fields, {"global_steps": step, "weight_version": f"step-{step}"})
            [folder] = os.listdir(self.folder.name)
            self.assertGreater(len(os.listdir(f"{self.folder.name}/{folder}")), 2)  # shards and their index
            for fields, sentence in [({"wire_format": "delta_flush"}, "named_tensors"), ({"peft_config": {}}, "LoRA")]:
                with self.assertRaisesRegex(ValueError, sentence):
                    await leader.update_weights(weights(), global_steps=2, **fields)
            with self.assertRaisesRegex(seer_client.WeightsRefused, "."):
                await leader.update_weights(list(weights())[:2], global_steps=2)
            self.assertEqual(os.listdir(self.folder.name), [folder])
        asyncio.run(run())
        self.assertEqual(len(read), len(set(read)) * 7)

    def test_without_a_folder_the_weights_of_a_step_are_sent(self):
        del self.config.custom["seer_weights_dir"]
        tensors = list(stand_ins.read_tensors(f"{MODEL}/model.safetensors"))

        async def run():
            leader, other = self.adapter(0), self.adapter(1)
            before = self.client.generate([2, 3, 4], sampling=SHORT)
            for step in (7, 8):
                rest = iter(tensors)
                await other.update_weights(rest, peft_config=None, base_sync_done=True, global_steps=step)
                self.assertEqual(list(rest), [])
                await leader.update_weights(iter(tensors), peft_config=None, base_sync_done=True, global_steps=step)
                after = self.client.generate([2, 3, 4], sampling=SHORT)
                self.assertEqual((after.tokens, after.logprobs, after.weight_version), (before.tokens, before.logprobs, f"step-{step}"))
            with self.assertRaisesRegex(seer_client.WeightsRefused, "is missing"):
                await leader.update_weights(tensors[:2], global_steps=9)
            self.assertEqual(self.client.weight_version(), "step-8")
        asyncio.run(run())

    def test_weights_in_another_dtype_are_cast_to_the_servers(self):
        tensors = [(name, tensor.to("F32")) for name, tensor in stand_ins.read_tensors(f"{MODEL}/model.safetensors")]
        self.assertEqual({tensor.dtype for _, tensor in tensors}, {"F32"})

        async def run(adapter, step):
            await adapter.update_weights(iter(tensors), global_steps=step)
        before = self.client.generate([2, 3, 4], sampling=SHORT)
        for step in (20, 21):
            asyncio.run(run(self.adapter(0), step))
            after = self.client.generate([2, 3, 4], sampling=SHORT)
            self.assertEqual((after.tokens, after.logprobs, after.weight_version), (before.tokens, before.logprobs, f"step-{step}"))
            self.config.custom.pop("seer_weights_dir", None)  # then over HTTP

    def test_a_server_with_weights_in_float32_gets_them_so(self):
        tensors = list(stand_ins.read_tensors(f"{MODEL}/model.safetensors"))
        served = Served("--model", converted_model(f"{self.folder.name}/model", "F32"))
        self.addCleanup(served.stop)
        self.config.custom = {"seer_address": f"127.0.0.1:{served.port}"}

        async def run():
            await self.adapter(0).update_weights(iter(tensors), global_steps=1)
        asyncio.run(run())
        self.assertEqual(served.call("GET", "/get_weight_version")[1]["weight_version"], "step-1")

    def test_after_a_refusal_the_other_ranks_do_not_wait_for_the_leader(self):
        """They all read the same tensors together."""
        tensors = list(stand_ins.read_tensors(f"{MODEL}/model.safetensors"))
        unknown = [("no.weight", tensors[0][1]), *tensors]
        for custom, given, error in [({}, unknown, seer_client.WeightsRefused), ({"seer_weights_dir": "/none"}, tensors, FileNotFoundError),
                                     ({}, [("a", None), *tensors], AttributeError), ({"seer_address": "127.0.0.1:1"}, tensors, seer_client.CannotConnect)]:
            self.config.custom = {"seer_address": f"127.0.0.1:{self.served.port}", **custom}
            rest = iter(given)

            async def run():
                await self.adapter(0).update_weights(rest, global_steps=30)
            with self.subTest(error=error):
                with self.assertRaises(error), unittest.mock.patch.object(seer_http, "RETRY_WAIT_S", 0.001):
                    asyncio.run(run())
                self.assertEqual(list(rest), [])

    def test_settings_that_are_missing_or_misspelt_are_named(self):
        for custom, sentence in [({}, "custom.seer_address is missing"), ({"seer_adress": "a:1"}, "custom.seer_adress is not known")]:
            self.config.custom = custom
            with self.subTest(sentence=sentence), self.assertRaisesRegex(ValueError, sentence):
                self.adapter(0)


class ArealTest(ServedTest):
    def test_what_areal_sends_is_answered_with_what_it_reads(self):
        params = {"top_p": 1.0, "top_k": 100_000_000, "max_new_tokens": 12, "temperature": 1.0, "stop_token_ids": [], "ignore_eos": False,
                  "skip_special_tokens": True, "frequency_penalty": 0.0}
        answer = self.served.post("/generate", {"input_ids": [2, 3, 4], "image_data": [], "sampling_params": params, "return_logprob": True,
                                                "stream": False})
        meta = answer["meta_info"]
        self.assertIn(meta["finish_reason"]["type"], ("stop", "length"))
        self.assertEqual((meta["prompt_tokens"], meta["completion_tokens"]), (3, len(meta["output_token_logprobs"])))
        self.served.post("/pause_generation", {})
        self.served.post("/update_weights_from_disk", {"model_path": MODEL, "abort_all_requests": True})
        self.served.post("/continue_generation", {})
        self.assertEqual(self.client.weight_version(), "2")


if __name__ == "__main__":
    unittest.main()
