"""Debian's Firefox for tests, by its protocol Marionette: Playwright only drives a Firefox of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from .programs import program

PROGRAMS = ("firefox-esr", "firefox")
#: seconds
DEADLINE = 60.0
#: no requests of its own, and a free port that it writes into its profile
PREFERENCES = {
    "app.normandy.enabled": False,
    "app.update.disabledForTesting": True,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.update.enabled": False,
    "marionette.port": 0,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.enabled": False,
}
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Firefox:
    """A browser window. https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html"""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        self._stream = self._socket.makefile("rb")
        self._read()
        self.do("WebDriver:NewSession")

    def do(self, command: str, **parameters: Any) -> Any:
        """Run a command of WebDriver."""
        message = json.dumps([0, 1, command, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._read()
        assert not error, error
        return result

    def goto(self, url: str) -> None:
        self.do("WebDriver:Navigate", url=url)

    def back(self) -> None:
        self.do("WebDriver:Back")

    def run(self, script: str, *args: Any) -> Any:
        """The value of a script that may contain `return`; a promise is awaited."""
        return self.do("WebDriver:ExecuteScript", script=script, args=args)["value"]

    def until(self, script: str, *args: Any) -> Any:
        """Run the script until its value is true; returns the value."""
        ends = time.monotonic() + DEADLINE
        while not (value := self.run(script, *args)):
            assert time.monotonic() < ends, (script, args, self.run("return document.body.innerText"))
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        self.do("WebDriver:ElementClick", id=self._find(selector))

    def type(self, selector: str, text: str) -> None:
        """Type into an element; U+E007 is Enter."""
        self.do("WebDriver:ElementSendKeys", id=self._find(selector), text=text)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _find(self, selector: str) -> str:
        found = self.do("WebDriver:FindElement", using="css selector", value=selector)
        return str(found["value"][ELEMENT])

    def _read(self) -> Any:
        length = b""
        while not length.endswith(b":"):
            character = self._stream.read(1)
            if not character:
                raise ConnectionError("Firefox has ended.")
            length += character
        return json.loads(self._stream.read(int(length[:-1])))


@contextmanager
def open_firefox(directory: Path) -> Iterator[Firefox]:
    """Run Firefox without a window; its profile is in the directory."""
    binary = program(*PROGRAMS)
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items())
    (directory / "user.js").write_text("\n".join(lines))
    process = subprocess.Popen(
        [binary, "--headless", "--marionette", "--no-remote", "--profile", str(directory)],
        env={**os.environ, "HOME": str(directory)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port, ends = directory / "MarionetteActivePort", time.monotonic() + DEADLINE
        while not (port.exists() and port.read_text()):
            assert process.poll() is None and time.monotonic() < ends
            time.sleep(0.02)
        with closing(Firefox(int(port.read_text()))) as firefox:
            yield firefox
            firefox.do("Marionette:Quit", flags=["eForceQuit"])
    finally:
        process.kill()
        process.wait()
