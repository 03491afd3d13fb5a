#!/usr/bin/env python3
"""Weights for `seer serve` over a trainer's communication group: the calls of slime (624b824) and AReaL (4aef98d), with
deploy/client/seer_weights_group.py as the member. With torch, tensors move over real gloo groups, and trainers are killed, stopped and
out of step. Without it, only what the server does with calls and a scripted receiver is tried. NCCL needs GPUs and is not tried here.
usage: weights_group.py SEER_PROGRAM"""
import concurrent.futures, datetime, http.client, itertools, json, os, signal, socket, subprocess, sys, textwrap, threading, unittest, warnings

from python_with import run_with

if __name__ == "__main__":
    run_with("torch.distributed")

from scripted_receiver import PATIENCE_S, RECEIVER, ScriptedReceiver, memory_with
from served import LONG, ROOT, Served, memories_of, wide
from weights import SAMPLING, TORCH_DTYPES, TwoWeights, bits_of, file_of, until

try:
    import torch
    import torch.distributed
except ImportError:
    torch = None

HERE = os.path.dirname(os.path.abspath(__file__))
GROUP = "slime-pp_0"


def part_of(tensors, version="1", group=GROUP, **fields):
    """The body of a call, as slime makes it. `version` None: as AReaL makes it."""
    names, dtypes, shapes = [t[0] for t in tensors], [TORCH_DTYPES.get(t[1], t[1]) for t in tensors], [list(t[2]) for t in tensors]
    return {"names": names, "dtypes": dtypes, "shapes": shapes, "group_name": group, "flush_cache": False, **({} if version is None else {"weight_version": version}), **fields}


class GroupCase(TwoWeights):
    def setUp(self):
        self.served = Served(*wide())
        self.old_bits, _ = bits_of(self.served)
        self.pool = concurrent.futures.ThreadPoolExecutor(4)
        self.addCleanup(self.end)

    def end(self):
        self.pool.shutdown()
        until(lambda: memories_of(self.served) == 0, "no memory of an upload is left")
        self.assertEqual(self.served.stop(), 0)

    def refused(self, path, body, words):
        answer = self.served.post(path, body, 400)
        self.assertFalse(answer["success"])
        self.assertIn(words, answer["message"])

    def assertServesOld(self):
        self.served.post("/continue_generation")
        self.assertEqual(bits_of(self.served), (self.old_bits, "1"))


# ---- the server, with a scripted receiver --------------------------------------------------------------------------------------------

