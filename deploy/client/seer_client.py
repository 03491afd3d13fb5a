"""A client for `seer serve`: responses for prompts and groups of them, weights, and control.

    with Client("127.0.0.1:30000") as client:
        for response in client.generate_group("2 + 3 =", 8, sampling={"max_new_tokens": 256}):
            print(response.index, response.text, response.weight_version)
        client.update_weights("/shared/step-12", version=12)

Client is for threads, AsyncClient for asyncio; they have the same methods. A Client and its iterators may be used by many threads at
once, an AsyncClient and its iterators by many tasks of one event loop: each response goes to one of those that iterate.
Only the standard library is needed. Every error is a SeerError with one sentence, or a ValueError for wrong arguments.
"""
import asyncio
import concurrent.futures
import json
import math
import operator
import re
import threading
import time
import urllib.parse
import uuid
import weakref
from dataclasses import dataclass, field
from typing import Any, AsyncIterator, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from seer_http import (Answer, BadAnswer, CannotConnect, ClientUnusable, ConnectionLost, Http, NotIdle, Refused, SeerError, ServerFailed,
                       TimedOut, Upload, WeightsRefused, WrongToken, error_of)

__all__ = ["AsyncClient", "BadAnswer", "CannotConnect", "Client", "ClientUnusable", "ConnectionLost", "Load", "NotIdle", "Refused", "Response",
           "RolloutResponse", "SeerError", "ServerFailed", "ServerInfo", "TimedOut", "WeightsRefused", "WrongToken"]

Prompt = Union[str, Sequence[int]]

CONTROL_S = 60.0      # health, pause, abort and the like
WEIGHTS_S = 3600.0    # loading weights may take long
GROUP_MAX = 100_000   # responses of one group
PROGRESS_S = 10       # between two signs of life of the stream of a rollout
SILENCE_S = 60.0      # without one, the connection is taken for lost
RECONNECT_S = 600.0   # for the server to be there again
RECONNECT_WAIT_S = 0.5
ROLLOUTS = "/seer/v1/rollouts"
ROLLOUT_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")  # what the server takes; it goes into paths as it is
WEIGHTS = "/seer/v1/weights"
# Name and bytes of an element, by the names of safetensors and of torch, in lower case.
DTYPES = {"bf16": ("BF16", 2), "bfloat16": ("BF16", 2), "f16": ("F16", 2), "float16": ("F16", 2), "f32": ("F32", 4), "float32": ("F32", 4)}

