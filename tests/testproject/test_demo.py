"""`manage.py demo` in a separate process: its pages, and how it starts and stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.devserver.cluster import EmbeddedCluster
from django_redis_messaging.devserver.server import EmbeddedServer

from ..devserver.test_embedded import readable_by_others
from ..support.demo import NOTIFICATIONS, Browser, Demo, manage
from ..support.processes import ROOT
from .conftest import start
from .test_traffic import read, requests_of, totals_of

__all__ = ["Demo", "start"]  # for tests in a browser

Start = Callable[..., Demo]
#: number of packages that the README's command may install beside this one
MAX_PACKAGES = 15
ROOM = "/messages/chats/demo-lunch/"


class TestSignIn:
    def test_users_find_their_chats(self, demo: Demo) -> None:
        alice, frank = Browser(demo.address), Browser(demo.address)
        assert "Alice Moreau" in alice.get("/")
        assert "background" in alice.get("/static/people/sign_in.css")
        assert "Lunch on Friday" in alice.sign_in("alice")
        assert alice.where == "/messages/"
        chats = frank.sign_in("frank")
        assert "Lunch on Friday" not in chats
        assert "don't say a word" in chats.lower().replace("&#x27;", "'")

    def test_it_redirects_to_next_but_not_to_other_sites(self, demo: Demo) -> None:
        browser = Browser(demo.address)
        browser.sign_in("alice", next="/admin/")
        assert browser.where == "/admin/"
        browser.sign_in("alice", next="//example.com/")
        assert browser.where == "/messages/"

    def test_only_demo_users_can_sign_in(self, demo: Demo) -> None:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            Browser(demo.address, "contact-1")

    def test_pages_are_in_the_language_of_the_browser(self, demo: Demo) -> None:
        browser = Browser(demo.address, language="de")
        assert "Wer sind Sie?" in browser.get("/")
        browser.sign_in("erin")
        assert "Rabatt" in browser.get("/shop/")
        assert "Sie haben <b>100</b> Münzen." in browser.get("/market/")
        assert "Anfragen nach Land und Tag" in browser.get("/traffic/")
        assert '<html lang="ar" dir="rtl">' in Browser(demo.address, language="ar").get("/")
        assert "Who are you?" in Browser(demo.address, language="fr").get("/"), "not half in French"


class TestChats:
    def test_users_share_as_many_as_they_want(self, demo: Demo) -> None:
        feed = json.loads(Browser(demo.address).sign_in("erin", next="/messages/feed/"))
        chats = {chat["title"]: chat for chat in feed["chats"] if chat["title"] != "Release"}
        assert [chat["last_id"] for chat in chats.values()] == [50] * 9
        assert {title: chat["unread"] for title, chat in chats.items() if chat["unread"]} == {
            "Design Lisbon": 1,
            "Travel Lisbon": 2,
        }

    def test_mentioned_members_are_notified(self, demo: Demo) -> None:
        bob, frank, alice, carol = (
            Browser(demo.address, name) for name in ("bob", "frank", "alice", "carol")
        )
        for browser in (bob, frank, alice, carol):
            assert "Order something" in browser.get(NOTIFICATIONS)
        alice.post(f"{ROOM}send/", at=ROOM, body="@bob lindqvist, @Frank Oliveira, @alice and @nobody!")
        assert "Alice Moreau mentioned you in" in (page := bob.get(NOTIFICATIONS))
        assert f'value="{ROOM}?at=' in page
        alice.post(f"{ROOM}send/", at=ROOM, body="Well, @Bob Lindqvist?")
        assert "2 in total" in bob.get(NOTIFICATIONS)
        carol.post("/messages/blocks/block/", at=ROOM, person="1")
        for body in ("@all: <b>noodles</b>!", "@all: again"):
            alice.post(f"{ROOM}send/", at=ROOM, body=body)
        assert "mentioned everybody: @all: &lt;b&gt;noodles" in bob.get(NOTIFICATIONS)
        assert "@all: again" not in bob.get(NOTIFICATIONS), "within a minute"
        assert "mentioned" not in carol.get(NOTIFICATIONS), "has blocked the sender"
        assert "mentioned" not in frank.get(NOTIFICATIONS), "not a member of the chat"
        assert "mentioned" not in alice.get(NOTIFICATIONS), "the sender"


class TestOrders:
    def test_they_need_a_sign_in(self, demo: Demo) -> None:
        browser = Browser(demo.address)
        browser.get("/orders/")
        assert browser.where == "/"
        browser.post("/orders/1/pay/", at="/")
        assert browser.where == "/"
        browser.sign_in("bob", next="/orders/")
        assert browser.where == "/orders/"

    def test_they_are_confirmed_by_a_task_and_cancelled_unless_paid_in_time(self, demo: Demo) -> None:
        browser = Browser(demo.address, "bob")
        browser.post("/orders/", item="Tea", email="ann@example.com")
        page = browser.post("/orders/", item="Cake", email="later@example.com")  # its mail is refused twice
        assert re.search(r'cancelled in <b data-remaining="[23]">[23]</b> s', page)
        page = browser.post(re.findall(r'action="(/orders/\d+/pay/)"', page)[0], at="/orders/")
        assert browser.where == "/orders/"
        assert page.count("payment-paid") == 1

        for item in ("Tea", "Cake"):
            browser.until(NOTIFICATIONS, f"Your order is confirmed: {item}.")
        page = browser.until("/orders/", 'aria-label="3 attempts"')
        assert (page.count("state-successful"), page.count('aria-label="1 attempt"')) == (2, 1)

        page = browser.until("/orders/", "payment-cancelled")
        assert (page.count("payment-paid"), page.count("payment-cancelled")) == (1, 1)
        assert "Pay for" not in page
        assert "data-remaining" not in page
        page = browser.until(NOTIFICATIONS, "Your order was cancelled")
        assert "paid in time: Tea." in page and "paid in time: Cake." not in page

        german = Browser(demo.address, "bob", language="de")
        page = german.post("/orders/", item="Tee", email="ann@example.com")
        for text in (">Bestellen</button>", ">Artikel:</label>", ">E-Mail-Adresse:</label>"):
            assert text in page
        assert "Noch nicht bezahlt" in page
        german.until("/orders/", "Bestätigung: Erfolgreich")


class TestConsole:
    def test_it_shows_life_within_a_minute(self, demo: Demo) -> None:
        """Traffic, a paused queue, a task that failed for good, and a lock for which a client waits."""
        alice, pages = Browser(demo.address, "alice"), "/admin/django_redis_messaging"
        assert "Paused" in alice.until(f"{pages}/queues/", "The archive is being moved.")
        lock = alice.until(f"{pages}/locks/lock/?thing=lock:inventory", "process")
        while not re.search(r"<dt>Waiting</dt><dd>\s*<bdi>1</bdi>", lock):  # ended by the limit of the test
            lock = alice.get(f"{pages}/locks/lock/?thing=lock:inventory")
        stock = f"{pages}/queues/queue/?thing=queue:default/stock&place=dead"
        assert "Nowhere Ltd. did not answer." in alice.until(stock, "office.tasks.order_from")
        assert 'class="drm-spark"' in alice.until(f"{pages}/overview/", "failed for good")


class TestStaff:
    def test_only_they_change_the_options_and_process_the_log(self, demo: Demo) -> None:
        """One test, since it begins with a demo where nothing was changed or counted."""
        forms = (("/shop/", {"discount": "90"}), ("/traffic/process/", {}))
        alice, bob = Browser(demo.address), Browser(demo.address)
        for page in ("/shop/", "/traffic/"):
            alice.get(page)
            assert alice.where == "/"
        for path, form in forms:
            alice.post(path, at="/", **form)
            assert alice.where == "/", "signs in first"
        bob.sign_in("bob")
        for path, form in forms:
            assert f'<form method="post" action="{path}"' not in bob.get("/traffic/")
            with pytest.raises(urllib.error.HTTPError, match="403"):
                bob.post(path, at="/", **form)
        page = bob.get("/shop/")
        assert '<span id="discount">0 %</span>' in page
        assert "Only staff can change the options." in page
        page = alice.sign_in("alice", next="/traffic/")
        assert alice.where == "/traffic/"
        assert "Nothing has been counted yet." in page
        for path, form in forms:
            with pytest.raises(urllib.error.HTTPError, match="403"):
                alice.post_without_token(path, **form)
        assert "Nothing has been counted yet." in alice.get("/traffic/")
        assert not (demo.directory / "options.json").exists()
        check_options(demo, alice)
        check_counts(demo, alice)


def check_options(demo: Demo, browser: Browser) -> None:
    """An option that another process changes applies at once, and so does one that the page changes."""
    made = re.findall(r'<time id="made" datetime="[^"]+"', browser.get("/shop/"))
    assert manage(demo.directory, "option", "discount", "20") == '{"discount": 20, "open": true}\n'
    page = browser.until("/shop/", '<span id="discount">20 %</span>')
    while re.findall(r'<time id="made" datetime="[^"]+"', page) == made:  # ended by the limit of the test
        page = browser.get("/shop/")
    page = browser.post("/shop/", discount="30")
    assert '<span id="discount">30 %</span>' in page
    assert json.loads((demo.directory / "options.json").read_text()) == {"discount": 30, "open": False}


def check_counts(demo: Demo, browser: Browser) -> None:
    """The page shows the counts of the log, and counts nothing twice."""
    page = browser.post("/traffic/process/", at="/traffic/")
    assert browser.where == "/traffic/"
    assert "The log was processed." in page and "7 malformed lines were skipped." in page
    requests = requests_of(read(demo.directory / "access.log"))
    assert totals_of(page) == Counter(day for day, _ in requests)
    assert f"{len(requests)} requests" in page
    germans = sum(1 for day, ip in requests if day == "2026-05-19" and ip.startswith("2001:db8:1:"))
    assert re.search(rf'Germany</th>\s*<td class="number">{germans}</td>', page)
    again = browser.post("/traffic/process/", at="/traffic/")
    assert "Nothing was counted twice." in again
    assert totals_of(again) == totals_of(page)
    with pytest.raises(urllib.error.HTTPError, match="405"):
        browser.get("/traffic/process/")


def test_beyond_loopback_only_the_host_is_allowed_and_staff_need_a_password(start: Start) -> None:
    demo = start("--host", "0.0.0.0", "--allowed-host", "demo.internal")  # noqa: S104
    address = demo.address
    assert demo.output.index("0.0.0.0 is not a loopback address") < demo.output.index("Redis:")
    for name, status in (("demo.internal", 200), ("127.0.0.1", 400), ("example.com", 400)):
        assert status_for(address, name) == status, name

    browser = Browser(address, "alice")
    assert browser.where == "/admin/login/"
    assert "You are" not in browser.get("/")
    [password] = re.findall(r"alice can use the admin, with this password: (\S+)", demo.output)
    browser.post("/admin/login/?next=/admin/", at="/admin/login/", username="alice", password=password)
    assert browser.where == "/admin/"
    browser.sign_in("bob")
    assert browser.where == "/messages/"


def status_for(address: str, name: str) -> int:
    """The status of the page / for a browser that uses this host name."""
    request = urllib.request.Request(address, headers={"Host": name})  # noqa: S310  (the demo's address)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def servers(directory: Path) -> list[str]:
    """Processes with their data in the directory."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            lines.append(path.read_bytes())
    return [str(line) for line in lines if bytes(directory) in line]


