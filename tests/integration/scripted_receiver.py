"""The receiver of weights that a trainer sends over its group (deploy/client/seer_weights_group.py), as a test wants it: no group, no torch."""
import http.client, json, sys, urllib.parse

from served import ROOT

sys.path.insert(0, f"{ROOT}/deploy/client")
from seer_weights_group import Memory

RECEIVER = "/seer/v1/weights_receiver"
PATIENCE_S = 60


def memory_with(data, seals=True):
    memory = Memory()
    memory.add(data)
    if seals:
        memory.seal()
    return memory


class ScriptedReceiver:
    """Has the stream, and answers as the test says. `memory`: to show the server that it can read such memory; it holds `text`."""

    def __init__(self, served, memory=None, text=""):
        self.served = served
        self.connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_S)
        query = f"?{urllib.parse.urlencode({'memory': memory.path, 'holds': text})}" if memory is not None else ""
        self.connection.request("GET", RECEIVER + query)
        self.stream = self.connection.getresponse()
        self.reads_memory = self.next()["reads_memory"]

    def next(self):
        return json.loads(self.stream.readline())

    def line(self):
        """The next that says something."""
        return next(line for line in iter(self.next, None) if line)

    def answer(self, line, success=True, message="", status=200, **fields):
        return self.served.post(RECEIVER, {"call": line["call"], "success": success, "message": message, **fields}, status)

    def close(self):
        self.stream.close()
        self.connection.close()
