#!/usr/bin/env python3
"""slime's own code against a real `seer serve`: its rollout loop with over-sampling, aborts and partial rollouts, its fully asynchronous
one, its updates of weights over a gloo group and from disk, a router as its engine. Ray, Megatron, SGLang and the tokenizer are replaced.
Written for 624b824; needs python3-torch, python3-requests, python3-httpx, python3-tqdm, python3-packaging. usage: SEER_SLIME_SOURCE=DIR slime_source.py SEER_PROGRAM"""
import base64, importlib, multiprocessing, sys, types, unittest

from trainer_source import as_newer_torch, named_tensors, replace_module, replace_packages, source_of

SOURCE = source_of("slime")
replace_packages("ray", "transformers", "PIL", "aiohttp", "megatron", "sglang", "sglang_router", "sympy", "pylatexenc")
sys.modules["pybase64"] = base64

import ray
import torch
import megatron.core

from router import Router
from served import MODEL, Served
from weights import TwoWeights
from weights_group import Member

SAMPLES = 8
SEED = 42
NEW_TOKENS = 250


class Answer:
    """Of a call that runs elsewhere, as Ray's references are."""

    def __init__(self, get):
        self.get = get


def now(value):
    return types.SimpleNamespace(remote=lambda *_: Answer(lambda: value))


class Engine:
    """slime's SGLangEngine in a process of its own: a thread would not do, since torch 1.13 may wait for others with the GIL."""

    def __init__(self, port, is_router=False):
        self.ours, theirs = multiprocessing.get_context("fork").Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=self.run, args=(theirs, port, is_router), daemon=True)
        self.process.start()

    @staticmethod
    def run(pipe, port, is_router):
        from slime.backends.sglang_utils.sglang_engine import SGLangEngine
        engine = SGLangEngine(types.SimpleNamespace(rollout_external=True), rank=0)
        engine.node_rank, engine.server_host, engine.server_port = 0, "127.0.0.1", port
        if is_router:
            engine.router_ip, engine.router_port, engine.worker_type = "127.0.0.1", port, "regular"
            engine._register_to_router({})
        while True:
            name, args, named = pipe.recv()
            try:
                found = getattr(engine, name)(*args, **named)
                pipe.send((True, getattr(found, "status_code", found)))
            except Exception as error:
                pipe.send((False, f"{error} {getattr(error, '__notes__', '')}"))

    def __getattr__(self, name):
        def remote(*args, **named):
            self.ours.send((name, args, named))
            return Answer(self.answer)
        return types.SimpleNamespace(remote=remote)

    def answer(self):
        is_good, found = self.ours.recv()
        if not is_good:
            raise RuntimeError(found)
        return found


