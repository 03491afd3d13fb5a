#!/usr/bin/env python3
"""AReaL's own code against a real `seer serve`: RemoteInfEngine and SGLangBackend, with responses that updates of weights over a gloo group
interrupt. Its configuration, launchers and trainers are replaced. Written for 4aef98d; needs python3-torch, python3-requests, python3-aiohttp,
python3-httpx, python3-tenacity, python3-uvloop. usage: SEER_AREAL_SOURCE=DIR areal_source.py SEER_PROGRAM"""
import asyncio, base64, datetime, logging, socket, sys, time, types, unittest

from trainer_source import as_newer_torch, named_tensors, replace_module, replace_packages, source_of

SOURCE = source_of("areal")
replace_packages("ray", "transformers", "PIL", "torchdata", "colorlog", "aiofiles")
sys.modules["pybase64"] = base64

import aiohttp
import torch
import uvloop

from served import MODEL, Served, wide
from weights import TwoWeights
from weights_group import Member

GROUP = "update_weight_group"
RESPONSES = 24
PATIENCE_S = 60


def areal_without_its_cluster():
    """The engine, its backend, and where it looks for its HTTP session."""
    as_newer_torch()
    if not hasattr(uvloop, "run"):
        uvloop.run = asyncio.run
    for package in ("areal", "areal.infra", "areal.api", "areal.experimental", "areal.experimental.openai", "areal.engine"):
        replace_module(package, [f"{SOURCE}/{package.replace('.', '/')}"])
    import areal.utils
    for module in ("areal.infra.workflow_executor", "areal.infra.utils.launcher", "areal.api.cli_args", "areal.api.alloc_mode", "areal.utils.data",
                   "areal.utils.stats_tracker", "areal.utils.name_resolve", "areal.utils.names", "areal.experimental.openai.types"):
        replace_module(module)
    replace_module("areal.utils.perf_tracer", trace_perf=lambda *_, **__: lambda function: function)
    replace_module("areal.infra.platforms", current_platform=types.SimpleNamespace(communication_backend="gloo", device_type="cpu"))
    import areal.api.io_struct
    vars(sys.modules["areal.api"]).update({name: value for name, value in vars(areal.api.io_struct).items() if not name.startswith("_")})
    import areal.infra.remote_inf_engine as engine
    sys.modules["areal.infra"].RemoteInfEngine = engine.RemoteInfEngine
    from areal.engine.sglang_remote import SGLangBackend
    return engine, SGLangBackend


remote_inf_engine, SGLangBackend = areal_without_its_cluster()