# The server ignores names that it does not know, so a misspelt one would silently give other responses.
SAMPLING = frozenset([
    "max_new_tokens", "min_new_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "stop_token_ids",
    "ignore_eos", "sampling_seed",
    # The server takes these where they change no token, and refuses them by name where they would.
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


def _dict_of(fields: Optional[Mapping[str, Any]], name: str) -> Dict[str, Any]:
    if fields is not None and not isinstance(fields, Mapping):
        raise ValueError(f"{name} is a {type(fields).__name__}: expected a dict")
    return dict(fields or {})


def _integer(value: Any, name: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {_shown(value)}: expected an integer") from None


def _token_ids(given: Any, name: str) -> List[int]:
    """The ids in a list, or in a tensor of any library whose elements are integers."""
    tokens = list(_iterated(given, name, "token ids"))
    ids: List[int] = []
    try:
        for token in tokens:
            ids.append(operator.index(token))
    except TypeError:
        raise ValueError(f"{name}[{len(ids)}] is {_shown(tokens[len(ids)])}: expected a token id") from None
    return ids


def _version(version: Union[int, str]) -> Union[int, str]:
    return version if isinstance(version, str) else _integer(version, "version")


def _iterated(items: Any, name: str, expected: str) -> Iterator[Any]:
    try:
        return iter(items)
    except TypeError:
        raise ValueError(f"{name} is {_shown(items)}: expected {expected}") from None


def _shown(value: Any) -> str:
    return " ".join(repr(value).split())[:200]


def _json_of(fields: Mapping[str, Any], what: str) -> bytes:
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


def _generate_body(prompt: Optional[Prompt], input_ids: Optional[Sequence[int]], sampling: Optional[Mapping[str, Any]],
                   group_id: Optional[str], group_size: Optional[int], rid: Optional[str], priority: int, logprobs: bool, stream: bool) -> dict:
    if (prompt is None) == (input_ids is None):
        raise ValueError(f"{'neither prompt nor' if prompt is None else 'both prompt and'} input_ids: expected one of them")
    given = prompt if input_ids is None else input_ids
    params = _dict_of(sampling, "sampling")
    if params.get("n", 1) != 1:
        raise ValueError(f"sampling: n is {params['n']}: expected 1, for more use generate_group")
    params.pop("n", None)
    for name in params:
        if name not in SAMPLING:
            raise ValueError(f"sampling: {name!r} is not known: expected one of {', '.join(sorted(SAMPLING))}")
    _json_of(params, "sampling")
    body: Dict[str, Any] = {"sampling_params": params, "return_logprob": logprobs, "stream": stream}
    if isinstance(given, str):
        body["text"] = given
    else:
        body["input_ids"] = _token_ids(given, "prompt" if input_ids is None else "input_ids")
    for name, value in (("group_id", group_id), ("group_size", group_size), ("rid", rid), ("priority", priority or None)):
        if value is not None:
            body[name] = value
    return body


def _response_of(answer: Any, index: int, wants_logprobs: bool) -> Response:
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


def _checked(answer: Answer) -> Answer:
    if answer.status >= 300:
        raise error_of(answer)
    return answer


def _updated(answer: Answer) -> Answer:
    """The answer to new weights."""
    if answer.status in (400, 408, 409, 413):
        raise WeightsRefused(str(error_of(answer)), answer.status)
    return _checked(answer)


def _update_mode(mode: str) -> str:
    if mode not in ("abort", "retract", "drain"):
        raise ValueError(f"mode is {mode!r}: expected 'abort', 'retract' or 'drain'")
    return mode


def _safetensors_of(tensor: Any, number: int) -> List[Any]:
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


def _rollout_response_of(line: Any, rollout_id: str) -> RolloutResponse:
    try:
        return RolloutResponse(tokens=line["output_ids"], logprobs=line.get("logprobs"), text=line.get("text", ""), finish_reason=line["finish_reason"],
                               matched=None, weight_version=line.get("weight_version_name", str(line["weight_version"])), prompt_tokens=len(line["prompt_ids"]), cached_tokens=0,
                               seed=line["seed"], rid=rollout_id, index=line["sample"], queue_s=line["queue_s"],
                               total_s=line["queue_s"] + line["run_s"], meta=line, seq=line["seq"], group=line["group"], id=line.get("id"),
                               prompt_ids=line["prompt_ids"], error=line.get("error"))
    except (KeyError, TypeError) as error:
        raise BadAnswer(f"the answer is no response of a rollout: {error!r} in {json.dumps(line)[:200]}") from None


def _responses_of(line: Dict[str, Any]) -> List[Dict[str, Any]]:
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
        fields["prompt_ids"] = _token_ids(fields["prompt_ids"], f"group {number}: prompt_ids")
    return _json_of(fields, f"group {number}")


def _lines_of(groups: Sequence[Mapping[str, Any]]) -> List[bytes]:
    return [_line_of(group, number) for number, group in enumerate(_iterated(groups, "groups", "a list of dicts"))]


def _rollout_id(text: Any) -> str:
    if not isinstance(text, str) or ROLLOUT_ID.fullmatch(text) is None:
        raise ValueError(f"rollout_id is {_shown(text)}: expected 1 to 128 letters, digits, dots, dashes and underscores")
    return text


async def _each(items):
    """The items of an iterable or an asynchronous one."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
    else:
        for item in _iterated(items, "tensors", "(name, dtype, shape, data) of each"):
            yield item


class _AsyncSteps:
    """What an asynchronous generator yields, for any number of tasks: each item goes to one of them. aclose() ends it, and with it the step
    that is under way."""

    def __init__(self, generator):
        self._generator, self._stepping = generator, asyncio.Lock()  # a generator takes one step at a time
        self._step: Optional[asyncio.Future] = None
        self._is_closed = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        async with self._stepping:
            if self._is_closed:
                raise StopAsyncIteration
            step = self._step = asyncio.ensure_future(self._generator.__anext__())
            try:
                await asyncio.wait([step])
            except BaseException:
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
                raise
            if self._is_closed and step.cancelled():
                raise StopAsyncIteration
            return step.result()

    async def aclose(self) -> None:
        self._is_closed = True
        if self._step is not None:
            self._step.cancel()
        async with self._stepping:
            await self._generator.aclose()


class AsyncRollout(_AsyncSteps):
    """A rollout on the server, and an iterator over its responses. It goes on whoever is connected: a connection that is lost is made
    again, and the stream goes on after the last response that was given, also after the server was started again with its journal.
    aclose() only ends the stream. The first step, or the first of the other methods, makes the rollout on the server."""

    def __init__(self, client: "AsyncClient", rollout_id: str, body: Optional[bytes], groups: Optional[int], from_seq: Optional[int],
                 reconnect_s: float):
        super().__init__(self._run())
        self.rollout_id = rollout_id
        self.seq = 0 if from_seq is None else from_seq - 1   # of the last response that was given
        self.summary: Optional[Dict[str, Any]] = None        # the server's figures, once all responses were given
        self._client, self._from_seq = client, from_seq
        self._body = body                                    # of the request that makes the rollout; None: it is there
        self._groups, self._adding = groups, asyncio.Lock()  # groups so far; None: to be asked for
        self._reconnect_s = reconnect_s

    async def add(self, groups: Sequence[Mapping[str, Any]]) -> int:
        """More groups for a rollout that is open. Returns the number of the first one. Sent again where the connection is lost: the
        server adds them once."""
        lines = _lines_of(groups)
        async with self._adding:
            if self._groups is None:
                self._groups = (await self.progress())["groups"]
            first = self._groups
            await self._call("POST", f"/groups?first_group={first}", b"\n".join(lines))
            self._groups += len(lines)
        return first

    async def finish(self) -> None:
        """No more groups will come: the responses end with those that are left."""
        await self._call("POST", "/close")

    async def cancel(self, group: Union[int, str]) -> None:
        """Ends a group, named by its id or else by its number: its responses come with the tokens that they have."""
        await self._call("DELETE", f"/groups/{urllib.parse.quote(str(group), safe='')}")

    async def acknowledge(self, seq: Optional[int] = None) -> None:
        """The server may forget the responses up to this one; None: all that were given."""
        await self._call("POST", "/ack", {"seq": self.seq if seq is None else _integer(seq, "seq")})

    async def progress(self) -> Dict[str, Any]:
        return await self._call("GET", "/progress")

    async def delete(self, *, return_partial: bool = False) -> None:
        """Ends the rollout, and the server forgets it. With return_partial it is kept: what runs comes with the tokens that it has."""
        await self._call("DELETE", "?on_cancel=return_partial" if return_partial else "")

    async def _call(self, method: str, path: str, body=None) -> Dict[str, Any]:
        if self._body is not None:
            await self._begin()
        return _checked(await self._client._control(method, f"{ROLLOUTS}/{self.rollout_id}{path}", body)).json()

    async def _begin(self) -> None:
        """Makes the rollout, and leaves its stream for later. The server takes the same request twice, so a step may do so meanwhile."""
        accepted = self._pieces(CONTROL_S, is_control=True)
        try:
            await accepted.__anext__()
            self._body = None
        except StopAsyncIteration:
            raise ConnectionLost("the connection ended before the rollout was accepted") from None
        finally:
            await accepted.aclose()

    def _pieces(self, timeout_s: float, is_control: bool) -> AsyncIterator[bytes]:
        """Lines of the stream, from the first response that was not given."""
        method, path = ("GET", f"{ROLLOUTS}/{self.rollout_id}") if self._body is None else ("POST", ROLLOUTS)
        from_seq = self.seq + 1 if self.seq > 0 else self._from_seq
        path += f"?progress_s={PROGRESS_S}" + (f"&from_seq={from_seq}" if from_seq is not None else "")
        return self._client._http.pieces(method, path, self._body, "application/x-ndjson", b"\n", timeout_s=timeout_s, is_control=is_control)

    async def _run(self) -> AsyncIterator[RolloutResponse]:
        lost_s: Optional[float] = None  # when the connection was lost; None: it is there
        while True:
            pieces = self._pieces(SILENCE_S, is_control=False)
            try:
                async for data in pieces:
                    line = Answer(200, data).json()
                    lost_s = self._body = None
                    if "seq" in line:
                        for response in _responses_of(line):
                            self.seq = response["seq"]
                            yield _rollout_response_of(response, self.rollout_id)
                    elif line.get("type") == "done":
                        self.summary = line
                        return
                    elif line.get("type") == "error":
                        raise ServerFailed(line.get("message", "the server gave no reason"), 500)
                error: SeerError = ConnectionLost("the stream ended before the rollout did")
            except (CannotConnect, ConnectionLost, TimedOut) as lost:
                error = lost
            finally:
                await pieces.aclose()
            now = time.monotonic()
            lost_s = now if lost_s is None else lost_s
            if now - lost_s > self._reconnect_s:
                raise error
            await asyncio.sleep(RECONNECT_WAIT_S)


class AsyncGroup:
    """The responses of a group, as they finish. After an error, or close(), those that are left are ended on the server too."""

    def __init__(self, requests):
        self._done: asyncio.Queue = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(request) for request in requests]
        self._left, self._taking = len(self._tasks), asyncio.Lock()  # one waits at a time: none waits for more than are left
        for task in self._tasks:
            task.add_done_callback(self._done.put_nowait)

    def __aiter__(self) -> "AsyncGroup":
        return self

    async def __anext__(self) -> Response:
        async with self._taking:
            try:
                task = await self._done.get() if self._left > 0 else None
                if self._left > 0:  # else it was closed meanwhile
                    self._left -= 1
                    return task.result()
            except BaseException:
                await self.close()
                raise
        raise StopAsyncIteration

    async def close(self) -> None:
        self._left = 0
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class AsyncClient:
    """`address` is HOST:PORT or a URL; `tls_ca` is a PEM file with the certificates to trust and means https.

    connections_max  requests for responses under way at once; more wait here, where Seer cannot schedule them
    retries          of a request whose connection was refused, or reset before anything was answered
    timeout_s        for one response; for one step of a stream
    """

    def __init__(self, address: str, token: Optional[str] = None, tls_ca: Optional[str] = None, *, connections_max: int = 512, retries: int = 5,
                 timeout_s: float = 14_400.0):
        self._http = Http(address, token, tls_ca, connections_max, retries)
        self._timeout_s = timeout_s

    @property
    def address(self) -> str:
        return str(self._http.address)

    # ---- responses ---------------------------------------------------------------------------------------------------------------

    async def generate(self, prompt: Optional[Prompt] = None, *, input_ids: Optional[Sequence[int]] = None,
                       sampling: Optional[Mapping[str, Any]] = None, group_id: Optional[str] = None, group_size: Optional[int] = None,
                       rid: Optional[str] = None, priority: int = 0, logprobs: bool = True, index: int = 0) -> Response:
        """One response. `sampling` has the names of SGLang; see SAMPLING."""
        body = _generate_body(prompt, input_ids, sampling, group_id, group_size, rid, priority, logprobs, False)
        answer = _checked(await self._http.call("POST", "/generate", body, timeout_s=self._timeout_s))
        return _response_of(answer.json(), index, logprobs)

    def stream(self, prompt: Optional[Prompt] = None, *, input_ids: Optional[Sequence[int]] = None,
               sampling: Optional[Mapping[str, Any]] = None, group_id: Optional[str] = None, group_size: Optional[int] = None,
               rid: Optional[str] = None, priority: int = 0, logprobs: bool = True) -> AsyncIterator[Response]:
        """The response as it grows: each one has all tokens so far, and the last one a finish_reason."""
        body = _generate_body(prompt, input_ids, sampling, group_id, group_size, rid, priority, logprobs, True)
        return _AsyncSteps(self._stream(body, logprobs))

    async def _stream(self, body: dict, logprobs: bool) -> AsyncIterator[Response]:
        last = None
        events = self._http.events("/generate", body, timeout_s=self._timeout_s)
        try:
            async for data in events:
                if data == b"[DONE]":
                    continue
                answer = Answer(200, data).json()
                if "error" in answer:
                    raise ServerFailed(answer["error"].get("message", "the server gave no reason"), 500)
                last = _response_of(answer, 0, logprobs)
                yield last
        finally:
            await events.aclose()
        if last is None or last.finish_reason is None:
            raise ConnectionLost("the stream ended before the response did")

    def generate_group(self, prompt: Optional[Prompt] = None, n: int = 1, *, input_ids: Optional[Sequence[int]] = None,
                       sampling: Optional[Mapping[str, Any]] = None, group_id: Optional[str] = None, rid: Optional[str] = None, priority: int = 0,
                       logprobs: bool = True) -> AsyncGroup:
        """n responses for one prompt, sent at once and as one group. `sampling_seed` is that of index 0; the next has that plus 1.
        abort(rid) ends the group; without a rid, its group_id is used."""
        n = _integer(n, "n")
        if not 1 <= n <= GROUP_MAX:
            raise ValueError(f"n is {n}: expected 1 to {GROUP_MAX}")
        group_id = uuid.uuid4().hex if group_id is None else group_id
        params = _dict_of(sampling, "sampling")
        first_seed = params.get("sampling_seed")
        if first_seed is not None:
            first_seed = _integer(first_seed, "sampling: sampling_seed")
        prompt = prompt if prompt is None or isinstance(prompt, str) else _token_ids(prompt, "prompt")
        bodies = []
        for index in range(n):
            if first_seed is not None:
                params["sampling_seed"] = first_seed + index
            bodies.append(_generate_body(prompt, input_ids, params, group_id, n, rid or group_id, priority, logprobs, False))

        async def one(index: int, body: dict) -> Response:
            answer = _checked(await self._http.call("POST", "/generate", body, timeout_s=self._timeout_s))
            return _response_of(answer.json(), index, logprobs)
        return AsyncGroup([one(index, body) for index, body in enumerate(bodies)])

    def rollout(self, groups: Sequence[Mapping[str, Any]], *, rollout_id: Optional[str] = None, n: Optional[int] = None,
                sampling: Optional[Mapping[str, Any]] = None, seed: Optional[int] = None, priority: int = 0, logprobs: str = "processed",
                open: bool = False, stop_when: Optional[Mapping[str, int]] = None, expect_weight_version: Union[int, str, None] = None,
                stream: str = "sample", reconnect_s: float = RECONNECT_S) -> AsyncRollout:
        """A rollout of these groups, each with the fields of a prompt line of `seer rollout`; `n` and `sampling` are for groups that do
        not say. Iterating over it starts it, and so does each of its methods. With stream="group" the responses of a group come one after
        the other, once all are there. With open=True more groups may be added. With stop_when={"groups": 64} (or "samples",
        "deadline_s") it ends when so many are whole; the others are answered with the tokens they have. Another process that asks for
        the same groups with the same rollout_id gets the responses of the rollout that is there."""
        rollout_id = f"client-{uuid.uuid4().hex}" if rollout_id is None else _rollout_id(rollout_id)
        defaults = _dict_of(sampling, "sampling")
        _json_of(defaults, "sampling")
        if n is not None:
            defaults["n"] = _integer(n, "n")
        first: Dict[str, Any] = {"rollout_id": rollout_id, "defaults": defaults, "open": open}
        for name, value in (("seed", seed), ("priority", priority or None), ("stop_when", _dict_of(stop_when, "stop_when") or None),
                            ("expect_weight_version", expect_weight_version),
                            ("logprobs", None if logprobs == "processed" else logprobs),
                            ("stream", None if stream == "sample" else stream)):
            if value is not None:
                first[name] = value
        lines = _lines_of(groups)
        return AsyncRollout(self, rollout_id, b"\n".join([_json_of(first, "the rollout"), *lines]), len(lines), None, reconnect_s)

    def attach(self, rollout_id: str, from_seq: Optional[int] = None, *, reconnect_s: float = RECONNECT_S) -> AsyncRollout:
        """A rollout that is there, from this response on; None: from the first that was not acknowledged."""
        from_seq = None if from_seq is None else _integer(from_seq, "from_seq")
        return AsyncRollout(self, _rollout_id(rollout_id), None, None, from_seq, reconnect_s)

    # ---- control -----------------------------------------------------------------------------------------------------------------

    async def update_weights(self, folder: str, version: Union[int, str, None] = None, *, mode: str = "abort") -> str:
        """Changes to the weights in a folder of the server. Returns the version as the server names it from now on.

        version  a number above the one that runs, or a name, even one that looks like a number that is over; None: the next number
        mode     what happens to requests that are not over: "abort", they are answered with the tokens that they have; "retract", they
                 start again with the new weights; "drain", they end with the old ones first. Requests that come meanwhile wait.
        The request is not sent twice: after ConnectionLost or TimedOut, weight_version() tells what runs.
        """
        body = {"model_path": str(folder), "mode": _update_mode(mode)}
        if version is not None:
            body["weight_version"] = _version(version)
        answer = await self._control("POST", "/update_weights_from_disk", body, timeout_s=WEIGHTS_S, may_repeat=False)
        if _updated(answer).json().get("success") is not True:
            raise BadAnswer(f"expected \"success\": true, found {answer.body[:200]!r}")
        return await self.weight_version()

    async def update_weights_from_tensors(self, tensors, version: Union[int, str, None] = None, *, name: Optional[str] = None,
                                          mode: str = "abort", silence_s: Optional[int] = None) -> str:
        """The same with weights that are sent to the server, which keeps them in memory: no file is written.

        tensors  (name, dtype, shape, data) of each tensor of the model, in any order; may be a generator, or an asynchronous one, that
                 makes one at a time. dtype: "BF16", "F16", "F32" or torch's; data: any buffer, row-major
        name     of the version, even if it is a number; instead of `version`
        silence_s  how long the next tensor may take before the server gives up; default: 75
        The weights change once all have come. If this ends before, by an error or with its process, the server forgets them.
        """
        upload = await self._begin_upload(version, name, mode, silence_s)
        try:
            number = 0
            async for tensor in _each(tensors):
                if not await self._send_tensor(upload, tensor, number):
                    break
                number += 1
            return await self._end_upload(upload)
        finally:
            await upload.close()

    async def _begin_upload(self, version: Union[int, str, None], name: Optional[str], mode: str, silence_s: Optional[int]) -> Upload:
        if version is not None and name is not None:
            raise ValueError("both version and name: expected one of them")
        given = {"version": None if version is None else _version(version), "name": name, "silence_s": silence_s}
        query = {"mode": _update_mode(mode), **{key: str(value) for key, value in given.items() if value is not None}}
        return await self._http.upload(f"{WEIGHTS}?{urllib.parse.urlencode(query)}", part_s=CONTROL_S)

    async def _send_tensor(self, upload: Upload, tensor: Any, number: int) -> bool:
        """False: the server has refused."""
        head, data = _safetensors_of(tensor, number)
        return await upload.send(head) and await upload.send(data)

    async def _end_upload(self, upload: Upload) -> str:
        return _updated(await upload.finish(WEIGHTS_S)).json()["weight_version"]

    async def weight_version(self) -> str:
        return _checked(await self._control("GET", "/get_weight_version")).json()["weight_version"]

    async def pause(self, mode: str = "abort") -> None:
        """Requests are held from now on. mode: "abort" ends those that run; "retract" and "in_place" let them start anew, unseen."""
        _checked(await self._control("POST", "/pause_generation", {"mode": mode}))

    async def resume(self) -> None:
        _checked(await self._control("POST", "/continue_generation", {}))

    async def abort(self, rid: Optional[str] = None, *, all: bool = False) -> int:
        """Ends the requests whose rid begins with this one, or all; they are answered with the tokens that they have. Returns how many."""
        if (not rid) == (not all):
            raise ValueError(f"{'both rid and' if all else 'neither rid nor'} all: expected one of them")
        body = {"abort_all": True} if all else {"rid": rid}
        return _checked(await self._control("POST", "/abort_request", body)).json()["aborted"]

    async def flush(self) -> None:
        """Forgets the KV cache and the drafts. NotIdle: some requests are not over."""
        answer = await self._control("GET", "/flush_cache")
        if answer.status == 400:
            raise NotIdle(str(error_of(answer)), 400)
        _checked(answer)

    async def health(self) -> bool:
        """True, or an error that says what is wrong. Needs no token."""
        _checked(await self._control("GET", "/health"))
        return True

    async def info(self) -> ServerInfo:
        found = _checked(await self._control("GET", "/server_info")).json()
        return ServerInfo(found["served_model_name"], found["model_path"], found["weight_version"], found["context_length"],
                          found["max_total_num_tokens"], found)

    async def load(self) -> Load:
        found = _checked(await self._control("GET", "/v1/loads?include=core")).json()["loads"][0]
        return Load(found["num_running_reqs"], found["num_waiting_reqs"], found["token_usage"])

    async def close(self) -> None:
        """Closes idle connections. Calls under way go on."""
        await self._http.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def _control(self, method: str, path: str, body=None, *, timeout_s: float = CONTROL_S, may_repeat: bool = True) -> Answer:
        return await self._http.call(method, path, body, timeout_s=timeout_s, is_control=True, may_repeat=may_repeat)


class _Steps:
    """An iterator over what an asynchronous one gives. close() ends it early, and on the server too."""
    _END = object()

    def __init__(self, client: "Client", steps):
        self._client, self._steps = client, steps
        self._close = steps.close if isinstance(steps, AsyncGroup) else steps.aclose
        client._steps.add(self)

    def __iter__(self) -> Iterator[Response]:
        return self

    def __next__(self) -> Response:
        async def step():
            try:
                return await self._steps.__anext__()
            except StopAsyncIteration:
                return self._END
        found = self._client._run(step())
        if found is self._END:
            raise StopIteration
        return found

    def close(self) -> None:
        async def end():
            await self._close()
        self._client._run(end())

    def __enter__(self) -> "_Steps":
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Rollout(_Steps):
    """AsyncRollout for threads: the same methods. close() only ends the stream."""

    @property
    def rollout_id(self) -> str:
        return self._steps.rollout_id

    @property
    def seq(self) -> int:
        return self._steps.seq

    @property
    def summary(self) -> Optional[Dict[str, Any]]:
        return self._steps.summary

    def add(self, groups: Sequence[Mapping[str, Any]]) -> int:
        return self._client._run(self._steps.add(groups))

    def finish(self) -> None:
        self._client._run(self._steps.finish())

    def cancel(self, group: Union[int, str]) -> None:
        self._client._run(self._steps.cancel(group))

    def acknowledge(self, seq: Optional[int] = None) -> None:
        self._client._run(self._steps.acknowledge(seq))

    def progress(self) -> Dict[str, Any]:
        return self._client._run(self._steps.progress())

    def delete(self, *, return_partial: bool = False) -> None:
        self._client._run(self._steps.delete(return_partial=return_partial))


class Client:
    """AsyncClient for threads: the same arguments and methods, run on an event loop in a thread of its own."""

    def __init__(self, address: str, token: Optional[str] = None, tls_ca: Optional[str] = None, **options):
        self._async = AsyncClient(address, token, tls_ca, **options)
        self._steps: "weakref.WeakSet[_Steps]" = weakref.WeakSet()  # which hold requests between two steps
        self._lock, self._is_closed = threading.Lock(), False        # of what is handed to the loop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="seer_client", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return self._async.address

    def generate(self, prompt: Optional[Prompt] = None, *, stream: bool = False, **fields):
        """One Response; with stream=True an iterator over it as it grows. See AsyncClient.generate and stream."""
        if stream:
            async def start():
                return self._async.stream(prompt, **fields)
            return _Steps(self, self._run(start()))
        return self._run(self._async.generate(prompt, **fields))

    def generate_group(self, prompt: Optional[Prompt] = None, n: int = 1, **fields) -> Iterator[Response]:
        """Sends the requests at once, and iterates over the responses as they finish. See AsyncClient.generate_group."""
        async def start():
            return self._async.generate_group(prompt, n, **fields)
        return _Steps(self, self._run(start()))

    def rollout(self, groups: Sequence[Mapping[str, Any]], **fields) -> Rollout:
        """An iterator over the responses of a rollout. See AsyncClient.rollout."""
        async def start():
            return self._async.rollout(groups, **fields)
        return Rollout(self, self._run(start()))

    def attach(self, rollout_id: str, from_seq: Optional[int] = None, **fields) -> Rollout:
        async def start():
            return self._async.attach(rollout_id, from_seq, **fields)
        return Rollout(self, self._run(start()))

    def update_weights(self, folder: str, version: Union[int, str, None] = None, *, mode: str = "abort") -> str:
        return self._run(self._async.update_weights(folder, version, mode=mode))

    def update_weights_from_tensors(self, tensors, version: Union[int, str, None] = None, *, name: Optional[str] = None,
                                    mode: str = "abort", silence_s: Optional[int] = None) -> str:
        """See AsyncClient.update_weights_from_tensors. The tensors are asked for in the calling thread, one after the other."""
        upload = self._run(self._async._begin_upload(version, name, mode, silence_s))
        try:
            for number, tensor in enumerate(_iterated(tensors, "tensors", "(name, dtype, shape, data) of each")):
                if not self._run(self._async._send_tensor(upload, tensor, number)):
                    break
            return self._run(self._async._end_upload(upload))
        finally:
            self._run(upload.close())

    def weight_version(self) -> str:
        return self._run(self._async.weight_version())

    def pause(self, mode: str = "abort") -> None:
        self._run(self._async.pause(mode))

    def resume(self) -> None:
        self._run(self._async.resume())

    def abort(self, rid: Optional[str] = None, *, all: bool = False) -> int:
        return self._run(self._async.abort(rid, all=all))

    def flush(self) -> None:
        self._run(self._async.flush())

    def health(self) -> bool:
        return self._run(self._async.health())

    def info(self) -> ServerInfo:
        return self._run(self._async.info())

    def load(self) -> Load:
        return self._run(self._async.load())

    def close(self) -> None:
        """Ends all that is under way, on the server too. The client cannot be used again."""
        async def end():
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.gather(*(steps._close() for steps in list(self._steps)), return_exceptions=True)
            await self._async.close()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True  # nothing is handed over after end()
            ended = asyncio.run_coroutine_threadsafe(end(), self._loop)
        ended.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _run(self, work):
        with self._lock:
            if self._is_closed or not self._thread.is_alive():
                work.close()
                raise ClientUnusable("this client was closed" if self._is_closed else "this client belongs to another process: make one for each")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionLost("this client was closed meanwhile") from None
        except BaseException:
            future.cancel()  # a KeyboardInterrupt ends the request too
            raise
