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
import contextlib
import os
import threading
import time
import urllib.parse
import uuid
import weakref
from typing import Any, AsyncIterator, Dict, Iterator, Mapping, Optional, Sequence, Union

from seer_http import (Answer, BadAnswer, CannotConnect, ClientUnusable, ConnectionLost, Http, NoRoom, NotIdle, Refused, SeerError, ServerFailed,
                       TimedOut, Upload, WeightsRefused, WrongToken, error_of)
from seer_messages import (Load, Prompt, Response, RolloutResponse, ServerInfo, checked, checked_mode, checked_rollout_id, checked_update,
                           dict_of, each_of, folder_of, generate_body, integer_of, iterated, json_of, lines_of, response_of, responses_of,
                           rollout_response_of, safetensors_of, seconds_of, token_ids_of, version_of)

__all__ = ["AsyncClient", "BadAnswer", "CannotConnect", "Client", "ClientUnusable", "ConnectionLost", "Load", "NoRoom", "NotIdle", "Refused",
           "Response", "RolloutResponse", "SeerError", "ServerFailed", "ServerInfo", "TimedOut", "WeightsRefused", "WrongToken"]

CONTROL_S = 60.0      # health, pause, abort and the like
WEIGHTS_S = 3600.0    # loading weights may take long
GROUP_MAX = 100_000   # responses of one group
PROGRESS_S = 10       # between two signs of life of the stream of a rollout
SILENCE_S = 60.0      # without one, the connection is taken for lost
RECONNECT_S = 600.0   # for the server to be there again
RECONNECT_WAIT_S = 0.5
ROLLOUTS = "/seer/v1/rollouts"
WEIGHTS = "/seer/v1/weights"


def _cancel(tasks) -> None:
    """From any thread."""
    for task in tasks:
        with contextlib.suppress(RuntimeError):  # its loop was closed
            if not task.done():
                task.get_loop().call_soon_threadsafe(task.cancel)


class _AsyncSteps:
    """What an asynchronous generator yields, for any number of tasks: each item goes to one of them. One that is cancelled leaves the step
    that is under way to the next. An error is that of every later step, so that no task takes it for the end. aclose() ends the generator
    and its step, as does forgetting this."""

    def __init__(self, generator):
        self._generator, self._stepping = generator, asyncio.Lock()  # a generator takes one step at a time
        self._step: Optional[asyncio.Future] = None
        self._error: Optional[BaseException] = None
        self._is_closed = False

    def __aiter__(self):
        return self

    async def __anext__(self):
        async with self._stepping:
            if self._is_closed:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error.with_traceback(None)  # else it would grow
            if self._step is None:
                self._step = asyncio.ensure_future(self._generator.__anext__())
            await asyncio.wait([self._step])
            step, self._step = self._step, None
            if self._is_closed and step.cancelled():
                raise StopAsyncIteration
            if not step.cancelled() and not isinstance(step.exception(), StopAsyncIteration):
                self._error = step.exception()
            return step.result()

    async def aclose(self) -> None:
        self._is_closed = True
        if self._step is not None:
            self._step.cancel()
        async with self._stepping:
            if self._step is not None:  # nobody waits for it
                await asyncio.gather(self._step, return_exceptions=True)
            await self._generator.aclose()

    def __del__(self):
        if self._step is not None:
            _cancel([self._step])


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
        lines = lines_of(groups)
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
        """Ends a group: its responses come with the tokens that they have. A group that has an id is named by that, and any other by its
        number."""
        await self._call("DELETE", f"/groups/{urllib.parse.quote(str(group), safe='')}")

    async def acknowledge(self, seq: Optional[int] = None) -> None:
        """The server may forget the responses up to this one; None: all that were given."""
        await self._call("POST", "/ack", {"seq": self.seq if seq is None else integer_of(seq, "seq")})

    async def progress(self) -> Dict[str, Any]:
        return await self._call("GET", "/progress")

    async def delete(self, *, return_partial: bool = False) -> None:
        """Ends the rollout, and the server forgets it. With return_partial it is kept: what runs comes with the tokens that it has."""
        await self._call("DELETE", "?on_cancel=return_partial" if return_partial else "")

    async def _call(self, method: str, path: str, body=None) -> Dict[str, Any]:
        if self._body is not None:
            await self._begin()
        return checked(await self._client._control(method, f"{ROLLOUTS}/{self.rollout_id}{path}", body)).json()

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
                        for response in responses_of(line):
                            self.seq = response["seq"]
                            yield rollout_response_of(response, self.rollout_id)
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
    """The responses of a group, as they finish. After an error, or close(), those that are left are ended on the server too, as are those
    of a group that was forgotten. An error is that of every later step, too. A task that is cancelled while it waits leaves them to the
    next."""

    def __init__(self, requests):
        self._done: asyncio.Queue = asyncio.Queue()
        self._tasks = [asyncio.ensure_future(request) for request in requests]
        self._left, self._taking = len(self._tasks), asyncio.Lock()  # one waits at a time: none waits for more than are left
        self._error: Optional[Exception] = None
        for task in self._tasks:
            task.add_done_callback(self._done.put_nowait)

    def __aiter__(self) -> "AsyncGroup":
        return self

    async def __anext__(self) -> Response:
        async with self._taking:
            task = await self._done.get() if self._left > 0 else None
            if self._error is not None:
                raise self._error.with_traceback(None)  # else it would grow
            if self._left == 0:  # there were no more, or it was closed meanwhile
                raise StopAsyncIteration
            self._left -= 1
            try:
                return task.result()
            except BaseException as error:
                self._error = error if isinstance(error, Exception) else None
                await self._end()
                raise

    async def close(self) -> None:
        self._error = None
        await self._end()

    async def _end(self) -> None:
        self._left = 0
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __del__(self):
        _cancel(self._tasks)


