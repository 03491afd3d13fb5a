"""verl with `seer serve` as its rollout backend, without a fork of verl: actor_rollout_ref.rollout.name=seer.

verl imports this module in each of its processes (entry point verl.plugins, or VERL_USE_EXTERNAL_MODULES=seer_verl), which registers

    SeerReplica    in RolloutReplicaRegistry: a Ray actor, SeerServer, stands for the server. It takes no GPU.
    ServerAdapter  in _ROLLOUT_REGISTRY: on each trainer rank; rank 0 sends the weights to the server, or writes them to a folder and
                   lets the server load it.

and there is SeerSingleTurnAgentLoop, verl's single_turn_agent whose requests name their group. Weight version "step-N" is verl's
global step N. The server is a process of its own that is up before the training starts; actor_rollout_ref.rollout.custom has

    seer_address      HOST:PORT or a URL
    seer_weights_dir  a folder that both the trainer and the server see. Without it, weights are sent over HTTP and kept in memory,
                      which a `seer serve --engines` refuses
    seer_token_file, seer_tls_ca   where the server wants a token, and for https
"""
import hashlib
import json
import os
import shutil
import sys
import tempfile
from typing import Any, Dict, List, Optional

from seer_client import AsyncClient
from seer_http import read_token
from seer_messages import each_of

CONNECTIONS_MAX = 16_384     # requests of all replicas at a time; control calls have connections of their own
ACTOR_CALLS_MAX = 1_000_000  # never reached: resume_generation() must not wait for a slot that requests hold until it is called

_SETTINGS = ("seer_address", "seer_weights_dir", "seer_token_file", "seer_tls_ca")


def _settings_of(config) -> Dict[str, str]:
    custom = dict(getattr(config, "custom", None) or {})
    unknown = [name for name in custom if name.startswith("seer_") and name not in _SETTINGS]
    if unknown:
        raise ValueError(f"actor_rollout_ref.rollout.custom.{unknown[0]} is not known: expected one of {', '.join(_SETTINGS)}")
    if not custom.get("seer_address"):
        raise ValueError("actor_rollout_ref.rollout.custom.seer_address is missing")
    return {name: str(custom[name]) for name in _SETTINGS if custom.get(name)}


def _connect(settings: Dict[str, str], **options) -> AsyncClient:
    return AsyncClient(settings["seer_address"], read_token(settings.get("seer_token_file")), settings.get("seer_tls_ca"), **options)


class SeerServer:
    """What verl asks of a rollout server; as a Ray actor it is the handle that verl's clients call. It holds a connection pool only."""

    def __init__(self, settings: Dict[str, str], prompt_length: int, response_length: int, ignore_eos: bool = False, seed: Optional[int] = None):
        """seed: of verl, where it wants full determinism. Else the server chooses the seeds of requests."""
        self._prompt_length, self._response_length, self._ignore_eos, self._seed = prompt_length, response_length, ignore_eos, seed
        self._client = _connect(settings, connections_max=CONNECTIONS_MAX)

    async def generate(self, prompt_ids: List[int], sampling_params: Dict[str, Any], request_id: str, image_data=None, video_data=None,
                       audio_data=None, mm_processor_kwargs=None, priority: int = 0, group_id: Optional[str] = None,
                       group_size: Optional[int] = None):
        from verl.workers.rollout.replica import TokenOutput
        for name, value in (("image_data", image_data), ("video_data", video_data), ("audio_data", audio_data)):
            if value:
                raise ValueError(f"{name}: seer serve takes text only")
        params = {"ignore_eos": self._ignore_eos, **sampling_params}
        wants_logprobs = bool(params.pop("logprobs", False))
        if params.pop("prompt_logprobs", None) is not None:
            raise ValueError("prompt_logprobs: seer serve returns no log-probabilities of the prompt")
        budget = min(self._response_length, self._prompt_length + self._response_length - len(prompt_ids))
        limits = [params.pop(name) for name in ("max_new_tokens", "max_tokens") if name in params]
        limit = limits[0] if limits else budget
        if limit <= 0:
            return TokenOutput(token_ids=[], log_probs=[] if wants_logprobs else None, stop_reason="completed")
        if "seed" in params:
            params["sampling_seed"] = params.pop("seed")
        if self._seed is not None:
            params.setdefault("sampling_seed", _seed_of_request(self._seed, request_id, len(prompt_ids)))
        # verl's priority is vLLM's, which serves lower numbers first
        response = await self._client.generate(input_ids=prompt_ids, sampling={**params, "max_new_tokens": limit}, rid=request_id,
                                               group_id=group_id, group_size=group_size, priority=-priority, logprobs=wants_logprobs)
        return TokenOutput(token_ids=response.tokens, log_probs=response.logprobs,
                           stop_reason="aborted" if response.is_aborted else "completed",
                           extra_fields={"global_steps": _step_of(response.weight_version), "weight_version": response.weight_version})

    async def launch(self) -> str:
        """The server's address, once it has answered."""
        await self._client.health()
        await self._client.info()  # needs the token, too
        return self._client.address.split("://")[1]

    async def abort_all_requests(self) -> None:
        """As in verl's other servers, requests that come later wait for resume_generation()."""
        await self._client.pause("abort")

    async def resume_generation(self) -> None:
        await self._client.resume()

    async def clear_kv_cache(self) -> None:
        await self._client.flush()

    async def close(self) -> None:
        """Closes idle connections."""
        await self._client.close()

    # The memory of the server is its own: there is nothing to free for a trainer, and nothing to get back. Its profile is its own, too.
    async def wake_up(self) -> None: pass
    async def sleep(self) -> None: pass
    async def release_kv_cache(self) -> None: pass
    async def resume_kv_cache(self) -> None: pass
    async def start_profile(self, **_) -> None: pass
    async def stop_profile(self) -> None: pass


