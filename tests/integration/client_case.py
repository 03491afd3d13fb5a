"""What the tests of deploy/client share: a server with a client for each class of tests, and what stands in for others on the way."""
import concurrent.futures, contextlib, json, socket, sys, threading

from served import ROOT, ServedCase

sys.path.insert(0, f"{ROOT}/deploy/client")
from seer_client import Client


def wait_until(client, what):
    for _ in range(2000):
        if what(client.load()):
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"not so in time: {client.load()}")


def is_idle(load):
    return load.running + load.waiting == 0


def any_rollout(served, rollout_id):
    return served.call("GET", f"/seer/v1/rollouts/{rollout_id}/progress")[0] == 200


class Proxy:
    """Passes connections on to a server, but ends the first ones: each entry of `ends` says after how many bytes of an answer."""

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
            passed = 0
            while data := server.recv(65536):
                part = data if end is None else data[:end - passed]
                client.sendall(part)
                passed += len(part)
                if passed == end:
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
