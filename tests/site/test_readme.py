"""The README's shortest way to a site of one's own: typed into an empty folder as it is shown, it works.

Nothing of the README is repeated here. The environment of the tests replaces the one that the first commands
make; the addresses of Redis and of the site are free ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_redis_messaging.core import testruns
from django_redis_messaging.devserver.server import EmbeddedServer, free_port

from ..support.demo import Browser
from ..support.processes import PATIENCE, ROOT
from ..support.server import until

SECTION = re.compile(r"^## (?:Your own site|你自己的站点)\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)
#: a block: its language, and its text
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r" *# .*")
#: the file that a block of Python is appended to
PLACE = re.compile(r"\A# (\S+\.py)\n")
SERVER = re.compile(r"redis://127\.0\.0\.1:6379/(\d)")
#: commands that the environment of the tests replaces, and the one that runs the site
PREPARING, SERVING = ("python3 -m venv ", "pip install "), "python manage.py runserver"


def section(document: str) -> str:
    found = SECTION.search((ROOT / document).read_text(encoding="utf-8"))
    assert found
    return found[1]


README = section("README.md")
[PASSWORD] = re.findall(r"DJANGO_SUPERUSER_PASSWORD=(\w+)", README)
WRITER, READER = re.findall(r"--username (\w+)", README)
[TEXT] = re.findall(r'notify\(request\.user, "([^"]+)"', README)
#: the paths that the reader opens
PAGES, VIEW = re.findall(r"http://127\.0\.0\.1:8000(/\w+/)", README)


def environment() -> dict[str, str]:
    """The environment variables of a reader, who runs no tests, with Python of the tests as `python`."""
    ours = ("PYTEST_", "COV_", "COVERAGE_", "DJANGO_", testruns.VARIABLE)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited["PATH"]])
    return {**inherited, "PATH": path, "PYTHONWARNINGS": "error"}


def run(commands: list[str], folder: Path) -> None:
    """Run commands in one shell. If one fails, the error has what they have printed."""
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join(commands)],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def type_in(folder: Path, url: str) -> None:
    """Create the site with this Redis server: append the blocks of Python to files, run the others."""
    for language, text in BLOCK.findall(README):
        if language == "python":
            with (folder / PLACE.findall(text)[0]).open("a", encoding="utf-8") as out:
                out.write(SERVER.sub(lambda found: url.replace("db=0", f"db={found[1]}"), text))
        else:
            lines = text.splitlines()
            run([line for line in lines if not line.startswith((*PREPARING, SERVING))], folder)
    assert lines[-1] == SERVING


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site."""
    folder, address = tmp_path_factory.mktemp("site"), f"127.0.0.1:{free_port()}"
    with EmbeddedServer() as server:
        type_in(folder, server.url)
        process = subprocess.Popen(
            [*SERVING.split(), address], cwd=folder, env=environment(), start_new_session=True
        )
        try:
            until(lambda: answers(f"http://{address}"))
            yield f"http://{address}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(address: str) -> bool:
    try:
        return bool(Browser(address).get(PAGES))
    except urllib.error.URLError:
        return False


def sign_in(site: str, user: str) -> Browser:
    """A browser in which the user has opened the pages, and has signed in when asked to."""
    browser = Browser(site)
    browser.get(PAGES)
    browser.post(browser.where, username=user, password=PASSWORD, next=PAGES)
    assert browser.where == PAGES
    return browser


def test_users_find_and_write_to_each_other(site: str) -> None:
    writer, reader = sign_in(site, WRITER), sign_in(site, READER)
    [found] = json.loads(writer.get(f"{PAGES}contacts/suggest/?q={READER[:2]}"))["results"]
    assert found["text"] == READER
    assert "Good morning" in writer.post(f"{PAGES}new/", to=found["id"], body="Good morning")
    assert writer.where.startswith(f"{PAGES}chats/")
    assert "Good morning" in reader.get(PAGES)
    assert "Good morning" in reader.get(writer.where)


def test_the_view_notifies_whoever_opens_it(site: str) -> None:
    browser = sign_in(site, WRITER)
    assert TEXT in browser.get(VIEW)
    assert browser.where == f"{PAGES}notifications/"
    unread = [
        json.loads(one.get(f"{PAGES}notifications/bell/"))["unread"]
        for one in (browser, sign_in(site, READER))
    ]
    assert unread == [1, 0]


def test_the_translation_shows_the_same() -> None:
    code, translated = (
        [(language, COMMENT.sub("", text)) for language, text in BLOCK.findall(section(document))]
        for document in ("README.md", "README.zh-Hans.md")
    )
    assert code == translated
