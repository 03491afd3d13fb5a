"""Weights from checkpoint-engine (github.com/MoonshotAI/checkpoint-engine) for `seer serve`: its worker's side, as a process of its own.

    python3 -m seer_checkpoint_engine --server 127.0.0.1:30000 --listen 127.0.0.1:19730
    torchrun ... examples/update.py --endpoint http://127.0.0.1:19730 ...        # of checkpoint-engine

It runs on the trainer's host. Each update takes three steps:

    POST /collective_rpc or /update_weights_from_ipc   names a ZMQ socket for each rank of the trainer
    ZMQ, REP                                           each rank offers a buffer, says which tensors are in it, fills it again, ...
    POST /seer/v1/weights                              to the server, tensor by tensor as they come; no tensor is kept here

Every rank offers all tensors. They are read from the first one; the others are only answered. The end of the first rank's messages
completes the update. Until then, whatever goes wrong, the server forgets what came and goes on with the weights that it has.

A buffer is memory of a GPU, opened with torch (CUDA IPC), or a file of shared memory, mapped without it. See seer_torch_pickle for
what a message may be.
"""
import argparse
import contextlib
import http.server
import ipaddress
import json
import mmap
import os
import socket
import stat
import sys
import threading
from typing import Any, Dict, Iterator, List, Optional, Tuple

try:
    import zmq
except ImportError:
    sys.exit("seer_checkpoint_engine: this Python has no zmq: pip install pyzmq (Debian, Ubuntu: python3-zmq)")

from seer_client import Client, Refused, SeerError
from seer_http import parse_address, read_token_option
from seer_torch_pickle import MESSAGE_BYTES_MAX, BadMessage, DeviceMemory, GivenUp, SharedMemory, Tensor, read_message

SILENCE_S = 60.0              # of a trainer's rank; less than the server waits for more of an upload
RANKS_MAX = 1024
REQUEST_BYTES_MAX = 1 << 20
SKIPPED_BYTES_MAX = 64 << 20  # of a body that is not wanted
TORCH_HEADER_BYTES = 64       # before the bytes of a storage that torch shares by file name
LAST_MESSAGES_MAX = 4         # of a rank, after an update has failed: it gives up, or ends
LAST_ANSWERS_MS = 5000        # for answers that ZMQ has not sent when an update is over


class BadRequest(Exception):
    """What is wrong with a request, in one sentence."""


class TrainerFailed(Exception):
    """What is wrong with what the trainer sent, or that it sent no more."""


# ---- buffers ---------------------------------------------------------------------------------------------------------------------------

