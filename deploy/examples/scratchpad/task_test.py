#!/usr/bin/python3
"""Tests of the task, the tokenizer and the reward: python3 task_test.py. Needs no torch."""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest

import task
from reward import reward

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 5
LINE = re.compile(r"[A-Z]\d+ ([A-Z]|sum)\+\d+:( \d\+\d\+\d=\d\d)+(=\d+| wait)")
HEAD = re.compile(r"A\d+ [B-Z]")


def demonstrations(count=300):
    rng = random.Random(SEED)
    for _ in range(count):
        terms = task.make_terms(rng)
        yield terms, task.demonstrate(rng, terms)


class TokenizerTest(unittest.TestCase):
    def setUp(self):
        self.tokenizer = task.Tokenizer()

    def test_demonstrations_come_back_as_they_were(self):
        for terms, lines in demonstrations():
            whole = task.prompt_text(terms) + task.text_of(lines)
            self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(whole)), whole)

    def test_any_text_comes_back_as_it_was(self):
        for text in ("", "hello", "summit", "workings", "ans\n\n  42", "na\u00efve \u6c49\u5b57 \U0001f600", "\x00\x7f"):
            self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), text)

    def test_each_word_of_the_task_is_one_token_and_ids_fit(self):
        for word in task.WORDS:
            self.assertEqual(len(self.tokenizer.encode(word)), 1)
        self.assertLess(self.tokenizer.pad, self.tokenizer.size)
        self.assertEqual(sorted(self.tokenizer.vocab.values()), list(range(self.tokenizer.eos)))

    def test_the_files_say_what_the_tokenizer_does(self):
        """tokenizer.json, read the textbook way: the adjacent pair of lowest rank is merged until there is none."""
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.write(folder, 4096)
            with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
                model = json.load(f)["model"]
        rank = {tuple(merge.split(" ")): i for i, merge in enumerate(model["merges"])}
        rng = random.Random(SEED)
        letters = "".join(task.WORDS)
        for run in [*task.WORDS, *("".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(3000))]:
            parts = list(run)
            while pairs := [pair for pair in zip(parts, parts[1:]) if pair in rank]:
                best = min(pairs, key=rank.get)
                i = next(i for i, pair in enumerate(zip(parts, parts[1:])) if pair == best)
                parts[i:i + 2] = ["".join(best)]
            self.assertEqual(self.tokenizer.encode(run), [model["vocab"][p] for p in parts], run)

    def test_the_shipped_model_has_this_tokenizer(self):
        shipped = os.path.join(HERE, "../../models/scratchpad-1m8")
        with tempfile.TemporaryDirectory() as folder:
            self.tokenizer.write(folder, 4096)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                with open(os.path.join(folder, name), "rb") as a, open(os.path.join(shipped, name), "rb") as b:
                    self.assertEqual(a.read(), b.read(), name)