def _seed_of_request(seed: int, request_id: str, prompt_tokens: int) -> int:
    """The same 63 bits in each run, whatever the order in which requests come. Turns of one request differ in the length of their prompts."""
    return int.from_bytes(hashlib.sha256(f"{seed} {request_id} {prompt_tokens}".encode()).digest()[:8], "big") >> 1


def _version_name(global_steps: Optional[int]) -> Optional[str]:
    """A name and not a number: the server wants numbers to grow, and a trainer that starts again begins at 0."""
    return None if global_steps is None else f"step-{global_steps}"


def _step_of(weight_version: str) -> Optional[int]:
    prefix, _, number = weight_version.partition("step-")
    return int(number) if prefix == "" and number.isdigit() else None


class ServerAdapter:
    """Sends the trainer's weights to the server, or writes them to a folder. All ranks read them, since reading is collective; rank 0 has
    them go on."""

    def __init__(self, config, model_config, device_mesh=None, replica_rank: int = -1):
        self.config, self.model_config = config, model_config
        self._settings = _settings_of(config)
        self._rank = int(os.environ["RANK"])
        self.replica_rank = max(replica_rank, 0)
        self.is_leader_rank = self._rank == 0
        self._dtype: Optional[str] = None   # of the server's weights; None: not asked yet
        self._folder: Optional[str] = None  # that the server loaded last

    async def resume(self, tags) -> None: pass   # see SeerServer: the server's memory is its own
    async def release(self) -> None: pass

    async def update_weights(self, weights, wire_format: str = "named_tensors", global_steps: Optional[int] = None, **kwargs) -> None:
        if wire_format != "named_tensors":
            raise ValueError(f"wire_format is {wire_format!r}: expected 'named_tensors'")
        if kwargs.get("peft_config") is not None:
            raise ValueError("seer serve takes no LoRA adapters: set actor_rollout_ref.model.lora.merge=True")
        tensors = each_of(weights)
        if self._rank != 0:
            return await _read_all(tensors)
        try:
            await self._update(tensors, _version_name(global_steps))
        except Exception:
            await _read_all(tensors)  # else the other ranks would wait for this one
            raise

    async def _update(self, tensors, name: Optional[str]) -> None:
        async with _connect(self._settings) as client:
            if self._dtype is None:
                self._dtype = (await client.info()).fields.get("dtype", "bfloat16")
            tensors = _in_dtype(tensors, self._dtype)
            if "seer_weights_dir" in self._settings:
                await self._update_from_folder(client, tensors, name)
            else:
                await client.update_weights_from_tensors(_buffers(tensors), name)

    async def _update_from_folder(self, client: AsyncClient, tensors, name: Optional[str]) -> None:
        bytes_max = int(self.config.checkpoint_engine.update_weights_bucket_megabytes) << 20
        folder = tempfile.mkdtemp(prefix=f"{name or 'unnumbered'}-", dir=self._settings["seer_weights_dir"])
        os.chmod(folder, 0o755)  # the server may run as somebody else
        try:
            await write_weights(tensors, folder, bytes_max)
            await client.update_weights(folder, name)
        except BaseException:
            shutil.rmtree(folder)
            raise
        if self._folder is not None:
            shutil.rmtree(self._folder)
        self._folder = folder


async def _read_all(tensors) -> None:
    async for _ in tensors:
        pass