class TestData:
    def test_it_is_kept_and_belongs_to_one_demo(self, start: Start, tmp_path: Path) -> None:
        first = start()
        browser = Browser(first.address, "alice")
        assert servers(tmp_path)
        second = start()
        assert second.ended() == 1
        assert re.fullmatch(r"CommandError: Another server is using .*: stop it, or .*\n", second.output)
        assert first.stop(signal.SIGINT) == 0
        assert first.output.endswith("\nStopped.\n")
        assert "Traceback" not in first.output
        assert servers(tmp_path) == []
        assert "Directory: 36 of 36" in first.output
        assert readable_by_others(tmp_path) == []
        for path in (tmp_path, *tmp_path.rglob("*")):  # as earlier versions left them
            path.chmod(0o755 if path.is_dir() else 0o644)

        second = start("--contacts", "50")
        browser.address = second.address
        assert "You are Alice Moreau." in browser.get("/")  # the session is in the kept database
        assert {"db.sqlite3", "db.sqlite3-wal"} <= {path.name for path in tmp_path.iterdir()}
        assert readable_by_others(tmp_path) == []
        assert second.stop(signal.SIGTERM) == 0
        assert "Directory: 56 people" in second.output

    def test_fresh_removes_the_database_and_keys_of_the_app(self, start: Start, tmp_path: Path) -> None:
        """After a confirmation that says how many keys."""
        database = tmp_path / "db.sqlite3"
        database.write_text("not a database")
        with EmbeddedServer() as server, server.client() as client:
            others = {b"demo:others", b"demo:10:x", f"demonstration:{FORMAT}:x".encode(), b"demo"}
            ours = [f"demo:{FORMAT}:{{chat:x{number}}}" for number in range(1500)]
            client.mset(dict.fromkeys([*others, *ours], "1"))
            asked = start("--fresh", env={"REDIS_URL": server.url})
            assert asked.ended() == 1
            assert f"and 1500 keys demo:{FORMAT}:* in Redis? [y/N]" in asked.output
            assert "Nothing was removed" in asked.output and client.dbsize() == 1504
            assert database.read_text() == "not a database"

            removing = start("--fresh", "--no-input", env={"REDIS_URL": server.url})
            removing.wait_for("Removed the database and 1500 keys.")
            assert "Lunch on Friday" in Browser(removing.address).sign_in("bob")
            assert not client.exists(*ours) and client.exists(*others) == len(others)
            assert "Directory: 36 people" in removing.output
            removing.stop(signal.SIGKILL)

    def test_a_cluster_of_three_primaries_keeps_it(self, start: Start, tmp_path: Path) -> None:
        demo = start("--cluster")
        alice, bob = Browser(demo.address, "alice"), Browser(demo.address, "bob")
        assert "Redis: a private Cluster of 3 primaries" in demo.output
        alice.post(f"{ROOM}send/", at=ROOM, body="Noodles, @Bob Lindqvist!")
        assert "Noodles, " in bob.get(ROOM)
        assert "Alice Moreau mentioned you" in bob.get(NOTIFICATIONS)
        bob.post("/orders/", item="Tea", email="ann@example.com")
        bob.until(NOTIFICATIONS, "Your order is confirmed: Tea.")
        nodes = (tmp_path / "location").read_text().split(",")
        assert len(nodes) == 3 and readable_by_others(tmp_path) == []
        for node in nodes:
            stranger = redis.Redis.from_url(re.sub(":[^:]+@", "", node))
            with redis.Redis.from_url(node) as owner, stranger:
                assert int(owner.dbsize()) > 0
                with pytest.raises(redis.AuthenticationError):
                    stranger.ping()
        assert demo.stop(signal.SIGINT) == 0
        assert servers(tmp_path) == [] and not (tmp_path / "location").exists()

        with EmbeddedCluster(tmp_path / "cluster", append_only=True) as again:
            kept = []
            for node in again.nodes:
                with node.client() as client:
                    kept += client.keys(f"demo:{FORMAT}:{{chat:demo-lunch}}*")
        assert kept, "the next demo has its chats"
        assert "Traceback" not in demo.output