class ServerTest(GroupCase):
    def receiver(self):
        receiver = ScriptedReceiver(self.served)
        self.addCleanup(receiver.close)
        return receiver

    def close(self, receiver):
        receiver.close()
        until(lambda: "no receiver" in self.served.call("POST", "/destroy_weights_update_group", {})[1]["message"], "it has gone")

    def ask(self, path, body={}):
        return self.pool.submit(self.served.call, "POST", path, body)

    def test_a_receiver_hears_all_calls_and_the_weights_change_when_generation_goes_on(self):
        receiver = self.receiver()
        init = {"master_address": "10.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 2, "group_name": GROUP, "backend": "nccl"}
        asked = self.ask("/init_weights_update_group", init)
        line = receiver.line()
        self.assertEqual((line["path"], line["body"]), ("/init_weights_update_group", init))
        receiver.answer(line)
        self.assertEqual(asked.result(), (200, {"success": True, "message": "Succeeded."}))
        # slime counts from 1, which runs here: then it is a name. AReaL says none, and other numbers are taken as they are.
        for given, label, query, running in (("1", {"name": "1"}, "?name=1", "1"), (None, {}, "", "3"), ("9", {"version": "9"}, "?version=9", "9")):
            with self.subTest(version=given):
                self.served.post("/pause_generation")
                part = part_of(self.new, given)
                asked = self.ask("/update_weights_from_distributed", part)
                line = receiver.line()
                self.assertEqual((line["body"], line["label"]), (part, label))
                receiver.answer(line)
                self.assertEqual(asked.result()[0], 200)
                self.assertEqual(self.served.call("GET", "/get_weight_version")[1]["weight_version"], {"1": "1", "3": "1", "9": "3"}[running])
                asked = self.ask("/continue_generation")
                line = receiver.line()
                self.assertEqual(line["path"], "/continue_generation")
                self.served.post(f"/seer/v1/weights{query}", file_of(self.new))
                receiver.answer(line)
                self.assertEqual(asked.result(), (200, {"success": True, "message": f"Generation continued with weight version {running}."}))
                self.assertEqual(bits_of(self.served), (self.new_bits, running))
        self.served.post("/continue_generation")  # of no parts: as ever

    def test_weights_that_a_receiver_leaves_in_memory_are_read_from_there(self):
        for text, seals, is_read in (("a text", True, True), ("other", True, False), ("a text", False, False)):
            proof = memory_with(b"a text", seals)
            receiver = ScriptedReceiver(self.served, proof, text)
            self.assertEqual(receiver.reads_memory, is_read)
            proof.close()
            self.close(receiver)
        receiver = self.receiver()
        for data, seals, says, bits in ((file_of(self.new)[:-1], True, "truncated", self.old_bits), (file_of(self.new), False, "no memory that is sealed", self.old_bits),
                                        (file_of(self.new[:5]) + file_of(self.new[5:]), True, "", self.new_bits)):
            self.served.post("/pause_generation")
            asked = self.ask("/update_weights_from_distributed", part_of(self.new, "1"))
            receiver.answer(receiver.line())
            self.assertEqual(asked.result()[0], 200)
            asked = self.ask("/continue_generation")
            memory = memory_with(data, seals)
            receiver.answer(receiver.line(), memory=memory.path)
            memory.close()  # the server has it now
            status, answer = asked.result()
            self.assertEqual(status, 400 if says else 200)
            self.assertIn(says, answer["message"])
            self.served.post("/continue_generation")
            self.assertEqual(bits_of(self.served), (bits, "1"))
            until(lambda: memories_of(self.served) == 0, "it is freed")

    def test_calls_without_a_receiver_or_a_pause_are_refused(self):
        self.refused("/update_weights_from_distributed", part_of(self.new), "no receiver of weights is connected: start python3 -m seer_weights_group")
        self.refused("/init_weights_update_group", {"rank_offset": 1, "world_size": 2}, "no receiver of weights is connected")
        receiver = self.receiver()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.served.generate, [2, 3], sampling_params=LONG)
            self.served.until_running([running])
            self.refused("/update_weights_from_distributed", part_of(self.new), "generation is not paused: expected /pause_generation before")
            self.assertIn("generation is not paused", receiver.line()["leave"])
            self.assertEqual(running.result()["meta_info"]["finish_reason"]["type"], "length")
        self.refused("/update_weights_from_distributed", "[1]", "the body is no JSON object")
        self.assertIn("the body is no JSON object", receiver.line()["leave"])
        self.refused("/init_weights_update_group", {"rank_offset": 0, "world_size": 2}, "rank_offset: expected an integer of at least 1")
        self.assertEqual(self.served.call("GET", RECEIVER)[0], 409)
        receiver.answer({"call": 7}, status=409)
        self.served.post(RECEIVER, {"call": "x"}, 400)
        self.assertServesOld()

    def test_the_server_says_so_when_parts_are_lost_and_then_goes_on_with_the_old_weights(self):
        def fails(receiver, asked):
            receiver.answer(receiver.line(), False, "connection closed by peer")
            return asked, "connection closed by peer"

        def goes(receiver, asked):
            receiver.line()
            receiver.close()
            return asked, "the receiver of weights has gone"

        def goes_between_parts(receiver, asked):
            receiver.answer(receiver.line())
            self.assertEqual(asked.result()[0], 200)
            receiver.close()
            until(lambda: self.served.call("POST", RECEIVER, {"call": 1})[0] == 409, "the server has seen it")
            return None, "the receiver of weights has gone"

        def is_of_two_versions(receiver, asked):
            receiver.answer(receiver.line())
            self.assertEqual(asked.result()[0], 200)
            asked = self.ask("/update_weights_from_distributed", part_of(self.new, "8"))
            self.assertIn("another weight_version", receiver.line()["leave"])
            return asked, "/update_weights_from_distributed: the parts before have another weight_version"
        for happens in (fails, goes, goes_between_parts, is_of_two_versions):
            with self.subTest(happens=happens.__name__):
                receiver = ScriptedReceiver(self.served)
                self.served.post("/pause_generation")
                asked, says = happens(receiver, self.ask("/update_weights_from_distributed", part_of(self.new, "7")))
                if asked is not None:
                    self.assertEqual(asked.result()[0], 400)
                    self.assertEqual(asked.result()[1]["message"], says)
                answer = self.served.post("/continue_generation", status=400)
                self.assertEqual(answer["message"], f"generation is still paused with weight version 1: {says}")
                self.assertServesOld()
                self.close(receiver)

    def test_a_trainer_that_goes_cancels_its_call_but_not_the_end_of_an_update(self):
        receiver = self.receiver()
        self.served.post("/pause_generation")

        def trainer_that_goes(path, body):
            connection = self.served.connect()
            connection.request("POST", path, json.dumps(body))
            line = receiver.line()
            connection.close()
            return line
        line = trainer_that_goes("/update_weights_from_distributed", part_of(self.new, "7"))
        self.assertEqual(receiver.line(), {"cancel": line["call"]})
        self.refused("/update_weights_from_distributed", part_of(self.new, "7"), "another call of this kind is under way")
        self.assertIn("another call", receiver.line()["leave"])
        receiver.answer(line, False, "the trainer has gone")
        asked = self.ask("/update_weights_from_distributed", part_of(self.new, "7"))
        receiver.answer(receiver.line())
        self.assertEqual(asked.result()[0], 200)
        line = trainer_that_goes("/continue_generation", {})
        self.served.post("/seer/v1/weights?version=7", file_of(self.new))
        receiver.answer(line)
        self.assertEqual(bits_of(self.served), (self.new_bits, "7"))


