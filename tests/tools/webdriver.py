"""A browser under test: the WebDriver protocol with nothing but the standard library.

https://www.w3.org/TR/webdriver2/, and of Chromium's own commands its log and its emulated screens."""

import base64
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

KEYS = {
    "Enter": "\ue007",
    "Escape": "\ue00c",
    "Tab": "\ue004",
    "Up": "\ue013",
    "Down": "\ue015",
    "Left": "\ue012",
    "Right": "\ue014",
    "Home": "\ue011",
    "End": "\ue010",
    "Space": " ",
}


class Browser:
    def __init__(self, driver, chromium):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.url = f"http://127.0.0.1:{port}/session"
        try:
            self._await_driver(port)
            options = {
                "binary": chromium,
                "args": [
                    "--headless=new",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--force-device-scale-factor=1",
                    "--window-size=1280,800",
                ],
            }
            wanted = {
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            made = self._ask("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self._end()
            raise
        self.url += "/" + made["sessionId"]

    def quit(self):
        try:
            self._ask("DELETE", "")
        finally:
            self._end()

    def _end(self):
        self.process.terminate()
        self.process.wait()

    def _await_driver(self, port):
        for _ in range(400):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/status") as answer:
                    if json.load(answer)["value"]["ready"]:
                        return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError("chromedriver does not answer")

    def _ask(self, method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"].splitlines()[0]) from None

    def _command(self, name, parameters):
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def screen(self, width, height, scheme="light"):
        self._command(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        self._command(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )

    def open(self, path):
        """Opens a file, after forgetting what the log says of the page before."""
        for kind in ("browser", "performance"):
            self.log(kind)
        self._ask("POST", "/url", {"url": "file://" + os.path.abspath(path)})

    def run(self, script, *arguments):
        """What the body of a function returns in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def log(self, kind):
        return self._ask("POST", "/se/log", {"type": kind})

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._ask("GET", "/screenshot")))

    # ---- Hands

    def _act(self, kind, actions, **more):
        self._ask("POST", "/actions", {"actions": [{"type": kind, "id": kind, "actions": actions, **more}]})

    def keys(self, *names):
        """Presses keys one after another: names of KEYS, or text."""
        letters = [letter for name in names for letter in ([KEYS[name]] if name in KEYS else name)]
        self._act(
            "key", [{"type": kind, "value": letter} for letter in letters for kind in ("keyDown", "keyUp")]
        )

    def back_tab(self):
        tab, shift = KEYS["Tab"], "\ue008"
        self._act(
            "key",
            [
                {"type": "keyDown", "value": shift},
                {"type": "keyDown", "value": tab},
                {"type": "keyUp", "value": tab},
                {"type": "keyUp", "value": shift},
            ],
        )

    def _pointer(self, *actions):
        self._act("pointer", list(actions), parameters={"pointerType": "mouse"})

    def hover(self, x, y):
        self._pointer(move(x, y))

    def click_at(self, x, y):
        self._pointer(move(x, y), {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0})

    def drag(self, x, y, dx, dy):
        self._pointer(
            move(x, y),
            {"type": "pointerDown", "button": 0},
            move(x + dx / 2, y + dy / 2),
            move(x + dx, y + dy),
            {"type": "pointerUp", "button": 0},
        )

    def wheel(self, x, y, dy):
        self._act("wheel", [{"type": "scroll", "x": int(x), "y": int(y), "deltaX": 0, "deltaY": dy}])

    def box(self, selector):
        """Left, top, width and height of the first element, scrolled to where it can be seen."""
        return self.run(
            """const element = document.querySelector(arguments[0]);
               if (!element) throw new Error("no element is " + arguments[0]);
               if (!element.closest("svg")) element.scrollIntoView({ block: "nearest", inline: "nearest" });
               const box = element.getBoundingClientRect();
               return [box.x, box.y, box.width, box.height];""",
            selector,
        )

    def click(self, selector):
        x, y, width, height = self.box(selector)
        self.click_at(x + width / 2, y + height / 2)


def move(x, y):
    return {"type": "pointerMove", "x": round(x), "y": round(y), "duration": 0}
