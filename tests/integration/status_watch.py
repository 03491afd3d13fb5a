#!/usr/bin/env python3
"""`seer status --cluster --watch` on a terminal: a table that is drawn again every second, until Ctrl-C. Usage: status_watch.py [SEER]"""
import os, pty, re, select, signal, subprocess, tempfile, termios, time, unittest

from serve_cluster import PATIENCE_S, PROMPTS, Machine, until
from served import MACHINE, MODEL, SEER

REDRAW = "\x1b[H\x1b[2J"  # to the top left of an empty screen


class Watch:
    """`seer status --watch` with a terminal of its own, and all that it wrote there."""

    def __init__(self, cluster):
        self.master, self.slave = pty.openpty()
        self.settings = termios.tcgetattr(self.slave)

        def take_terminal():  # Ctrl-C goes to the session whose terminal it is
            os.setsid()
            os.close(os.open(os.ttyname(0), os.O_RDWR))
        environment = {**os.environ, "TERM": "xterm"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen([SEER, "status", "--cluster", cluster, "--watch"], stdin=self.slave, stdout=self.slave, stderr=self.slave,
                                        env=environment, preexec_fn=take_terminal)
        self.written = b""

    def look(self):
        """Takes what has come, and returns the screens so far. The last may not be whole."""
        while select.select([self.master], [], [], 0)[0]:
            self.written += os.read(self.master, 65536)
        return self.written.decode().split(REDRAW)[1:]

    def until_shown(self, *patterns):
        """Until one whole screen has all of them."""
        def is_shown():
            return any(all(re.search(p, screen) for p in patterns) for screen in self.look()[:-1])
        until(is_shown, f"{patterns} on a screen: {self.written[-2000:]!r}")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


class StatusWatchTest(unittest.TestCase):
    def test_the_table_follows_the_cluster_and_ctrl_c_leaves_the_terminal_as_it_was(self):
        controller = Machine("--instances", "1", *MACHINE)
        cluster = f"127.0.0.1:{controller.port}"
        self.addCleanup(controller.end)
        watch = Watch(cluster)
        self.addCleanup(watch.close)
        plain = subprocess.Popen([SEER, "status", "--cluster", cluster, "--watch"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(plain.kill)
        watch.until_shown(rf"^cluster at {cluster}: 1 node, 0 rollouts\r\n", r"\r\n\x1b\[1mnode  address +state +instances  chunks  output tokens\x1b\[0m\r\n",
                          r"\r\n0 +127\.0\.0\.1:\d+ +up +1 +0 +0\r\n +controller, instances, kv, draft\r\n")

        other = Machine("--name", "1", "--join", cluster, "--instances", "1", *MACHINE)
        self.addCleanup(other.process.kill)
        with tempfile.TemporaryDirectory() as work:
            rollout = subprocess.Popen([SEER, "rollout", "--cluster", cluster, "--model", MODEL, "--prompts", PROMPTS, "--limit", "40", "--group-size", "32",
                                        "--max-tokens", "3000", "--ignore-eos", "--out", f"{work}/out.jsonl"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(rollout.kill)
            used = r"KV [1-9]\S* .?i?B of \S+ MiB, DRAM \S+ .?i?B of \S+ MiB, cold - of \d+ requests?"
            watch.until_shown(rf"^cluster at {cluster}: 2 nodes, 1 rollout\r\n", r"\r\n1 +127\.0\.0\.1:\d+ +up +1 +[1-9]", used, r"\r\nrollout \d+  \d+ of 1 280 requests, ")
            rollout.send_signal(signal.SIGINT)
            rollout.wait(timeout=PATIENCE_S)
        other.end()
        watch.until_shown(rf"^cluster at {cluster}: 1 node, 0 rollouts\r\n", r"\r\n0 +\S+ +up +1 +0 +[1-9]")

        begin, before = time.monotonic(), len(watch.look())
        until(lambda: len(watch.look()) >= before + 2, "two more screens")
        self.assertGreater(time.monotonic() - begin, 0.9)  # one a second
        os.write(watch.master, b"\x03")
        self.assertEqual(watch.process.wait(timeout=PATIENCE_S), 0)
        last = watch.look()[-1].replace("^C", "")  # the echo
        self.assertTrue(last.endswith("\n"), last)
        self.assertEqual(re.findall(r"\x1b[^a-zA-Z]*[a-zA-Z]", last), ["\x1b[1m", "\x1b[0m"], "no other mode of the terminal, and none that is left on")
        self.assertEqual(termios.tcgetattr(watch.slave), watch.settings)

        plain.send_signal(signal.SIGINT)
        text, _ = plain.communicate(timeout=PATIENCE_S)
        self.assertEqual(plain.returncode, 0)
        self.assertGreater(text.count(f"cluster at {cluster}: "), 2)
        self.assertNotIn("\x1b", text)  # without a terminal


if __name__ == "__main__":
    unittest.main(argv=["status_watch"])
