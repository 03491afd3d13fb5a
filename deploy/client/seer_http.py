"""HTTP/1.1 to one server, over asyncio: a bounded pool of keep-alive connections, event streams, and retries that repeat nothing.

Used by seer_client and seer_weights_group. An Http belongs to the event loop in which it is used first.

RETRIES    A request is sent again, at most `retries` times, while nothing was done for it: if no connection came about that may come
           about later; and if it may be repeated, also where the connection was reset before an answer began, and where the server is
           full and says "Retry-After".
ENDING     A call that is cancelled closes its connection. The server takes that as the client's going away, and ends the request.
TWO POOLS  Requests for responses may all wait for hours. Control requests have slots of their own and do not queue behind them.
"""
import asyncio
import contextlib
import errno
import json
import operator
import os
import socket
import ssl
import time
import urllib.parse
from typing import Any, AsyncIterator, Dict, List, NamedTuple, Optional

CONNECT_S = 10.0             # for one connection, TLS included
IDLE_S = 30.0                # an older idle connection is not used again: the server closes it after 75 s
HEAD_BYTES_MAX = 64 << 10
ANSWER_BYTES_MAX = 1 << 30
CONTROL_SLOTS = 8
WRITE_BYTES = 1 << 20        # of an upload, handed to the connection at a time
COPY_BYTES = 64 << 10        # a part of an upload that is smaller is copied, and need not have been sent when the next one comes
RETRY_WAIT_S = 0.1           # before the first retry; doubled for each one after it
RETRY_WAIT_S_MAX = 2.0


class SeerError(Exception):
    """What went wrong, in one sentence. Base of all errors of this package."""


class CannotConnect(SeerError):
    """No connection came about: refused, unknown host, no answer, or a certificate that does not fit."""


class ConnectionLost(SeerError):
    """The connection ended after the request was sent. Whether the server acted on it is not known."""


class TimedOut(SeerError):
    """There was no answer in time."""


class ClientUnusable(SeerError):
    """This client was closed, or belongs to another event loop or process."""


class BadAnswer(SeerError):
    """What came back is not what `seer serve` answers."""


class Refused(SeerError):
    """The server refuses the request, with this sentence; asking again does not help, but for a NoRoom. `status` is that of HTTP."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class WrongToken(Refused):
    """The token is missing or wrong."""


class NotIdle(Refused):
    """Some requests are not over, and this needs that all are."""


class NoRoom(Refused):
    """The server keeps as much of rollouts as its --kept-bytes allow: acknowledge responses or delete rollouts, then ask again."""


class WeightsRefused(Refused):
    """The weights were not updated; the server goes on with those that it had. `status`: 409 if another update was under way, 408 if the
    next tensor took too long, 400 or 413 if the weights or the request are wrong."""


class ServerFailed(SeerError):
    """The server could not do it. `status` is that of HTTP."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            raise BadAnswer(f"expected JSON, found {self.body[:80]!r}") from None


def error_of(answer: Answer) -> SeerError:
    """For an answer that is not a success: the server's sentence."""
    message = ""
    with contextlib.suppress(ValueError, AttributeError):
        found = json.loads(answer.body)
        message = found["error"]["message"] if "error" in found else found.get("message", "")
    message = message or answer.body.decode(errors="replace").strip() or f"HTTP status {answer.status} without a reason"
    if answer.status == 401:
        return WrongToken(message, 401)
    if answer.status == 429:
        return NoRoom(message, 429)
    return Refused(message, answer.status) if 400 <= answer.status < 500 else ServerFailed(message, answer.status)


class _NothingAnswered(Exception):
    """The connection ended before the first byte of an answer."""


class _Full(Exception):
    """The server has no room for the request, and asks for it again later."""


