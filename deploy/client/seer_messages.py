"""What seer_client sends and gets: arguments are checked and become bodies of requests, answers become responses.

Wrong arguments are a ValueError with one sentence, answers of another form a BadAnswer.
"""
import json
import math
import numbers
import operator
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from seer_http import Answer, BadAnswer, WeightsRefused, error_of

Prompt = Union[str, Sequence[int]]

ROLLOUT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")  # what the server takes; it goes into paths as it is
# Name and bytes of an element, by the names of safetensors and of torch, in lower case.
DTYPES = {"bf16": ("BF16", 2), "bfloat16": ("BF16", 2), "f16": ("F16", 2), "float16": ("F16", 2), "f32": ("F32", 4), "float32": ("F32", 4)}

# A misspelt name is an error before anything is sent. The server would refuse it, too.
SAMPLING = frozenset([
    "max_new_tokens", "min_new_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "stop_token_ids",
    "ignore_eos", "sampling_seed"])
# The server takes these where they change no token, and refuses them by name where they would.
IGNORED_SAMPLING = frozenset([
    "frequency_penalty", "presence_penalty", "length_penalty", "logit_bias", "json_schema", "regex", "ebnf", "structural_tag",
    "custom_params", "lora_path", "no_stop_trim", "skip_special_tokens", "spaces_between_special_tokens"])


@dataclass(frozen=True)
class Response:
    tokens: List[int]
    logprobs: Optional[List[float]]    # of the tokens, one each; None: not asked for
    text: str
    finish_reason: Optional[str]       # "stop", "length", "abort"; None: it goes on, in a stream
    matched: Union[int, str, None]     # the token or text that stopped it
    weight_version: str                # as the server names it
    prompt_tokens: int
    cached_tokens: int                 # of the prompt
    seed: int
    rid: str
    index: int = 0                     # in its group
    queue_s: float = 0.0
    total_s: float = 0.0               # queue_s included
    meta: Dict[str, Any] = field(default_factory=dict, repr=False)  # the server's meta_info as it came

    @property
    def is_aborted(self) -> bool:
        return self.finish_reason == "abort"


@dataclass(frozen=True)
class RolloutResponse(Response):
    """A response of a rollout: `index` is its sample, `rid` the rollout, `meta` the whole line with all fields of the prompt line."""
    seq: int = 0                       # in the rollout, from 1
    group: int = 0                     # number of the prompt line, from 0
    id: Any = None                     # of the prompt line
    prompt_ids: List[int] = field(default_factory=list, repr=False)
    error: Optional[str] = None        # with finish_reason "error"


@dataclass(frozen=True)
class ServerInfo:
    model_name: str
    model_path: str
    weight_version: str
    context_tokens_max: int    # of prompt and output together, by the model
    kv_tokens_max: int         # the same, by the memory of an instance
    fields: Dict[str, Any] = field(default_factory=dict, repr=False)  # all that the server says


@dataclass(frozen=True)
class Load:
    running: int           # responses
    waiting: int
    kv_use_share: float    # 0..1


def dict_of(fields: Optional[Mapping[str, Any]], name: str) -> Dict[str, Any]:
    if fields is not None and not isinstance(fields, Mapping):
        raise ValueError(f"{name} is a {type(fields).__name__}: expected a dict")
    return dict(fields or {})


