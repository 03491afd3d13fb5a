#!/usr/bin/env python3
"""deploy/client/seer_checkpoint_engine.py with a real `seer serve` and a scripted trainer, which sends what checkpoint-engine's
ParameterServer sends (see stand_ins.md) and shares memory as torch does for tensors of the CPU. Memory of GPUs is not tried here.
Needs python3-zmq, else skipped; with torch, its own pickles are tried too. usage: checkpoint_engine.py SEER_PROGRAM"""
import concurrent.futures, http.client, itertools, json, os, pickle, signal, socket, struct, subprocess, sys, textwrap, unittest

from python_with import run_with

if not run_with("zmq"):
    print("skipped: no Python here has zmq (Debian, Ubuntu: python3-zmq)")
    sys.exit(77)

import zmq

from served import ENDLESS, ROOT, Served, memories_of, wide
from weights import TORCH_DTYPES, TwoWeights, bits_of, read_tensors, until

sys.path.insert(0, f"{ROOT}/deploy/client")
import seer_torch_pickle
from seer_torch_pickle import GivenUp, Tensor, read_message

try:
    import torch
except ImportError:
    torch = None

HERE = os.path.dirname(os.path.abspath(__file__))
REDUCTIONS = "torch.multiprocessing.reductions"
ALIGNED = 256  # bytes, as checkpoint-engine aligns tensors
NUMBERS = itertools.count()


# ---- pickles, made by hand: whatever may come, without torch -------------------------------------------------------------------------

class Name:
    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments


def pickled(value):
    def packed(v):
        if v is None or isinstance(v, bool):
            return {None: b"N", True: b"\x88", False: b"\x89"}[v]
        if isinstance(v, int):
            data = v.to_bytes(9, "little", signed=True)
            return b"\x8a" + bytes([len(data)]) + data
        if isinstance(v, str):
            return b"X" + struct.pack("<I", len(v.encode())) + v.encode()
        if isinstance(v, bytes):
            return b"B" + struct.pack("<I", len(v)) + v
        if isinstance(v, tuple):
            return b"(" + b"".join(map(packed, v)) + b"t"
        if isinstance(v, list):
            return b"](" + b"".join(map(packed, v)) + b"e"
        if isinstance(v, dict):
            return b"}(" + b"".join(packed(part) for item in v.items() for part in item) + b"u"
        if isinstance(v, Name):
            return f"c{v.module}\n{v.name}\n".encode()
        return packed(v.function) + packed(v.arguments) + b"R"
    return b"\x80\x04" + packed(value) + b"."


def size(*sizes):
    return Call(Name("torch", "Size"), sizes)


def shared_buffer(name, buffer_bytes, shape=None, stride=(1,), offset=0, dtype="uint8"):
    """What ForkingPickler makes of torch's reduce_tensor(buffer)."""
    storage = Call(Name(REDUCTIONS, "rebuild_storage_filename"), Name("torch.storage", "UntypedStorage"), b"/tmp/manager.sock", name, buffer_bytes)
    typed = Call(Name(REDUCTIONS, "rebuild_typed_storage"), storage, Name("torch", dtype))
    return (Name(REDUCTIONS, "rebuild_tensor"), (Name("torch", "Tensor"), typed, (offset, shape or size(buffer_bytes), stride, False)))


def device_buffer(**changes):
    """What pickle makes of torch's reduce_tensor(buffer), a buffer on a GPU. `changes`: an argument by its place, as a1=..."""
    arguments = [Name("torch", "Tensor"), size(512), (1,), 0, Name("torch.storage", "TypedStorage"), Name("torch", "uint8"), 1, b"h" * 64, 512, 0, False,
                 b"/torch_1_2_3", 0, b"e" * 64, True]
    for place, value in changes.items():
        arguments[int(place[1:])] = value
    return (Name(REDUCTIONS, "rebuild_cuda_tensor"), tuple(arguments))


