#!/usr/bin/env python3
"""`seer serve --cluster`: a server before machines of their own gives the responses of `seer rollout`, bit for bit, while machines
come, die and change their weights, and the controller dies and returns. Usage: serve_cluster.py [SEER]"""
import atexit, concurrent.futures, contextlib, json, os, pathlib, re, shutil, signal, socket, subprocess, sys, tempfile, time, unittest

from scripted_receiver import ScriptedReceiver, memory_with
from served import MACHINE, MODEL, ROOT, SEER, Served, end_of, memories_of
from turned_model import turned_model

PROMPTS = f"{ROOT}/deploy/examples/scratchpad/prompts.jsonl"
SAMPLING = {"max_new_tokens": 400, "temperature": 1.0, "top_p": 0.98, "custom_params": {"return_top_p_token_ids": True}}
PATIENCE_S = 60


class Machine:
    """A `seer node`: the controller alone, or a machine with one instance."""

    def __init__(self, *options, port=0):
        self.process = subprocess.Popen([SEER, "node", "--model", MODEL, "--listen", f"127.0.0.1:{port}", *options], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        atexit.register(self.process.kill)  # as in served.py
        line = self.process.stdout.readline()
        match = re.search(r" at 127\.0\.0\.1:(\d+)$", line)
        if not match:
            raise RuntimeError(f"no ready line but {line!r}: {self.process.stderr.read()}")
        self.port = int(match[1])

    def end(self, how=signal.SIGTERM):
        """Returns its log."""
        self.process.send_signal(how)
        self.process.send_signal(signal.SIGCONT)  # it may be held
        return end_of(self.process)


def until(is_so, what):
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.05)


def open_text(path):
    return pathlib.Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""


def exact(answer):
    return answer["output_ids"], *(answer["meta_info"][name] for name in ("output_token_logprobs", "top_p_token_ids", "top_p_token_offsets"))


