#!/usr/bin/env python3
"""New weights for `seer serve` from a folder, from shared memory and over HTTP: the same bits by each way, bad ones refused whole with the
old ones serving on, clients that are killed while they send. usage: weights.py SEER_PROGRAM"""
import concurrent.futures, itertools, json, os, signal, socket, struct, subprocess, sys, tempfile, textwrap, time, unittest

from served import ENDLESS, LONG, MODEL, PATIENCE_S, ROOT, Served, memories_of, wide
from turned_model import turned_model

sys.path.insert(0, f"{ROOT}/deploy/client")
from seer_client import Client, Refused, WeightsRefused

STREAM = "/seer/v1/weights"
PROMPTS = [[2, 3, 4 + i] for i in range(4)]
SAMPLING = {"max_new_tokens": 40, "temperature": 0}
TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def read_tensors(folder):
    """[name, dtype, shape, data] of each tensor, in the order of the file."""
    with open(f"{folder}/model.safetensors", "rb") as file:
        data = file.read()
    head = int.from_bytes(data[:8], "little")
    table = json.loads(data[8:8 + head])
    table.pop("__metadata__", None)
    return [[name, entry["dtype"], entry["shape"], data[8 + head + entry["data_offsets"][0]:8 + head + entry["data_offsets"][1]]]
            for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"])]


def file_of(tensors, edit=lambda table: None):
    """Safetensors. `edit` may change the table of the header."""
    table, at = {}, 0
    for name, dtype, shape, data in tensors:
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    edit(table)
    head = json.dumps(table).encode()
    return struct.pack("<Q", len(head)) + head + b"".join(data for *_, data in tensors)


def bits_of(served):
    """What the server answers now, with log-probabilities, and which weights it says that it has."""
    answers = served.generate(PROMPTS, sampling_params=SAMPLING)
    versions = {a["meta_info"]["weight_version"] for a in answers}
    assert versions == {served.call("GET", "/get_weight_version")[1]["weight_version"]}, versions
    return [(a["output_ids"], a["meta_info"]["output_token_logprobs"]) for a in answers], versions.pop()


def until(is_so, what, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience_s} s: {what}")
        time.sleep(0.02)


class TwoWeights(unittest.TestCase):
    """The shipped model's weights, `old`, and others, `new` in `folder`, which give the bits `new_bits`."""

    @classmethod
    def setUpClass(cls):
        cls.work = tempfile.TemporaryDirectory()
        cls.folder = turned_model(cls.work.name)
        cls.old, cls.new = read_tensors(MODEL), read_tensors(cls.folder)
        served = Served("--model", cls.folder)
        cls.new_bits = bits_of(served)[0]
        served.stop()

    @classmethod
    def tearDownClass(cls):
        cls.work.cleanup()


class WeightsTest(TwoWeights):
    def setUp(self):
        self.served = Served(*wide())
        self.old_bits, version = bits_of(self.served)
        self.assertEqual(version, "1")
        self.assertNotEqual(self.old_bits, self.new_bits)

    def tearDown(self):
        until(lambda: memories_of(self.served) == 0, "no memory of an upload is left")
        self.assertEqual(self.served.stop(), 0)

    def client(self):
        client = Client(f"127.0.0.1:{self.served.port}")
        self.addCleanup(client.close)
        return client

    def folder_with(self, data):
        folder = tempfile.mkdtemp(dir=self.work.name)
        with open(f"{folder}/model.safetensors", "wb") as file:
            file.write(data)
        return folder

    def in_one_buffer(self):
        """As a trainer that gathers one tensor after the other gives them."""
        buffer = bytearray(max(len(data) for *_, data in self.new))
        for name, dtype, shape, data in self.new:
            buffer[:len(data)] = data
            yield name, dtype, shape, memoryview(buffer)[:len(data)]

    def assertServesOld(self):
        self.assertEqual(bits_of(self.served), (self.old_bits, "1"))

    # ---- each way gives the same weights ---------------------------------------------------------------------------------------

    def test_each_way_gives_the_bits_of_the_folder(self):
        whole = file_of(self.new)
        with open(f"/dev/shm/seer-test-{os.getpid()}.safetensors", "wb") as shared:
            self.addCleanup(os.unlink, shared.name)
            shared.write(whole)
        memory = os.memfd_create("a trainer's")
        self.addCleanup(os.close, memory)
        os.write(memory, whole)
        shm_folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(shm_folder.cleanup)
        with open(f"{shm_folder.name}/model.safetensors", "wb") as file:
            file.write(whole)
        client = self.client()
        disk = lambda path: lambda: self.served.post("/update_weights_from_disk", {"model_path": path})
        send = lambda body: lambda: self.served.post(STREAM, body)
        third = len(self.new) // 3
        several = file_of(self.new[:third]) + file_of(self.new[third:])
        ways = {
            "folder": disk(self.folder), "folder in shared memory": disk(shm_folder.name), "file in shared memory": disk(shared.name),
            "memory of another process": disk(f"/proc/{os.getpid()}/fd/{memory}"),
            "sent whole": send(whole), "sent as two files": send(several), "sent in chunks": send(iter([whole[:5], whole[5:100_000], whole[100_000:]])),
            "client": lambda: client.update_weights_from_tensors(iter(self.new)),
            "client, all tensors in the same memory": lambda: client.update_weights_from_tensors(self.in_one_buffer()),
            "client, in another order": lambda: client.update_weights_from_tensors(reversed(self.new), mode="retract"),
        }
        for i, (way, update) in enumerate(ways.items()):
            with self.subTest(way=way):
                self.served.post("/update_weights_from_disk", {"model_path": MODEL, "weight_version": str(10 * i + 10)})
                update()
                self.assertEqual(bits_of(self.served), (self.new_bits, str(10 * i + 11)))

    def test_versions_are_numbers_that_grow_or_names(self):
        client = self.client()
        self.assertEqual(client.update_weights_from_tensors(self.new, 7), "7")
        self.assertEqual(client.update_weights_from_tensors(self.new, "step-12"), "step-12")
        self.assertEqual(client.update_weights_from_tensors(self.old), "9")
        self.assertEqual(bits_of(self.served), (self.old_bits, "9"))
        for version in (9, 3):
            with self.assertRaises(WeightsRefused) as raised:
                client.update_weights_from_tensors(itertools.repeat(self.new[0]), version)  # refused before all has been sent
            self.assertIn(f"weight version {version}: expected one above 9, which runs", str(raised.exception))

    def test_what_runs_ends_or_starts_again_as_the_mode_says(self):
        client = self.client()
        for mode, sampling, reason, version in (("abort", ENDLESS, "abort", "1"), ("retract", ENDLESS, "abort", "3"), ("drain", LONG, "length", "3")):
            with self.subTest(mode=mode), concurrent.futures.ThreadPoolExecutor(1) as pool:
                answers = []

                def tensors():
                    yield from self.old[:-1]
                    answers.append(pool.submit(self.served.generate, [2, 3], sampling_params=sampling))
                    self.served.until_running(answers)
                    yield self.old[-1]
                client.update_weights_from_tensors(tensors(), mode=mode)
                self.assertEqual(client.abort(all=True), 1 if mode == "retract" else 0)  # what was started again
                meta = answers[0].result()["meta_info"]
                self.assertEqual((meta["finish_reason"]["type"], meta["weight_version"]), (reason, version))

    # ---- what is refused -------------------------------------------------------------------------------------------------------

    def bad_files(self):
        """What is wrong, the file, and what the answer must say."""
        def with_tensor(i, **fields):
            tensors = [list(t) for t in self.new]
            for at, value in fields.items():
                tensors[i][["name", "dtype", "shape", "data"].index(at)] = value
            return tensors
        at = next(i for i, (name, *_) in enumerate(self.new) if name.endswith("down_proj.weight"))
        name, _, shape, data = self.new[at]
        poison = lambda bits: data[:10] + struct.pack("<H", bits) + data[12:]
        whole = file_of(self.new)
        head = int.from_bytes(whole[:8], "little")

        def overlap(table):
            names = sorted(table, key=lambda n: table[n]["data_offsets"])
            for n in names[1:]:
                table[n]["data_offsets"] = [offset - 2 for offset in table[n]["data_offsets"]]
        yield "NaN", file_of(with_tensor(at, data=poison(0x7fc0))), [f"tensor {name} holds nan at [0, 5]", "finite"]
        yield "infinity", file_of(with_tensor(at, data=poison(0xff80))), [f"tensor {name} holds -inf at [0, 5]"]
        yield "a missing tensor", file_of(self.new[:at] + self.new[at + 1:]), [f"tensor {name} of shape {shape} is missing"]
        yield "a wrong shape", file_of(with_tensor(at, shape=shape[::-1])), [f"{name} should have shape {shape}, found {shape[::-1]}"]
        yield "a wrong dtype", file_of(with_tensor(at, dtype="F16")), [f"{name} should have dtype BF16", "found F16"]
        yield "a dtype that nobody knows", file_of(with_tensor(at, dtype="BF17")), [f"tensor {name} has the unknown dtype BF17"]
        yield "another size than the shape's", file_of(with_tensor(at, data=data[:-2])), [f"tensor {name} has data_offsets", f"need {len(data)} bytes"]
        yield "a tensor of another model", file_of(with_tensor(at, name="model.other")), ["tensor"]
        yield "no safetensors", b"PK\x03\x04" + bytes(1000), ["a zip archive, as PyTorch writes, not a safetensors file"]
        yield "text", b"these are no weights, but a sentence of some length", ["not a safetensors file"]
        yield "nothing", b"", ["has 0 bytes: too short for a safetensors file"]
        yield "a header longer than the file", struct.pack("<Q", len(whole)) + whole[8:], [f"the header should have {len(whole)} bytes", "truncated"]
        yield "a header of 2^63 bytes", struct.pack("<Q", 1 << 63) + whole[8:], [f"the header should have {1 << 63} bytes"]
        yield "a header that ends too soon", struct.pack("<Q", head - 20) + whole[8:], ["header"]
        yield "tensors that overlap", file_of(self.new, overlap)[:-2], ["begins at data byte", "inside tensor"]
        yield "a file that was cut short", whole[:-1000], ["it is truncated"]

    def test_bad_weights_are_refused_whole_from_a_folder_and_over_http(self):
        for what, data, sentences in self.bad_files():
            for way in ("folder", "file", "stream"):
                with self.subTest(what=what, way=way):
                    if way == "stream":
                        status, answer = self.served.call("POST", STREAM, data)
                        message = answer["error"]["message"]
                    else:
                        folder = self.folder_with(data)
                        path = folder if way == "folder" else f"{folder}/model.safetensors"
                        status, answer = self.served.call("POST", "/update_weights_from_disk", {"model_path": path})
                        message = answer["message"]
                    self.assertEqual(status, 400, message)
                    for sentence in sentences:
                        self.assertIn(sentence, message)
                    self.assertNotIn("\n", message)
                    self.assertServesOld()
                    self.assertEqual(memories_of(self.served), 0)

    def test_what_only_a_stream_can_have_wrong(self):
        whole = file_of(self.new)
        for what, body, status, sentence in [
                ("a tensor twice", whole + file_of(self.new[:1]), 400, f"upload 1 (file 2) has the tensor {self.new[0][0]}, which came before"),
                ("bytes after the last file", whole + b"rest", 400, "upload 2 (file 2) has 4 bytes: too short for a safetensors file"),
                ("a file without tensors", whole + file_of([]), 400, "upload 3 (file 2) has no tensors"),
                ("the second file cut short", file_of(self.new[:3]) + file_of(self.new[3:])[:-1], 400, "it is truncated")]:
            with self.subTest(what=what):
                found, answer = self.served.call("POST", STREAM, body)
                self.assertEqual(found, status)
                self.assertIn(sentence, answer["error"]["message"])
                self.assertServesOld()
        for query, sentence in [("version=-1", "version is -1: expected a number up to"), ("version=" + "v" * 300, "a name of at most 256 bytes"),
                                ("version=1", "weight version 1: expected one above 1, which runs"), ("version=0", "expected one above 1"),
                                ("silence_s=0", 'silence_s is "0": expected an integer, at least 1 and at most 86400'),
                                ("mode=in_place", 'mode is "in_place": expected abort, retract or drain'),
                                ("weight_version=5", 'the query has "weight_version": expected version, name, mode, silence_s'),
                                ("version=5&name=five", "both version and name: expected one of them")]:
            with self.subTest(query=query):
                found, answer = self.served.call("POST", f"{STREAM}?{query}", whole)
                self.assertEqual(found, 400)
                self.assertIn(sentence, answer["error"]["message"])
        self.assertServesOld()

    def too_large(self):
        """The answer to the head of an upload that is certainly refused."""
        with socket.create_connection(("127.0.0.1", self.served.port), timeout=PATIENCE_S) as connection:
            connection.sendall(f"POST {STREAM} HTTP/1.1\r\nHost: a\r\nContent-Length: {10 ** 12}\r\n\r\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def test_a_body_that_is_too_large_is_refused_before_it_has_come(self):
        sentence = "which the weights of scratchpad-1m8 can take in safetensors files"
        answer = self.too_large()
        self.assertTrue(answer.startswith("HTTP/1.1 413"), answer)
        self.assertIn(sentence, answer)
        sent = 0

        def endless():
            nonlocal sent
            while True:
                sent += 1 << 20
                yield f"tensor {sent}", "F32", [1 << 18], bytes(1 << 20)
        with self.assertRaises(WeightsRefused) as raised:
            self.client().update_weights_from_tensors(endless())
        self.assertEqual(raised.exception.status, 413)
        self.assertIn(sentence, str(raised.exception))
        self.assertLess(sent, 64 << 20)
        self.assertServesOld()

    def test_of_two_updates_at_once_one_is_refused(self):
        client, other = self.client(), self.client()

        def tensors():
            yield from self.new[:3]
            with self.assertRaises(WeightsRefused) as raised:
                other.update_weights_from_tensors(self.new)
            self.assertEqual((raised.exception.status, str(raised.exception)), (409, "another update of the weights is under way"))
            yield from self.new[3:]
        self.assertEqual(client.update_weights_from_tensors(tensors()), "2")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running = pool.submit(self.served.generate, [2, 3], sampling_params=ENDLESS)
            self.served.until_running([running])
            slow = pool.submit(client.update_weights, MODEL, mode="drain")
            until(lambda: self.too_large().startswith("HTTP/1.1 409"), "the update from the folder is under way")
            with self.assertRaises(WeightsRefused) as raised:
                other.update_weights_from_tensors(self.new)
            self.assertEqual(raised.exception.status, 409)
            status, answer = self.served.call("POST", "/update_weights_from_disk", {"model_path": MODEL})
            self.assertEqual((status, answer["message"]), (409, "another update of the weights is under way"))
            self.assertFalse(slow.done())
            self.served.post("/abort_request", {"abort_all": True})
            self.assertEqual(running.result()["meta_info"]["weight_version"], "2")
            self.assertEqual(slow.result(), "3")
        self.assertEqual(bits_of(self.served), (self.old_bits, "3"))

    def test_wrong_arguments_of_the_client_are_refused_here(self):
        client = self.client()
        name, dtype, shape, data = self.new[0]
        for tensor, sentence in [((name, "I8", shape, data), f"tensor {name}: dtype is 'I8'"),
                                 ((name, dtype, shape, data[:-1]), f"tensor {name}: {len(data) - 1} bytes: expected {len(data)} for shape {shape} of BF16")]:
            with self.assertRaises(ValueError) as raised:
                client.update_weights_from_tensors([tensor])
            self.assertIn(sentence, str(raised.exception))
        with self.assertRaises(ValueError):
            client.update_weights_from_tensors([], mode="in_place")
        self.assertServesOld()

    def test_without_the_token_no_weights_are_taken(self):
        with tempfile.NamedTemporaryFile("w") as token:
            token.write("a-token-of-24-characters\n")
            token.flush()
            served = Served("--token-file", token.name)
            try:
                with Client(f"127.0.0.1:{served.port}", "another-token-of-24-chars") as client, self.assertRaises(Refused) as raised:
                    client.update_weights_from_tensors(self.new)
                self.assertEqual(raised.exception.status, 401)
                with Client(f"127.0.0.1:{served.port}", "a-token-of-24-characters") as client:
                    self.assertEqual(client.update_weights_from_tensors(self.new), "2")
            finally:
                served.stop()

    # ---- clients that die ------------------------------------------------------------------------------------------------------

    def killed_after(self, tensors):
        """A process that sends so many tensors, says so, waits, and is killed."""
        program = textwrap.dedent(f"""
            import sys, time
            sys.path[:0] = [{os.path.dirname(os.path.abspath(__file__))!r}, {ROOT + '/deploy/client'!r}]
            from weights import read_tensors
            from seer_client import Client
            def tensors():
                yield from read_tensors({self.folder!r})[:{tensors}]
                print("sent", flush=True)
                time.sleep(1000)
            Client("127.0.0.1:{self.served.port}").update_weights_from_tensors(tensors())""")
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "sent\n")
        until(lambda: memories_of(self.served) == 1, "the server has some of it")
        self.assertServesOld()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        until(lambda: memories_of(self.served) == 0, "what had come is freed")
        self.assertServesOld()

    def test_a_client_killed_while_it_sends_changes_nothing(self):
        self.killed_after(len(self.new) // 2)
        self.assertEqual(self.client().update_weights_from_tensors(self.new), "2")

    def test_a_client_killed_after_all_tensors_and_before_the_end_changes_nothing(self):
        self.killed_after(len(self.new))
        self.assertEqual(self.client().update_weights_from_tensors(self.new), "2")
        self.assertEqual(bits_of(self.served), (self.new_bits, "2"))

    def test_an_error_of_the_trainer_while_it_gives_tensors_changes_nothing(self):
        def tensors():
            yield from self.new
            raise ArithmeticError("of the trainer")
        with self.assertRaises(ArithmeticError):
            self.client().update_weights_from_tensors(tensors())
        until(lambda: memories_of(self.served) == 0, "what had come is freed")
        self.assertServesOld()


if __name__ == "__main__":
    unittest.main()
