"""Weights that a trainer sends to `seer serve` over a communication group of its own (NCCL, gloo): the member of that group.

    python3 -m seer_weights_group --server 127.0.0.1:30000 --device cuda:0

The trainer makes SGLang's calls to the server, which passes them on to this process:

    /init_weights_update_group         joins a group, with the rank `rank_offset`; rank 0 is the trainer's
    /update_weights_from_distributed   takes these tensors as rank 0 broadcasts them
    /continue_generation               hands them over: the weights change whole, or not at all
    /destroy_weights_update_group      leaves the group

On the server's host they are received into memory that the server reads; else they are sent to POST /seer/v1/weights, part by part.

Two processes: this one talks to the server, and its child, the worker, is in the groups. A peer that hangs may keep the worker for ever:
a call that takes longer than --timeout-s, or that the trainer has given up, ends the worker, and another one is started. So does
whatever may leave a group out of step with its trainer, since a later broadcast would then be taken for an earlier one: a part that was
refused or did not come whole, and a connection to the server that ended. The trainer must make its groups anew then. A trainer that joins
a group which is there already has been started again: the groups of the one before end, and parts that it had sent are forgotten.

Groups are made as SGLang makes them, with torch, which must be the trainer's version. It needs a GPU of its own for NCCL, or one that it
shares with an engine: parts are received there one at a time.
"""
import argparse
import asyncio
import contextlib
import ctypes
import datetime
import fcntl
import json
import math
import mmap
import os
import re
import secrets
import signal
import sys
import urllib.parse
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from seer_client import CONTROL_S, SILENCE_S, WEIGHTS_S, Client
from seer_http import Http, Refused, SeerError, error_of, parse_address, read_token_option
from seer_messages import DTYPES

RECEIVER = "/seer/v1/weights_receiver"
JOIN = "/init_weights_update_group"
LEAVE = "/destroy_weights_update_group"
UPDATE = "/update_weights_from_distributed"
CONTINUE = "/continue_generation"
GONE = "the trainer has gone"
RECONNECT_S = 600.0     # for the server to be there again
RECONNECT_WAIT_S = 0.5
SILENCE_MAX_S = 86_400  # that the server takes
START_S = 300.0         # for a worker, which imports torch
DEVICE = "cuda:0"       # where NCCL receives, unless an option says
PR_SET_PDEATHSIG = 1    # of Linux: the signal when the parent has died
MESSAGE_CHARS_MAX = 1000
TENSORS_MAX = 100_000   # of one part


class BadCall(Exception):
    """What is wrong with a call of the trainer, in one sentence."""


# ---- the worker: a member of groups ----------------------------------------------------------------------------------------------------

Tensor = Tuple[str, str, List[int]]  # name, dtype as torch calls it, shape


def bytes_of(dtype: str, shape: List[int]) -> int:
    return math.prod(shape) * DTYPES[dtype][1]


def name_of(body: Dict[str, Any]) -> str:
    """Of the group that a call is about."""
    return str(body.get("group_name", "weight_update_group"))  # SGLang's default


def tensors_of(body: Dict[str, Any]) -> List[Tensor]:
    """Those of a part."""
    names, dtypes, shapes = (body.get(field) for field in ("names", "dtypes", "shapes"))
    if not all(isinstance(values, list) and len(values) == len(names) for values in (names, dtypes, shapes)) or len(names) > TENSORS_MAX:
        raise BadCall(f"names, dtypes and shapes: expected lists of one length, at most {TENSORS_MAX}")
    found = []
    for name, dtype, shape in zip(names, dtypes, shapes):
        spelt = str(dtype).rpartition(".")[2]
        if spelt not in ("bfloat16", "float16", "float32"):
            raise BadCall(f"tensor {name}: dtype is {spelt[:100]!r}: expected bfloat16, float16 or float32")
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise BadCall(f"tensor {name}: shape is {str(shape)[:100]}: expected a list of sizes")
        found.append((str(name), spelt, shape))
    return found