def slime_without_its_cluster():
    """Its modules: rollout, update of weights over a group, group of actors."""
    as_newer_torch()
    torch.distributed.barrier = lambda **_: None
    torch.distributed.get_rank = lambda *_: 0
    ray.get = lambda answers: [answer.get() for answer in answers] if isinstance(answers, list) else answers.get()
    ray.remote = lambda *args, **_: args[0] if args else lambda what: what
    ray._private = types.SimpleNamespace(services=types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"))
    megatron.core.mpu = types.SimpleNamespace(get_data_parallel_rank=lambda **_: 0, get_tensor_model_parallel_rank=lambda: 0,
                                              get_pipeline_model_parallel_rank=lambda: 0, get_expert_model_parallel_world_size=lambda: 1)
    import slime.utils
    replace_module("slime.utils.accelerator", weight_update_backend=lambda: "gloo")
    replace_module("slime.backends.megatron_utils", [f"{SOURCE}/slime/backends/megatron_utils"])
    replace_module("slime.backends.megatron_utils.megatron_to_hf")
    replace_module("slime.backends.megatron_utils.update_weight", [f"{SOURCE}/slime/backends/megatron_utils/update_weight"])
    replace_module("slime.backends.megatron_utils.update_weight.common", all_gather_param=lambda name, tensor: tensor)
    import slime.utils.processing_utils as processing
    processing.load_tokenizer = processing.load_processor = lambda *_, **__: None
    update = importlib.import_module("slime.backends.megatron_utils.update_weight.update_weight_from_distributed")
    update.get_gloo_group = lambda: None
    update.convert_to_hf = lambda args, model_name, name, tensor, config: [(name, tensor)]
    return importlib.import_module("slime.rollout.sglang_rollout"), update, importlib.import_module("slime.ray.actor_group")


rollout, update, actor_group = slime_without_its_cluster()
from slime.utils import http_utils
from slime.utils.types import Sample


class Settings(types.SimpleNamespace):
    """slime's arguments; those that are not given are None."""

    def __getattr__(self, name):
        return None


class Prompts:
    """slime's data source: groups that were begun come first."""

    def __init__(self):
        self.begun, self.groups = [], 0

    def get_samples(self, count):
        return [self.begun.pop(0) if self.begun else self.new_group() for _ in range(count)]

    def add_samples(self, groups):
        self.begun += groups

    def new_group(self):
        prompt = [2, 3 + self.groups % 17, 4 + self.groups // 17, 30]
        self.groups += 1
        return [Sample(group_index=self.groups, index=self.groups * SAMPLES + i, prompt="", tokens=list(prompt), metadata={"prompt": prompt}) for i in range(SAMPLES)]


async def reward(args, sample, **_):
    return float(sample.response_length)


class SlimeTest(TwoWeights):
    def setUp(self):
        self.served = Served("--kv-bytes", "64MiB")
        self.addCleanup(self.served.stop)
        self.engine = Engine(self.served.port)
        self.addCleanup(self.engine.process.kill)

    def version(self):
        return self.served.call("GET", "/get_weight_version")[1]["weight_version"]

    def updater(self):
        """slime's UpdateWeightFromDistributed; it sends `self.tensors`."""
        member = Member(f"127.0.0.1:{self.served.port}")
        self.addCleanup(member.stop)
        update.named_params_and_buffers = lambda args, model: named_tensors(self.tensors)
        made = update.UpdateWeightFromDistributed(types.SimpleNamespace(rollout_num_gpus_per_engine=1, update_weight_buffer_size=1 << 20), None, None,
                                                  model_name="", quantization_config=None)
        made.connect_rollout_engines([self.engine], types.SimpleNamespace(acquire=now(True), release=now(None)), engine_gpu_counts=[1])
        self.addCleanup(made.disconnect_rollout_engines)
        return made

    def servers_alone(self):
        """With the old and with the new weights."""
        alone = [Served("--model", MODEL), Served("--model", self.folder)]
        for server in alone:
            self.addCleanup(server.stop)
        return alone

    def settings(self, concurrency, **others):
        sys.modules["slime_test_reward"] = types.SimpleNamespace(reward=reward)
        settings = Settings(sglang_router_ip="127.0.0.1", sglang_router_port=self.served.port, rollout_temperature=1.0, rollout_top_p=0.98, rollout_top_k=-1,
                            rollout_max_response_len=NEW_TOKENS, rollout_skip_special_tokens=False, sglang_server_concurrency=concurrency, rollout_num_engines=1,
                            n_samples_per_prompt=SAMPLES, rollout_batch_size=6, over_sampling_batch_size=9, partial_rollout=True,
                            custom_rm_path="slime_test_reward.reward", rollout_global_dataset=True, sglang_enable_deterministic_inference=True, rollout_seed=SEED)
        vars(settings).update(others)
        # Those of another test belong to its event loop.
        type(rollout.GenerateState)._instances.clear()
        http_utils._http_client = None
        http_utils.init_http_client(settings)
        return settings

    def check_bits(self, sample, i, server, top_p=0.98):
        params = {"temperature": 1.0, "top_p": top_p, "max_new_tokens": NEW_TOKENS, "sampling_seed": SEED + i}
        if top_p < 1:
            params["custom_params"] = {"return_top_p_token_ids": True}
        expected = server.generate(sample.metadata["prompt"], sampling_params=params)
        self.assertEqual(sample.tokens[len(sample.metadata["prompt"]):], expected["output_ids"])
        self.assertEqual(sample.rollout_log_probs, [entry[0] for entry in expected["meta_info"]["output_token_logprobs"]])

    def test_rollouts_with_weights_over_its_group_between_them_have_the_bits_of_servers_with_these_weights(self):
        alone, updater, prompts, checked = self.servers_alone(), self.updater(), Prompts(), 0
        settings = self.settings(concurrency=4096)
        for step in range(6):
            settings.custom_generate_function_path = None if step % 3 < 2 else "seer_slime.generate"
            made = rollout.generate_rollout(settings, step, prompts)
            self.assertEqual(len(made.samples), 6)
            for group in made.samples:
                for i, sample in enumerate(group):
                    self.assertEqual((len(sample.rollout_log_probs), sample.reward), (sample.response_length, sample.response_length))
                    if "start_rollout_id" in sample.metadata:
                        continue  # partly of the weights before
                    self.assertEqual(sample.weight_versions, [self.version()])
                    self.check_bits(sample, i, alone[step % 2])
                    checked += 1
            self.tensors = self.old if step % 2 else self.new
            updater.update_weights()
            self.assertEqual(self.version(), str(step + 1))
        self.assertGreater(checked, 100)

    def test_its_fully_asynchronous_rollouts_go_on_while_weights_change(self):
        alone, updater, prompts, checked = self.servers_alone(), self.updater(), Prompts(), 0
        updater.weight_version = 10  # the first one is 11, of the new weights
        settings = self.settings(concurrency=12)
        settings.rollout_batch_size = 18  # more groups than are ready from before
        fully_async = importlib.import_module("slime.rollout.fully_async_rollout")
        self.addCleanup(fully_async._stop_global_worker)
        versions = set()
        for step in range(4):
            for group in fully_async.generate_rollout_fully_async(settings, step, prompts):
                for i, sample in enumerate(group):
                    if len(set(sample.weight_versions)) == 1:
                        version = int(sample.weight_versions[0])
                        versions.add(version)
                        self.check_bits(sample, i, alone[version % 2 if version > 1 else 0])
                        checked += 1
            self.tensors = self.old if step % 2 else self.new
            updater.update_weights()
            self.assertEqual(self.version(), str(11 + step))
        self.assertGreater(checked, 100)
        self.assertGreater(len(versions), 2)

    def test_updates_from_disk_pass_its_own_check_of_versions(self):
        manager = types.SimpleNamespace(get_updatable_engines_and_lock=now(([self.engine], None)))
        group = types.SimpleNamespace(_rollout_manager=manager, args=Settings(ci_test=True, update_weight_disk_keep_files=True))
        for version in range(1, 4):
            actor_group.RayTrainGroup._reload_rollout_weights_from_disk(group, self.folder if version % 2 else MODEL, str(version))

    def test_a_router_can_be_its_only_engine_and_its_router(self):
        alone, prompts, checked = self.servers_alone(), Prompts(), 0
        servers = [Served("--instances", "1", "--kv-bytes", "64MiB") for _ in range(2)]
        router = Router([("seer", server) for server in servers])
        for server in (*servers, router):
            self.addCleanup(server.stop)
        engine = Engine(router.port, is_router=True)  # which registers the router with itself
        self.addCleanup(engine.process.kill)
        itself = f"http://127.0.0.1:{router.port}"
        router.wait_for(lambda: router.call("GET", "/workers")[1]["urls"] == [itself])  # so it aborts requests there, and not at the servers
        group = types.SimpleNamespace(_rollout_manager=types.SimpleNamespace(get_updatable_engines_and_lock=now(([engine], None))),
                                      args=Settings(ci_test=True, update_weight_disk_keep_files=True))
        settings = self.settings(4096, sglang_router_port=router.port, rollout_top_p=1.0)
        for step in range(4):
            made = rollout.generate_rollout(settings, step, prompts)
            self.assertEqual(len(made.samples), 6)
            for samples in made.samples:
                for i, sample in enumerate(samples):
                    if "start_rollout_id" not in sample.metadata:
                        self.check_bits(sample, i, alone[step % 2], top_p=1.0)
                        checked += 1
            actor_group.RayTrainGroup._reload_rollout_weights_from_disk(group, MODEL if step % 2 else self.folder, str(step + 1))
        self.assertGreater(checked, 50)
        self.assertEqual([server["is_healthy"] for server in router.call("GET", "/workers")[1]["servers"]], [True, True])


if __name__ == "__main__":
    unittest.main()