class OptionsTest(unittest.TestCase):
    def test_what_is_wrong_is_said_at_the_start_with_its_option(self):
        cases = [(["--device", "foo"], 2, "--device foo: expected a GPU, as cuda:0"), (["--timeout-s", "0"], 2, "--timeout-s 0.0: expected more than 0"),
                 (["--token-file", "/nowhere"], 2, "--token-file /nowhere: No such file or directory")]
        if torch is not None:
            cases.append((["--device", "cuda:999"], 1, f"--device cuda:999: torch sees {torch.cuda.device_count()} GPUs in this process"))
        for options, code, sentence in cases:
            with self.subTest(sentence=sentence):
                ran = subprocess.run([sys.executable, f"{ROOT}/deploy/client/seer_weights_group.py", "--server", "127.0.0.1:1", *options],
                                     capture_output=True, text=True, timeout=PATIENCE_S)
                self.assertEqual(ran.returncode, code, ran.stderr)
                self.assertIn(f"seer_weights_group: {sentence}\n", ran.stderr)


# ---- with tensors ----------------------------------------------------------------------------------------------------------------------

class Member:
    """seer_weights_group.py in a process of its own, with one that is its worker."""

    def __init__(self, server, *options):
        self.process = subprocess.Popen([sys.executable, f"{ROOT}/deploy/client/seer_weights_group.py", "--server", server, *options],
                                        stdout=subprocess.PIPE, text=True)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stdout.readline, "")), daemon=True)
        self.reader.start()
        self.until("seer_weights_group receives weights for")

    def until(self, words, times=1):
        until(lambda: sum(words in line for line in self.lines) >= times or self.process.poll() is not None, words, PATIENCE_S)
        assert self.process.poll() is None, f"it has ended: {self.lines}"

    def worker(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as children:
            return int(children.read().split()[0])

    def stop(self):
        self.process.send_signal(signal.SIGINT)  # nothing, to one that was killed
        code = self.process.wait(timeout=PATIENCE_S)
        self.reader.join()
        self.process.stdout.close()
        return code


class Trainer:
    """Rank 0, as slime's connect_rollout_engines_from_distributed and update_weights_from_distributed are, but for ray."""

    def __init__(self, port, group=GROUP):
        self.port, self.group = port, group

    def call(self, path, body, meanwhile=lambda: None):
        """The answer. `meanwhile` comes after the request was sent; a thread would not do, since torch 1.13 may wait for others with the GIL."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("POST", path, json.dumps(body))
            try:
                meanwhile()
            except RuntimeError as error:  # of torch; the server may know more
                raise RuntimeError(f"{error}; the server answers {connection.getresponse().read()}") from None
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def join(self):
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        # The port is text, as AReaL gives it; slime gives a number.
        return self.call("/init_weights_update_group", {"master_address": "127.0.0.1", "master_port": str(port), "rank_offset": 1, "world_size": 2,
                                                        "group_name": self.group, "backend": "gloo"}, lambda: self.make_group(port))

    def make_group(self, port):
        from torch.distributed import PrefixStore, distributed_c10d
        timeout = datetime.timedelta(seconds=PATIENCE_S)
        store, rank, size = next(distributed_c10d.rendezvous(f"tcp://127.0.0.1:{port}", 0, 2, timeout=timeout))
        store.set_timeout(timeout)
        made = distributed_c10d._new_process_group_helper(size, rank, [], distributed_c10d.Backend("gloo"), PrefixStore(self.group, store),
                                                          group_name=self.group, timeout=timeout)
        self.process_group = made[0] if isinstance(made, tuple) else made
        ranks = distributed_c10d._world.pg_group_ranks if hasattr(distributed_c10d, "_world") else distributed_c10d._pg_group_ranks
        ranks[self.process_group] = {0: 0, 1: 1}

    def send(self, tensors, version, **fields):
        """A part. Returns the answer, once rank 0 has sent its tensors."""
        return self.call("/update_weights_from_distributed", part_of(tensors, version, self.group, **fields), lambda: self.broadcast(tensors, **fields))

    def broadcast(self, tensors, load_format=None):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rank 0 writes to none of them
            values = [torch.frombuffer(data, dtype=torch.uint8) for *_, data in tensors]  # torch 1.13 has no BF16 in gloo, which moves bytes
        if load_format == "flattened_bucket":
            values = [torch.cat(values)]
        for work in [torch.distributed.broadcast(value, 0, group=self.process_group, async_op=True) for value in values]:
            work.wait()

    def leave(self):
        answer = self.call("/destroy_weights_update_group", {"group_name": self.group})
        torch.distributed.destroy_process_group(self.process_group)
        return answer


def buckets_of(tensors, count):
    size = -(-len(tensors) // count)
    return [tensors[at:at + size] for at in range(0, len(tensors), size)]


@unittest.skipIf(torch is None, "no torch (Debian, Ubuntu: python3-torch)")
class MemberTest(GroupCase):
    def start(self, *options):
        self.member = Member(f"127.0.0.1:{self.served.port}", *options)
        self.addCleanup(lambda: self.assertIn(self.member.stop(), (0, -signal.SIGKILL)))

    def joined(self, group=GROUP):
        trainer = Trainer(self.served.port, group)
        self.assertEqual(trainer.join()[0], 200)
        self.addCleanup(trainer.leave)
        return trainer

    def update(self, trainer, tensors, version, buckets=3, **fields):
        self.served.post("/pause_generation")
        for bucket in buckets_of(tensors, buckets):
            status, answer = trainer.send(bucket, version, **fields)
            self.assertEqual(status, 200, answer)
        self.copies = memories_of(self.served)
        return self.served.call("POST", "/continue_generation")

    def test_weights_over_a_group_give_the_bits_of_the_folder_each_time(self):
        self.start()
        self.give_the_bits_of_the_folder(copies=0)

    def test_weights_that_are_sent_over_http_do_so_too(self):
        self.start("--over-http")
        self.give_the_bits_of_the_folder(copies=1)

    def give_the_bits_of_the_folder(self, copies):
        """`copies`: of what came so far, which the server has before the update is over."""
        trainer = self.joined()
        for version, shown, buckets, fields in (("1", "1", 3, {}), (None, "3", 1, {}), ("7", "7", 5, {"load_format": "flattened_bucket"})):
            for tensors, bits, version in ((self.old, self.old_bits, "first"), (self.new, self.new_bits, version)):
                with self.subTest(version=version, buckets=buckets):
                    status, answer = self.update(trainer, tensors, version, buckets, **fields)
                    self.assertEqual((status, self.copies), (200, copies), answer)
                    if tensors is self.new and version is not None:
                        self.assertEqual(bits_of(self.served), (bits, version))
                    self.assertEqual(bits_of(self.served)[0], bits)
        self.assertEqual(trainer.leave(), (200, {"success": True, "message": "Succeeded."}))
        self.assertEqual(trainer.join()[0], 200)  # the same name again

    def test_ranks_of_a_pipeline_send_their_layers_over_groups_of_their_own(self):
        self.start()
        trainers = [self.joined(f"slime-pp_{rank}") for rank in range(2)]
        self.served.post("/pause_generation")
        for trainer, tensors in zip(itertools.cycle(trainers), buckets_of(self.new, 4)):
            self.assertEqual(trainer.send(tensors, "step-1")[0], 200)
            self.refused("/destroy_weights_update_group", {"group_name": "other"}, "this process has not joined a group other")  # of no concern to them
        self.assertEqual(self.served.call("POST", "/continue_generation")[0], 200)
        self.assertEqual(bits_of(self.served), (self.new_bits, "step-1"))

    def test_requests_that_ran_or_waited_meanwhile_get_the_new_weights_only(self):
        self.start()
        trainer = self.joined()
        requests = [self.pool.submit(self.served.generate, [2, 3], sampling_params=LONG)]
        self.served.until_running(requests)
        self.served.post("/pause_generation", {"mode": "in_place"})
        requests.append(self.pool.submit(self.served.generate, [2, 3, 4], sampling_params=SAMPLING))
        self.served.wait_until(lambda load: load["num_waiting_reqs"] + load["num_running_reqs"] == 2)  # both are held
        for bucket in buckets_of(self.new, 3):
            self.assertEqual(trainer.send(bucket, "5")[0], 200)
        self.assertEqual(self.served.call("POST", "/continue_generation")[0], 200)
        ran, waited = (request.result() for request in requests)
        self.assertEqual((waited["output_ids"], waited["meta_info"]["output_token_logprobs"]), self.new_bits[0])
        self.assertEqual([answer["meta_info"]["weight_version"] for answer in (ran, waited)], ["5", "5"])
        self.assertEqual(len(ran["output_ids"]), LONG["max_new_tokens"])

    def test_weights_that_do_not_fit_are_refused_whole_and_the_group_stays(self):
        self.start()
        trainer = self.joined()
        at = next(i for i, (name, *_) in enumerate(self.new) if name.endswith("down_proj.weight"))
        name, dtype, shape, data = self.new[at]
        poison = [name, dtype, shape, data[:10] + b"\xc0\x7f" + data[12:]]
        for tensors, sentence in ((self.new[:at] + self.new[at + 1:], f"tensor {name} of shape {shape} is missing"),
                                  (self.new[:at] + [poison] + self.new[at + 1:], f"tensor {name} holds nan at [0, 5]")):
            status, answer = self.update(trainer, tensors, "5")
            self.assertEqual(status, 400)
            self.assertIn("generation is still paused with weight version 1: ", answer["message"])
            self.assertIn(sentence, answer["message"])
            self.assertServesOld()
        self.assertEqual(self.update(trainer, self.new, "5")[0], 200)
        self.assertEqual(bits_of(self.served), (self.new_bits, "5"))

    def test_bad_calls_are_one_sentence_and_end_the_groups_where_tensors_are_under_way(self):
        self.start()
        good = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, "backend": "gloo"}
        for changes, sentence in (({"backend": "mpi"}, "backend is 'mpi': expected nccl or gloo"),
                                  ({"rank_offset": 2}, "rank_offset is 2: expected less than world_size, which is 2"),
                                  ({"master_port": 70000}, "master_address and master_port are '127.0.0.1' and '70000'"),
                                  ({"backend": "nccl"}, "torch sees no GPU in this process: expected gloo")):
            self.refused("/init_weights_update_group", {**good, **changes}, sentence)
        self.refused("/destroy_weights_update_group", {"group_name": "other"}, "this process has not joined a group other")
        worker = self.member.worker()
        self.joined()
        self.served.post("/pause_generation")
        self.assertEqual(self.member.worker(), worker)
        self.refused("/update_weights_from_distributed", part_of([["a", "float8_e4m3fn", [4]]]), "tensor a: dtype is 'float8_e4m3fn': expected bfloat16")
        self.refused("/update_weights_from_distributed", part_of(self.new), f"this process has not joined a group {GROUP}")
        self.assertNotEqual(self.member.worker(), worker)
        self.served.call("POST", "/continue_generation")
        self.assertServesOld()

    def trainer_in_a_part(self):
        """A process that has sent one part, and some tensors of the next one, which the member has begun to receive."""
        return self.trainer_with_parts("""
            def some():
                trainer.broadcast(tensors[4:6])
                print("sent", flush=True)
                time.sleep(1000)
            trainer.call("/update_weights_from_distributed", part_of(tensors[4:], "7"), some)
        """)

    def trainer_with_parts(self, then):
        """A process that has sent one part, and does this next, until it has said "sent"."""
        program = textwrap.dedent(f"""
            import sys, time
            sys.path.insert(0, {HERE!r})
            from weights_group import Trainer, part_of
            from weights import read_tensors
            trainer, tensors = Trainer({self.served.port}), read_tensors({self.folder!r})
            trainer.join()
            trainer.call("/pause_generation", {{}})
            trainer.send(tensors[:4], "7")
        """) + textwrap.dedent(then)
        trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        self.addCleanup(trainer.stdout.close)
        self.addCleanup(trainer.wait)
        self.addCleanup(trainer.kill)
        self.assertEqual(trainer.stdout.readline(), "sent\n")
        return trainer

    def assertNextTrainerUpdates(self):
        answer = self.served.post("/continue_generation", status=400)["message"]
        self.assertIn("generation is still paused with weight version 1: ", answer)
        self.assertServesOld()
        self.assertEqual(self.update(self.joined("next"), self.new, "8")[0], 200)
        self.assertEqual(bits_of(self.served), (self.new_bits, "8"))
        return answer

    def test_a_trainer_killed_in_the_middle_of_a_part_changes_nothing(self):
        self.start()
        trainer = self.trainer_in_a_part()
        trainer.kill()
        self.member.until("call_failed path=/update_weights_from_distributed")
        self.assertNextTrainerUpdates()

    def test_a_trainer_that_hangs_is_given_up(self):
        self.start("--timeout-s", "20")
        trainer = self.trainer_in_a_part()
        trainer.send_signal(signal.SIGSTOP)
        self.member.until("call_failed path=/update_weights_from_distributed")
        self.assertNextTrainerUpdates()

    def test_a_trainer_killed_between_parts_and_started_again_joins_its_group_again(self):
        self.start()
        self.joined("other")
        trainer = self.trainer_with_parts("""
            print("sent", flush=True)
            time.sleep(1000)
        """)
        trainer.kill()
        trainer = self.joined()
        self.refused("/destroy_weights_update_group", {"group_name": "other"}, "this process has not joined a group other")
        self.assertEqual(self.update(trainer, self.new, "8")[0], 200)  # another version than the parts had
        self.assertEqual(bits_of(self.served), (self.new_bits, "8"))

    def test_a_worker_that_hangs_is_ended(self):
        self.start("--timeout-s", "20")
        self.joined()
        self.served.post("/pause_generation")
        os.kill(self.member.worker(), signal.SIGSTOP)
        self.refused("/update_weights_from_distributed", part_of(self.new), "the trainer's group was not done within 25 s")
        self.assertIn("the trainer's group was not done within 25 s", self.assertNextTrainerUpdates())

    def test_a_member_killed_in_the_middle_of_an_update_changes_nothing(self):
        self.start()
        trainer = self.joined()
        self.served.post("/pause_generation")
        self.assertEqual(trainer.send(self.new[:4], "7")[0], 200)
        worker = self.member.worker()
        self.member.process.kill()
        until(lambda: not os.path.exists(f"/proc/{worker}"), "its worker ends with it")
        until(lambda: "has gone" in self.served.call("POST", "/continue_generation")[1]["message"], "the trainer is told")
        self.assertServesOld()

    def test_a_join_that_the_trainer_gives_up_is_given_up_at_once(self):
        self.start()
        worker = self.member.worker()
        with socket.create_server(("127.0.0.1", 0)) as silent:  # a rank 0 that says nothing
            connection = self.served.connect()
            connection.request("POST", "/init_weights_update_group", json.dumps({"master_address": "127.0.0.1", "master_port": silent.getsockname()[1],
                                                                                "rank_offset": 1, "world_size": 2, "backend": "gloo"}))
            with silent.accept()[0]:  # the member is there
                connection.close()
                self.member.until('call_failed path=/init_weights_update_group message="the trainer has gone"')
        self.assertEqual(self.update(self.joined(), self.new, "8")[0], 200)
        self.assertNotEqual(self.member.worker(), worker)

    def test_a_server_that_is_started_again_has_its_member_but_no_groups(self):
        self.start()
        trainer, port = self.joined(), self.served.port
        self.served.kill()
        self.member.until("disconnected message=")
        self.served = Served("--listen", f"127.0.0.1:{port}")
        self.member.until("seer_weights_group receives weights for", times=2)
        self.served.post("/pause_generation")
        self.refused("/update_weights_from_distributed", part_of(self.new, "7"), f"this process has not joined a group {GROUP}")
        self.assertEqual(self.update(self.joined("next"), self.new, "8")[0], 200)
        self.assertEqual(bits_of(self.served), (self.new_bits, "8"))

    def test_a_part_that_the_server_refused_ends_the_groups(self):
        self.start()
        trainer = self.joined()
        worker = self.member.worker()
        answer = trainer.call("/update_weights_from_distributed", part_of(self.new, "7"))  # not paused
        self.assertEqual(answer[0], 400)
        self.member.until("groups_left message=")
        with self.assertRaises(RuntimeError):  # rank 0 hears of it
            trainer.broadcast(self.new)
        self.served.post("/pause_generation")
        self.refused("/update_weights_from_distributed", part_of(self.new, "7"), f"this process has not joined a group {GROUP}")
        self.assertNotEqual(self.member.worker(), worker)


if __name__ == "__main__":
    unittest.main()