class Memory:
    """Memory of the system that another process can read (a memfd), with safetensors, one after the other."""

    def __init__(self):
        self._descriptor = os.memfd_create("seer-weights-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._bytes = 0

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def add(self, text: bytes) -> None:
        self._bytes += os.write(self._descriptor, text)

    @contextlib.contextmanager
    def room_for(self, torch, tensors: List[Tensor]) -> Iterator[List[Any]]:
        """Room for the bytes of these tensors, to be filled and let go."""
        table, at = {}, 0
        for name, dtype, shape in tensors:
            table[name] = {"dtype": DTYPES[dtype][0], "shape": shape, "data_offsets": [at, at + bytes_of(dtype, shape)]}
            at += bytes_of(dtype, shape)
        head = json.dumps(table).encode()
        head += b" " * (-(8 + len(head) + at) % mmap.ALLOCATIONGRANULARITY)  # the next file begins where a mapping can
        size, begin = 8 + len(head) + at, self._bytes
        os.ftruncate(self._descriptor, begin + size)
        self._bytes += size
        mapped = mmap.mmap(self._descriptor, size, offset=begin)
        mapped[:8 + len(head)] = len(head).to_bytes(8, "little") + head
        data = torch.frombuffer(mapped, dtype=torch.uint8, offset=8 + len(head), count=at) if at > 0 else torch.empty(0, dtype=torch.uint8)
        yield list(data.split([bytes_of(dtype, shape) for _, dtype, shape in tensors]))
        del data
        mapped.close()  # after an error somebody may still have parts of it

    def seal(self) -> None:
        """Nobody can change it any more."""
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)

    def close(self) -> None:
        os.close(self._descriptor)


class Group:
    """One group of a trainer, of which this process is a member."""

    def __init__(self, torch, body: Dict[str, Any], device: str, timeout_s: float):
        backend = body.get("backend", "nccl")
        if backend not in ("nccl", "gloo"):
            raise BadCall(f"backend is {str(backend)[:100]!r}: expected nccl or gloo")
        rank, world_size = int(body["rank_offset"]), int(body["world_size"])  # the server has read them
        if rank >= world_size:
            raise BadCall(f"rank_offset is {rank}: expected less than world_size, which is {world_size}")
        host, port = str(body.get("master_address", "")).strip("[]"), str(body.get("master_port", ""))
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise BadCall(f"master_address and master_port are {host[:200]!r} and {port[:20]!r}: expected those of the trainer's rank 0")
        if backend == "nccl":
            if not torch.cuda.is_available():
                raise BadCall("backend is nccl, but torch sees no GPU in this process: expected gloo")
            torch.cuda.set_device(device)
        self._torch, self._device = torch, device if backend == "nccl" else "cpu"
        self._group = self._joined(backend, f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}", rank, world_size, name_of(body),
                                   datetime.timedelta(seconds=timeout_s))

    def receive(self, tensors: List[Tensor], load_format: Optional[str], into: List[Any]) -> None:
        """Fills byte tensors of the host, one for each of these tensors."""
        torch = self._torch
        if load_format not in (None, "", "auto", "flattened_bucket"):
            raise BadCall(f"load_format is {str(load_format)[:100]!r}: expected none or flattened_bucket")
        if load_format == "flattened_bucket":  # one after the other, in one broadcast
            bucket = torch.empty(sum(part.numel() for part in into), dtype=torch.uint8, device=self._device)
            self._broadcast([bucket])
            found = bucket.split([part.numel() for part in into])
        elif self._device == "cpu":  # gloo moves bytes, and may not know BF16
            return self._broadcast(into)
        else:
            whole = [torch.empty(shape, dtype=getattr(torch, dtype), device=self._device) for _, dtype, shape in tensors]
            self._broadcast(whole)
            found = [tensor.reshape(-1).view(torch.uint8) for tensor in whole]
        for part, tensor in zip(into, found):
            part.copy_(tensor)

    def leave(self) -> None:
        self._torch.distributed.destroy_process_group(self._group)

    def _broadcast(self, tensors) -> None:
        """From the trainer."""
        options = self._torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        for work in [self._group.broadcast([tensor], options) for tensor in tensors]:
            work.wait()

    @staticmethod
    def _joined(backend: str, address: str, rank: int, world_size: int, name: str, timeout: datetime.timedelta):
        """A group beside the default one. slime, AReaL and SGLang (init_custom_process_group) make theirs in the same way, so that all
        find each other under the same names."""
        from torch.distributed import PrefixStore, distributed_c10d
        store, rank, world_size = next(distributed_c10d.rendezvous(address, rank, world_size, timeout=timeout))
        store.set_timeout(timeout)
        made = distributed_c10d._new_process_group_helper(world_size, rank, [], distributed_c10d.Backend(backend), PrefixStore(name, store),
                                                          group_name=name, timeout=timeout)
        group = made[0] if isinstance(made, tuple) else made  # since torch 2.0
        ranks = distributed_c10d._world.pg_group_ranks if hasattr(distributed_c10d, "_world") else distributed_c10d._pg_group_ranks
        ranks[group] = {i: i for i in range(world_size)}
        return group


