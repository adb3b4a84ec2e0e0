"""`manage.py demo` in a separate process."""

from __future__ import annotations

import http.cookiejar
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from django_redis_messaging.devserver.cluster import EmbeddedCluster
from django_redis_messaging.devserver.server import EmbeddedServer

MANAGE = Path(__file__).parents[2] / "testproject" / "manage.py"
#: seconds within which the demo must answer
DEADLINE = 90.0
NOTIFICATIONS = "/messages/notifications/"
#: less data than by default, so that a demo starts sooner
SMALL = ("--contacts", "30", "--chats", "2", "--messages", "3")
#: prints TCP_NODELAY of a connection that is accepted at the socket of the demo
NODELAY = """
import asyncio, socket
from people.serving import bind
async def answer(reader, writer):
    connection = writer.get_extra_info("socket")
    print(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    writer.close()
async def main():
    listening = bind("127.0.0.1", 0)
    async with await asyncio.start_server(answer, sock=listening):
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        await reader.read()
        writer.close()
asyncio.run(main())
"""


class Demo:
    """A running demo; `output` is what it has printed so far."""

    def __init__(self, directory: Path, *args: str, env: dict[str, str] | None = None) -> None:
        without = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
        self.process = subprocess.Popen(
            [sys.executable, str(MANAGE), "demo", "--port", "0", *SMALL, *args],
            env={
                **without,
                "DEMO_DIR": str(directory),
                "DJANGO_SETTINGS_MODULE": "testproject.settings",
                **(env or {}),
            },
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.output += line

    @property
    def address(self) -> str:
        """The URL that it prints once it accepts requests."""
        ends = time.monotonic() + DEADLINE
        while not (found := re.search(r"Open (http://\S+)", self.output)):
            assert self.process.poll() is None and time.monotonic() < ends, self.output
            time.sleep(0.02)
        return found[1]

    def stop(self, how: signal.Signals) -> int:
        """Send the signal to the process group; returns the exit code."""
        os.killpg(self.process.pid, how)  # as a terminal does
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(DEADLINE)
        self._reader.join()
        assert self.process.stdout
        self.process.stdout.close()
        return code


class Browser:
    """A client that keeps cookies and posts forms."""

    def __init__(self, address: str, *, language: str = "en") -> None:
        self.address = address
        handler = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(handler, urllib.request.ProxyHandler({}))
        self._opener.addheaders.append(("Accept-Language", language))

    def get(self, path: str) -> str:
        return self._send(path, None)

    def post(self, path: str, *, at: str = "/orders/", **form: str) -> str:
        """Submit a form of the page `at`; returns the page it redirects to."""
        found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', self.get(at))
        assert found
        return self._send(path, urllib.parse.urlencode({"csrfmiddlewaretoken": found[1], **form}).encode())

    def order(self, item: str, email: str) -> str:
        return self.post("/orders/", item=item, email=email)

    def sign_in(self, username: str, **more: str) -> str:
        return self.post("/", at="/", username=username, **more)

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


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos that share a directory; kills those still running at the end."""
    started: list[Demo] = []

    def start(*args: str, env: dict[str, str] | None = None) -> Demo:
        demo = Demo(tmp_path, *args, env=env)
        started.append(demo)
        return demo

    yield start
    for demo in started:
        if demo.process.poll() is None:
            os.killpg(demo.process.pid, signal.SIGKILL)
            demo.ended()


def manage(directory: Path, *words: str) -> str:
    """What another command of the site prints."""
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    environment |= {"DEMO_DIR": str(directory), "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    done = subprocess.run(
        [sys.executable, str(MANAGE), *words],
        env=environment, capture_output=True, text=True, timeout=DEADLINE,
    )  # fmt: skip
    return done.stdout or done.stderr


def servers(directory: Path) -> list[str]:
    """Processes with their data in the directory."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    return [str(line) for line in lines if bytes(directory / "redis") in line or bytes(directory) in line]


def _readable(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


def readable_by_others(directory: Path) -> list[str]:
    """The entries of a directory, and itself, that other users have any permission for."""
    return [str(path) for path in (directory, *directory.rglob("*")) if path.stat().st_mode & 0o077]


def test_users_find_their_chats_and_no_process_is_left(start: Callable[..., Demo], tmp_path: Path) -> None:
    demo = start()
    address = demo.address

    alice, frank = Browser(address), Browser(address)
    assert "Alice Moreau" in alice.get("/")
    assert "Lunch on Friday" in alice.sign_in("alice")
    assert alice.where == "/messages/"
    chats = frank.sign_in("frank")
    assert "Lunch on Friday" not in chats
    assert "don't say a word" in chats.lower().replace("&#x27;", "'")
    assert "background" in frank.get("/static/people/sign_in.css")
    assert servers(tmp_path)

    assert demo.stop(signal.SIGINT) == 0
    assert demo.output.endswith("\nStopped.\n")
    assert "Traceback" not in demo.output
    assert servers(tmp_path) == []


def test_answers_are_not_delayed(tmp_path: Path) -> None:
    assert manage(tmp_path, "shell", "--verbosity", "0", "-c", NODELAY) == "1\n"


def test_users_share_as_many_chats_as_they_want(start: Callable[..., Demo]) -> None:
    demo = start("--chats", "9", "--messages", "50")
    browser = Browser(demo.address)
    feed = json.loads(browser.sign_in("erin", next="/messages/feed/"))
    chats = {chat["title"]: chat for chat in feed["chats"]}
    del chats["Release"]
    assert [chat["last_id"] for chat in chats.values()] == [50] * 9
    assert {title: chat["unread"] for title, chat in chats.items() if chat["unread"]} == {
        "Design Lisbon": 1,
        "Travel Lisbon": 2,
    }


def test_it_keeps_its_data_unless_fresh(start: Callable[..., Demo], tmp_path: Path) -> None:
    first = start()
    browser = Browser(first.address)
    browser.sign_in("alice")
    assert first.stop(signal.SIGTERM) == 0
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

    third = start("--fresh", "--no-input")
    browser.address = third.address
    assert "You are" not in browser.get("/")
    assert "Lunch on Friday" in browser.sign_in("bob")
    assert third.stop(signal.SIGTERM) == 0
    assert "Directory: 36 people" in third.output


def test_an_order_is_confirmed_by_a_task(start: Callable[..., Demo]) -> None:
    browser = Browser(start().address)
    browser.sign_in("bob")
    browser.order("Tea", "ann@example.com")
    browser.order("Cake", "later@example.com")  # whose mail server refuses twice
    browser.until(NOTIFICATIONS, "Your order is confirmed: Tea.")
    browser.until(NOTIFICATIONS, "Your order is confirmed: Cake.")
    page = browser.until("/orders/", 'aria-label="3 attempts"')
    assert (page.count("state-successful"), page.count('aria-label="1 attempt"')) == (2, 1)


def test_an_order_that_is_not_paid_in_time_is_cancelled(start: Callable[..., Demo]) -> None:
    browser = Browser(start(env={"DEMO_TIME_TO_PAY": "3"}).address)
    browser.sign_in("bob")
    browser.order("Tea", "ann@example.com")
    page = browser.order("Cake", "bob@example.com")
    assert re.search(r'cancelled in <b data-remaining="[23]">[23]</b> s', page)
    page = browser.post(re.findall(r'action="(/orders/\d+/pay/)"', page)[0])
    assert browser.where == "/orders/"
    assert page.count("payment-paid") == 1
    page = browser.until("/orders/", "payment-cancelled")
    assert (page.count("payment-paid"), page.count("payment-cancelled")) == (1, 1)
    assert "Pay for" not in page
    assert "data-remaining" not in page
    page = browser.until(NOTIFICATIONS, "Your order was cancelled")
    assert "paid in time: Tea." in page and "paid in time: Cake." not in page


def test_pages_are_in_the_language_of_the_browser(start: Callable[..., Demo]) -> None:
    browser = Browser(start().address, language="de")
    assert "Wer sind Sie?" in browser.get("/")
    browser.sign_in("alice")
    orders = browser.order("Tee", "ann@example.com")
    for text in (
        ">Bestellen</button>",
        ">Artikel:</label>",
        ">E-Mail-Adresse:</label>",
        "Noch nicht bezahlt",
    ):
        assert text in orders
    browser.until("/orders/", "Bestätigung: Erfolgreich")
    assert "Rabatt" in browser.get("/shop/")
    assert "Sie haben <b>100</b> Münzen." in browser.get("/market/")
    assert "Anfragen nach Land und Tag" in browser.get("/traffic/")
    assert '<html lang="ar" dir="rtl">' in Browser(browser.address, language="ar").get("/")
    assert "Who are you?" in Browser(browser.address, language="fr").get("/"), "not half in French"


def test_orders_need_a_sign_in(start: Callable[..., Demo]) -> None:
    browser = Browser(start().address)
    browser.get("/orders/")
    assert browser.where == "/"
    browser.post("/orders/1/pay/", at="/")
    assert browser.where == "/"
    browser.sign_in("bob", next="/orders/")
    assert browser.where == "/orders/"


def test_options_and_the_log_are_for_staff(start: Callable[..., Demo], tmp_path: Path) -> None:
    browser = Browser(start(env={"DEMO_ACCESS_LOG": ""}).address)
    for page in ("/shop/", "/traffic/"):
        browser.get(page)
        assert browser.where == "/"
    forms = (("/shop/", {"discount": "90"}), ("/traffic/process/", {}))
    for path, form in forms:
        browser.post(path, at="/", **form)
        assert browser.where == "/", "signs in first"
    browser.sign_in("bob")
    for path, form in forms:
        assert f'<form method="post" action="{path}"' not in browser.get("/traffic/")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            browser.post(path, at="/", **form)
    page = browser.get("/shop/")
    assert '<span id="discount">0 %</span>' in page
    assert "Only staff can change the options." in page
    browser.sign_in("alice")
    for path, form in forms:
        with pytest.raises(urllib.error.HTTPError, match="403"):  # without the token
            browser._send(path, urllib.parse.urlencode(form).encode())
    assert not (tmp_path / "options.json").exists()
    assert "Nothing has been counted yet." in browser.get("/traffic/")


def test_beyond_loopback_only_the_host_is_allowed_and_staff_need_a_password(
    start: Callable[..., Demo],
) -> None:
    demo = start("--host", "0.0.0.0", "--allowed-host", "demo.internal")  # noqa: S104
    address = demo.address
    assert demo.output.index("0.0.0.0 is not a loopback address") < demo.output.index("Redis:")
    for name, status in (("demo.internal", 200), ("127.0.0.1", 400), ("example.com", 400)):
        assert status_for(address, name) == status, name

    browser = Browser(address)
    browser.sign_in("alice")
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


def test_fresh_removes_only_keys_of_the_app_and_says_how_many(start: Callable[..., Demo]) -> None:
    with EmbeddedServer() as server, server.client() as client:
        others = {b"demo:others", b"demo:10:x", b"demonstration:1:x", b"demo"}
        ours = [f"demo:1:{{chat:x{number}}}" for number in range(1500)]
        client.mset(dict.fromkeys([*others, *ours], "1"))
        asked = start("--fresh", env={"REDIS_URL": server.url})
        assert asked.ended() == 1
        assert "and 1500 keys demo:1:* in Redis? [y/N]" in asked.output
        assert "Nothing was removed" in asked.output and client.dbsize() == 1504

        removing = start("--fresh", "--no-input", env={"REDIS_URL": server.url})
        assert removing.address
        assert "Removed the database and 1500 keys." in removing.output
        assert not client.exists(*ours) and client.exists(*others) == len(others)


def test_mentioned_members_are_notified(start: Callable[..., Demo]) -> None:
    address = start().address
    bob, frank, alice, carol = (Browser(address) for _ in range(4))
    for browser, name in ((bob, "bob"), (frank, "frank"), (alice, "alice"), (carol, "carol")):
        browser.sign_in(name)
        assert "Order something" in browser.get(NOTIFICATIONS)
    room = "/messages/chats/demo-lunch/"
    alice.post(f"{room}send/", at=room, body="@bob lindqvist, @Frank Oliveira, @alice and @nobody!")
    assert "Alice Moreau mentioned you in" in (page := bob.get(NOTIFICATIONS))
    assert f'value="{room}?at=' in page
    alice.post(f"{room}send/", at=room, body="Well, @Bob Lindqvist?")
    assert "2 in total" in bob.get(NOTIFICATIONS)
    carol.post("/messages/blocks/block/", at=room, person="1")
    for body in ("@all: <b>noodles</b>!", "@all: again"):
        alice.post(f"{room}send/", at=room, body=body)
    assert "mentioned everybody: @all: &lt;b&gt;noodles" in bob.get(NOTIFICATIONS)
    assert "@all: again" not in bob.get(NOTIFICATIONS), "within a minute"
    assert "mentioned" not in carol.get(NOTIFICATIONS), "has blocked the sender"
    assert "mentioned" not in frank.get(NOTIFICATIONS), "not a member of the chat"
    assert "mentioned" not in alice.get(NOTIFICATIONS), "the sender"


def test_an_option_changed_by_another_process_applies_at_once(
    start: Callable[..., Demo], tmp_path: Path
) -> None:
    browser = Browser(start().address)
    page = browser.sign_in("alice", next="/shop/")
    assert '<span id="discount">0 %</span>' in page
    made = re.findall(r'<time id="made" datetime="([^"]+)"', page)

    assert manage(tmp_path, "option", "discount", "20") == '{"discount": 20, "open": true}\n'
    ends = time.monotonic() + DEADLINE
    while '<span id="discount">20 %</span>' not in (page := browser.get("/shop/")):
        assert time.monotonic() < ends, page
        time.sleep(0.02)
    while re.findall(r'<time id="made" datetime="([^"]+)"', page) == made:
        assert time.monotonic() < ends, page
        time.sleep(0.3)
        page = browser.get("/shop/")
    assert manage(tmp_path, "option", "discount", "many").startswith(
        "CommandError: discount can't be 'many': "
    )

    page = browser.post("/shop/", at="/shop/", discount="30")
    assert '<span id="discount">30 %</span>' in page
    assert manage(tmp_path, "option") == '{"discount": 30, "open": false}\n'


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--contacts", "3000"], "Directory: 1000 of"),
        (["--chats", "60", "--messages", "500"], "Chats: 60 with 500 messages"),
        ([], " people"),
    ],
)
def test_it_can_be_stopped_during_startup(
    args: list[str], text: str, start: Callable[..., Demo], tmp_path: Path
) -> None:
    """While it stores contacts or messages, or starts its threads; the last takes so little time that it may
    have ended."""
    demo = start(*args)
    ends = time.monotonic() + DEADLINE
    while text not in demo.output:
        assert time.monotonic() < ends and demo.process.poll() is None, demo.output
        time.sleep(0.01)

    assert demo.stop(signal.SIGINT) == 0
    assert demo.output.endswith("\nStopped.\n")
    assert not args or "Open" not in demo.output
    assert servers(tmp_path) == []