def integer_of(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {_shown(value)}: expected an integer") from None


def seconds_of(value: Any, name: str) -> float:
    if not isinstance(value, numbers.Real) or not value > 0:
        raise ValueError(f"{name} is {_shown(value)}: expected seconds, more than 0")
    return float(value)


def folder_of(path: Any) -> str:
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(f"folder is {_shown(path)}: expected a path")
    return str(path)


def token_ids_of(given: Any, name: str) -> List[int]:
    """The ids in a list, or in a tensor of any library whose elements are integers. Bytes are text that was not decoded, and sets have
    no order."""
    if isinstance(given, (bytes, bytearray, set, frozenset, Mapping)):
        raise ValueError(f"{name} is {_shown(given)}: expected token ids")
    tokens = list(iterated(given, name, "token ids"))
    ids: List[int] = []
    try:
        for token in tokens:
            ids.append(operator.index(token))
    except TypeError:
        raise ValueError(f"{name}[{len(ids)}] is {_shown(tokens[len(ids)])}: expected a token id") from None
    return ids


def version_of(version: Union[int, str]) -> Union[int, str]:
    return version if isinstance(version, str) else integer_of(version, "version")


def iterated(items: Any, name: str, expected: str) -> Iterator[Any]:
    try:
        return iter(items)
    except TypeError:
        raise ValueError(f"{name} is {_shown(items)}: expected {expected}") from None


def _shown(value: Any) -> str:
    return " ".join(repr(value).split())[:200]


def json_of(fields: Mapping[str, Any], what: str) -> bytes:
    """Errors: ValueError, with the name of the field that JSON cannot carry."""
    try:
        return json.dumps(fields, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        whole = error
    for name, value in fields.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{what}: field {_shown(name)}: {error}") from None
    raise ValueError(f"{what}: {whole}")  # a name that is no text


def generate_body(prompt: Optional[Prompt], input_ids: Optional[Sequence[int]], sampling: Optional[Mapping[str, Any]],
                   group_id: Optional[str], group_size: Optional[int], rid: Optional[str], priority: int, logprobs: bool, stream: bool) -> dict:
    if (prompt is None) == (input_ids is None):
        raise ValueError(f"{'neither prompt nor' if prompt is None else 'both prompt and'} input_ids: expected one of them")
    given = prompt if input_ids is None else input_ids
    params = dict_of(sampling, "sampling")
    if params.get("n", 1) != 1:
        raise ValueError(f"sampling: n is {params['n']}: expected 1, for more use generate_group")
    params.pop("n", None)
    for name in params:
        if name == "max_tokens":
            raise ValueError("sampling: 'max_tokens' is not known: here it is max_new_tokens")
        if name not in SAMPLING | IGNORED_SAMPLING:
            raise ValueError(f"sampling: {name!r} is not known: expected one of {', '.join(sorted(SAMPLING))}")
    json_of(params, "sampling")
    body: Dict[str, Any] = {"sampling_params": params, "return_logprob": logprobs, "stream": stream}
    if isinstance(given, str):
        body["text"] = given
    else:
        body["input_ids"] = token_ids_of(given, "prompt" if input_ids is None else "input_ids")
    for name, value in (("group_id", group_id), ("group_size", group_size), ("rid", rid), ("priority", priority or None)):
        if value is not None:
            body[name] = value
    return body


def response_of(answer: Any, index: int, wants_logprobs: bool) -> Response:
    try:
        meta = answer["meta_info"]
        finish = meta["finish_reason"] or {}
        tokens = answer["output_ids"]
        logprobs = [entry[0] for entry in meta["output_token_logprobs"]] if wants_logprobs else None
        response = Response(tokens=tokens, logprobs=logprobs, text=answer["text"], finish_reason=finish.get("type"), matched=finish.get("matched"),
                            weight_version=meta["weight_version"], prompt_tokens=meta["prompt_tokens"], cached_tokens=meta["cached_tokens"],
                            seed=meta["seed"], rid=meta["id"], index=index, queue_s=meta.get("queue_time", 0.0), total_s=meta.get("e2e_latency", 0.0), meta=meta)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise BadAnswer(f"the answer is no response of seer serve: {error!r} in {json.dumps(answer)[:200]}") from None
    if logprobs is not None and len(logprobs) != len(tokens):
        raise BadAnswer(f"the answer has {len(tokens)} tokens and {len(logprobs)} log-probabilities")
    return response


def checked(answer: Answer) -> Answer:
    if answer.status >= 300:
        raise error_of(answer)
    return answer


def checked_update(answer: Answer) -> Answer:
    """The answer to new weights."""
    if answer.status in (400, 408, 409, 413):
        raise WeightsRefused(str(error_of(answer)), answer.status)
    return checked(answer)


def checked_mode(mode: str) -> str:
    if mode not in ("abort", "retract", "drain"):
        raise ValueError(f"mode is {mode!r}: expected 'abort', 'retract' or 'drain'")
    return mode


def safetensors_of(tensor: Any, number: int) -> List[Any]:
    """A safetensors file with this tensor alone: its head, and the data as it is. `number` is for errors."""
    try:
        name, dtype, shape, data = tensor
    except (TypeError, ValueError) as error:
        raise ValueError(f"tensor {number} is a {type(tensor).__name__}: expected (name, dtype, shape, data): {error}") from None
    if not isinstance(name, str):
        raise ValueError(f"tensor {number}: name is {_shown(name)}: expected text")
    spelt = str(dtype).rpartition(".")[2]  # of torch.bfloat16
    known = DTYPES.get(spelt.lower())
    if known is None:
        raise ValueError(f"tensor {name}: dtype is {spelt!r}: expected one of {', '.join(sorted(DTYPES))}")
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError:
        raise ValueError(f"tensor {name}: shape is {_shown(shape)}: expected integers") from None
    try:
        view = memoryview(data).cast("B")
    except (TypeError, ValueError, BufferError) as error:
        raise ValueError(f"tensor {name}: data is a {type(data).__name__}: expected a contiguous buffer: {error}") from None
    expected = math.prod(sizes) * known[1]
    if view.nbytes != expected:
        raise ValueError(f"tensor {name}: {view.nbytes} bytes: expected {expected} for shape {sizes} of {known[0]}")
    head = json.dumps({name: {"dtype": known[0], "shape": sizes, "data_offsets": [0, expected]}}).encode()
    return [len(head).to_bytes(8, "little") + head, view]


def rollout_response_of(line: Any, rollout_id: str) -> RolloutResponse:
    try:
        return RolloutResponse(tokens=line["output_ids"], logprobs=line.get("logprobs"), text=line.get("text", ""), finish_reason=line["finish_reason"],
                               matched=None, weight_version=line.get("weight_version_name", str(line["weight_version"])), prompt_tokens=len(line["prompt_ids"]), cached_tokens=0,
                               seed=line["seed"], rid=rollout_id, index=line["sample"], queue_s=line["queue_s"],
                               total_s=line["queue_s"] + line["run_s"], meta=line, seq=line["seq"], group=line["group"], id=line.get("id"),
                               prompt_ids=line["prompt_ids"], error=line.get("error"))
    except (KeyError, TypeError) as error:
        raise BadAnswer(f"the answer is no response of a rollout: {error!r} in {json.dumps(line)[:200]}") from None


def responses_of(line: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Those of a line, which is one or has those of a group."""
    if "output_ids" in line:
        return [line]
    first = line["seq"] - len(line["responses"]) + 1
    return [{"seq": first + i, **response} for i, response in enumerate(line["responses"])]


def _line_of(group: Any, number: int) -> bytes:
    if not isinstance(group, Mapping):
        raise ValueError(f"group {number} is a {type(group).__name__}: expected a dict with the fields of a prompt line")
    fields = dict(group)
    if fields.get("prompt_ids") is not None:
        fields["prompt_ids"] = token_ids_of(fields["prompt_ids"], f"group {number}: prompt_ids")
    return json_of(fields, f"group {number}")


def lines_of(groups: Sequence[Mapping[str, Any]]) -> List[bytes]:
    return [_line_of(group, number) for number, group in enumerate(iterated(groups, "groups", "a list of dicts"))]


def checked_rollout_id(text: Any) -> str:
    if not isinstance(text, str) or ROLLOUT_ID.fullmatch(text) is None:
        raise ValueError(f"rollout_id is {_shown(text)}: expected 1 to 128 letters, digits, dots, dashes and underscores")
    return text


async def each_of(items):
    """The items of an iterable or an asynchronous one."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in iterated(items, "tensors", "(name, dtype, shape, data) of each"):
            yield item