class Worker:
    """Takes calls, one after the other, and gives each an answer."""

    def __init__(self, torch, options, client: Client, calls: Iterator[Dict[str, Any]], answers):
        self._torch, self._options, self._client, self._calls, self._answers = torch, options, client, calls, answers
        self._groups: Dict[str, Group] = {}
        self._call: Dict[str, Any] = {}  # the one that is not answered yet
        self._is_in_step = True          # with the trainer

    def run(self) -> None:
        """Until the process ends."""
        while True:
            self._call = self._next_call()
            try:
                if self._call["path"] == UPDATE and self._call["in_memory"]:
                    self._update_in_memory()
                elif self._call["path"] == UPDATE:
                    found = self._client.update_weights_from_tensors(self._tensors(), **self._call["label"], mode="retract",
                                                                     silence_s=min(math.ceil(self._options.timeout_s), SILENCE_MAX_S))
                    self._answer(True, f"weight version {found}")
                elif self._call["path"] == CONTINUE:
                    self._answer(False, "no parts of new weights are here")
                else:
                    self._join_or_leave()
            except Exception as error:  # of torch, for whatever reason, or of the server
                self._answer(False, str(error) or repr(error))

    def _update_in_memory(self) -> None:
        with contextlib.closing(Memory()) as memory:
            for body in self._parts():
                tensors = tensors_of(body)
                with memory.room_for(self._torch, tensors) as room:
                    self._receive(body, tensors, room)
                    del room
            memory.seal()
            self._answer(True, "", memory=memory.path)
            self._next_call()  # the server has opened it

    def _tensors(self) -> Iterator[Tuple[str, str, List[int], Any]]:
        """Those of an update, with their bytes."""
        for body in self._parts():
            tensors = tensors_of(body)
            room = [self._torch.empty(bytes_of(dtype, shape), dtype=self._torch.uint8) for _, dtype, shape in tensors]
            self._receive(body, tensors, room)
            for tensor, data in zip(tensors, room):
                yield (*tensor, data.numpy())

    def _parts(self) -> Iterator[Dict[str, Any]]:
        """The parts of an update, which begins with the call at hand and ends with CONTINUE. A part must be received before the next one."""
        while self._call["path"] != CONTINUE:
            if self._call["path"] == UPDATE:
                self._group(self._call["body"])
                self._is_in_step = False
                yield self._call["body"]
                self._answer(True, "")
            else:
                self._join_or_leave()
            self._call = self._next_call()

    def _receive(self, body: Dict[str, Any], tensors: List[Tensor], into: List[Any]) -> None:
        self._group(body).receive(tensors, body.get("load_format"), into)
        self._is_in_step = True

    def _next_call(self) -> Dict[str, Any]:
        for call in self._calls:
            return call
        os._exit(0)  # the parent has gone

    def _join_or_leave(self) -> None:
        """What fails here concerns no other group, and no update."""
        body = self._call["body"]
        name = name_of(body)
        try:
            if self._call["path"] == LEAVE:
                self._group(body).leave()
                del self._groups[name]
            else:
                self._groups[name] = Group(self._torch, body, self._options.device or DEVICE, self._options.timeout_s)
            self._answer(True, "")
        except Exception as error:
            self._answer(False, str(error) or repr(error))

    def _group(self, body: Dict[str, Any]) -> Group:
        name = name_of(body)
        if name not in self._groups:
            raise BadCall(f"this process has not joined a group {name}")
        return self._groups[name]

    def _answer(self, success: bool, message: str, **fields) -> None:
        answer = {"call": self._call["call"], "success": success, "message": message[:MESSAGE_CHARS_MAX], "ends": not self._is_in_step, **fields}
        print(json.dumps(answer), file=self._answers, flush=True)
        if not self._is_in_step:
            os._exit(1)


def check_device(torch, device: Optional[str]) -> None:
    """One that was asked for must be there from the start. Without the option a group over gloo needs none."""
    if device is not None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(device.partition(":")[2] or 0) >= count:
            raise RuntimeError(f"--device {device}: torch sees {count} GPUs in this process")