def test_a_used_port_is_a_one_line_error(start: Callable[..., Demo]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        demo = start("--port", str(taken.getsockname()[1]))
        assert demo.ended() == 1
    assert re.fullmatch(r"CommandError: Port \d+ is in use: .*--port\.\n", demo.output)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--port", "99999"], "give another --host or --port"),
        (["--host", "no.such.host.invalid"], "give another --host or --port"),
        (["--contacts", "-1"], "--contacts must be at least 0, not -1"),
        (["--messages", "0"], "--messages must be at least 1, not 0"),
    ],
)
def test_bad_options_are_a_one_line_error(start: Callable[..., Demo], args: list[str], message: str) -> None:
    demo = start(*args)
    assert demo.ended() == 1
    assert demo.output.startswith("CommandError: ")
    assert message in demo.output
    assert demo.output.count("\n") == 1


def test_a_cluster_of_three_primaries_keeps_its_data(start: Callable[..., Demo], tmp_path: Path) -> None:
    demo = start("--cluster")
    alice, bob = Browser(demo.address), Browser(demo.address)
    assert "Redis: a private Cluster of 3 primaries" in demo.output
    alice.sign_in("alice")
    bob.sign_in("bob")
    room = "/messages/chats/demo-lunch/"
    alice.post(f"{room}send/", at=room, body="Noodles, @Bob Lindqvist!")
    assert "Noodles, " in bob.get(room)
    assert "Alice Moreau mentioned you" in bob.get(NOTIFICATIONS)
    bob.order("Tea", "ann@example.com")
    bob.until(NOTIFICATIONS, "Your order is confirmed: Tea.")
    nodes = (tmp_path / "location").read_text().split(",")
    assert len(nodes) == 3 and readable_by_others(tmp_path) == []
    for node in nodes:
        with redis.Redis.from_url(node) as owner, redis.Redis.from_url(re.sub(":[^:]+@", "", node)) as other:
            assert int(owner.dbsize()) > 0
            with pytest.raises(redis.AuthenticationError):
                other.ping()
    assert demo.stop(signal.SIGINT) == 0
    assert servers(tmp_path) == [] and not (tmp_path / "location").exists()

    with EmbeddedCluster(tmp_path / "cluster", append_only=True) as again:
        kept = []
        for node in again.nodes:
            with node.client() as client:
                kept += client.keys("demo:1:{chat:demo-lunch}*")
    assert kept, "the next demo has its chats"
    assert "Traceback" not in demo.output