class MappedBuffer:
    """A file of shared memory, read only. It stays mapped until close(), and while anybody has bytes of it."""

    def __init__(self, memory: SharedMemory, folder: str = "/dev/shm"):
        try:
            file = os.open(folder + memory.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise TrainerFailed(f"cannot open the shared memory {memory.name}: {error.strerror}") from None
        try:
            found, needed = os.fstat(file), TORCH_HEADER_BYTES + memory.buffer_bytes
            if not stat.S_ISREG(found.st_mode) or found.st_size < needed:
                raise TrainerFailed(f"the shared memory {memory.name} has {found.st_size} bytes: expected a file of at least {needed}")
            self._bytes = memoryview(mmap.mmap(file, needed, prot=mmap.PROT_READ))[TORCH_HEADER_BYTES:]
        finally:
            os.close(file)

    def bytes_of(self, tensor: Tensor):
        return self._bytes[tensor.begin:tensor.end]

    def close(self) -> None:
        del self._bytes


class DeviceBuffer:
    """Memory of a GPU that another process owns. One tensor at a time is copied to the host."""

    def __init__(self, memory: DeviceMemory, device_uuid: str):
        try:
            import torch
        except ImportError:
            raise TrainerFailed("the trainer's buffer is memory of a GPU, but this Python has no torch to open it") from None
        arguments = list(memory.arguments)
        for place in (0, 4, 5):  # classes and dtype, by name
            module, _, name = arguments[place].rpartition(".")
            arguments[place] = getattr(sys.modules[module], name)
        arguments[6] = _device_of(torch, device_uuid)  # processes may number devices differently
        try:
            from torch.multiprocessing.reductions import rebuild_cuda_tensor
            self._buffer = rebuild_cuda_tensor(*arguments)
        except Exception as error:  # of torch and CUDA, for whatever reason
            raise TrainerFailed(f"torch cannot open the trainer's buffer on {device_uuid}: {error}") from None
        self._torch = torch

    def bytes_of(self, tensor: Tensor):
        return self._buffer[tensor.begin:tensor.end].cpu().numpy()

    def close(self) -> None:
        """The trainer frees the buffer once all have let it go."""
        del self._buffer
        self._torch.cuda.ipc_collect()


def _device_of(torch, device_uuid: str) -> int:
    for index in range(torch.cuda.device_count()):
        if f"GPU-{torch.cuda.get_device_properties(index).uuid!s}" == device_uuid:
            return index
    raise TrainerFailed(f"{device_uuid} is none of the {torch.cuda.device_count()} GPUs that torch sees in this process")


# ---- one update ------------------------------------------------------------------------------------------------------------------------

class Rank:
    """One rank of the trainer: its socket, and how far it is.

    offering -> sending -> released -> over. A message is to be answered before the next one comes; answer() does.
    """

    def __init__(self, context: zmq.Context, device_uuid: str, path: str):
        self.device_uuid, self.state = device_uuid, "offering"
        self.failure = ""  # the answer to each message from here on; "": all is well
        self.is_asking = False
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        self.socket.connect(path)

    def receive(self):
        """The next message. REQUIRES: one is there, and the last one was answered."""
        data = self.socket.recv()
        self.is_asking = True
        try:
            message = read_message(data)
        except BadMessage as error:
            raise TrainerFailed(f"rank {self.device_uuid}: {error}") from None
        expected = {"offering": (SharedMemory, DeviceMemory), "sending": (list, type(None)), "released": (type(None),)}[self.state]
        if isinstance(message, GivenUp):
            self.state, self.is_asking = "over", False  # it waits for no answer
            raise TrainerFailed(f"rank {self.device_uuid} gave up: {message.reason}")
        if not isinstance(message, expected):
            raise TrainerFailed(f"rank {self.device_uuid} sent {type(message).__name__} while {self.state}")
        if self.state == "offering":
            self.state = "sending"
        elif message is None:
            self.state = "released" if self.state == "sending" else "over"
        return message

    def answer(self) -> None:
        self.socket.send(self.failure.encode())
        self.is_asking = False


class Update:
    """The messages of all ranks for one update. Iterate over tensors() to get the tensors; then finish(), or fail(reason).

    `requester` is the connection of the request, which waits for the end of the update.
    """

    def __init__(self, handles: Dict[str, str], requester: socket.socket, silence_s: float):
        self._requester, self._silence_s = requester, silence_s
        self._buffer: Any = None
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._poller.register(requester, zmq.POLLIN)  # where it closes, nobody wants the update any more
        self._ranks: Dict[zmq.Socket, Rank] = {}
        try:
            for device_uuid, path in handles.items():
                rank = Rank(self._context, device_uuid, path)
                self._ranks[rank.socket] = rank
                self._poller.register(rank.socket, zmq.POLLIN)
        except zmq.ZMQError as error:
            self.close()
            raise BadRequest(f"cannot use the ZMQ path {path!r}: {error}") from None
        self._leader = next(iter(self._ranks.values()))

    def tensors(self) -> Iterator[Tuple[str, str, Tuple[int, ...], Any]]:
        """Name, dtype, shape and bytes of each tensor of the first rank; the bytes are valid until the next is asked for. Ends with its
        last message, which finish() or fail() answers."""
        while self._leader.state != "over":
            for rank in self._asking():
                message = rank.receive()
                if rank is self._leader:
                    if isinstance(message, list):
                        yield from self._tensors_of(message)
                    elif rank.state == "sending":
                        self._buffer = DeviceBuffer(message, rank.device_uuid) if isinstance(message, DeviceMemory) else MappedBuffer(message)
                        self._buffer_bytes = message.buffer_bytes
                    elif rank.state == "released":
                        self._release()
                if rank is not self._leader or rank.state != "over":
                    rank.answer()

    def finish(self) -> None:
        """Answers what the ranks still say. The weights have changed: nothing that they say can undo it."""
        self._answer_rest()

    def fail(self, reason: str) -> None:
        """Answers with the reason until each rank has ended or given up, since a rank whose message is not answered waits for ever."""
        for rank in self._ranks.values():
            rank.failure = reason
        self._answer_rest()

    def close(self) -> None:
        self._release()
        self._context.destroy(linger=LAST_ANSWERS_MS)

    def _tensors_of(self, bucket: List[Tensor]):
        for tensor in bucket:
            if tensor.end > self._buffer_bytes:
                raise TrainerFailed(f"tensor {tensor.name} has bytes {tensor.begin} to {tensor.end} of a buffer of {self._buffer_bytes}")
            yield tensor.name, tensor.dtype, tensor.shape, self._buffer.bytes_of(tensor)

    def _asking(self) -> List[Rank]:
        """Ranks that have sent something."""
        found = dict(self._poller.poll(self._silence_s * 1000))
        if not found:
            raise TrainerFailed(f"the trainer has sent nothing for {self._silence_s:g} s")
        if found.pop(self._requester.fileno(), None):
            if not self._requester.recv(1, socket.MSG_PEEK):
                raise TrainerFailed("the trainer closed the connection of its request before the update was over")
            self._poller.unregister(self._requester)  # its next request, which waits
        return [self._ranks[asking] for asking in found]

    def _answer_rest(self) -> None:
        for rank in self._ranks.values():
            if rank.is_asking:
                rank.answer()
        self._release()
        with contextlib.suppress(TrainerFailed):
            for _ in range(LAST_MESSAGES_MAX * len(self._ranks)):
                if all(rank.state == "over" for rank in self._ranks.values()):
                    return
                for rank in self._asking():
                    with contextlib.suppress(TrainerFailed):
                        rank.receive()
                    if rank.is_asking:
                        rank.answer()

    def _release(self) -> None:
        if self._buffer is not None:
            self._buffer.close()
            self._buffer = None


class Bridge:
    """Updates of one server, one at a time."""

    def __init__(self, server: str, token: Optional[str], tls_ca: Optional[str], mode: str, silence_s: float = SILENCE_S):
        self._client = Client(server, token, tls_ca)
        self._mode, self._silence_s = mode, silence_s
        self._updating = threading.Lock()

    def health(self) -> None:
        self._client.health()

    def update(self, handles: Dict[str, str], version: Optional[str], requester: socket.socket) -> str:
        """Returns the version as the server names it. None: the number after the one that it has."""
        if not self._updating.acquire(blocking=False):
            raise Refused("another update of the weights is under way", 409)
        try:
            with contextlib.closing(Update(handles, requester, self._silence_s)) as update:
                try:
                    with contextlib.closing(update.tensors()) as tensors:
                        found = self._client.update_weights_from_tensors(tensors, name=version, mode=self._mode)  # a trainer counts its own way
                except Exception as error:
                    update.fail(f"seer: {error}")
                    raise
                update.finish()
                return found
        finally:
            self._updating.release()

    def close(self) -> None:
        self._client.close()


# ---- HTTP ------------------------------------------------------------------------------------------------------------------------------

def handles_of(value: Any) -> Dict[str, str]:
    if not isinstance(value, dict) or not 1 <= len(value) <= RANKS_MAX:
        raise BadRequest(f"the ZMQ paths are {str(value)[:200]!r}: expected an object with one for each of 1 to {RANKS_MAX} devices")
    for device_uuid, path in value.items():
        # Others would have this process connect to any host.
        if not isinstance(path, str) or not path.startswith("ipc://"):
            raise BadRequest(f"the ZMQ path of {device_uuid} is {str(path)[:200]!r}: expected one that begins with ipc://")
    return value


def update_of(path: str, body: Any) -> Tuple[Dict[str, str], Optional[str]]:
    """The ZMQ paths and the weight version that a request names."""
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object")
    if path == "/update_weights_from_ipc":  # of SGLang
        version = body.get("weight_version")
        if version is not None and (isinstance(version, bool) or not isinstance(version, (str, int))):
            raise BadRequest(f"weight_version is {str(version)[:200]!r}: expected a number or a name")
        return handles_of(body.get("zmq_handles")), None if version is None else str(version)
    if body.get("method") != "update_weights_from_ipc":  # of vLLM
        raise BadRequest(f"method is {str(body.get('method'))[:200]!r}: expected 'update_weights_from_ipc'")
    arguments = body.get("args")
    if not isinstance(arguments, list) or len(arguments) != 1 or body.get("kwargs"):
        raise BadRequest("args is no list of one object: expected the ZMQ path of each device")
    return handles_of(arguments[0]), None


class Requests(http.server.BaseHTTPRequestHandler):
    bridge: Bridge
    protocol_version = "HTTP/1.1"
    timeout = 60  # of a connection that says nothing

    def do_GET(self) -> None:
        if self.path != "/health":
            return self._answer(404, {"message": f"{self.path[:200]} is unknown: expected /health"})
        with self._errors_answered():
            self.bridge.health()
            self._answer(200, {})

    def do_POST(self) -> None:
        if self.path not in ("/collective_rpc", "/update_weights_from_ipc"):
            self._skip_body()
            return self._answer(404, {"message": f"{self.path[:200]} is unknown: expected /collective_rpc or /update_weights_from_ipc"})
        with self._errors_answered():
            handles, version = update_of(self.path, self._body())
            found = self.bridge.update(handles, version, self.connection)
            print(f"weights_updated version={found} ranks={len(handles)}", flush=True)
            self._answer(200, {"success": True, "message": f"weight version {found}", "weight_version": found, "results": [None] * len(handles)})

    def log_message(self, *_) -> None:
        pass  # _answer prints what failed

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > REQUEST_BYTES_MAX:
            self._skip_body()
            raise BadRequest(f"Content-Length is {length[:200]!r}: expected at most {REQUEST_BYTES_MAX}")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise BadRequest("the body is no JSON object") from None

    def _skip_body(self) -> None:
        """Who is still sending when the connection closes may not get the answer."""
        self.close_connection = True
        length = self.headers.get("Content-Length", "")
        left = min(int(length), SKIPPED_BYTES_MAX) if length.isdecimal() and len(length) < 20 else 0
        while left > 0 and (data := self.rfile.read(min(left, 1 << 16))):
            left -= len(data)

    @contextlib.contextmanager
    def _errors_answered(self):
        try:
            yield
        except (BadRequest, TrainerFailed, ValueError) as error:
            self._answer(400, {"success": False, "message": str(error)})
        except Refused as error:
            self._answer(error.status, {"success": False, "message": str(error)})
        except SeerError as error:
            self._answer(502, {"success": False, "message": str(error)})

    def _answer(self, status: int, body: Dict[str, Any]) -> None:
        if status != 200:
            print(f"request_failed path={self.path[:200]} status={status} message={json.dumps(body['message'])}", flush=True)
        data = json.dumps(body).encode()
        with contextlib.suppress(ConnectionError):  # nobody waits for it any more
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, bridge: Bridge):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), type("RequestsOfBridge", (Requests,), {"bridge": bridge}))


