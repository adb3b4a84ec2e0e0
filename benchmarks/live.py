"""Live streams: how long a message takes to reach all who follow a chat, and what a stream costs.

    python -m benchmarks.live [--streams 2000] [--messages 30] [--rounds 1] [--sites ours channels …]

Each site (live_sites.py) runs under uvicorn in a process of its own, with a database and a session for each
user; the others, named channels, channels-pubsub and eventstream, need the packages channels_redis and
django-eventstream. One client process has all the streams open, and reads everything from each of them. With
several sites, their rounds alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

from . import live_sites

PORT = 8765
#: seconds in which a message must arrive
MAX_WAIT = 5.0
TICKS = os.sysconf("SC_CLK_TCK")
#: the part of the streams, 1 of so many, after which the site has all that it needs only once
WARM_UP = 10
#: seconds for which the idle site is observed
IDLE = 10.0


def serve(directory: Path, name: str) -> None:
    """The site."""
    import uvicorn

    live_sites.configure(directory, name)
    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
    uvicorn.run(live_sites.application(name), port=PORT, lifespan="off", log_level="warning")


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
def running(directory: Path, name: str) -> Iterator[int]:
    """The pid of the running site."""
    command = [sys.executable, "-m", "benchmarks.live", "--serve", str(directory), "--sites", name]
    process = subprocess.Popen(command)
    try:
        yield process.pid
    finally:
        process.kill()
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

    def __init__(self, site: live_sites.Site, cookie: str) -> None:
        self._site = site
        self._cookie = cookie
        self.state: set[str] = set()
        self.arrivals: list[float] = []

    async def open(self) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", PORT)
        self._writer.write(
            f"GET {self._site.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Accept: text/event-stream\r\nCookie: sessionid={self._cookie}\r\n\r\n".encode()
        )
        while len(self.state) < self._site.first:
            await self._read(reader)
        self.task = asyncio.create_task(self._follow(reader))

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while True:
                await self._read(reader)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        if not (line := await reader.readline()):
            raise ConnectionError("The site has closed the stream.")
        if line.startswith(b"event: "):
            self._name = line[7:-1].decode()
        elif line.startswith(b"data:"):
            self.state.add(self._name)
            if self._name == "room" and b"Message number" in line:
                self.arrivals.append(time.perf_counter())

    async def close(self) -> None:
        self._writer.close()
        self.task.cancel()


async def measure(name: str, cookies: list[str], pid: int, messages: int) -> dict[str, float]:
    """Open streams, send messages, and return the figures."""
    site = live_sites.site(name)
    first = Stream(site, cookies[0])
    for _ in range(200):
        try:
            await first.open()
            break
        except OSError:
            await asyncio.sleep(0.05)
    streams = [Stream(site, cookie) for cookie in cookies]
    gate = asyncio.Semaphore(20)

    async def open_one(stream: Stream) -> None:
        async with gate:
            await stream.open()

    began, early = time.perf_counter(), streams[: len(streams) // WARM_UP]
    await asyncio.gather(*map(open_one, early))
    before, later = memory(pid), streams[len(early) :]
    await asyncio.gather(*map(open_one, later))
    figures = {"all open (s)": time.perf_counter() - began}
    figures["memory of a stream (kB)"] = (memory(pid) - before) / len(later) / 1000
    used = processor_time(pid)
    await asyncio.sleep(IDLE)
    figures["idle (% of a processor)"] = 100 * (processor_time(pid) - used) / IDLE
    latencies = []
    for number in range(messages):
        counts = [len(stream.arrivals) for stream in streams]
        sent = time.perf_counter()
        await site.send(f"Message number {number}")
        lost = await wait_for_arrivals(streams, counts)
        figures["lost"] = figures.get("lost", 0) + lost
        arrived = [one.arrivals[-1] for one, n in zip(streams, counts, strict=True) if len(one.arrivals) > n]
        latencies.append(sorted(moment - sent for moment in arrived) or [math.inf])
        await asyncio.sleep(0.3)
    for what, share in (("median", 0.5), ("p99", 0.99), ("last", 1.0)):
        values = [1000 * found[min(int(share * len(found)), len(found) - 1)] for found in latencies]
        figures[f"{what} (ms)"] = statistics.median(values)
        figures[f"{what}, slowest message (ms)"] = max(values)
    os.kill(pid, signal.SIGKILL)  # peers log an error for each stream that is closed
    for stream in [first, *streams]:
        await stream.close()
    return figures


async def wait_for_arrivals(streams: list[Stream], counts: list[int]) -> int:
    """Wait until the message has arrived in all streams; returns in how many it has not in time."""
    ends = time.perf_counter() + MAX_WAIT
    while missing := sum(len(one.arrivals) == n for one, n in zip(streams, counts, strict=True)):
        if time.perf_counter() > ends:
            return missing
        await asyncio.sleep(0.01)
    return 0


def run(name: str, streams: int, messages: int) -> dict[str, float]:
    """One round of one site, in a process of its own, on a new server."""
    from django_redis_messaging.devserver.server import EmbeddedServer

    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        (directory / "redis-socket").write_text(str(server.socket))
        live_sites.configure(directory, name)
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        cookies = sign_in(streams)
        from django_redis_messaging import Chat

        members = [str(number + 1) for number in range(streams)]
        Chat.create("speaker", members, "Welcome", chat_id=live_sites.CHAT, title="Stage")
        with running(directory, name) as pid:
            return asyncio.run(measure(name, cookies, pid, messages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--messages", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sites", nargs="+", default=["ours"])
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, *options.sites)
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
    # Django can be configured once in a process
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        for _ in range(options.rounds):
            for name in options.sites:
                figures = processes.submit(run, name, options.streams, options.messages).result()
                print(name, flush=True)
                for what, value in figures.items():
                    print(f"  {what}: {value:.1f}", flush=True)


if __name__ == "__main__":
    main()