class _Writer(asyncio.StreamWriter):
    """In a forked process it closes nothing when it is forgotten: that would stop the parent's loop, which has the same epoll, from
    hearing of the connection."""

    def __init__(self, *args):
        super().__init__(*args)
        self._process = os.getpid()

    def __del__(self):
        if os.getpid() == self._process and hasattr(asyncio.StreamWriter, "__del__"):
            super().__del__()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader, self.writer = reader, writer
        self.idle_since = 0.0
        self.may_be_kept = False  # the last answer was read to its end

    def is_usable(self) -> bool:
        return time.monotonic() - self.idle_since < IDLE_S and not self.reader.at_eof() and not self.writer.is_closing()

    def close(self) -> None:
        self.writer.transport.abort()  # nothing is left to be written

    async def read_head(self):
        """Status and headers; the names of headers are in lower case."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ConnectionLost("the connection ended in the head of the answer") from None
            raise _NothingAnswered("the server closed the connection") from None
        except OSError as error:
            raise _NothingAnswered(str(error)) from None
        except asyncio.LimitOverrunError:
            raise BadAnswer(f"the head of the answer has more than {HEAD_BYTES_MAX} bytes") from None
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if not first.startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit():
            raise BadAnswer(f"expected an HTTP/1.1 answer, found {first[:80]!r}")
        headers = {}
        for line in filter(None, lines):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return int(words[1]), headers

    async def read_body(self, headers: Dict[str, str]) -> AsyncIterator[bytes]:
        """Its parts, as they come."""
        try:
            if headers.get("transfer-encoding", "").lower() == "chunked":
                while True:
                    size = int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16)
                    part = (await self.reader.readexactly(size + 2))[:-2]
                    if size == 0:
                        break
                    yield part
            else:
                size = int(headers["content-length"])
                if not 0 <= size <= ANSWER_BYTES_MAX:
                    raise BadAnswer(f"the answer has {size} bytes: expected at most {ANSWER_BYTES_MAX}")
                yield await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError):
            raise ConnectionLost("the connection ended in the middle of the answer") from None
        except (KeyError, ValueError, asyncio.LimitOverrunError):
            raise BadAnswer("the answer says no length") from None
        self.may_be_kept = headers.get("connection", "").lower() != "close"


def read_token(file: Optional[str]) -> Optional[str]:
    """The first line of the file. None: no file, no token."""
    if file is None:
        return None
    with open(file) as lines:
        return lines.readline().strip()


def read_token_option(file: Optional[str]) -> Optional[str]:
    """The same for the option --token-file of a program. Errors: ValueError, with the option."""
    try:
        return read_token(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--token-file {file}: {getattr(error, 'strerror', None) or error}") from None


def keep_alive(connection: socket.socket) -> None:
    """A response may take hours, in which a host that is gone says nothing."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 8)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Upload:
    """A request whose body is sent part by part, on a connection of its own. Closed before finish() has returned, the body never ends,
    and the server forgets it."""

    def __init__(self, connection: _Connection, what: str, part_s: float):
        self._connection, self._what, self._part_s = connection, what, part_s
        self._undrained_bytes = 0
        # drain() waits until nothing is left, since the connection may keep views of what it is given.
        connection.writer.transport.set_write_buffer_limits(high=1, low=0)
        self._answer = asyncio.ensure_future(self._read_answer())  # the server may refuse before the body ends

    async def send(self, part) -> bool:
        """Any bytes, which the caller may change afterwards. False: the server has answered already, so finish() is next."""
        await self._look()
        view = memoryview(part).cast("B")
        size = b"%x\r\n" % view.nbytes
        if 0 < view.nbytes <= COPY_BYTES:  # an empty chunk would end the body
            self._write(size + view + b"\r\n")
            if self._undrained_bytes >= WRITE_BYTES:
                await self._drain()
        elif view.nbytes > 0:
            self._write(size)
            for begin in range(0, view.nbytes, WRITE_BYTES):
                await self._drain()
                self._write(view[begin:begin + WRITE_BYTES])
            self._write(b"\r\n")
            await self._drain()
        return not self._answer.done()

    async def finish(self, timeout_s: float) -> Answer:
        """Ends the body: from here on the server acts on it."""
        await self._look()
        self._write(b"0\r\n\r\n")
        await self._drain()
        return await Http._in_time(self._answer, timeout_s, self._what)

    async def close(self) -> None:
        self._answer.cancel()
        with contextlib.suppress(asyncio.CancelledError, SeerError):
            await self._answer
        self._connection.close()

    async def _look(self) -> None:
        """Reads an answer that came while the caller made the next part: a write to a connection that has ended would lose it."""
        await asyncio.wait([self._answer], timeout=0)

    def _write(self, data) -> None:
        if not self._answer.done():
            self._connection.writer.write(data)
            self._undrained_bytes += len(data)

    async def _drain(self) -> None:
        self._undrained_bytes = 0
        with contextlib.suppress(ConnectionError):  # an answer may be there to be read all the same
            await Http._in_time(self._connection.writer.drain(), self._part_s, self._what)

    async def _read_answer(self) -> Answer:
        try:
            status, headers = await self._connection.read_head()
        except _NothingAnswered as error:
            raise ConnectionLost(f"{self._what}: {error} before it answered") from None
        return Answer(status, b"".join([part async for part in self._connection.read_body(headers)]))