def parsed_listen(text: str) -> Tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        if ipaddress.ip_address(host).is_loopback and 0 <= int(port) <= 65535:
            return host, int(port)
    except ValueError:
        pass
    raise ValueError(f"--listen {text}: expected HOST:PORT at an address of this host, such as 127.0.0.1:19730: who can reach it can change "
                     "the weights")


def main() -> int:
    parser = argparse.ArgumentParser(prog="seer_checkpoint_engine", description="Passes weights from checkpoint-engine to `seer serve`.")
    parser.add_argument("--server", required=True, help="HOST:PORT or URL of seer serve")
    parser.add_argument("--listen", default="127.0.0.1:19730", help="address of this host for checkpoint-engine's --endpoint (default: %(default)s)")
    parser.add_argument("--mode", choices=["abort", "retract", "drain"], default="abort", help="what happens to running requests (default: %(default)s)")
    parser.add_argument("--token-file", help="of the server")
    parser.add_argument("--tls-ca", help="certificates to trust, for a server with https")
    options = parser.parse_args()
    try:
        host, port = parsed_listen(options.listen)
        parse_address(options.server, options.tls_ca is not None)
        bridge = Bridge(options.server, read_token_option(options.token_file), options.tls_ca, options.mode)
    except ValueError as error:
        print(f"seer_checkpoint_engine: {error}", file=sys.stderr)
        return 2
    try:
        listener = Listener(host, port, bridge)
    except OSError as error:
        bridge.close()
        print(f"seer_checkpoint_engine: --listen {options.listen}: {error.strerror or error}", file=sys.stderr)
        return 1
    shown = f"[{host}]" if ":" in host else host
    print(f"seer_checkpoint_engine listens at http://{shown}:{listener.server_port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        listener.serve_forever()
    bridge.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