class AsyncClient:
    """`address` is HOST:PORT or a URL; `tls_ca` is a PEM file with the certificates to trust and means https.

    connections_max  requests for responses under way at once; more wait here, where Seer cannot schedule them
    retries          of a request for which no connection came about, that was reset before anything was answered, or for which the server
                     has no room now
    timeout_s        for one response; for one step of a stream
    """

    def __init__(self, address: str, token: Optional[str] = None, tls_ca: Optional[str] = None, *, connections_max: int = 512, retries: int = 5,
                 timeout_s: float = 14_400.0):
        self._timeout_s = seconds_of(timeout_s, "timeout_s")
        self._http = Http(address, token, tls_ca, connections_max, retries)

    @property
    def address(self) -> str:
        return str(self._http.address)

    # ---- responses ---------------------------------------------------------------------------------------------------------------

    async def generate(self, prompt: Optional[Prompt] = None, *, input_ids: Optional[Sequence[int]] = None,
                       sampling: Optional[Mapping[str, Any]] = None, group_id: Optional[str] = None, group_size: Optional[int] = None,
                       rid: Optional[str] = None, priority: int = 0, logprobs: bool = True, index: int = 0) -> Response:
        """One response. `sampling` has the names of SGLang; see seer_messages.SAMPLING."""
        body = generate_body(prompt, input_ids, sampling, group_id, group_size, rid, priority, logprobs, False)
        answer = checked(await self._http.call("POST", "/generate", body, timeout_s=self._timeout_s))
        return response_of(answer.json(), index, logprobs)

    def stream(self, prompt: Optional[Prompt] = None, *, input_ids: Optional[Sequence[int]] = None,
               sampling: Optional[Mapping[str, Any]] = None, group_id: Optional[str] = None, group_size: Optional[int] = None,
               rid: Optional[str] = None, priority: int = 0, logprobs: bool = True) -> AsyncIterator[Response]:
        """The response as it grows: each one has all tokens so far, and the last one a finish_reason."""
        body = generate_body(prompt, input_ids, sampling, group_id, group_size, rid, priority, logprobs, True)
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
                last = response_of(answer, 0, logprobs)
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
        n = integer_of(n, "n")
        if not 1 <= n <= GROUP_MAX:
            raise ValueError(f"n is {n}: expected 1 to {GROUP_MAX}")
        group_id = uuid.uuid4().hex if group_id is None else group_id
        params = dict_of(sampling, "sampling")
        first_seed = params.get("sampling_seed")
        if first_seed is not None:
            first_seed = integer_of(first_seed, "sampling: sampling_seed")
        prompt = prompt if prompt is None or isinstance(prompt, str) else token_ids_of(prompt, "prompt")
        bodies = []
        for index in range(n):
            if first_seed is not None:
                params["sampling_seed"] = first_seed + index
            bodies.append(generate_body(prompt, input_ids, params, group_id, n, rid or group_id, priority, logprobs, False))

        async def one(index: int, body: dict) -> Response:
            answer = checked(await self._http.call("POST", "/generate", body, timeout_s=self._timeout_s))
            return response_of(answer.json(), index, logprobs)
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
        rollout_id = f"client-{uuid.uuid4().hex}" if rollout_id is None else checked_rollout_id(rollout_id)
        defaults = dict_of(sampling, "sampling")
        json_of(defaults, "sampling")
        if n is not None:
            defaults["n"] = integer_of(n, "n")
        first: Dict[str, Any] = {"rollout_id": rollout_id, "defaults": defaults, "open": open}
        for name, value in (("seed", seed), ("priority", priority or None), ("stop_when", dict_of(stop_when, "stop_when") or None),
                            ("expect_weight_version", expect_weight_version),
                            ("logprobs", None if logprobs == "processed" else logprobs),
                            ("stream", None if stream == "sample" else stream)):
            if value is not None:
                first[name] = value
        lines = lines_of(groups)
        return AsyncRollout(self, rollout_id, b"\n".join([json_of(first, "the rollout"), *lines]), len(lines), None, reconnect_s)

    def attach(self, rollout_id: str, from_seq: Optional[int] = None, *, reconnect_s: float = RECONNECT_S) -> AsyncRollout:
        """A rollout that is there, from this response on; None: from the first that was not acknowledged."""
        from_seq = None if from_seq is None else integer_of(from_seq, "from_seq")
        return AsyncRollout(self, checked_rollout_id(rollout_id), None, None, from_seq, reconnect_s)

    # ---- control -----------------------------------------------------------------------------------------------------------------

    async def update_weights(self, folder: str, version: Union[int, str, None] = None, *, mode: str = "abort") -> str:
        """Changes to the weights in a folder of the server. Returns the version as the server names it from now on.

        version  a number above the one that runs, or a name, even one that looks like a number that is over; None: the next number
        mode     what happens to requests that are not over: "abort", they are answered with the tokens that they have; "retract", they
                 start again with the new weights; "drain", they end with the old ones first. Requests that come meanwhile wait.
        The request is not sent twice: after ConnectionLost or TimedOut, weight_version() tells what runs.
        """
        body = {"model_path": folder_of(folder), "mode": checked_mode(mode)}
        if version is not None:
            body["weight_version"] = version_of(version)
        answer = await self._control("POST", "/update_weights_from_disk", body, timeout_s=WEIGHTS_S, may_repeat=False)
        if checked_update(answer).json().get("success") is not True:
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
            async for tensor in each_of(tensors):
                if not await self._send_tensor(upload, tensor, number):
                    break
                number += 1
            return await self._end_upload(upload)
        finally:
            await upload.close()

    async def _begin_upload(self, version: Union[int, str, None], name: Optional[str], mode: str, silence_s: Optional[int]) -> Upload:
        if version is not None and name is not None:
            raise ValueError("both version and name: expected one of them")
        given = {"version": None if version is None else version_of(version), "name": name, "silence_s": silence_s}
        query = {"mode": checked_mode(mode), **{key: str(value) for key, value in given.items() if value is not None}}
        return await self._http.upload(f"{WEIGHTS}?{urllib.parse.urlencode(query)}", part_s=CONTROL_S)

    async def _send_tensor(self, upload: Upload, tensor: Any, number: int) -> bool:
        """False: the server has refused."""
        head, data = safetensors_of(tensor, number)
        return await upload.send(head) and await upload.send(data)

    async def _end_upload(self, upload: Upload) -> str:
        return checked_update(await upload.finish(WEIGHTS_S)).json()["weight_version"]

    async def weight_version(self) -> str:
        return checked(await self._control("GET", "/get_weight_version")).json()["weight_version"]

    async def pause(self, mode: str = "abort") -> None:
        """Requests are held from now on. mode: "abort" ends those that run; "retract" and "in_place" let them start anew, unseen, but for
        streams, which end."""
        checked(await self._control("POST", "/pause_generation", {"mode": mode}))

    async def resume(self) -> None:
        checked(await self._control("POST", "/continue_generation", {}))

    async def abort(self, rid: Optional[str] = None, *, all: bool = False) -> int:
        """Ends the requests whose rid begins with this one, or all; they are answered with the tokens that they have. Returns how many."""
        if (not rid) == (not all):
            raise ValueError(f"{'both rid and' if all else 'neither rid nor'} all: expected one of them")
        body = {"abort_all": True} if all else {"rid": rid}
        return checked(await self._control("POST", "/abort_request", body)).json()["aborted"]

    async def flush(self) -> None:
        """Forgets the KV cache and the drafts. NotIdle: some requests are not over."""
        answer = await self._control("GET", "/flush_cache")
        if answer.status == 400:
            raise NotIdle(str(error_of(answer)), 400)
        checked(answer)

    async def health(self) -> bool:
        """True, or an error that says what is wrong. Needs no token."""
        checked(await self._control("GET", "/health"))
        return True

    async def info(self) -> ServerInfo:
        found = checked(await self._control("GET", "/server_info")).json()
        return ServerInfo(found["served_model_name"], found["model_path"], found["weight_version"], found["context_length"],
                          found["max_total_num_tokens"], found)

    async def load(self) -> Load:
        found = checked(await self._control("GET", "/v1/loads?include=core")).json()["loads"][0]
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
        self._process = os.getpid()  # a forked one has neither the thread nor a lock that another thread held
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
            for number, tensor in enumerate(iterated(tensors, "tensors", "(name, dtype, shape, data) of each")):
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
        """Ends all that is under way, on the server too. The client cannot be used again. Does nothing in a forked process."""
        async def end():
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.gather(*(steps._close() for steps in list(self._steps)), return_exceptions=True)
            await self._async.close()
        if os.getpid() != self._process:
            return
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
        if os.getpid() != self._process:
            work.close()
            raise ClientUnusable("this client belongs to another process: make one for each")
        with self._lock:
            if self._is_closed:
                work.close()
                raise ClientUnusable("this client was closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ConnectionLost("this client was closed meanwhile") from None
        except BaseException:
            future.cancel()  # a KeyboardInterrupt ends the request too
            raise
