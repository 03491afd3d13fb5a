"""Runs `seer serve` in a child process, for the tests that talk to it. The first argument of a test may be the program."""
import atexit, contextlib, faulthandler, functools, http.client, json, os, re, shutil, signal, subprocess, sys, tempfile, time, unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
MODEL = f"{ROOT}/deploy/models/scratchpad-1m8"
SEER = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else f"{ROOT}/build/release/bin/seer"
MACHINE = ["--threads-per-instance", "1", "--kv-bytes", "16MiB", "--dram-bytes", "64MiB"]
PATIENCE_S = 60  # far longer than what is waited for, so that a machine that stands still for seconds fails no test

# What must still run when a test looks. Only a server with the options of wide() has room for it. Temperature 5 makes drafts useless.
ENDLESS = {"max_new_tokens": 30_000, "ignore_eos": True, "temperature": 5}  # half a minute: the test ends it
LONG = {"max_new_tokens": 8000, "ignore_eos": True, "temperature": 5}  # 1.5 s: it ends by itself

ENDLESS_LINE, LONG_LINE = ({"max_tokens": p["max_new_tokens"], "ignore_eos": True, "temperature": 5} for p in (ENDLESS, LONG))  # of prompt lines


@functools.cache
def wide_model():
    """A copy of the shipped model, under the same name and with the same bits, for prompts and responses of 32768 tokens together."""
    folder = tempfile.TemporaryDirectory(prefix="seer-wide-")
    atexit.register(folder.cleanup)
    copy = f"{folder.name}/{os.path.basename(MODEL)}"
    shutil.copytree(MODEL, copy)
    with open(f"{copy}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    with open(f"{copy}/config.json", "w", encoding="utf-8") as file:
        json.dump({**config, "max_position_embeddings": 32768}, file)
    return copy


def wide():
    """Options of a server for ENDLESS and LONG requests."""
    return ["--model", wide_model(), "--kv-bytes", "64MiB"]


def on_alarm(*_):
    faulthandler.dump_traceback(all_threads=True)
    raise TimeoutError("the tests take too long: see where each thread was")


# ctest would end a test that hangs without a word.
signal.signal(signal.SIGALRM, on_alarm)
signal.alarm(int(os.environ.get("SEER_TEST_S", 300)) - 20)


def end_of(process):
    """Waits until the process has ended. Returns what it has logged, if nobody has read that."""
    process.wait(timeout=60)
    process.stdout.close()
    if process.stderr.closed:
        return ""
    os.set_blocking(process.stderr.fileno(), False)  # a child of the process may have it too
    with process.stderr, contextlib.suppress(BlockingIOError):
        return os.read(process.stderr.fileno(), 1 << 20).decode(errors="replace")
    return ""


class Served:
    """A server of its own."""

    def __init__(self, *options):
        defaults = ["--model", MODEL, "--listen", "127.0.0.1:0", "--instances", "2", *MACHINE]
        kept = [text for i in range(0, len(defaults), 2) if defaults[i] not in options for text in defaults[i:i + 2]]
        self.process = subprocess.Popen([SEER, "serve", *kept, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # should the test fail before it ends the server
        line = self.process.stdout.readline()
        match = re.match(r"seer serves \S+ at (https?)://127\.0\.0\.1:(\d+)$", line)
        if not match:
            raise RuntimeError(f"no ready line but {line!r}: {self.process.stderr.read()}")
        self.port = int(match[2])

    def stop(self):
        """Returns the exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        end_of(self.process)
        return self.process.returncode

    def kill(self):
        """Returns its log."""
        self.process.kill()
        return end_of(self.process)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def call(self, method, path, body=None, headers={}):
        """Status and answer, parsed where it is JSON."""
        connection = self.connect()
        try:
            connection.request(method, path, json.dumps(body) if isinstance(body, (dict, list)) else body, headers)
            answer = connection.getresponse()
            data = answer.read().decode()
            return answer.status, json.loads(data) if answer.getheader("Content-Type") == "application/json" else data
        finally:
            connection.close()

    def post(self, path, body={}, status=200):
        found, answer = self.call("POST", path, body)
        if found != status:
            raise AssertionError(f"{path}: {found} {answer}")
        return answer

    def generate(self, input_ids, **fields):
        return self.post("/generate", {"input_ids": input_ids, "return_logprob": True, **fields})

    def load(self):
        return self.call("GET", "/v1/loads?include=core")[1]["loads"][0]

    def wait_until(self, what):
        end = time.monotonic() + PATIENCE_S
        while not what(self.load()):
            if time.monotonic() > end:
                raise AssertionError(f"not so in {PATIENCE_S} s: {self.load()}")
            time.sleep(0.01)

    def until_running(self, answers):
        """Until all of these run, or have run: they may end by themselves."""
        # In this order none counts twice.
        self.wait_until(lambda _: sum(answer.done() for answer in answers) + self.load()["num_running_reqs"] >= len(answers))

    def is_updating(self):
        return self.call("GET", "/seer/v1/status")[1]["is_updating"]

    def made(self):
        """Tokens that the instances have made, as they tell every second or so."""
        return sum(instance["output_tokens"] for instance in self.call("GET", "/seer/v1/status")[1]["instances"])

    def until_made(self, tokens):
        self.wait_until(lambda _: self.made() >= tokens)


def memories_of(served):
    """Uploads of weights that a process (`process`) keeps."""
    found = 0
    for fd in os.listdir(f"/proc/{served.process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += "memfd:seer-weights" in os.readlink(f"/proc/{served.process.pid}/fd/{fd}")
    with open(f"/proc/{served.process.pid}/maps", encoding="utf-8") as maps:
        return found + sum("memfd:seer-weights" in line for line in maps)


class ServedCase(unittest.TestCase):
    """A server for the tests of a class, which must end in order."""
    options = []
    is_wide = False  # it takes ENDLESS and LONG requests

    @classmethod
    def setUpClass(cls):
        cls.served = Served(*(wide() if cls.is_wide else []), *cls.options)

    @classmethod
    def tearDownClass(cls):
        code = cls.served.stop()
        if code != 0:
            raise AssertionError(f"exit code {code}")