async def _in_dtype(tensors, dtype: str):
    """Casts weights to the server's dtype, since it takes no other and verl's FSDP engine keeps F32. Tensors of other kinds, such as
    quantized ones, stay as they are, and the server refuses them."""
    import torch
    async for name, tensor in tensors:
        is_cast = tensor.dtype in (torch.bfloat16, torch.float16, torch.float32)
        yield name, tensor.detach().to(getattr(torch, dtype)) if is_cast else tensor  # before it leaves a GPU: fewer bytes


async def _buffers(tensors):
    """Each tensor as update_weights_from_tensors() takes it."""
    import torch
    async for name, tensor in tensors:
        tensor = tensor.detach().to("cpu").contiguous()
        yield name, tensor.dtype, tensor.shape, tensor.flatten().view(torch.uint8).numpy()


async def write_weights(weights, folder: str, bytes_max: int) -> None:
    """Writes tensors by name as shards of about bytes_max and their index."""
    from safetensors.torch import save_file
    shard: Dict[str, Any] = {}
    shard_bytes = total_bytes = shards = 0
    shard_of: Dict[str, str] = {}

    def write() -> None:
        nonlocal shard_bytes, shards
        shards += 1
        file = f"model-{shards:05}.safetensors"
        save_file(shard, os.path.join(folder, file))
        shard_of.update({name: file for name in shard})
        shard.clear()
        shard_bytes = 0
    async for name, tensor in each_of(weights):
        if name in shard or name in shard_of:
            raise ValueError(f"the trainer gave {name} twice")
        # A copy: the trainer may use the memory for the next tensor.
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()
        shard_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
        if shard_bytes >= bytes_max:
            write()
    if shard:
        write()
    if not shard_of:
        raise ValueError("the trainer gave no weights")
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as index:
        json.dump({"metadata": {"total_size": total_bytes}, "weight_map": shard_of}, index)


class GroupedClient:
    """verl's LLM client whose first request names its group. Later turns have prompts of their own, and no group."""

    def __init__(self, manager, group_id: str, group_size: int):
        self._manager = manager
        self._group: Dict[str, Any] = {"group_id": group_id, "group_size": group_size}

    async def generate(self, *args, **kwargs):
        group, self._group = self._group, {}
        return await self._manager.generate(*args, **group, **kwargs)

    def __getattr__(self, name: str):
        return getattr(self._manager, name)


# ---- classes that derive from verl's: made when verl asks for them, so that this module needs no verl ---------------------------------

def _make_replica():
    import ray
    from verl.workers.rollout.replica import RolloutReplica

    class SeerReplica(RolloutReplica):
        async def launch_servers(self):
            """All replicas of verl are the one server: they share one actor."""
            config = self.config
            server = ray.remote(SeerServer).options(name=f"seer_server{self.name_suffix}", get_if_exists=True, num_cpus=0,
                                                    max_concurrency=ACTOR_CALLS_MAX)
            seed = config.seed if getattr(config, "full_determinism", False) else None
            self._server_handle = server.remote(_settings_of(config), config.prompt_length, config.response_length,
                                                bool(getattr(config, "ignore_eos", False)), seed)
            self.servers = [self._server_handle]
            self._server_address = await self._server_handle.launch.remote()

        async def init_standalone(self):
            raise ValueError("actor_rollout_ref.rollout.nnodes: expected 0, since seer serve has machines of its own and verl reserves none for it")
    return SeerReplica


def _make_agent_loop():
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    class SeerSingleTurnAgentLoop(SingleTurnAgentLoop):
        async def run(self, sampling_params, **kwargs):
            if kwargs.get("uid") is not None:
                self.server_manager = GroupedClient(self.server_manager, str(kwargs["uid"]), int(self.rollout_config.n))
            return await super().run(sampling_params, **kwargs)
    return SeerSingleTurnAgentLoop


_MAKERS = {"SeerReplica": _make_replica, "SeerSingleTurnAgentLoop": _make_agent_loop}


def __getattr__(name: str):
    if name not in _MAKERS:
        raise AttributeError(f"module 'seer_verl' has no attribute {name!r}")
    made = _MAKERS[name]()
    made.__module__, made.__qualname__ = __name__, name
    globals()[name] = made
    return made


def register() -> None:
    """Makes rollout.name=seer known to verl in this process."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry
    RolloutReplicaRegistry.register("seer", lambda: getattr(sys.modules[__name__], "SeerReplica"))
    _ROLLOUT_REGISTRY[("seer", "async")] = "seer_verl.ServerAdapter"


if "verl" in sys.modules:  # verl is importing its plugins
    register()