def test_a_cluster_and_another_server_are_refused(start: Callable[..., Demo]) -> None:
    demo = start("--cluster", env={"REDIS_URL": "redis://127.0.0.1:1"})
    assert demo.ended() == 1
    assert demo.output.startswith("CommandError: REDIS_URL names a server")


def test_a_second_demo_of_one_directory_is_refused(start: Callable[..., Demo]) -> None:
    assert start().address
    second = start()
    assert second.ended() == 1
    assert re.fullmatch(r"CommandError: Another server is using .*: stop it, or .*\n", second.output)


def test_an_unreachable_server_is_a_one_line_error(start: Callable[..., Demo]) -> None:
    demo = start(env={"REDIS_URL": "unix:///nowhere/redis.sock"})
    assert demo.ended() == 1
    lines = [line for line in demo.output.splitlines() if line.startswith("CommandError")]
    assert len(lines) == 1
    assert "was not available" in lines[0]


def test_only_demo_users_can_sign_in(start: Callable[..., Demo]) -> None:
    browser = Browser(start().address)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        browser.sign_in("contact-1")


def test_sign_in_redirects_to_next_but_not_to_other_sites(start: Callable[..., Demo]) -> None:
    browser = Browser(start().address)
    browser.sign_in("alice", next="/admin/")
    assert browser.where == "/admin/"
    browser.sign_in("alice", next="//example.com/")
    assert browser.where == "/messages/"