class Address(NamedTuple):
    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.host_port}"

    @property
    def host_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, wants_tls: bool) -> Address:
    wrong = ValueError(f"address {text!r}: expected HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    if not isinstance(text, str):
        raise wrong
    has_scheme = "://" in text
    try:
        parts = urllib.parse.urlsplit(text if has_scheme else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if not host or not port or parts.path not in ("", "/") or parts.query or parts.username is not None:
        raise wrong
    if has_scheme and parts.scheme not in ("http", "https"):
        raise wrong
    if parts.scheme == "http" and wants_tls:
        raise ValueError(f"address {text!r}: expected https, since tls_ca is given")
    return Address(host, port, parts.scheme == "https" or wants_tls)


def _checked_count(value: Any, name: str, least: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}: expected an integer") from None
    if count < least:
        raise ValueError(f"{name} is {count}: expected at least {least}")
    return count


def _checked_token(token: Any) -> Optional[str]:
    if token is None:
        return None
    if not isinstance(token, str):
        raise ValueError(f"the token is a {type(token).__name__}: expected text")
    text = token.strip()
    if not (text.isascii() and text.isprintable() and text):
        raise ValueError("the token is empty or has characters that HTTP cannot carry")
    return text


def _trusting(tls_ca: Optional[str]) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=tls_ca)
    except (OSError, TypeError) as error:  # ssl.SSLError is an OSError
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else error
        raise ValueError(f"tls_ca {tls_ca!r}: expected a PEM file with certificates: {reason}") from None


def _let_go(connecting: "asyncio.Future[_Connection]") -> None:
    """Of a connection that nobody waits for."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


def _is_not_there(error: BaseException) -> bool:
    """Of connecting: the server, or its host, may be there later."""
    is_away = isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
    return is_away or isinstance(error, (ConnectionRefusedError, ConnectionResetError, TimeoutError))


class Http:
    def __init__(self, address: str, token: Optional[str], tls_ca: Optional[str], connections_max: int, retries: int):
        self._connections_max, self._retries = _checked_count(connections_max, "connections_max", 1), _checked_count(retries, "retries", 0)
        self._token = _checked_token(token)
        self.address = parse_address(address, tls_ca is not None)
        self._tls = _trusting(tls_ca) if self.address.is_tls else None
        self._idle: List[_Connection] = []
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._is_closed = False

    async def call(self, method: str, path: str, body=None, *, timeout_s: float, is_control: bool = False, may_repeat: bool = True) -> Answer:
        """One request and its whole answer, whatever its status. `body` is sent as JSON, bytes as they are."""
        async def whole() -> Answer:
            async with self._asked(method, path, body, may_repeat) as (connection, status, headers):
                parts = [part async for part in connection.read_body(headers)]
                return Answer(status, b"".join(parts))
        async with self._slot(is_control):  # waiting for one does not count
            return await self._in_time(whole(), timeout_s, f"{method} {path}")

    async def events(self, path: str, body, *, timeout_s: float) -> AsyncIterator[bytes]:
        """The data of each event of the stream that a POST answers with. `timeout_s` is for one event."""
        events = self.pieces("POST", path, body, "text/event-stream", b"\n\n", timeout_s=timeout_s)
        try:
            async for event in events:
                if event.startswith(b"data: "):
                    yield event[6:]
        finally:
            await events.aclose()

    async def pieces(self, method: str, path: str, body, kind: str, end: bytes, *, timeout_s: float,
                     is_control: bool = False) -> AsyncIterator[bytes]:
        """The pieces of the stream of this content type that a request answers with, each of which ends so. `timeout_s` is for one piece."""
        what = f"{method} {path}"
        async with self._slot(is_control), contextlib.AsyncExitStack() as stack:
            asked = stack.enter_async_context(self._asked(method, path, body, True))
            connection, status, headers = await self._in_time(asked, timeout_s, what)
            parts = connection.read_body(headers)
            if status != 200:
                raise error_of(Answer(status, b"".join([part async for part in parts])))
            if not headers.get("content-type", "").startswith(kind):
                raise BadAnswer(f"{what}: expected {kind}, found {headers.get('content-type')!r}")
            unread: List[bytes] = []  # joined only where a piece ends: one may have megabytes
            while True:
                try:
                    part = await self._in_time(parts.__anext__(), timeout_s, what)
                except StopAsyncIteration:
                    break
                before = unread[-1][-len(end):] if unread else b""
                unread.append(part)
                if end in before + part:
                    *pieces, rest = b"".join(unread).split(end)
                    unread = [rest]
                    for piece in pieces:
                        yield piece

    async def upload(self, path: str, *, part_s: float) -> Upload:
        """Begins a POST. `part_s` is for WRITE_BYTES of its body. Not sent again, whatever happens."""
        async with self._slot(True):
            try:
                connection = await self._connection(is_new=True)
            except OSError as error:
                raise CannotConnect(f"cannot connect to {self.address}: {error}") from error
        upload = Upload(connection, f"POST {path}", part_s)
        upload._write(self._head_bytes("POST", path, ["Transfer-Encoding: chunked"]))
        return upload

    async def close(self) -> None:
        self._is_closed = True
        while self._idle:
            connection = self._idle.pop()
            connection.close()
            with contextlib.suppress(OSError):
                await connection.writer.wait_closed()
        await asyncio.sleep(0)  # sockets that were closed just before are let go in the loop's next turn

    # ---- parts -----------------------------------------------------------------------------------------------------------------

    def _slot(self, is_control: bool) -> asyncio.Semaphore:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._slots = asyncio.Semaphore(self._connections_max)
            self._control_slots = asyncio.Semaphore(CONTROL_SLOTS)
        if self._loop is not asyncio.get_running_loop():
            raise ClientUnusable("this client belongs to another event loop: make one for each")
        return self._control_slots if is_control else self._slots

    @staticmethod
    async def _in_time(what, timeout_s: float, name: str):
        # Not with asyncio.wait_for(): before Python 3.12 it forgets that it was cancelled if the result is there by then.
        task = asyncio.ensure_future(what)
        try:
            await asyncio.wait([task], timeout=timeout_s)
            if task.done():
                return task.result()
            raise TimedOut(f"{name}: no answer within {timeout_s:g} s")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # else asyncio warns that nobody asked for it

    @contextlib.asynccontextmanager
    async def _asked(self, method: str, path: str, body, may_repeat: bool):
        """A connection on which the request was sent and the head of its answer was read. It is kept or closed at the end."""
        request = self._request_bytes(method, path, body)
        connection, status, headers = await self._ask(request, may_repeat)
        try:
            yield connection, status, headers
        finally:
            if connection.may_be_kept and not self._is_closed:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.close()

    def _request_bytes(self, method: str, path: str, body) -> bytes:
        try:
            data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ValueError(f"{method} {path}: {error}") from None
        fields = [f"Content-Length: {len(data)}"]
        if data:
            fields.append("Content-Type: application/json")
        return self._head_bytes(method, path, fields) + data

    def _head_bytes(self, method: str, path: str, fields: List[str]) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.address.host_port}", *fields]
        if self._token is not None:
            lines.append(f"Authorization: Bearer {self._token}")
        return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"

    async def _ask(self, request: bytes, may_repeat: bool):
        wait_s = RETRY_WAIT_S
        for tries_left in range(self._retries, -1, -1):
            connection = None
            try:
                # What must not be repeated goes out on a connection that the server cannot have closed for its age.
                connection = await self._connection(is_new=not may_repeat)
                with contextlib.suppress(ConnectionError):  # an answer may be there to be read all the same
                    connection.writer.write(request)
                    await connection.writer.drain()
                connection.may_be_kept = False
                status, headers = await connection.read_head()
                if status == 503 and "retry-after" in headers and may_repeat and tries_left > 0:
                    raise _Full()
                return connection, status, headers
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if tries_left > 0 and ((connection is None and _is_not_there(error)) or (may_repeat and isinstance(error, (_NothingAnswered, _Full)))):
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, RETRY_WAIT_S_MAX)
                elif isinstance(error, _NothingAnswered):
                    raise ConnectionLost(f"{self.address}: {error} before it answered") from None
                elif isinstance(error, OSError):
                    raise CannotConnect(f"cannot connect to {self.address}: {error}") from error
                else:
                    raise

    async def _connection(self, is_new: bool) -> _Connection:
        if self._is_closed:
            raise ClientUnusable("this client was closed")
        while self._idle and not is_new:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        connecting = asyncio.ensure_future(self._connect())
        try:
            await asyncio.wait([connecting], timeout=CONNECT_S)
            if connecting.done():
                return connecting.result()
            raise TimeoutError(f"no answer within {CONNECT_S:g} s")
        except BaseException:
            connecting.cancel()
            connecting.add_done_callback(_let_go)
            raise

    async def _connect(self) -> _Connection:
        """Tries each address of the host, and tells of the last one: the standard library hides what happened if there are two."""
        host, port = self.address.host, self.address.port
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for left, (*_, place) in zip(range(len(infos) - 1, -1, -1), infos):
            try:
                loop = asyncio.get_running_loop()
                reader = asyncio.StreamReader(limit=HEAD_BYTES_MAX, loop=loop)
                protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
                transport, _ = await loop.create_connection(lambda: protocol, place[0], place[1], ssl=self._tls,
                                                            server_hostname=host if self._tls else None)
                keep_alive(transport.get_extra_info("socket"))
                return _Connection(reader, _Writer(transport, protocol, reader, loop))
            except OSError:
                if left == 0:
                    raise
        raise OSError(f"{host} has no address")
