#!/usr/bin/python3
"""The reward of the scratchpad task: 1.0 for a right answer, else 0.0. Plain Python, no torch.

A trainer imports it:

    from reward import reward
    reward("work\\nA03 B\\nB08 sum+03: 8+3+0=11 0+0+1=01=11\\nans 11", answer=11)  # 1.0

As a command it reads JSON lines, such as a rollout writes, from the files named or from standard input. Each line
has `text` (the response) and `answer`, or else the `prompt`, from which the answer is worked out:

    reward.py responses.jsonl
"""
import argparse
import json
import sys

import task


def reward(text, answer=None, prompt=None):
    """REQUIRES: answer, or a prompt of this task."""
    if answer is None:
        terms = task.terms_of(prompt) if prompt is not None else None
        if terms is None:
            raise ValueError(f"neither an answer nor a prompt of this task: prompt={prompt!r}")
        answer = sum(terms)
    return float(task.answer_is_right(text, answer))


def reward_of_line(line):
    """Raises ValueError for a line that is not such a record: a wrong file should not read as reward 0."""
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise ValueError("no `text` field")
    return record, reward(record["text"], record.get("answer"), record.get("prompt"))


def main():
    ap = argparse.ArgumentParser(description="Prints a reward per line, then their mean.")
    ap.add_argument("files", nargs="*", help="JSON lines; standard input if none is named")
    ap.add_argument("--quiet", action="store_true", help="the mean alone")
    args = ap.parse_args()
    rewards = []
    for name in args.files or ["-"]:
        try:
            opened = sys.stdin if name == "-" else open(name, encoding="utf-8")
        except OSError as error:
            sys.exit(f"{name}: {error.strerror}")
        with opened as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    record, value = reward_of_line(line)
                except ValueError as error:
                    sys.exit(f"{name}:{number}: {error}")
                rewards.append(value)
                if not args.quiet:
                    print(json.dumps({**{k: record[k] for k in ("id", "group", "sample") if k in record},
                                      "reward": value}))
    if not rewards:
        sys.exit("no lines to reward")
    print(json.dumps({"responses": len(rewards), "reward_mean": round(sum(rewards) / len(rewards), 6)}))


if __name__ == "__main__":
    main()