def work(options) -> Optional[int]:
    """The worker's process: calls come as lines of its input, answers are lines of its output. Returns if it cannot begin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NCCL prints there
    client = Client(options.server, read_token_option(options.token_file), options.tls_ca)
    try:
        import torch
        import torch.distributed
    except (ImportError, OSError) as error:
        print(json.dumps({"error": f"no torch to join groups with: {error}"}), file=answers, flush=True)
        return 1
    try:
        check_device(torch, options.device)
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), file=answers, flush=True)
        return 1
    print(json.dumps({"ready": torch.__version__}), file=answers, flush=True)
    Worker(torch, options, client, map(json.loads, sys.stdin), answers).run()


# ---- the parent: between the server and the worker -----------------------------------------------------------------------------------

def failure(call: Dict[str, Any], why: str, ends: bool) -> Dict[str, Any]:
    """An answer of the worker."""
    return {"call": call["call"], "success": False, "message": why, "ends": ends}


class WorkerProcess:
    """The worker, and after it the next one."""

    def __init__(self, arguments: List[str], timeout_s: float):
        self._arguments, self._timeout_s = arguments, timeout_s
        self._process: Optional[asyncio.subprocess.Process] = None
        self._why = ""  # it was killed
        self.groups: Set[str] = set()  # that it has joined

    async def start(self) -> str:
        """Returns torch's version. Errors: RuntimeError."""
        self._why = "the worker has died"
        self.groups.clear()
        self._process = await asyncio.create_subprocess_exec(sys.executable, os.path.abspath(__file__), "--worker", *self._arguments,
                                                             stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_S)
            first = json.loads(line) if line else {"error": self._why}
        except asyncio.TimeoutError:
            first = {"error": f"the worker has not started within {START_S:g} s"}
        if "error" in first:
            await self.stop()
            raise RuntimeError(first["error"])
        return first["ready"]

    async def ask(self, call: Dict[str, Any]) -> Dict[str, Any]:
        """Its answer to a call. With `ends` it is the last one: restart() is next."""
        # Loading the weights has its own limit, in the worker.
        limit_s = WEIGHTS_S + CONTROL_S if call["path"] == CONTINUE else self._timeout_s + 5
        line = b""
        await self.tell(call)
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), limit_s)
        except asyncio.TimeoutError:
            self.kill(f"the trainer's group was not done within {limit_s:g} s")
        return json.loads(line) if line else failure(call, self._why, ends=True)

    def note_group(self, call: Dict[str, Any], is_done: bool) -> None:
        """What a call has done to `groups`."""
        if is_done and call["path"] == JOIN:
            self.groups.add(name_of(call["body"]))
        elif is_done and call["path"] == LEAVE:
            self.groups.discard(name_of(call["body"]))

    async def tell(self, line: Dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            await self._process.stdin.drain()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def kill(self, why: str) -> None:
        self._why = why
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self) -> None:
        self.kill(self._why)
        await self._process.wait()


