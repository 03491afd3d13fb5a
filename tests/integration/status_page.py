#!/usr/bin/env python3
"""The page of `seer serve` in a headless Chromium: it draws what the server does, in the light and the dark scheme and in windows of 1280,
800 and 420 px, writes nothing to the console, asks no other host, shows names as they are, and asks for the token where there is one.
usage: status_page.py SEER_PROGRAM    SEER_STATUS_PAGE_KEEP=FOLDER keeps screenshots there. Skipped where Chromium is not installed."""
import base64, concurrent.futures, fcntl, json, os, shutil, subprocess, sys, tempfile, threading, unittest

from served import MODEL, Served

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
KEEP = os.environ.get("SEER_STATUS_PAGE_KEEP")
NAME = "<img src=x onerror=\"document.title='no'\">&amp;"  # of weights, as a trainer may call them


class Browser:
    """A tab, over the pipe of Chromium's debugger: messages of JSON that end with a zero byte."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        command_out, self.command = os.pipe()
        self.answer, answer_in = os.pipe()
        # Chromium has them as 3 and 4, which neither must be before.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (command_out, answer_in)]
        os.close(command_out)
        os.close(answer_in)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={self.folder}", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", 'exec "$0" "$@" 3<&{0} 4>&{1} {0}<&- {1}>&-'.format(*theirs), CHROMIUM, *options],
                                        pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in theirs:
            os.close(end)
        self.unread, self.last_id, self.events, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.kill()
        self.process.wait(timeout=60)
        os.close(self.command)
        os.close(self.answer)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, method, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.command, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.unread:
                part = os.read(self.answer, 1 << 16)
                if not part:
                    raise AssertionError(f"{CHROMIUM} has ended")
                self.unread += part
            text, self.unread = self.unread.split(b"\0", 1)
            found = json.loads(text)
            if found.get("id") != self.last_id:
                self.events.append(found)
            elif "error" in found:
                raise AssertionError(f"{method}: {found['error']}")
            else:
                return found["result"]

    def look(self, width=1280, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=1400, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, script):
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, script, seconds=60):
        for _ in range(seconds * 10):
            if self.value(script):
                return
            threading.Event().wait(0.1)
        raise AssertionError(f"not so in time: {script}; the page says: {self.value('document.body.innerText')[:2000]}")

    def said(self):
        """What the page wrote to the console, and what went wrong in it."""
        return [event for event in self.events if event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]

    def asked(self):
        return {event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"}

    def keep(self, name):
        if KEEP:
            os.makedirs(KEEP, exist_ok=True)
            with open(f"{KEEP}/{name}.png", "wb") as file:
                file.write(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


TILE = "[...document.querySelectorAll('.tile')].find((tile) => tile.firstChild.textContent === '{}').querySelector('b').textContent"
POLLED = "Number(document.documentElement.dataset.polls ?? 0) > {}"


class StatusPageTest(unittest.TestCase):
    def start(self, *options):
        served = Served(*options)
        self.addCleanup(served.kill)
        browser = Browser()
        self.addCleanup(browser.close)
        browser.look()
        browser.call("Page.navigate", url=f"http://127.0.0.1:{served.port}/")
        browser.until("document.readyState === 'complete'")
        return served, browser

    def polls(self, browser, more=2):
        """Waits until it was drawn so often again."""
        browser.until(POLLED.format(browser.value("Number(document.documentElement.dataset.polls ?? 0)") + more - 1))

    def check(self, browser, which):
        self.polls(browser)
        data = browser.value("({...document.documentElement.dataset})")
        self.assertNotIn("error", data, which)
        self.assertLessEqual(int(data["overflow"]), 0, which)
        self.assertEqual(int(data["drawn"]), 7, which)  # three charts, and two maps with a canvas and an axis each
        for word in ("NaN", "undefined", "Infinity", "null"):
            self.assertNotIn(word, browser.value("document.getElementById('shown').innerText"), which)

    def test_it_draws_what_the_server_does_in_each_scheme_and_width(self):
        served, browser = self.start("--drafting", "grouped")
        self.check(browser, "idle")
        self.assertEqual(browser.value("document.getElementById('state').textContent"), "serving")
        self.assertEqual(browser.value(TILE.format("Running")), "0")
        self.assertIn("None yet", browser.value("document.getElementById('rollouts').innerText"))
        browser.keep("idle")
        served.post("/update_weights_from_disk", {"model_path": MODEL, "weight_version": NAME})

        stop = threading.Event()

        def client(i):
            while not stop.is_set():
                served.generate([2, 3, 4, i], sampling_params={"max_new_tokens": 200 + 150 * i, "ignore_eos": True, "n": 4})

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            clients = [pool.submit(client, i) for i in range(8)]
            try:
                browser.until(f"Number({TILE.format('Running')}) > 0")
                browser.until("document.querySelector('#open path') !== null && now.tokens_per_s > 0 && now.drafts !== null")
                # A map has more than the colour of nothing.
                browser.until("new Set(new Uint32Array(document.querySelector('#instances canvas').getContext('2d').getImageData(0, 0, 9999, 9999).data.buffer)).size > 2")
                for scheme in ("light", "dark"):
                    for width in (1280, 800, 420):
                        browser.look(width, scheme)
                        self.check(browser, f"{scheme}, {width} px")
                        browser.keep(f"load-{scheme}-{width}")
                browser.look()
                self.assertIn(NAME, browser.value("document.getElementById('rollouts').innerText"))
                self.assertIn(NAME, browser.value("document.getElementById('facts').innerText"))
                self.assertEqual(browser.value("document.querySelectorAll('img').length"), 0)
                served.post("/pause_generation", {})
                browser.until("document.getElementById('state').textContent === 'paused'")
                served.post("/continue_generation")
                browser.until("document.getElementById('state').textContent === 'serving'")
            finally:
                stop.set()
                for one in clients:
                    one.result()
        browser.until(f"{TILE.format('Running')} === '0'")
        ended = browser.value("now.responses.stop + now.responses.length + now.responses.abort")
        self.assertGreater(ended, 0)
        self.check(browser, "after")
        self.assertEqual([], browser.said())
        self.assertEqual({url.split("?")[0] for url in browser.asked() if not url.startswith("data:")},
                         {f"http://127.0.0.1:{served.port}/", f"http://127.0.0.1:{served.port}/seer/v1/status"})
        served.process.kill()
        browser.until("document.getElementById('state').textContent === 'no answer'")
        browser.keep("gone")

    def test_it_asks_for_the_token_and_keeps_it_in_its_tab(self):
        with tempfile.NamedTemporaryFile("w") as file:
            token = "a-token-of-24-characters"
            file.write(f"{token}\n")
            file.flush()
            served, browser = self.start("--token-file", file.name)
            enter = "document.getElementById('token').value = {}; document.querySelector('#ask button').click()"
            browser.until("!document.getElementById('ask').hidden")
            self.assertFalse(browser.value(POLLED.format(0)))
            self.assertTrue(browser.value("document.getElementById('shown').hidden"))
            browser.keep("token")
            browser.value(enter.format("'a-wrong-one'"))
            browser.until("document.getElementById('why').textContent === 'That is not its token.'")
            browser.value(enter.format(json.dumps(token)))
            self.check(browser, "with the token")
            self.assertTrue(browser.value("document.getElementById('ask').hidden"))
            self.assertFalse(any(token in url for url in browser.asked()))
            browser.value("window.isOld = true")
            browser.call("Page.reload")
            browser.until("window.isOld === undefined && document.readyState === 'complete'")
            self.check(browser, "after it was loaded again")
            self.assertEqual(browser.value("localStorage.length"), 0)


if __name__ == "__main__":
    if CHROMIUM is None:
        print("status_page: skipped: chromium is not installed (apt-get install chromium)")
        sys.exit(77)
    unittest.main()
