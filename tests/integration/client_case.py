"""What the tests of deploy/client share: a server with a client for each class of tests, and what stands in for others on the way."""
import concurrent.futures, contextlib, json, socket, sys, threading, time

from served import PATIENCE_S, ROOT, ServedCase

sys.path.insert(0, f"{ROOT}/deploy/client")
from seer_client import Client


def wait_until(client, what):
    end = time.monotonic() + PATIENCE_S
    while not what(client.load()):
        if time.monotonic() > end:
            raise AssertionError(f"not so in {PATIENCE_S} s: {client.load()}")
        time.sleep(0.01)


def is_idle(load):
    return load.running + load.waiting == 0


def any_rollout(served, rollout_id):
    return served.call("GET", f"/seer/v1/rollouts/{rollout_id}/progress")[0] == 200


FIRST_EVENT = b"\n\n\r\n"  # the end of one, and of its chunk


class Proxy:
    """Passes connections on to a server, but ends the first ones: each entry of `ends` says after how many bytes of an answer, or after
    which bytes in it."""

    def __init__(self, port, ends=(), listen_port=0):
        self.port_behind, self.ends, self.connections = port, list(ends), 0
        self.listener = socket.create_server(("127.0.0.1", listen_port))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.pool = concurrent.futures.ThreadPoolExecutor(32)
        self.pool.submit(self.accept)

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.connections += 1
                self.pool.submit(self.serve, client, self.ends.pop(0) if self.ends else None)

    def serve(self, client, end):
        with client, socket.create_connection(("127.0.0.1", self.port_behind)) as server, contextlib.suppress(OSError):
            self.pool.submit(self.copy, client, server)
            came = b""
            while data := server.recv(65536):
                if end is None:
                    client.sendall(data)
                    continue
                begin, came = len(came), came + data
                last = end if isinstance(end, int) else came.find(end) + len(end) if end in came else len(came) + 1
                client.sendall(came[begin:last])
                if len(came) >= last:
                    return client.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def copy(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.pool.shutdown()


class Refusing:
    """Answers each request with one refusal, as soon as what it has sent ends so, and ends the connection."""

    def __init__(self, status, answer, after=b"\r\n\r\n", fields=b""):
        body = json.dumps(answer).encode()
        self.answer = b"HTTP/1.1 %d Refused\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n" % (status, fields, len(body)) + body
        self.after, self.has_answered, self.connections = after, threading.Event(), 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.accept)
        self.thread.start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.connections += 1
                with client, contextlib.suppress(ConnectionError):
                    came = b""
                    while self.after not in came:
                        came += client.recv(65536)
                    client.sendall(self.answer)
                self.has_answered.set()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


class Token:
    """As an element of a tensor."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class ServedTest(ServedCase):
    """A server and a client for the tests of a class."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = Client(f"127.0.0.1:{cls.served.port}")

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()

    def proxied(self, ends=(), **options):
        """A client behind a proxy, and the proxy."""
        proxy = Proxy(self.served.port, ends)
        self.addCleanup(proxy.close)
        client = Client(proxy.address, **options)
        self.addCleanup(client.close)
        return client, proxy

    def assertSays(self, kind, sentence, call):
        with self.assertRaises(kind) as raised:
            call()
        self.assertIn(sentence, str(raised.exception))