def meta_of(tensor, offset):
    name, dtype, shape, _ = tensor
    return {"name": name, "dtype": Name("torch", TORCH_DTYPES.get(dtype, dtype)), "shape": size(*shape), "offset": offset}


# ---- the trainer -------------------------------------------------------------------------------------------------------------------------

class HandMadeBuffer:
    """Shared memory as torch lays it out, and the message that offers it."""

    def __init__(self, buffer_bytes):
        self.name = f"/torch_{os.getpid()}_{next(NUMBERS)}"
        self.file = open(f"/dev/shm{self.name}", "w+b")
        self.file.truncate(64 + buffer_bytes)
        self.message = pickled(shared_buffer(self.name.encode(), buffer_bytes))

    def write(self, at, data):
        os.pwrite(self.file.fileno(), data, 64 + at)

    def close(self):
        self.file.close()
        os.unlink(self.file.name)


class TorchBuffer:
    def __init__(self, buffer_bytes):
        from multiprocessing.reduction import ForkingPickler
        from torch.multiprocessing.reductions import reduce_tensor
        torch.multiprocessing.set_sharing_strategy("file_system")
        self.tensor = torch.zeros(buffer_bytes, dtype=torch.uint8)
        self.message = bytes(ForkingPickler.dumps(reduce_tensor(self.tensor)))

    def write(self, at, data):
        self.tensor[at:at + len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def close(self):
        pass


class Refused(Exception):
    pass


class Trainer:
    """ParameterServer._update_per_bucket for some ranks of one process: each sends all buckets, in step with the others."""

    def __init__(self, tensors, ranks=2, bucket_bytes=1 << 20, make_buffer=HandMadeBuffer):
        self.tensors, self.bucket_bytes = tensors, bucket_bytes
        self.context = zmq.Context()
        self.number = next(NUMBERS)
        self.handles = {f"GPU-{i}": f"ipc://@seer-test-{os.getpid()}-{self.number}-{i}" for i in range(ranks)}
        self.sockets = []
        for path in self.handles.values():
            self.sockets.append(self.context.socket(zmq.REQ))
            self.sockets[-1].setsockopt(zmq.RCVTIMEO, 60_000)
            self.sockets[-1].bind(path)
        self.buffers = [make_buffer(2 * bucket_bytes) for _ in range(ranks)]

    def buckets(self):
        """(tensor, offset) of the tensors of each bucket."""
        bucket, at = [], 0
        for tensor in self.tensors:
            needed = -(-len(tensor[3]) // ALIGNED) * ALIGNED
            if at + needed > self.bucket_bytes:
                yield bucket
                bucket, at = [], 0
            bucket.append((tensor, at))
            at += needed
        yield bucket

    def send_all(self, message):
        for socket_ in self.sockets:
            socket_.send(message)

    def answers(self):
        return [socket_.recv().decode() for socket_ in self.sockets]

    def send(self, on_bucket=lambda i: None):
        """Returns the answers that ParameterServer does not look at: to the last bucket and to the two that follow."""
        for socket_, buffer in zip(self.sockets, self.buffers):
            socket_.send(buffer.message)
        for i, bucket in enumerate(self.buckets()):
            start = i % 2 * self.bucket_bytes
            for tensor, at in bucket:
                for buffer in self.buffers:
                    buffer.write(start + at, tensor[3])
            answers = self.answers()
            if any(answers):
                self.send_all(pickle.dumps(RuntimeError("Some workers failed to update weights")))
                raise Refused(answers)
            on_bucket(i)
            self.send_all(pickled([meta_of(tensor, start + at) for tensor, at in bucket]))
        unseen = self.answers()
        for _ in range(2):
            self.send_all(pickle.dumps(None))
            unseen += self.answers()
        return unseen

    def close(self):
        for buffer in self.buffers:
            buffer.close()
        self.context.destroy(linger=0)


class Bridge:
    """seer_checkpoint_engine.py in a process of its own."""

    def __init__(self, server, *options):
        self.process = subprocess.Popen([sys.executable, f"{ROOT}/deploy/client/seer_checkpoint_engine.py", "--server", server, "--listen", "127.0.0.1:0",
                                         *options], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if "listens at http://127.0.0.1:" not in line:
            raise RuntimeError(f"no ready line but {line!r}")
        self.port = int(line.rpartition(":")[2])

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, json.dumps(body) if isinstance(body, (dict, list)) else body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        return code


def rpc(handles):
    return "/collective_rpc", {"method": "update_weights_from_ipc", "args": [handles], "timeout": 300.0}


class UpdatesTest(TwoWeights):
    def setUp(self):
        self.served = Served(*wide())
        self.bridge = Bridge(f"127.0.0.1:{self.served.port}")
        self.old_bits, _ = bits_of(self.served)
        self.pool = concurrent.futures.ThreadPoolExecutor(4)

    def tearDown(self):
        self.pool.shutdown()
        self.assertEqual(self.bridge.stop(), 0)
        until(lambda: memories_of(self.served) == 0, "no memory of an upload is left")
        self.assertEqual(self.served.stop(), 0)

    def trainer(self, tensors, **options):
        trainer = Trainer(tensors, **options)
        self.addCleanup(trainer.close)
        return trainer

    def update(self, trainer, request=rpc):
        """The answer to the request, once the trainer has sent everything, and what the trainer saw."""
        answer = self.pool.submit(self.bridge.call, "POST", *request(trainer.handles))
        try:
            unseen = trainer.send()
        except Refused as refused:
            unseen = refused
        return answer.result(), unseen

    def assertServesOld(self):
        self.assertEqual(bits_of(self.served), (self.old_bits, "1"))

    def changed(self, i, **fields):
        tensors = [list(tensor) for tensor in self.new]
        for field, value in fields.items():
            tensors[i][["name", "dtype", "shape", "data"].index(field)] = value
        return tensors

    # ---- updates ---------------------------------------------------------------------------------------------------------------

    def test_each_request_gives_the_bits_of_the_folder_and_its_version(self):
        sglang = lambda version: lambda handles: ("/update_weights_from_ipc", {"zmq_handles": handles, "flush_cache": True, **version})
        for request, version in ((rpc, "2"), (sglang({"weight_version": "step-7"}), "step-7"), (sglang({}), "4"), (sglang({"weight_version": 9}), "9")):
            for tensors, bits in ((self.old, self.old_bits), (self.new, self.new_bits)):
                with self.subTest(version=version, is_new=tensors is self.new):
                    if tensors is self.new:
                        (status, answer), unseen = self.update(self.trainer(tensors), request)
                        self.assertEqual((status, answer["weight_version"], answer["success"], answer["results"]), (200, version, True, [None, None]))
                        self.assertEqual(unseen, [""] * 6)
                        self.assertEqual(bits_of(self.served), (bits, version))

    def test_any_size_of_buckets_and_any_number_of_ranks(self):
        largest = max(len(data) for *_, data in self.new)
        for ranks, bucket_bytes in ((1, largest + ALIGNED), (3, 64 << 20)):
            trainer = self.trainer(self.new, ranks=ranks, bucket_bytes=bucket_bytes)
            with self.subTest(ranks=ranks, buckets=len(list(trainer.buckets()))):
                (status, answer), unseen = self.update(trainer)
                self.assertEqual((status, unseen), (200, [""] * 3 * ranks), answer)
                self.assertEqual(bits_of(self.served)[0], self.new_bits)

    @unittest.skipIf(torch is None, "no torch")
    def test_what_torch_itself_shares(self):
        (status, answer), _ = self.update(self.trainer(self.new, make_buffer=TorchBuffer))
        self.assertEqual(status, 200, answer)
        self.assertEqual(bits_of(self.served), (self.new_bits, "2"))

    def test_a_mode_says_what_happens_to_running_requests(self):
        bridge = Bridge(f"127.0.0.1:{self.served.port}", "--mode", "retract")
        self.addCleanup(bridge.stop)
        trainer, running = self.trainer(self.new), []
        last = len(list(trainer.buckets())) - 1

        def begin(bucket):  # late, so that it still runs when all of the weights are there
            if bucket == last:
                running.append(self.pool.submit(self.served.generate, [2, 3], sampling_params=ENDLESS))
                self.served.until_running(running)
        answer = self.pool.submit(bridge.call, "POST", *rpc(trainer.handles))
        trainer.send(begin)
        self.assertEqual(answer.result()[0], 200)
        self.served.post("/abort_request", {"abort_all": True})  # it was started again
        meta = running[0].result()["meta_info"]
        self.assertEqual((meta["finish_reason"]["type"], meta["weight_version"]), ("abort", "2"))

    def test_health_is_that_of_the_server(self):
        self.assertEqual(self.bridge.call("GET", "/health")[0], 200)
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        bridge = Bridge(f"127.0.0.1:{port}")
        self.addCleanup(bridge.stop)
        status, answer = bridge.call("GET", "/health")
        self.assertEqual(status, 502)
        self.assertIn(f"cannot connect to http://127.0.0.1:{port}", answer["message"])

    # ---- what is refused -------------------------------------------------------------------------------------------------------

    def test_weights_that_do_not_fit_are_refused_whole_and_no_rank_is_left_waiting(self):
        at = next(i for i, (name, *_) in enumerate(self.new) if name.endswith("down_proj.weight"))
        name, _, shape, data = self.new[at]
        poison = data[:10] + struct.pack("<H", 0x7fc0) + data[12:]
        for what, tensors, sentence in [
                ("a missing tensor", self.new[:at] + self.new[at + 1:], f"tensor {name} of shape {shape} is missing"),
                ("NaN", self.changed(at, data=poison), f"tensor {name} holds nan at [0, 5]"),
                ("a wrong shape", self.changed(at, shape=shape[::-1]), f"{name} should have shape {shape}"),
                ("fp8", self.changed(at, dtype="float8_e4m3fn", shape=[len(data)]), f"tensor {name}: dtype is float8_e4m3fn: expected one of bfloat16"),
                ("more than the buffer", self.changed(at, shape=[shape[0] * 4096, shape[1]]), f"tensor {name} has bytes")]:
            with self.subTest(what=what):
                (status, answer), seen = self.update(self.trainer(tensors))
                self.assertEqual((status, answer["success"]), (400, False))
                self.assertIn(sentence, answer["message"])
                answers = seen.args[0] if isinstance(seen, Refused) else seen
                self.assertTrue(any(sentence in text for text in answers), answers)
                self.assertServesOld()
        (status, answer), _ = self.update(self.trainer(self.new))
        self.assertEqual((status, answer["weight_version"]), (200, "5"), answer)  # three of those before came to the server: 2 to 4

    def test_a_number_that_is_over_is_a_name_since_a_trainer_counts_anew_when_it_starts_again(self):
        (status, answer), _ = self.update(self.trainer(self.new), lambda handles: ("/update_weights_from_ipc", {"zmq_handles": handles, "weight_version": 1}))
        self.assertEqual((status, answer["weight_version"]), (200, "1"), answer)
        self.assertEqual(bits_of(self.served), (self.new_bits, "1"))

    def test_bad_requests(self):
        path = {"GPU-0": "ipc://@nobody"}
        for where, body, sentence in [
                ("/collective_rpc", "{", "the body is no JSON object"),
                ("/collective_rpc", [], "the body is no JSON object"),
                ("/collective_rpc", "[" * 100_000, "the body is no JSON object"),
                ("/collective_rpc", {"method": "sleep", "args": []}, "method is 'sleep': expected 'update_weights_from_ipc'"),
                ("/collective_rpc", {"method": "update_weights_from_ipc", "args": []}, "args is no list of one object"),
                ("/collective_rpc", {"method": "update_weights_from_ipc", "args": [path], "kwargs": {"a": 1}}, "args is no list of one object"),
                ("/collective_rpc", {"method": "update_weights_from_ipc", "args": [{}]}, "expected an object with one for each of 1 to 1024 devices"),
                ("/update_weights_from_ipc", {"zmq_handles": {"GPU-0": "tcp://10.0.0.1:80"}}, "expected one that begins with ipc://"),
                ("/update_weights_from_ipc", {"zmq_handles": {"GPU-0": 7}}, "the ZMQ path of GPU-0 is '7'"),
                ("/update_weights_from_ipc", {"zmq_handles": {"GPU-0": "ipc://" + "a" * 5000}}, "cannot use the ZMQ path"),
                ("/update_weights_from_ipc", {"zmq_handles": path, "weight_version": [1]}, "weight_version is '[1]'"),
                ("/update_weights_from_ipc", " " * (2 << 20), "Content-Length is '2097152': expected at most 1048576")]:
            with self.subTest(body=str(body)[:80]):
                status, answer = self.bridge.call("POST", where, body)
                self.assertEqual((status, answer["success"]), (400, False), answer)
                self.assertIn(sentence, answer["message"])
        self.assertEqual(self.bridge.call("POST", "/generate", {})[0], 404)
        self.assertServesOld()

    def test_pickles_that_would_run_something_run_nothing(self):
        proof = f"{self.work.name}/it-ran"
        for what, message, sentence in [
                ("a function", Call(Name("os", "system"), f"touch {proof}"), "the message names os.system"),
                ("a function of torch", Call(Name("torch", "load"), proof), "the message names torch.load"),
                ("an attribute", (Name("torch.multiprocessing.reductions", "os.system"), ()), "the message names torch.multiprocessing.reductions.os.system"),
                ("a file of another name", shared_buffer(b"/../../etc/passwd", 100), "expected a name that torch makes"),
                ("a file that is not there", shared_buffer(b"/torch_0_0", 100), "cannot open the shared memory /torch_0_0"),
                ("tensors first", [], "sent list while offering"),
                ("None first", None, "sent NoneType while offering")]:
            with self.subTest(what=what):
                trainer = self.trainer(self.new, ranks=1)
                trainer.buffers[0].message = pickled(message)
                (status, answer), seen = self.update(trainer)
                self.assertEqual(status, 400)
                self.assertIn(sentence, answer["message"])
                self.assertIn(sentence, seen.args[0][0])
                self.assertFalse(os.path.exists(proof))
                self.assertServesOld()

    def test_an_address_that_others_reach_is_refused(self):
        for address in ("0.0.0.0:19730", "10.1.2.3:19730", "19730", "[::]:0", "127.0.0.1:99999"):
            ran = subprocess.run([sys.executable, f"{ROOT}/deploy/client/seer_checkpoint_engine.py", "--server", "127.0.0.1:1", "--listen", address],
                                 capture_output=True, text=True, timeout=60)
            self.assertEqual(ran.returncode, 2)
            self.assertIn(f"--listen {address}: expected HOST:PORT at an address of this host", ran.stderr)

    def test_what_is_wrong_at_the_start_is_said_with_its_option(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            for options, code, sentence in [
                    (["--server", "127.0.0.1:1", "--listen", address], 1, f"--listen {address}: Address already in use"),
                    (["--server", "127.0.0.1:1", "--token-file", "/nowhere"], 2, "--token-file /nowhere: No such file or directory"),
                    (["--server", "nowhere"], 2, "address 'nowhere': expected HOST:PORT")]:
                with self.subTest(sentence=sentence):
                    ran = subprocess.run([sys.executable, f"{ROOT}/deploy/client/seer_checkpoint_engine.py", *options], capture_output=True, text=True, timeout=60)
                    self.assertEqual((ran.returncode, ran.stderr.count("\n")), (code, 1), ran.stderr)
                    self.assertIn(f"seer_checkpoint_engine: {sentence}", ran.stderr)

    def test_of_two_updates_at_once_one_is_refused(self):
        trainer, other = self.trainer(self.new), self.trainer(self.old)
        answer = self.pool.submit(self.bridge.call, "POST", *rpc(trainer.handles))

        def second(bucket):
            if bucket == 1:
                self.assertEqual(self.bridge.call("POST", *rpc(other.handles)),
                                 (409, {"success": False, "message": "another update of the weights is under way"}))
        trainer.send(second)
        self.assertEqual(answer.result()[0], 200)
        self.assertEqual(bits_of(self.served), (self.new_bits, "2"))

    # ---- what dies -------------------------------------------------------------------------------------------------------------

    def test_a_trainer_killed_in_the_middle_changes_nothing(self):
        program = textwrap.dedent(f"""
            import os, sys, threading, time
            sys.path.insert(0, {HERE!r})
            from checkpoint_engine import Bridge, Trainer, read_tensors, rpc
            trainer = Trainer(read_tensors({self.folder!r}))
            bridge = Bridge.__new__(Bridge)
            bridge.port = {self.bridge.port}
            threading.Thread(target=bridge.call, args=("POST", *rpc(trainer.handles)), daemon=True).start()
            def wait(bucket):
                if bucket == 2:
                    print(*(buffer.name for buffer in trainer.buffers), flush=True)
                    time.sleep(1000)
            trainer.send(wait)""")
        trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        names = trainer.stdout.readline().split()
        self.assertEqual(len(names), 2)
        until(lambda: memories_of(self.served) == 1, "the server has some of it")
        self.assertServesOld()
        trainer.kill()
        trainer.wait()
        trainer.stdout.close()
        for name in names:
            os.unlink(f"/dev/shm{name}")
        until(lambda: memories_of(self.served) == 0, "what had come is freed")
        self.assertServesOld()
        (status, answer), _ = self.update(self.trainer(self.new))
        self.assertEqual(status, 200, answer)
        self.assertEqual(bits_of(self.served), (self.new_bits, "2"))

    def test_a_server_killed_in_the_middle_is_told_to_the_trainer(self):
        served = Served()
        bridge = Bridge(f"127.0.0.1:{served.port}")
        self.addCleanup(bridge.stop)
        trainer = self.trainer(self.new)
        answer = self.pool.submit(bridge.call, "POST", *rpc(trainer.handles))
        with self.assertRaises(Refused):
            trainer.send(lambda bucket: served.kill() if bucket == 2 else None)
        self.assertEqual(answer.result()[0], 502)


class MessagesTest(unittest.TestCase):
    def test_tensors_the_end_and_giving_up(self):
        meta = {"name": "a", "dtype": Name("torch", "bfloat16"), "shape": size(2, 3), "offset": 256}
        self.assertEqual(read_message(pickled([meta])), [Tensor("a", "bfloat16", (2, 3), 256, 268)])
        self.assertEqual(read_message(pickled([{**meta, "shape": [2, 3]}])), [Tensor("a", "bfloat16", (2, 3), 256, 268)])
        self.assertIsNone(read_message(pickle.dumps(None)))
        self.assertEqual(read_message(pickle.dumps(RuntimeError("no"))), GivenUp("no"))
        shared = ()
        for _ in range(100):  # as text it has 2**100 pairs
            shared = (shared, shared)
        self.assertLess(len(read_message(pickle.dumps(RuntimeError(shared))).reason), 1000)

    def test_the_handle_of_memory_of_a_gpu(self):
        memory = read_message(pickled(device_buffer()))
        self.assertEqual((memory.buffer_bytes, memory.arguments[6], memory.arguments[0], memory.arguments[5]), (512, 1, "torch.Tensor", "torch.uint8"))
        for changes, sentence in [({"a0": Name("torch", "uint8")}, "argument 0 of rebuild_cuda_tensor is torch.uint8: expected torch.Tensor"),
                                  ({"a5": Name("torch", "float32")}, "argument 5 of rebuild_cuda_tensor is torch.float32: expected torch.uint8"),
                                  ({"a6": "cuda:0"}, "argument 6 of rebuild_cuda_tensor is 'cuda:0': expected int"),
                                  ({"a6": -1}, "argument 6"), ({"a6": True}, "argument 6"), ({"a7": None}, "argument 7"),
                                  ({"a1": (512, 1)}, "expected one dimension"), ({"a2": (2,)}, "expected one dimension")]:
            self.assert_refused(pickled(device_buffer(**changes)), sentence)
        function, arguments = device_buffer()
        self.assert_refused(pickled((function, arguments[:14])), "rebuild_cuda_tensor has 14 arguments: expected 15")

    def assert_refused(self, data, sentence):
        with self.assertRaises(ValueError) as raised:
            read_message(data)
        self.assertIn(sentence, str(raised.exception))
        self.assertLess(len(str(raised.exception)), 1000)

    def test_what_is_no_message(self):
        tensor = {"name": "a", "dtype": Name("torch", "bfloat16"), "shape": size(2), "offset": 0}
        deep = b"\x80\x04" + b"(" * 100_000 + b"t" * 100_000 + b"."
        doubled = pickled([tensor])[:-1] + b"\x94" + b"h\x00h\x00\x86\x94"
        for i in range(1, 60):  # each a pair of the one before
            doubled += b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86\x94"
        for data, sentence in [
                (b"", "no pickle"), (b"text", "pickle"), (pickled(7), "the message is 7"), (pickled("text"), "the message is 'text'"),
                (pickled((1, 2, 3)), "expected the handle that torch's reduce_tensor makes"), (pickled(["a"]), "a bucket has 'a'"),
                (pickled([{**tensor, "dtype": "bfloat16"}]), "tensor a: dtype is 'bfloat16'"),
                (pickled([{**tensor, "dtype": Name("torch", "int8")}]), "tensor a: dtype is int8: expected one of bfloat16, float16, float32"),
                (pickled([{**tensor, "offset": -1}]), "tensor a: offset is -1"), (pickled([{**tensor, "shape": size(-1)}]), "a shape is (-1,)"),
                (pickled([{**tensor, "shape": None}]), "tensor a: shape is None"),
                (pickled(shared_buffer(b"/torch_1", 100, shape=size(101))), "has bytes 0 to 101 of memory of 100"),
                (pickled(shared_buffer(b"/torch_1", 100, offset=1)), "expected to begin at 0"),
                (pickled(shared_buffer(b"/torch_1", 100, stride=(0,))), "expected one dimension"),
                (pickled(shared_buffer(b"/torch_1", 100, dtype="float32")), "the buffer has elements of"),
                (pickled((Name(REDUCTIONS, "rebuild_tensor"), (1, 2, 3))), "expected shared memory by the name of a file"),
                (pickled(Call(Name("torch", "Tensor"))), "no pickle of checkpoint-engine"),
                (b"\x80\x04r\xff\xff\xff\xff.", "the pickle instruction LONG_BINPUT"), (b"\x80\x04N}b.", "the pickle instruction BUILD"),
                (b"\x80\x04\x82\x01.", "the pickle instruction EXT1"), (deep, ""), (doubled + b".", ""),
                (bytes(seer_torch_pickle.MESSAGE_BYTES_MAX + 1), "expected at most")]:
            with self.subTest(sentence=sentence, begin=data[:40]):
                self.assert_refused(data, sentence)


if __name__ == "__main__":
    unittest.main()