class Copied(types.SimpleNamespace):
    """A request of AReaL, which is copied before it changes. What is not given is None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def copy(self):
        return Copied(**{name: value.copy() if isinstance(value, (Copied, list)) else value for name, value in vars(self).items()})

    new = copy


def request(i, new_tokens, ignore_eos):
    sampling = Copied(n_samples=1, max_tokens=32768, max_new_tokens=new_tokens, greedy=True, temperature=0.0, top_p=1.0, top_k=10**8, stop_token_ids=[], stop=None,
                      frequency_penalty=0.0, ignore_eos=ignore_eos, skip_special_tokens=True)
    return Copied(rid=f"{time.monotonic_ns()}-{i}", input_ids=[2, 3, 4 + i % 16, 30], gconfig=sampling, metadata={}, image_data=[], tokenizer=None, processor=None)


class ArealTest(TwoWeights):
    def setUp(self):
        self.served = Served(*wide())
        self.addCleanup(self.served.stop)
        member = Member(f"127.0.0.1:{self.served.port}")
        self.addCleanup(member.stop)
        settings = types.SimpleNamespace(routing_strategy="round_robin", return_routed_experts=False, use_lora=False, request_retries=3,
                                         request_timeout=120, pause_grace_period=0)
        self.engine = remote_inf_engine.RemoteInfEngine(settings, SGLangBackend())
        self.engine.addresses, self.engine.logger = [f"127.0.0.1:{self.served.port}"], logging.getLogger()
        self.engine._workflow_executor, self.engine._initialized = types.SimpleNamespace(is_paused=lambda: False), True
        self.make_group()

    def make_group(self):
        """As FSDPEngine does."""
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        servers = types.SimpleNamespace(tp_size=1, pp_size=1, dp_size=1, world_size=1)
        self.meta = types.SimpleNamespace(type="xccl", gen_allocation=types.SimpleNamespace(parallel=servers), nccl_group_name=GROUP, use_lora=False,
                                          nccl_master_address="127.0.0.1", nccl_master_port=port)
        asked = self.engine.init_weights_update_group(self.meta)
        from torch.distributed import PrefixStore, TCPStore, distributed_c10d
        timeout = datetime.timedelta(seconds=PATIENCE_S)
        # Not to wait here: torch 1.13 would do so with the GIL, and the engine's process needs a thread of this one.
        store = TCPStore("127.0.0.1", port, 2, True, timeout, wait_for_workers=False)
        self.group, _ = distributed_c10d._new_process_group_helper(2, 0, [], "gloo", PrefixStore(GROUP, store), group_name=GROUP, timeout=timeout)
        distributed_c10d._world.pg_group_ranks[self.group] = {0: 0, 1: 1}
        asked.result(PATIENCE_S)

    def update(self, tensors):
        """As FSDPEngine's _update_weights_from_distributed."""
        self.engine.pause_generation()
        named = named_tensors(tensors)
        for at in range(0, len(named), 9):
            bucket = named[at:at + 9]
            asked = self.engine.update_weights_from_distributed(self.meta, [
                types.SimpleNamespace(name=name, dtype=str(tensor.dtype).split("torch.")[1], shape=tuple(tensor.shape)) for name, tensor in bucket])
            for work in [torch.distributed.broadcast(tensor, src=0, group=self.group, async_op=True) for _, tensor in bucket]:
                work.wait()
            asked.result(PATIENCE_S)
        self.engine.continue_generation()
        self.engine.set_version(self.engine.get_version() + 1)

    def responses(self, new_tokens, meanwhile=None):
        async def all_of_them():
            async with aiohttp.ClientSession() as session:
                async def give():
                    return session
                remote_inf_engine.workflow_context.get_aiohttp_session = give
                before = self.served.made()
                running = [asyncio.ensure_future(self.engine.agenerate(request(i, new_tokens, ignore_eos=meanwhile is not None))) for i in range(RESPONSES)]
                if meanwhile is not None:
                    # More than those of short responses before, which may be told of late.
                    await asyncio.to_thread(self.served.until_made, before + 100 * RESPONSES)
                    await asyncio.get_running_loop().run_in_executor(None, meanwhile)
                return await asyncio.gather(*running)
        return asyncio.run(all_of_them())

    def test_responses_between_updates_have_the_bits_of_the_weights_and_those_that_one_interrupts_go_on_with_the_new_ones(self):
        alone = [Served("--model", MODEL), Served("--model", self.folder)]
        for server in alone:
            self.addCleanup(server.stop)
        interrupted = 0
        for tensors, server in ((self.new, alone[0]), (self.old, alone[1]), (self.new, alone[0])):
            for response in self.responses(60):
                expected = server.generate(response.input_tokens, sampling_params={"temperature": 0.0, "max_new_tokens": 60})
                self.assertEqual(response.output_tokens, expected["output_ids"])
                self.assertEqual(response.output_logprobs, [entry[0] for entry in expected["meta_info"]["output_token_logprobs"]])
            for response in self.responses(4000, lambda: self.update(tensors)):
                interrupted += len(set(response.output_versions)) > 1
                self.assertEqual(len(response.output_logprobs), len(response.output_tokens))
        self.assertGreater(interrupted, 0)
        self.assertEqual(self.served.call("GET", "/get_weight_version")[1], {"weight_version": "4"})


if __name__ == "__main__":
    unittest.main()