class Receiver:
    """What the server says of the trainer's calls, while one connection to it lasts."""

    def __init__(self, http: Http, worker: WorkerProcess, may_share: bool):
        self._http, self._worker, self._may_share = http, worker, may_share
        self._reads_memory = False                   # the server, on this host
        self._asked: Optional[int] = None            # the call that the worker has
        self._cancelled: Optional[int] = None        # the last that the trainer gave up
        self._last: Optional[asyncio.Future] = None  # done when all that was begun is over

    async def run(self, on_connected) -> None:
        with contextlib.closing(Memory()) as memory:
            text = secrets.token_hex(16)
            memory.add(text.encode())
            memory.seal()
            query = f"?{urllib.parse.urlencode({'memory': memory.path, 'holds': text})}" if self._may_share else ""
            lines = self._http.pieces("GET", RECEIVER + query, None, "application/x-ndjson", b"\n", timeout_s=SILENCE_S)
            try:
                async for line in lines:
                    self._take(json.loads(line), on_connected)
            finally:
                await lines.aclose()
                await self._end_work()

    async def _end_work(self) -> None:
        if self._last is not None:
            self._worker.kill("the connection to the server has ended")
            with contextlib.suppress(SeerError, RuntimeError):
                await self._last

    def _take(self, line: Dict[str, Any], on_connected) -> None:
        on_connected()
        if "reads_memory" in line:
            self._reads_memory = line["reads_memory"]
        elif "call" in line:
            self._begin(self._answer({**line, "in_memory": self._reads_memory}))
        elif "cancel" in line:
            self._cancelled = line["cancel"]
            if self._asked == self._cancelled:
                self._worker.kill(GONE)
        elif "leave" in line:
            print(f"groups_left message={json.dumps(line['leave'])}", flush=True)
            if self._asked is not None:
                self._worker.kill(line["leave"])
            else:
                self._begin(self._worker.restart())
        elif self._last is not None and self._last.done():
            self._last.result()  # an error ends the connection

    def _begin(self, work) -> None:
        """After what was begun before."""
        async def one_after_the_other(before: Optional[asyncio.Future]) -> None:
            if before is not None:
                await before
            await work
        self._last = asyncio.ensure_future(one_after_the_other(self._last))

    async def _answer(self, call: Dict[str, Any]) -> None:
        is_new_trainer = call["path"] == JOIN and name_of(call["body"]) in self._worker.groups
        if is_new_trainer:
            await self._worker.restart()
        if call["call"] == self._cancelled:
            found = failure(call, GONE, ends=True)
        else:
            self._asked = call["call"]
            found = await self._worker.ask(call)
            self._asked = None
        self._worker.note_group(call, found["success"])
        if is_new_trainer:
            found["parts_lost"] = True
        ends = found.pop("ends")
        reply = await self._http.call("POST", RECEIVER, found, timeout_s=CONTROL_S, is_control=True)
        if reply.status != 200:
            raise error_of(reply)
        print(f"{'call_done' if found['success'] else 'call_failed'} path={call['path']} message={json.dumps(found['message'])}", flush=True)
        if "memory" in found:
            await self._worker.tell({})
        if ends:
            await self._worker.restart()


async def receive(options, arguments: List[str]) -> None:
    """Until the server is not there for RECONNECT_S."""
    http = Http(options.server, read_token_option(options.token_file), options.tls_ca, connections_max=2, retries=0)
    worker = WorkerProcess(arguments, options.timeout_s)
    version = await worker.start()
    clock = asyncio.get_running_loop().time
    was_there_s, is_connected, is_told = clock(), False, False  # told that it is not connected

    def on_connected() -> None:
        nonlocal was_there_s, is_connected, is_told
        was_there_s = clock()
        if not is_connected:
            print(f"seer_weights_group receives weights for {http.address} with torch {version}", flush=True)
        is_connected, is_told = True, False
    try:
        while True:
            try:
                await Receiver(http, worker, not options.over_http).run(on_connected)
            except SeerError as error:
                # 409: another receiver, which may be this one as it was before the network or its host failed
                is_final = isinstance(error, Refused) and error.status != 409  # a wrong token, or a server that takes no such weights
                if is_final or clock() - was_there_s > RECONNECT_S:
                    raise
                if not is_told:
                    print(f"disconnected message={json.dumps(str(error))}", flush=True)
                is_told = True
            if is_connected:
                await worker.restart()
            is_connected = False
            await asyncio.sleep(RECONNECT_WAIT_S)
    finally:
        await worker.stop()
        await http.close()


# ---- options -----------------------------------------------------------------------------------------------------------------------------

def main() -> int:
    parser = argparse.ArgumentParser(prog="seer_weights_group", description="Receives weights for `seer serve` over a trainer's communication group.")
    parser.add_argument("--server", required=True, help="HOST:PORT or URL of seer serve")
    parser.add_argument("--device", help=f"GPU that receives over NCCL (default: {DEVICE}); gloo needs none")
    parser.add_argument("--timeout-s", type=float, default=600, help="for one call of the trainer, and over HTTP from one to the next, in seconds (default: %(default)s)")
    parser.add_argument("--over-http", action="store_true", help="send weights over HTTP to a server of this host too")
    parser.add_argument("--token-file", help="of the server")
    parser.add_argument("--tls-ca", help="certificates to trust, for a server with https")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options)
    try:
        if not 0 < options.timeout_s < math.inf:
            raise ValueError(f"--timeout-s {options.timeout_s}: expected more than 0")
        if options.device is not None and re.fullmatch(r"cuda(:[0-9]{1,4})?", options.device) is None:
            raise ValueError(f"--device {options.device}: expected a GPU, as {DEVICE}")
        parse_address(options.server, options.tls_ca is not None)
        read_token_option(options.token_file)
    except ValueError as error:
        print(f"seer_weights_group: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(receive(options, sys.argv[1:]))
    except (ValueError, OSError, RuntimeError, SeerError) as error:
        print(f"seer_weights_group: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
