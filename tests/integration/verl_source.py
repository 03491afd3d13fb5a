#!/usr/bin/env python3
"""verl's own code against a real `seer serve` through seer_verl: its registries, replicas, load balancer and clients, with responses that
new weights interrupt. Ray, its configuration and its trainers are replaced. Written for 1dda039; needs python3-torch, python3-pydantic,
python3-cachetools. usage: SEER_VERL_SOURCE=DIR verl_source.py SEER_PROGRAM"""
import asyncio, copy, importlib, os, sys, types, unittest

from trainer_source import named_tensors, replace_module, replace_packages, source_of

SOURCE = source_of("verl")
replace_packages("ray", "omegaconf", "tensordict", "codetiming", "transformers")

import ray

from served import MODEL, ROOT, Served
from weights import TwoWeights

RESPONSES = 16
RESPONSE_TOKENS = 3000  # some seconds for all of them


class Settings(types.SimpleNamespace):
    """verl's configuration; what is not given is None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Actor:
    """Of Ray: each method has remote(), whose answer can be awaited."""

    def __init__(self, made):
        self.made = made

    def __getattr__(self, name):
        async def call(*args, **named):
            found = getattr(self.made, name)(*args, **named)
            return await found if asyncio.iscoroutine(found) else found
        return types.SimpleNamespace(remote=lambda *args, **named: asyncio.ensure_future(call(*args, **named)))


def verl_without_its_cluster():
    """Its modules: rollout classes, replicas and clients. seer_verl is registered as verl's plugin."""
    ray.remote = lambda cls: types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=lambda *args: Actor(cls(*args))))
    replace_module("torch.distributed.device_mesh")
    for package in ("verl", "verl.single_controller", "verl.single_controller.ray", "verl.utils", "verl.workers", "verl.workers.rollout"):
        replace_module(package, [f"{SOURCE}/{package.replace('.', '/')}"])
    for module in ("verl.single_controller.ray.base", "verl.utils.device", "verl.utils.tracking", "verl.workers.config", "verl.workers.rollout.utils"):
        replace_module(module)
    replace_module("verl.utils.config", omega_conf_to_dataclass=lambda config: config)
    replace_module("verl.utils.ray_utils", auto_await=lambda function: function)
    replace_module("verl.utils.rollout_trace", rollout_trace_op=lambda function: function)
    sys.modules["verl.utils"].normalize_token_ids = list
    sys.path.insert(0, f"{ROOT}/deploy/client")
    importlib.import_module("seer_verl")  # as verl's __init__ imports its plugins
    return [importlib.import_module(f"verl.workers.rollout.{name}") for name in ("base", "replica", "llm_server")]


base, replica, llm_server = verl_without_its_cluster()


class VerlTest(TwoWeights, unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.served = Served("--kv-bytes", "64MiB")
        self.addCleanup(self.served.stop)
        self.alone = [Served("--model", MODEL), Served("--model", self.folder)]
        for server in self.alone:
            self.addCleanup(server.stop)

    async def asyncSetUp(self):
        asyncio.get_running_loop().set_debug(False)  # it reports each wait for a server's answer
        rollout = Settings(name="seer", tensor_model_parallel_size=1, data_parallel_size=1, pipeline_model_parallel_size=1, max_num_seqs=64, prompt_length=100,
                           response_length=RESPONSE_TOKENS, custom={"seer_address": f"127.0.0.1:{self.served.port}"})
        self.config = types.SimpleNamespace(actor_rollout_ref=Settings(rollout=rollout))
        self.replica = replica.get_rollout_replica_class("seer")(0, rollout, None)
        await self.replica.init_hybrid(Settings(workers=[None]))
        self.addAsyncCleanup(self.replica.server_handle.close.remote)
        self.balancer = Actor(llm_server.GlobalRequestLoadBalancer({self.replica.server_address: self.replica.server_handle}))
        os.environ["RANK"] = "0"
        self.trainer = base.get_rollout_class("seer", "async")(rollout, None)

    def generate(self, client, **limits):
        sampling = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True, **limits}
        return [asyncio.ensure_future(client.generate(f"request-{i}", prompt_ids=self.prompt(i), sampling_params=copy.copy(sampling))) for i in range(RESPONSES)]

    def prompt(self, i):
        return [2, 3, 4 + i, 30]

    def expected(self, server, prompt, tokens, **limits):
        answer = server.generate(prompt, sampling_params={"temperature": 0.0, "max_new_tokens": tokens, **limits})
        return answer["output_ids"], [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]

    async def test_responses_have_the_bits_of_servers_with_the_weights_that_their_steps_name(self):
        client = llm_server.LLMServerClient(self.config, self.balancer)
        for step, tensors in ((None, None), (1, self.new), (2, self.old)):
            if step is not None:
                await self.trainer.update_weights(iter(named_tensors(tensors)), global_steps=step)
            for i, output in enumerate(await asyncio.gather(*self.generate(client, max_tokens=60))):
                self.assertEqual((output.token_ids, output.log_probs), self.expected(self.alone[tensors is self.new], self.prompt(i), 60))
                self.assertEqual((output.stop_reason, output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]), ("completed", step, step))

    async def test_weights_in_float32_are_cast_to_the_dtype_of_the_server(self):
        """As verl's FSDP engine gives them, unless model_dtype says otherwise."""
        wide = [(name, tensor.float()) for name, tensor in named_tensors(self.new)]
        await self.trainer.update_weights(iter(wide), global_steps=1)
        client = llm_server.LLMServerClient(self.config, self.balancer)
        for i, output in enumerate(await asyncio.gather(*self.generate(client, max_tokens=60))):
            self.assertEqual((output.token_ids, output.log_probs), self.expected(self.alone[1], self.prompt(i), 60))

    async def test_what_new_weights_interrupt_goes_on_with_them(self):
        client = llm_server.FullyAsyncLLMServerClient(self.config, self.balancer)
        running = self.generate(client, ignore_eos=True)  # long ones
        await asyncio.to_thread(self.served.until_made, 1)  # with no token the response is the new weights' alone
        await self.replica.abort_all_requests()  # as CheckpointEngineManager.update_weights does
        await self.trainer.update_weights(iter(named_tensors(self.new)), global_steps=1)
        await self.replica.resume_generation()
        interrupted = 0
        for i, output in enumerate(await asyncio.gather(*running)):
            self.assertEqual(len(output.token_ids), len(output.log_probs))
            if output.extra_fields["max_global_steps"] is None:
                continue  # it was over before
            interrupted += 1
            old, _ = self.expected(self.alone[0], self.prompt(i), RESPONSE_TOKENS, ignore_eos=True)
            same = next((at for at, pair in enumerate(zip(old, output.token_ids)) if pair[0] != pair[1]), RESPONSE_TOKENS)
            # From some token on, not after the first that differs, all are those of the new weights.
            self.assertTrue(any(self.expected(self.alone[1], self.prompt(i) + output.token_ids[:at], RESPONSE_TOKENS - at, ignore_eos=True)[0]
                                == output.token_ids[at:] for at in range(same, -1, -1)))
        self.assertGreater(interrupted, 0)


if __name__ == "__main__":
    unittest.main()