class TestStart:
    def test_the_command_of_the_readme_installs_few_packages(
        self, start: Start, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """The demo needs no others."""
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        [options] = re.findall(r"uv run (.*) testproject/manage\.py demo$", readme, re.MULTILINE)
        environment = tmp_path_factory.mktemp("environment")
        subprocess.run(
            ["uv", "sync", "-q", "--locked", "--no-install-project", "-p", sys.executable, *options.split()],
            cwd=ROOT, env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(environment)}, check=True,
        )  # fmt: skip
        packages = [path.stem for path in environment.glob("lib/*/site-packages/*.dist-info")]
        assert 5 < len(packages) <= MAX_PACKAGES, packages
        demo = start(python=str(environment / "bin" / "python"), env={"PYTHONPATH": str(ROOT)})
        browser = Browser(demo.address, "alice")
        for page in ("/orders/", "/shop/", "/market/", "/traffic/"):
            browser.get(page)
            assert browser.where == page

    @pytest.mark.parametrize(
        ("args", "text"),
        [
            (["--contacts", "3000"], "Directory: 1000 of"),
            (["--chats", "60", "--messages", "500"], "Chats: 60 with 500 messages"),
            ([], " people"),
        ],
    )
    def test_it_can_be_stopped_meanwhile(
        self, args: list[str], text: str, start: Start, tmp_path: Path
    ) -> None:
        """While it stores contacts or messages, or starts its threads; the last takes so little time that it
        may have ended."""
        demo = start(*args)
        demo.wait_for(text)
        assert demo.stop(signal.SIGINT) == 0
        assert demo.output.endswith("\nStopped.\n")
        assert not args or "Open" not in demo.output
        assert servers(tmp_path) == []

    def test_bad_options_are_a_one_line_error(self, tmp_path: Path) -> None:
        """In one process, which also has a client of the demo's socket."""
        output = manage(tmp_path, "shell", "-v", "0", "-c", PROGRAM, REDIS_URL="unix:///nowhere/redis.sock")
        delay, *errors = output.splitlines()
        assert delay == "TCP_NODELAY: 1", "answers are not delayed"
        expected = (
            " is in use: stop the other program, or give another --port.",
            "give another --host or --port",
            "give another --host or --port",
            "--contacts must be at least 0, not -1",
            "--messages must be at least 1, not 0",
            "REDIS_URL names a server",
            "was not available",
            "discount can't be 'many': ",
        )
        for error, message in zip(errors, expected, strict=True):
            assert error.startswith("CommandError: ") and message in error


#: prints TCP_NODELAY of a connection that the socket of the demo accepts, and the errors of options
PROGRAM = """if True:
    import asyncio, socket
    from django.conf import settings
    from django.core.management import CommandError, call_command
    from django.test import override_settings
    from people.serving import bind

    async def answer(reader, writer):
        connection = writer.get_extra_info("socket")
        print("TCP_NODELAY:", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def main():
        listening = bind("127.0.0.1", 0)
        async with await asyncio.start_server(answer, sock=listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(main())
    taken = socket.create_server(("127.0.0.1", 0))
    for words in (
        ["demo", "--port", str(taken.getsockname()[1])], ["demo", "--port", "99999"],
        ["demo", "--port", "0", "--host", "no.such.host.invalid"], ["demo", "--contacts", "-1"],
        ["demo", "--messages", "0"], ["demo", "--port", "0", "--cluster"], ["demo", "--port", "0"],
        ["option", "discount", "many"],
    ):
        try:
            with override_settings(REDIS_MESSAGING={**settings.REDIS_MESSAGING, "COMMAND_DEADLINE": 0.1}):
                call_command(*words, stdout=open("/dev/null", "w"))
        except CommandError as error:
            print("CommandError:", error)
"""
