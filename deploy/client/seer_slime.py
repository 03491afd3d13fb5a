"""slime's custom generate function for `seer serve`: requests name their group and its size, so that Seer need not guess.

    --custom-generate-function-path seer_slime.generate

slime calls it once for each sample, and at the same time for all samples of a group; its rollout loop, its abort and its updates of
weights stay as they are. Other than slime's own function it raises what the server refuses at once, instead of asking 60 times. While
no server listens, as when it is restarted, it tries again for 75 s; slime's own does for 60 s. A host that is silent gets as many tries.
"""
import asyncio
import weakref
from typing import Any, Dict, Optional

from seer_client import AsyncClient

CONNECTIONS_MAX = 16_384
RETRIES = 41  # after 0.1, 0.2, 0.4, 0.8 and 1.6 s, then every 2 s: 75 s together

_clients: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Dict[str, AsyncClient]]" = weakref.WeakKeyDictionary()


async def generate(args, sample, sampling_params: Dict[str, Any], evaluation: bool = False):
    """Adds one response to the sample. REQUIRES: its status is PENDING or ABORTED."""
    status = type(sample).Status
    if sample.status not in (status.PENDING, status.ABORTED):
        raise ValueError(f"sample {sample.index} is {sample.status}: expected PENDING or ABORTED")
    if any(value is not None for value in (sample.multimodal_inputs or {}).values()):
        raise ValueError(f"sample {sample.index} has multimodal inputs: seer serve takes text only")
    if getattr(args, "use_rollout_routing_replay", False):
        raise ValueError("--use-rollout-routing-replay: seer serve does not return routed experts")
    prompt_ids = list(sample.tokens) or _encode(args, sample.prompt)
    sampling = {**sampling_params, "max_new_tokens": sampling_params["max_new_tokens"] - sample.response_length}
    if sampling["max_new_tokens"] < 0:
        raise ValueError(f"sample {sample.index} has {sample.response_length} tokens: expected at most {sampling_params['max_new_tokens']}")
    if sampling["max_new_tokens"] == 0:
        sample.status = status.TRUNCATED
        return sample
    if "min_new_tokens" in sampling:
        sampling["min_new_tokens"] = max(0, sampling["min_new_tokens"] - sample.response_length)
    response = await _client(args).generate(input_ids=prompt_ids, sampling=sampling, rid=sample.session_id, **_group_of(args, sample, evaluation))
    sample.tokens = prompt_ids
    sample.append_response_tokens(args, tokens=response.tokens, log_probs=response.logprobs, trainable=True, meta_info=response.meta,
                                  text=response.text)
    return sample


async def close() -> None:
    """Closes the idle connections of this event loop."""
    for client in _clients.pop(asyncio.get_running_loop(), {}).values():
        await client.close()


def _group_of(args, sample, evaluation: bool) -> Dict[str, Any]:
    """Nothing for samples of which slime does not say the group: Seer takes equal prompts that come together as one."""
    if evaluation or sample.group_index is None:
        return {}
    group: Dict[str, Any] = {"group_id": f"slime-{sample.group_index}"}
    if sample.response_length == 0:  # those that go on after an abort have prompts of their own, and would be waited for in vain
        group["group_size"] = args.n_samples_per_prompt
    return group


def _encode(args, prompt):
    from slime.rollout.sglang_rollout import GenerateState
    return list(GenerateState(args).tokenizer.encode(prompt, add_special_tokens=False))


def _client(args) -> AsyncClient:
    """One for each event loop. slime's semaphore bounds the requests under way."""
    host: Optional[str] = args.sglang_router_ip
    address = f"[{host.strip('[]')}]:{args.sglang_router_port}" if ":" in host else f"{host}:{args.sglang_router_port}"
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    if address not in clients:
        clients[address] = AsyncClient(address, connections_max=CONNECTIONS_MAX, retries=RETRIES)
    return clients[address]
