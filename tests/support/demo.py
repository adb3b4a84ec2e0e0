"""`manage.py demo` in a process, and a client of its pages."""

from __future__ import annotations

import http.cookiejar
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .processes import ROOT, RunningCommand

MANAGE = ROOT / "testproject" / "manage.py"
#: seconds within which the demo must answer
DEADLINE = 90.0
NOTIFICATIONS = "/messages/notifications/"
#: less data than by default, so that a demo starts sooner
SMALL = ("--contacts", "30", "--chats", "2", "--messages", "3")


def environment(directory: Path, **more: str) -> dict[str, str]:
    """The environment variables of a command of the site with this directory."""
    without = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    return {**without, "DEMO_DIR": str(directory), "DJANGO_SETTINGS_MODULE": "testproject.settings", **more}


def manage(directory: Path, *words: str, **more: str) -> str:
    """What another command of the site prints."""
    done = subprocess.run(
        [sys.executable, str(MANAGE), *words],
        env=environment(directory, **more), capture_output=True, text=True, timeout=DEADLINE,
    )  # fmt: skip
    return done.stdout or done.stderr


class Demo(RunningCommand):
    """A running demo."""

    patience = DEADLINE

    def __init__(
        self, directory: Path, *args: str, python: str = sys.executable, env: dict[str, str] | None = None
    ) -> None:
        self.directory = directory
        words = [python, str(MANAGE), "demo", "--port", "0", *SMALL, *args]
        super().__init__(words, environment(directory, **(env or {})))

    def wait_for(self, text: str) -> None:
        """Wait until it has printed the text."""
        self.wait_until(lambda output: text in output)

    @property
    def address(self) -> str:
        """The URL that it prints once it accepts requests."""
        self.wait_for("Open http://")
        [found] = re.findall(r"Open (http://\S+)", self.output)
        return str(found)


@contextmanager
def demos(directory: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos that share a directory; kills those still running at the end."""
    started: list[Demo] = []

    def start(*args: str, **options: Any) -> Demo:
        started.append(Demo(directory, *args, **options))
        return started[-1]

    yield start
    for demo in started:
        demo.stop(signal.SIGKILL)


class Browser:
    """A client that keeps cookies and posts forms."""

    def __init__(self, address: str, user: str = "", *, language: str = "en") -> None:
        self.address = address
        #: the path of the page that was shown last
        self.where = ""
        handler = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(handler, urllib.request.ProxyHandler({}))
        self._opener.addheaders.append(("Accept-Language", language))
        if user:
            self.sign_in(user)

    def get(self, path: str) -> str:
        return self._send(path, None)

    def post(self, path: str, *, at: str = "", **form: str) -> str:
        """Submit a form of the page `at`; returns the page it redirects to."""
        found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', self.get(at or path))
        assert found
        return self.post_without_token(path, csrfmiddlewaretoken=found[1], **form)

    def post_without_token(self, path: str, **form: str) -> str:
        return self._send(path, urllib.parse.urlencode(form).encode())

    def sign_in(self, username: str, **more: str) -> str:
        return self.post("/", username=username, **more)

    def until(self, path: str, text: str) -> str:
        """The page, once it contains the text."""
        ends = time.monotonic() + DEADLINE
        while text not in (page := self.get(path)):
            assert time.monotonic() < ends, page
            time.sleep(0.05)
        return page

    def _send(self, path: str, form: bytes | None) -> str:
        with self._opener.open(urllib.parse.urljoin(self.address, path), form, timeout=DEADLINE) as answer:
            self.where = urllib.parse.urlparse(answer.url).path
            return str(answer.read().decode())
