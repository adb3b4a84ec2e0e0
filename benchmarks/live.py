"""Live streams: how long a message takes to reach all who follow a chat, and what a stream costs.

    python -m benchmarks.live [--streams 2000] [--messages 30]

The site runs under uvicorn in a process of its own, with a database and a session for each user. One client
process has all the streams open, and reads the room and the list of chats from each of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

PORT = 8765
CHAT = "stage"
TICKS = os.sysconf("SC_CLK_TCK")
#: seconds for which the idle site is observed
IDLE = 10.0


def configure(directory: Path) -> None:
    """Set up Django for both processes."""
    import django
    from django.conf import settings

    settings.configure(
        SECRET_KEY="benchmark",  # noqa: S106
        ALLOWED_HOSTS=["127.0.0.1"],
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": directory / "db"}},
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "django.contrib.sessions",
            "django_redis_messaging",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
        CACHES={
            "messaging": {
                "BACKEND": "django_redis.cache.RedisCache",
                "LOCATION": (directory / "redis-url").read_text(),
            }
        },
        REDIS_MESSAGING={"CHAT_MAX_MEMBERS": 10_000, "LIVE_MAX_STREAMS": 100},
    )
    django.setup()
    from django.urls import include, path

    settings.ROOT_URLCONF = (path("messages/", include("django_redis_messaging.urls")),)


def serve(directory: Path) -> None:
    """The site."""
    import uvicorn

    configure(directory)
    from django.core.asgi import get_asgi_application

    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
    uvicorn.run(get_asgi_application(), port=PORT, lifespan="off", log_level="warning")


def sign_in(count: int) -> list[str]:
    """Create users with a session each; returns their cookies."""
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.auth.models import User
    from django.contrib.sessions.backends.db import SessionStore
    from django.contrib.sessions.models import Session
    from django.utils import timezone

    User.objects.bulk_create(User(username=f"user-{number}") for number in range(count))
    rows = []
    for user in User.objects.all():
        session = SessionStore()
        values = {
            SESSION_KEY: str(user.pk),
            BACKEND_SESSION_KEY: "django.contrib.auth.backends.ModelBackend",
            HASH_SESSION_KEY: user.get_session_auth_hash(),
        }
        key = f"session{user.pk:025}"
        expires = timezone.now() + timedelta(days=1)
        rows.append(Session(session_key=key, session_data=session.encode(values), expire_date=expires))
    Session.objects.bulk_create(rows)
    return [row.session_key for row in rows]


@contextmanager
def site(directory: Path) -> Iterator[int]:
    """The pid of the running site."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.live", "--serve", str(directory)])
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def memory(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def processor_time(pid: int) -> float:
    """Seconds of the processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Stream:
    """One stream of the client."""

    def __init__(self, cookie: str) -> None:
        self._cookie = cookie
        self.state: set[str] = set()
        self.arrivals: list[float] = []

    async def open(self) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", PORT)
        self._writer.write(
            f"GET /messages/live/?room={CHAT}&html=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Accept: text/event-stream\r\nCookie: sessionid={self._cookie}\r\n\r\n".encode()
        )
        while len(self.state) < 3:
            await self._read(reader)
        self.task = asyncio.create_task(self._follow(reader))

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        while not reader.at_eof():
            await self._read(reader)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        line = await reader.readline()
        if line.startswith(b"event: "):
            self._name = line[7:-1].decode()
        elif line.startswith(b"data: "):
            self.state.add(self._name)
            if self._name == "room" and b"Message number" in line:
                self.arrivals.append(time.perf_counter())

    async def close(self) -> None:
        self._writer.close()
        self.task.cancel()


async def measure(cookies: list[str], pid: int, messages: int) -> None:
    """Open streams, send messages, and print the figures."""
    from django_redis_messaging import Chat

    chat = Chat(CHAT)
    first = Stream(cookies[0])
    for _ in range(200):
        try:
            await first.open()
            break
        except OSError:
            await asyncio.sleep(0.05)
    before = memory(pid)
    streams = [Stream(cookie) for cookie in cookies]
    began = time.perf_counter()
    gate = asyncio.Semaphore(20)

    async def open_one(stream: Stream) -> None:
        async with gate:
            await stream.open()

    await asyncio.gather(*map(open_one, streams))
    print(f"{len(streams)} streams open after {time.perf_counter() - began:.1f} s")
    print(f"memory: {(memory(pid) - before) / len(streams) / 1000:.1f} kB a stream")
    used = processor_time(pid)
    await asyncio.sleep(IDLE)
    print(f"idle: {100 * (processor_time(pid) - used) / IDLE:.1f} % of a processor")
    latencies: list[list[float]] = []
    for number in range(messages):
        before_arrivals = [len(stream.arrivals) for stream in streams]
        sent = time.perf_counter()
        await chat.asend("speaker", f"Message number {number}")
        while any(len(s.arrivals) == n for s, n in zip(streams, before_arrivals, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        latencies.append(sorted(stream.arrivals[-1] - sent for stream in streams))
        await asyncio.sleep(0.3)
    for name, share in (("median", 0.5), ("p99", 0.99), ("last", 1.0)):
        values = [1000 * found[min(int(share * len(found)), len(found) - 1)] for found in latencies]
        print(f"{name}: {statistics.median(values):.0f} ms (worst message {max(values):.0f} ms)")
    print(f"memory after {messages} messages: {(memory(pid) - before) / len(streams) / 1000:.1f} kB a stream")
    for stream in streams:
        await stream.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--messages", type=int, default=30)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
    from django_redis_messaging.core.embedded import EmbeddedServer

    with EmbeddedServer() as running, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "redis-url").write_text(running.url)
        configure(directory)
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        cookies = sign_in(options.streams)
        from django_redis_messaging import Chat

        members = [str(number + 1) for number in range(options.streams)]
        Chat.create("speaker", members, "Welcome", chat_id=CHAT, title="Stage")
        with site(directory) as pid:
            asyncio.run(measure(cookies, pid, options.messages))


if __name__ == "__main__":
    main()