class DemonstrationTest(unittest.TestCase):
    def test_every_line_has_a_known_form(self):
        for terms, lines in demonstrations():
            first, head, *work, last = task.text_of(lines).split("\n")
            self.assertIn(first, task.PLANS)
            self.assertRegex(head, HEAD)
            self.assertRegex(last, r"^ans \d+$")
            for line in work:
                self.assertTrue(line in ("check", "ok", "no") or LINE.fullmatch(line), line)

    def test_one_without_slips_is_right_and_most_with_slips_are(self):
        right = []
        for terms, lines in demonstrations():
            right.append(task.answer_is_right(task.text_of(lines), sum(terms)))
            if all(learn for line in lines for _, learn in line):
                self.assertTrue(right[-1], task.text_of(lines))
        self.assertGreater(sum(right) / len(right), 0.8)

    def test_slips_are_wrong_columns_and_no_wrong_column_is_learnt(self):
        slips = 0
        for _, lines in demonstrations():
            for line in lines:
                for (before, _), (text, learn) in zip(line, line[1:]):
                    if not learn:
                        slips += 1
                        column = re.search(r"(\d)\+(\d)\+(\d)=$", before)
                        self.assertNotEqual(sum(map(int, column.groups())), int(text))
                for text, learn in line:
                    for *column, written in re.findall(r"(\d)\+(\d)\+(\d)=(\d\d)", text if learn else ""):
                        self.assertEqual(sum(map(int, column)), int(written))
        self.assertGreater(slips, 0)

    def test_a_line_with_a_noticed_slip_is_followed_by_the_same_line_again(self):
        noticed = 0
        for _, lines in demonstrations():
            text = task.text_of(lines).split("\n")
            for line, following in zip(text, text[1:]):
                if line.endswith(" wait"):
                    noticed += 1
                    self.assertEqual(line.split(":")[0], following.split(":")[0])
        self.assertGreater(noticed, 0)

    def test_the_plan_says_how_often_lines_are_worked_again(self):
        rng = random.Random(SEED)
        for plan in task.PLANS * 30:
            terms = task.make_terms(rng)
            checks = task.text_of(task.demonstrate(rng, terms, plan)).split("\n").count("check")
            if plan == "work":
                self.assertEqual(checks, 0)
            if plan == "twice":
                self.assertGreaterEqual(checks, len(terms) - 1)

    def test_the_width_holds_every_running_total(self):
        for count in range(2, task.MAX_TERMS + 1):
            for digits in (1, 2, 3):
                terms = [10 ** digits - 1] * count
                self.assertLessEqual(len(str(sum(terms))), task.column_count(terms))

    def test_a_seed_gives_one_demonstration(self):
        terms = [123, 456, 789]
        self.assertEqual(task.demonstrate(random.Random(1), terms), task.demonstrate(random.Random(1), terms))


class RewardTest(unittest.TestCase):
    RIGHT = "work\nA03 B\nB08 sum+03: 8+3+0=11 0+0+1=01=11\nans 11"

    def test_the_right_answer_is_accepted(self):
        self.assertEqual(reward(self.RIGHT, 11), 1.0)
        self.assertEqual(reward(self.RIGHT + "\n", "11"), 1.0)
        self.assertEqual(reward(self.RIGHT, prompt="A03 B08 sum\n"), 1.0)

    def test_wrong_and_garbled_answers_are_refused(self):
        for text in ("", "11", "ans", "ans 12", "ans 011", "ans 11 ", " ans 11", "ans 11.", "ANS 11", "ans 1", "ans 111",
                     "ans 11\nwait", "xans 11", "ans  11", "ans -11", "the ans 11"):
            self.assertEqual(reward(text, 11), 0.0, repr(text))

    def test_without_an_answer_or_a_prompt_of_the_task_there_is_no_reward(self):
        for prompt in (None, "", "What is 3 + 8?", "A03 B08 product\n"):
            with self.assertRaises(ValueError):
                reward(self.RIGHT, prompt=prompt)

    def run_command(self, text):
        return subprocess.run([sys.executable, os.path.join(HERE, "reward.py")], input=text, text=True,
                              capture_output=True, check=False)

    def test_the_command_prints_each_reward_and_the_mean(self):
        lines = [dict(group=0, sample=0, text=self.RIGHT, answer=11), dict(group=0, sample=1, text="ans 9", answer=11)]
        done = self.run_command("\n".join(map(json.dumps, lines)))
        printed = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([p.get("reward") for p in printed], [1.0, 0.0, None])
        self.assertEqual(printed[-1], {"responses": 2, "reward_mean": 0.5})

    def test_the_command_refuses_a_line_that_is_no_response(self):
        for line in ('{"answer": 3}', "[]", "not json", '{"text": "ans 1"}'):
            self.assertNotEqual(self.run_command(line).returncode, 0, line)


class PromptFileTest(unittest.TestCase):
    def test_the_shipped_prompts_are_200_and_say_their_answers(self):
        prompts = task.read_prompts(os.path.join(HERE, "prompts.jsonl"))
        self.assertEqual((len(prompts), len({p["prompt"] for p in prompts}), len({p["id"] for p in prompts})),
                         (200, 200, 200))
        for p in prompts:
            terms = task.terms_of(p["prompt"])
            self.assertEqual((p["answer"], p["terms"], p["prompt"]), (sum(terms), len(terms), task.prompt_text(terms)))


if __name__ == "__main__":
    unittest.main()