class ServeClusterTest(unittest.TestCase):
    def setUp(self):
        self.controller = Machine("--instances", "0")
        self.controller_port = self.controller.port
        self.machines = {}
        for name in (1, 2):
            self.add(name)
        self.until_machines(2)
        self.served = Served("--cluster", f"127.0.0.1:{self.controller_port}")

    def run(self, result=None):
        self.result = result
        return super().run(result)

    def tearDown(self):
        logs = {"server": self.served.kill(), "controller": self.controller.end(), **{name: machine.end() for name, machine in self.machines.items()}}
        if any(test is self for test, _ in self.result.failures + self.result.errors):
            for name, log in logs.items():
                print(f"---- log of {name}\n{log}", file=sys.stderr)

    def add(self, name, *options):
        self.machines[name] = Machine("--name", str(name), "--join", f"127.0.0.1:{self.controller_port}", "--instances", "1", *MACHINE, *options)

    def status(self):
        text = subprocess.run([SEER, "status", "--cluster", f"127.0.0.1:{self.controller_port}", "--json"], capture_output=True, text=True).stdout
        return json.loads(text) if text else {"nodes": []}

    def until_machines(self, count):
        until(lambda: len(self.status()["nodes"]) == count, f"{count} machines in the cluster: {self.status()}")

    def ask_all(self, count=24):
        """As many answers at once, of a process each."""
        with open(PROMPTS, encoding="utf-8") as lines:
            prompts = [json.loads(line)["prompt"] for line, _ in zip(lines, range(count))]

        def ask(i):
            return self.served.post("/generate", {"text": prompts[i], "return_logprob": True, "sampling_params": {**SAMPLING, "sampling_seed": i}})
        self.pool = concurrent.futures.ThreadPoolExecutor(count)
        return [self.pool.submit(ask, i) for i in range(count)]

    @contextlib.contextmanager
    def held(self, name):
        """Answers that are asked for while the machine stands still, and so some of them run. It goes on afterwards, if it is still there."""
        process = self.machines[name].process
        process.send_signal(signal.SIGSTOP)
        try:
            answers = self.ask_all()
            self.served.wait_until(lambda load: load["num_running_reqs"] > 4)
            yield answers
        finally:
            process.send_signal(signal.SIGCONT)

    def alone(self, model=MODEL, count=24):
        """The same from a server with instances of its own."""
        served = Served("--model", model)
        clustered, self.served = self.served, served
        try:
            return [exact(answer.result()) for answer in self.ask_all(count)]
        finally:
            self.served = clustered
            self.assertEqual(served.stop(), 0)

    def test_machines_that_die_and_come_change_no_response(self):
        expected = self.alone()
        self.assertEqual([exact(a.result()) for a in self.ask_all()], expected)
        self.add(3)
        with self.held(1) as answers:
            self.machines.pop(1).end(signal.SIGKILL)
        until(lambda: (ids := [node["node"] for node in self.status()["nodes"]]) and 1 not in ids, "the cluster knows that machine 1 is gone")
        self.add(1)
        self.assertEqual([exact(a.result()) for a in answers], expected)
        self.assertEqual(self.served.stop(), 0)
        self.served = Served("--cluster", f"127.0.0.1:{self.controller_port}")
        self.assertEqual([exact(a.result()) for a in self.ask_all()], expected)

    def test_all_machines_change_their_weights_and_those_that_come_later_too(self):
        with tempfile.TemporaryDirectory() as work:
            folder = turned_model(work)
            expected = self.alone(folder)
            self.assertNotEqual(expected, self.alone())
            answer = self.served.post("/update_weights_from_disk", {"model_path": folder, "weight_version": "5"})
            self.assertTrue(answer["success"], answer)
            self.add(3)  # it comes with the old ones
            self.until_machines(3)
            for name in (1, 2):
                self.machines.pop(name).end(signal.SIGKILL)
            answers = [a.result() for a in self.ask_all()]
            self.assertEqual({a["meta_info"]["weight_version"] for a in answers}, {"5"})
            self.assertEqual([exact(a) for a in answers], expected)
            until(lambda: self.status()["nodes"][0]["weight_version"] == 5, "the controller knows the new version")

    def test_a_folder_that_is_written_to_again_gives_no_machine_other_weights(self):
        with tempfile.TemporaryDirectory() as work:
            folder = turned_model(work)
            expected = self.alone(folder)
            answer = self.served.post("/update_weights_from_disk", {"model_path": folder, "weight_version": "5"})
            self.assertTrue(answer["success"], answer)
            shutil.copyfile(f"{MODEL}/model.safetensors", f"{folder}/model.safetensors")  # the trainer's next ones
            log = f"{work}/log"
            self.add(3, "--log-level", "info", "--log-file", log)
            until(lambda: "does not have the weights of version 5 any more" in open_text(log), "the machine is refused the weights")
            self.machines.pop(1).end(signal.SIGKILL)
            self.assertEqual([exact(a.result()) for a in self.ask_all()], expected)

    def test_a_second_server_lets_the_weights_change_while_it_is_idle_and_follows(self):
        with tempfile.TemporaryDirectory() as work:
            folder = turned_model(work)
            old, new = self.alone(), self.alone(folder)
            first, self.served = self.served, Served("--cluster", f"127.0.0.1:{self.controller_port}")
            self.addCleanup(first.kill)
            self.assertEqual([exact(a.result()) for a in self.ask_all()], old)
            answer = first.post("/update_weights_from_disk", {"model_path": folder, "weight_version": "5"})  # waits for the second to be idle
            self.assertTrue(answer["success"], answer)
            until(lambda: self.served.call("GET", "/get_weight_version")[1] == {"weight_version": "5"}, "the second one knows")
            self.assertEqual([exact(a.result()) for a in self.ask_all()], new)
            answer = self.served.post("/update_weights_from_disk", {"model_path": MODEL})
            until(lambda: first.call("GET", "/get_weight_version")[1] == {"weight_version": "6"}, "the first one knows")

    def test_an_update_is_refused_whole_where_the_folder_is_wrong(self):
        expected = self.alone()
        found, answer = self.served.call("POST", "/update_weights_from_disk", {"model_path": "/nowhere", "weight_version": "5"})
        self.assertEqual(found, 400, answer)
        self.assertIn("/nowhere", str(answer))
        answers = [a.result() for a in self.ask_all()]
        self.assertEqual({a["meta_info"]["weight_version"] for a in answers}, {"1"})
        self.assertEqual([exact(a) for a in answers], expected)

    def send(self, folder, version, mode="abort"):
        with open(f"{folder}/model.safetensors", "rb") as file:
            return self.served.call("POST", f"/seer/v1/weights?version={version}&mode={mode}", file)

    def leave_in_memory(self, folder, version):
        """As the receiver of a trainer's group does (weights_group.py)."""
        with open(f"{folder}/model.safetensors", "rb") as file:
            memory = memory_with(file.read())
        receiver = ScriptedReceiver(self.served)
        self.served.post("/pause_generation")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for path, fields in (("/update_weights_from_distributed", {}), ("/continue_generation", {"memory": memory.path})):
                asked = pool.submit(self.served.call, "POST", path, {"weight_version": version})
                receiver.answer(receiver.line(), **fields)
                found, answer = asked.result()
                self.assertEqual(found, 200, answer)
        receiver.close()
        memory.close()

    def test_weights_sent_over_http_reach_all_machines_and_those_that_come_later(self):
        self.reach_all_machines(lambda folder: self.assertEqual(self.send(folder, "5"), (200, {"weight_version": "5"})))

    def test_weights_left_in_memory_of_the_servers_host_do_so_too(self):
        self.reach_all_machines(lambda folder: self.leave_in_memory(folder, "5"))

    def reach_all_machines(self, update):
        with tempfile.TemporaryDirectory() as work:
            folder = turned_model(work)
            expected = self.alone(folder)
            update(folder)
            shutil.rmtree(folder)  # no machine reads it
            self.add(3)
            self.until_machines(3)
            for name in (1, 2):
                self.machines.pop(name).end(signal.SIGKILL)
            answers = [a.result() for a in self.ask_all()]
            self.assertEqual({a["meta_info"]["weight_version"] for a in answers}, {"5"})
            self.assertEqual([exact(a) for a in answers], expected)
            self.assertEqual(memories_of(self.served), 1)  # for the next machine
            self.served.post("/update_weights_from_disk", {"model_path": MODEL, "weight_version": "6"})
            until(lambda: memories_of(self.served) == 0, "the upload is freed once no machine runs with it")
            until(lambda: memories_of(self.machines[3]) == 0, "the machine keeps no upload")

    def test_weights_sent_over_http_that_are_wrong_change_nothing(self):
        expected = self.alone()
        with open(f"{MODEL}/model.safetensors", "rb") as file:
            right = file.read()
        nan = right[:-4] + b"\xc0\x7f" * 2  # of bf16
        for body, code, wrong in ((nan, 400, "finite"), (right[:-1], 400, "upload"), (b"", 400, "upload"), (right * 4, 413, "larger than")):
            found, answer = self.served.call("POST", "/seer/v1/weights", body)
            self.assertEqual(found, code, answer)
            self.assertIn(wrong, answer["error"]["message"])
        with socket.create_connection(("127.0.0.1", self.served.port)) as client:  # one that dies while it sends
            client.sendall(b"POST /seer/v1/weights HTTP/1.1\r\nHost: seer\r\nContent-Length: %d\r\n\r\n" % len(right) + right[:1_000_000])
            until(lambda: memories_of(self.served) == 1, "the upload has begun")
        for process in (self.served, *self.machines.values()):
            until(lambda: memories_of(process) == 0, "nothing of an upload is kept")
        self.assertEqual(self.served.call("GET", "/get_weight_version")[1], {"weight_version": "1"})
        self.assertEqual([exact(a.result()) for a in self.ask_all()], expected)

    def test_a_machine_killed_while_sent_weights_wait_mixes_no_versions(self):
        with tempfile.TemporaryDirectory() as work:
            folder = turned_model(work)
            right = {"1": self.alone(), "5": self.alone(folder)}
            answers, (found, answer) = self.kill_in_an_update(1, lambda: self.send(folder, "5", "drain"))
            self.assertEqual((found, answer), (200, {"weight_version": "5", "out": "node 1 was lost while it changed its weights"}))
            answers = [a.result() for a in answers]
            self.assertEqual([exact(a) for a in answers], [right[a["meta_info"]["weight_version"]][i] for i, a in enumerate(answers)])
            self.add(3)
            self.until_machines(2)
            self.assertEqual([exact(a.result()) for a in self.ask_all()], right["5"])

    def update_from(self, folder):
        return self.served.call("POST", "/update_weights_from_disk", {"model_path": folder, "weight_version": "5", "mode": "drain"})

    def kill_in_an_update(self, name, start):
        """The machine is killed while an update waits for responses to end. Returns them, and the answer to the update."""
        with self.held(name) as answers, concurrent.futures.ThreadPoolExecutor(1) as pool:
            update = pool.submit(start)
            until(lambda: self.served.is_updating() or update.done(), "the update is under way")
            self.assertFalse(update.done())
            self.machines.pop(name).end(signal.SIGKILL)
            return answers, update.result()

    def test_a_machine_killed_in_an_update_mixes_no_versions(self):
        """The machine that is left has the new weights, so nothing begins with the old ones any more."""
        with tempfile.TemporaryDirectory() as work:
            folder = turned_model(work)
            right = {"1": self.alone(), "5": self.alone(folder)}
            answers, (found, answer) = self.kill_in_an_update(1, lambda: self.update_from(folder))
            self.assertEqual((found, answer["message"]),
                             (200, "Succeeded to update model weights to version 5; out: node 1 was lost while it changed its weights."))
            self.assertEqual(self.served.call("GET", "/get_weight_version")[1], {"weight_version": "5"})
            answers = [a.result() for a in answers]
            self.assertEqual([exact(a) for a in answers], [right[a["meta_info"]["weight_version"]][i] for i, a in enumerate(answers)])
            self.assertEqual([exact(a.result()) for a in self.ask_all()], right["5"])
            self.add(3)
            self.until_machines(2)
            self.assertEqual([exact(a.result()) for a in self.ask_all()], right["5"])

    def test_the_only_machine_killed_in_an_update_leaves_the_old_weights_serving(self):
        old = self.alone()
        self.machines.pop(2).end()
        self.until_machines(1)
        with tempfile.TemporaryDirectory() as work:
            _, (found, answer) = self.kill_in_an_update(1, lambda: self.update_from(turned_model(work)))  # with nobody to run them, the responses fail later
            self.assertEqual((found, answer["message"]), (400, "node 1 was lost while it changed its weights"))
            self.add(3)
            self.until_machines(1)
            self.assertEqual(self.served.call("GET", "/get_weight_version")[1], {"weight_version": "1"})
            self.assertEqual([exact(a.result()) for a in self.ask_all()], old)

    def test_the_controller_dies_and_returns_while_requests_run(self):
        expected = self.alone()
        with self.held(1) as answers:
            self.controller.end(signal.SIGKILL)
        self.assertEqual([exact(a.result()) for a in answers], expected)
        self.controller = Machine("--instances", "0", port=self.controller_port)
        self.until_machines(2)
        self.assertEqual([exact(a.result()) for a in self.ask_all()], expected)


if __name__ == "__main__":
    unittest.main()
