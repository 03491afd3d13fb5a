#!/usr/bin/env python3
"""Tests weights that a trainer sends to the servers of a router over a communication group of its own: the calls of slime (624b824) and of
vLLM's clients, passed on to servers that answer as the sources do (recorded_servers.py). No tensor moves. usage: router_weights.py SEER"""
import concurrent.futures, unittest

from recorded_servers import Group, RecordedServer
from router import Router
from served import MODEL, Served

GROUP = "slime-pp_0"


def init(world_size, rank_offset=1):
    return {"master_address": "10.0.0.1", "master_port": 29500, "rank_offset": rank_offset, "world_size": world_size, "group_name": GROUP, "backend": "nccl"}


def part(names, version="1"):
    """`version` None: as AReaL sends it."""
    return {"names": names, "dtypes": ["bfloat16"] * len(names), "shapes": [[2, 2]] * len(names), "group_name": GROUP, "flush_cache": False,
            **({} if version is None else {"weight_version": version})}


class GroupTest(unittest.TestCase):
    kind = "sglang"

    def start(self, ranks, *options, group=True, weights="default"):
        self.group = Group(len(ranks)) if group else None
        self.servers = [RecordedServer(self.kind, n, self.group, weights) for n in ranks]
        for server in self.servers:
            self.addCleanup(server.stop)
        self.router = Router([(self.kind, server) for server in self.servers], "--engine-stream-tokens", "0", *options)
        self.addCleanup(self.router.stop)
        self.router.wait_for(lambda: self.router.up() == len(ranks))

    def post(self, path, body={}, status=200):
        return self.router.post(path, body, status)

    def generate(self, tokens=20):
        return self.router.generate([2, 3, 4], sampling_params={"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True})

    def label(self, version):
        """What this router calls a version at its servers: no other one calls it so."""
        found = self.servers[0].weights
        self.assertRegex(found, f"^{version}-[0-9]+$")
        return found

    def answers(self, tokens=20):
        """Whose weights a response has: of which version, by the first token."""
        made = self.generate(tokens)
        return made["meta_info"]["weight_version"], (made["output_ids"][0] - 2 - 3) % 20

    def refused(self, path, body, words):
        self.assertIn(words, self.post(path, body, 400)["message"])


class SglangTest(GroupTest):
    def test_the_calls_of_slime_reach_all_servers_with_ranks_of_their_own_and_then_all_have_the_version(self):
        self.start([2, 4])
        info = self.router.call("GET", "/server_info")[1]
        self.assertEqual({name: info[name] for name in ("num_gpus", "num_gpus_per_engine", "tp_size", "pp_size")},
                         {"num_gpus": 6, "num_gpus_per_engine": 6, "tp_size": 6, "pp_size": 1})  # slime asks for no other size of its group
        self.assertEqual(self.router.call("GET", "/get_world_size")[1], {"world_size": 6})
        self.assertEqual(self.answers(), ("1", 0))
        self.post("/init_weights_update_group", init(world_size=7))
        self.assertEqual([server.calls[-1][1] for server in self.servers], [init(7, 1), init(7, 3)])
        for version, running in ("1", "2"), ("2", "3"):  # slime counts its own way
            self.post("/pause_generation")
            self.router.call("GET", "/flush_cache")
            for names in (["a", "b"], ["c"]):
                self.post("/update_weights_from_distributed", part(names, version))
                for server in self.servers:
                    self.assertEqual(server.calls[-1], ("/update_weights_from_distributed", {**part(names, self.label(running)), "flush_cache": True}))
            self.post("/continue_generation")
            self.assertEqual([worker["weight_version"] for worker in self.router.workers()], [self.label(running)] * 2)
            self.assertEqual(self.answers(), (version, int(running)))
            self.assertEqual(self.router.up(), 2)
        self.post("/destroy_weights_update_group", {"group_name": GROUP})
        self.assertEqual([server.calls[-1][0] for server in self.servers], ["/destroy_weights_update_group"] * 2)
        self.post("/pause_generation")
        self.refused("/update_weights_from_distributed", part(["a"], "9"), f"no server has joined a group {GROUP}")

    def test_the_calls_of_areal_which_name_no_version_give_each_update_the_next_one(self):
        self.start([1, 1])
        self.post("/init_weights_update_group", init(world_size=3))
        unnamed = part(["a"], None)
        self.refused("/update_weights_from_distributed", unnamed, "generation is not paused")
        for version in 2, 3:
            self.post("/pause_generation")
            for names in (["a", "b"], ["c"]):
                self.post("/update_weights_from_distributed", part(names, None))
                self.assertEqual([server.weights for server in self.servers], [self.label(version)] * 2)
            self.post("/continue_generation")
            self.assertEqual(self.answers(), (str(version), version))
        # The number of an update that failed is not used again.
        self.post("/pause_generation")
        self.post("/update_weights_from_distributed", unnamed)
        right = self.label(4)
        for server in self.servers:
            server.label("lost")
        self.refused("/continue_generation", {}, f"has weights lost after the change to {right}")
        self.post("/update_weights_from_distributed", unnamed)
        self.label(5)

    def test_a_part_after_weights_that_came_whole_begins_another_update(self):
        self.start([1])
        self.post("/init_weights_update_group", init(world_size=2))
        self.post("/pause_generation")
        self.post("/update_weights_from_distributed", part(["a"], None))
        self.post("/update_weights_from_disk", {"model_path": MODEL})
        self.label(2)
        self.post("/update_weights_from_distributed", part(["a"], None))
        self.label(3)
        self.post("/continue_generation")
        self.assertEqual(self.answers(), ("3", 3))

    def test_a_server_that_fails_in_the_middle_is_off_the_list_and_the_others_go_on(self):
        self.start([1, 1], group=False)
        self.post("/init_weights_update_group", init(world_size=3))
        self.post("/pause_generation")
        self.post("/update_weights_from_distributed", part(["a"], "5"))
        self.servers[1].fails.add("/update_weights_from_distributed")
        self.refused("/update_weights_from_distributed", part(["b"], "5"), f"http://127.0.0.1:{self.servers[1].port}/update_weights_from_distributed: it answered 400: Failed to update parameter online")
        self.router.wait_for(lambda: len(self.router.workers()) == 1)
        self.post("/continue_generation")
        for _ in range(8):
            self.assertEqual(self.answers(), ("5", 5))

    def test_weights_that_a_trainer_names_come_after_an_update_that_failed(self):
        self.start([1])
        self.servers[0].fails.add("/update_weights_from_disk")
        self.post("/update_weights_from_disk", {"model_path": MODEL}, 400)  # version 2, which nobody gets
        self.post("/init_weights_update_group", init(world_size=2))
        self.post("/pause_generation")
        self.post("/update_weights_from_distributed", part(["a"], "1"))
        self.label("3")
        self.post("/continue_generation")
        self.assertEqual(self.answers(), ("1", 3))

    def test_the_number_of_an_update_that_failed_is_not_used_again(self):
        self.start([1])
        update = {"model_path": MODEL, "weight_version": "2"}
        self.servers[0].fails.add("/update_weights_from_disk")
        self.post("/update_weights_from_disk", update, 400)
        self.servers[0].fails.clear()
        self.refused("/update_weights_from_disk", {**update, "weight_version": 2},
                     "weight_version is 2: an update to 2 failed, so expected a number above that")
        self.post("/update_weights_from_disk", update)
        self.label("3")
        self.assertEqual(self.answers(), ("2", 3))

    def test_a_server_with_other_weights_than_the_first_one_is_out(self):
        servers = [RecordedServer(self.kind, 1, weights=name) for name in ("step-4", "step-8")]
        for server in servers:
            self.addCleanup(server.stop)
        router = Router([(self.kind, server) for server in servers])
        self.addCleanup(router.stop)
        router.wait_for(lambda: any(worker.get("error") for worker in router.workers()))
        self.assertEqual(router.up(), 1)
        self.assertRegex(str([worker.get("error") for worker in router.workers()]),
                         "it has weights step-[48] while the servers had step-[48] at first, and no update came through here")

    def test_a_server_outside_of_the_group_is_out_until_it_has_the_weights(self):
        for label, version in (("4", 4), ("1", 2)):  # the second is a name
            with self.subTest(label=label):
                self.start([1], group=False)
                self.post("/init_weights_update_group", init(world_size=2))
                late = RecordedServer(self.kind, 1)
                self.addCleanup(late.stop)
                self.post("/workers", {"url": f"http://127.0.0.1:{late.port}"}, 202)
                self.router.wait_for(lambda: self.router.up() == 2)
                self.post("/pause_generation")
                self.post("/update_weights_from_distributed", part(["a"], label))
                self.post("/continue_generation")
                for _ in range(8):
                    self.assertEqual(self.answers(), (label, version))
                self.router.wait_for(lambda: self.router.up() == 1)
                self.router.wait_for(lambda: f"version {version} came over the trainer's own group, without it" in str(self.router.workers()[1]["error"]))
                late.label(self.label(version))
                self.router.wait_for(lambda: self.router.up() == 2)

    def test_parts_are_refused_where_they_could_mix_weights(self):
        self.start([1, 1], group=False)
        self.refused("/update_weights_from_distributed", '{"weight_version":' + "[" * 100_000 + "]" * 100_000 + "}", "nested deeper than 500")
        self.refused("/init_weights_update_group", init(world_size=9), "8 ranks are for the servers, and 2 servers have 2")
        self.post("/init_weights_update_group", init(world_size=3))
        self.refused("/update_weights_from_distributed", part(["a"]), "generation is not paused")
        self.post("/pause_generation")
        self.refused("/update_weights_from_distributed", part(["a"], "v" * 300), "expected a name of at most 256 bytes")
        self.assertEqual([[path for path, _ in server.calls] for server in self.servers], [["/init_weights_update_group"]] * 2)
        self.post("/continue_generation")
        self.assertEqual(self.answers(), ("1", 0))

    def test_the_label_that_an_earlier_router_gave_is_not_taken_for_that_of_this_one(self):
        self.start([1, 1], group=False, weights="2")
        self.servers[1].fails.add("/update_weights_from_disk")
        self.post("/update_weights_from_disk", {"model_path": MODEL})
        for _ in range(8):
            self.assertEqual(self.answers(), ("2", 2))
        self.router.wait_for(lambda: self.router.up() == 1)
        self.servers[1].fails.clear()
        self.router.wait_for(lambda: self.router.up() == 2)  # it was given the weights again
        self.assertEqual(self.servers[1].weights, self.label("2"))

    def test_a_request_to_a_server_that_says_nothing_is_not_sent_again_under_its_name(self):
        self.start([1], "--engine-silence", "1", group=False)
        self.answers()  # its connection is kept
        self.servers[0].hangs.set()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.answers)
            self.router.wait_for(lambda: len(self.servers[0].rids) > 2)
            self.servers[0].hangs.clear()
            self.assertEqual(asked.result(timeout=60), ("1", 0))
        self.assertEqual(len(set(self.servers[0].rids)), len(self.servers[0].rids))

    def test_servers_that_do_not_have_the_calls_are_named(self):
        server = Served("--instances", "1")
        self.addCleanup(server.stop)
        router = Router([("seer", server)])
        self.addCleanup(router.stop)
        router.wait_for(lambda: router.up() == 1)
        self.assertIn("is of kind seer, which does not have it", router.post("/init_weights_update_group", init(2), 400)["message"])


class VllmTest(GroupTest):
    kind = "vllm"

    def test_the_calls_of_vllm_reach_all_servers_and_then_all_have_the_version(self):
        self.start([2, 1])
        self.assertEqual(self.router.call("GET", "/get_world_size")[1], {"world_size": 3})
        info = {"master_address": "10.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 4}
        self.post("/init_weight_transfer_engine", {"init_info": info})
        self.assertEqual([server.calls[-1][1]["init_info"]["rank_offset"] for server in self.servers], [1, 3])
        self.refused("/start_weight_update", {}, "generation is not paused")
        self.router.call("POST", "/pause?mode=abort")
        self.post("/start_weight_update")
        update = {"update_info": {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2]], "packed": True}}
        self.post("/update_weights", update)
        self.refused("/resume", {}, "the new weights have no version: expected /finish_weight_update before")
        self.post("/finish_weight_update", {"weight_version": "step-8"})
        self.post("/resume")
        for server in self.servers:
            self.assertEqual([path for path, _ in server.calls], ["/init_weight_transfer_engine", "/pause?mode=abort", "/start_weight_update", "/update_weights",
                                                                  "/finish_weight_update", "/reset_prefix_cache", "/resume"])
            self.assertEqual(server.calls[3][1], update)
        self.assertEqual(self.answers(), ("step-8", 2))

    def test_a_server_that_could_not_load_weights_goes_on_but_is_not_taken_for_one_with_the_old_ones(self):
        self.start([1])
        self.servers[0].fails.add("/collective_rpc")
        self.post("/update_weights_from_disk", {"model_path": MODEL}, 400)
        self.assertEqual([path for path, _ in self.servers[0].calls], ["/pause?mode=abort", "/update_weight_version", "/collective_rpc", "/resume"])
        self.router.wait_for(lambda: "is being loaded while the servers had default at first" in str(self.router.workers()[0]["error"]))
        self.servers[0].label("default")
        self.router.wait_for(lambda: self.router.up() == 1)
        self.servers[0].fails.clear()
        self.post("/update_weights_from_disk", {"model_path": MODEL})
        self.assertEqual(self.answers(), (self.router.call("GET", "/get_weight_version")[1]["weight_version"], self.servers[0].version))

    def test_a_server_without_requests_that_was_gone_is_asked_which_weights_it_has(self):
        self.start([1])
        self.assertEqual(self.answers(), ("1", 0))
        self.servers[0].stop()
        self.router.wait_for(lambda: self.router.up() == 0)
        again = RecordedServer(self.kind, 1, weights="base", port=self.servers[0].port)
        self.addCleanup(again.stop)
        self.router.wait_for(lambda: "it has weights base while the servers had default at first" in str(self.router.workers()[0]["error"]))


if __name__ == "__main__":
    unittest.main()
