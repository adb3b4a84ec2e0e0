"""The processes of a site, and probes of each of them, while servers fail or slots move."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import redis

from django_redis_messaging import Broadcast, Chat, DelayQueue, Expiry, OutcomeUnknown, Unavailable, conf
from django_redis_messaging.devserver.server import free_port
from django_redis_messaging.services.broadcasts.broadcast import BroadcastKeys
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.jobs.keys import JobKeys
from tests.support.processes import PATIENCE, ROOT

from .replicated_primary import Shard

#: seconds between two items of a producer
PACE = 0.1
#: seconds until a client closes a socket of a frozen server
RAW_TIMEOUT = 0.3
#: seconds of COMMAND_DEADLINE in the processes: shorter than an outage, so that each of them gets errors
DEADLINE = 2.0
#: commands of a site with a process for each loop, and with one for all
SEPARATE = [
    ["run_worker", "--backend", "site", "--lease", "2"],
    ["run_poller"],
    ["run_listener", "--lease", "2", "--configure"],
]
TOGETHER = [["run_messaging", "--lease", "2", "--configure"]]
#: what the probes check; each with a producer in this process
ROLES = ["task", "poller", "timer", "key event", "pop", "apop", "consume_broadcast", "aconsume"]
PAGES = ["GET asgi", "POST asgi", "GET wsgi", "POST wsgi"]
#: the roles that promise at least one call for each item
KEPT = ["task", "timer", "pop", "apop", "consume_broadcast", "aconsume"]
#: the roles that get what is published after they have started
CONSUMERS = ["consume_broadcast", "aconsume"]


class Site:
    """The processes, and what the probes found."""

    def __init__(self, directory: Path, shard: Shard) -> None:
        self.log = directory / "probes.log"
        self._shard = shard
        #: raw clients that set keys, one of each server; a frozen one holds them up for a moment only
        self._writers = [server.client(socket_timeout=RAW_TIMEOUT) for server in shard.servers]
        self._ports = {"asgi": free_port(), "wsgi": free_port()}
        self._stopping = threading.Event()
        #: role → the acknowledged items
        self.acknowledged: dict[str, list[str]] = {role: [] for role in (*ROLES, *PAGES)}
        #: role → when it worked (monotonic), of those that this process watches
        self._worked: dict[str, list[float]] = {role: [] for role in ("poller", *PAGES)}
        #: what producers got: class of an error or status of a page
        self.errors: Counter[str] = Counter()
        #: answers that no outage explains
        self.violations: list[str] = []

    @contextmanager
    def running(self, commands: list[list[str]]) -> Iterator[None]:
        """Run the processes and the probes during the block; at its end all processes still run."""
        prefix = conf.prefix()
        queues = [JobKeys(prefix, "queue", name).jobs for name in ("due", "waited", "awaited")]
        tasks, news, office = (
            JobKeys(prefix, "tasks", "site"),
            BroadcastKeys(prefix, "news"),
            ChatKeys(prefix, "office"),
        )
        self._shard.gather([*queues, tasks.jobs, news.head, office.log])
        Chat.create("ann", ["bob"], chat_id="office")
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.support.probed_site.site",
            "PROBE_CACHE": json.dumps(self._shard.entry),
            "PROBE_PREFIX": prefix,
            "PROBE_DEADLINE": str(DEADLINE),
            "PROBE_LOG": str(self.log),
        }
        modules = [*(["django", *one] for one in commands), *self._others()]
        with _started(modules, environment, self.log.parent / "output.log") as started:
            threads = [threading.Thread(target=one, daemon=True) for one in self._probes()]
            for thread in threads:
                thread.start()
            try:
                self.wait_for_all(0.0)
                yield
                ended = [process.args for process in started if process.poll() is not None]
                assert ended == [], self._tail()
            finally:
                self._stopping.set()
                for thread in threads:
                    thread.join(PATIENCE)
                for client in self._writers:
                    client.close()
            self._drain()

    def wait_for_all(self, since: float) -> None:
        """Wait until each role has worked after a moment."""
        self.until(lambda: self.each_has(1, since))

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition."""
        ends = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < ends, f"{self.times()}, {self.errors}\n{self._tail()}"
            time.sleep(0.05)

    def each_has(self, number: int, since: float) -> bool:
        """Whether each role has worked so often after a moment."""
        return all(sum(at > since for at in times) >= number for times in self.times().values())

    def times(self) -> dict[str, list[float]]:
        """When each role worked."""
        found = {role: [at for at, of, _ in self._lines() if of == role] for role in ROLES}
        return {**found, **self._worked}

    def outages(self, since: float) -> dict[str, float]:
        """The longest time that each role did not work after a moment, in seconds."""
        return {
            role: max((b - a for a, b in pairwise([since, *(at for at in times if at > since)])), default=0.0)
            for role, times in self.times().items()
        }

    def lost(self) -> dict[str, int]:
        """Role → the number of acknowledged items without effect."""
        missing = {role: len(self._expected(role) - set(self.items(role))) for role in KEPT}
        sent = Counter(self._sent())
        posted = {role: sum(one not in sent for one in self.acknowledged[role]) for role in PAGES[1::2]}
        return {role: number for role, number in {**missing, **posted}.items() if number}

    def doubled(self) -> dict[str, int]:
        """Role → the number of items with a second effect."""
        seen = {role: self.items(role) for role in KEPT}
        again = {role: len(items) - len(set(items)) for role, items in {**seen, "POST": self._sent()}.items()}
        return {role: number for role, number in again.items() if number}

    def items(self, role: str) -> list[str]:
        """The items that a role got."""
        return [item for _, of, item in self._lines() if of == role]

    def _expected(self, role: str) -> set[str]:
        """The acknowledged items; of those in a channel, the ones since its consumer has started."""
        items = self.acknowledged[role]
        if role not in CONSUMERS:
            return set(items)
        first = min(map(int, self.items(role)), default=0)
        return {item for item in items if int(item) >= first}

    def _others(self) -> list[list[str]]:
        """The other modules to run: a consumer, the waiting callers, and two servers of pages."""
        asgi, wsgi = (str(self._ports[kind]) for kind in ("asgi", "wsgi"))
        application = "tests.support.probed_site.asgi:application"
        return [
            ["django", "consume_broadcast", "news", "--handler", "tests.support.probed_site.consume"],
            ["tests.support.probed_site.waiting"],
            ["uvicorn", application, "--port", asgi, "--lifespan", "off", "--no-access-log"],
            ["django", "runserver", "--noreload", "--skip-checks", wsgi],
        ]

    def _probes(self) -> list[Callable[[], None]]:
        """The functions that produce items in threads."""
        from .probed_site.jobs import probe  # needs the backend

        waited, awaited = DelayQueue("waited"), DelayQueue("awaited")
        due: DelayQueue[str] = DelayQueue("due")
        produce: dict[tuple[str, ...], Callable[[str], object]] = {
            ("task",): probe.enqueue,
            ("poller",): lambda item: due.push(item, delay=PACE),
            ("timer",): lambda item: Expiry("probe").start(item, PACE),
            ("pop",): waited.push,
            ("apop",): awaited.push,
            ("consume_broadcast", "aconsume"): Broadcast("news").publish,
        }
        pages = [self._pages(kind) for kind in self._ports]
        return [*(self._producer(*one) for one in produce.items()), self._set_keys, self._watch, *pages]

    def _producer(self, roles: tuple[str, ...], produce: Callable[[str], object]) -> Callable[[], None]:
        def run() -> None:
            for number in itertools.count():
                try:
                    produce(str(number))
                except (Unavailable, OutcomeUnknown) as error:
                    self.errors[type(error).__name__] += 1
                else:
                    for role in roles:
                        self.acknowledged[role].append(str(number))
                if self._stopping.wait(PACE):
                    return

        return run

    def _set_keys(self) -> None:
        """Set a key of the site on the server that accepts it."""
        for number in itertools.count():
            for client in self._writers:
                with suppress(redis.RedisError):
                    client.set(f"probe:{{b}}:{number}", "")
            if self._stopping.wait(PACE):
                return

    def _watch(self) -> None:
        """See whether due jobs become ready, which is the work of a poller if nobody pops them."""
        queue, before = DelayQueue("due"), 0
        while not self._stopping.wait(PACE):
            with suppress(Unavailable):
                ready = queue.stats().ready
                if ready > before:
                    self._worked["poller"].append(time.monotonic())
                before = ready

    def _pages(self, kind: str) -> Callable[[], None]:
        def run() -> None:
            for number in itertools.count():
                self._request(f"GET {kind}", "/chats/office/", "")
                self._request(f"POST {kind}", "/chats/office/send/", f"{kind} {number}")
                if self._stopping.wait(PACE):
                    return

        return run

    def _request(self, role: str, path: str, body: str) -> None:
        method, _, kind = role.partition(" ")
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[kind], timeout=PATIENCE)
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if method == "POST":
            headers["Accept"] = "application/json"
        try:
            connection.request(method, path, urllib.parse.urlencode({"body": body}), headers)
            response = connection.getresponse()
            content = response.read()
        except ConnectionRefusedError:
            if self._worked[role]:  # else the server is still starting
                self.violations.append(f"{role}: connection refused")
            return
        finally:
            connection.close()
        self._note(role, response.status, body, content)

    def _note(self, role: str, status: int, body: str, content: bytes) -> None:
        if 200 <= status < 400:
            self._worked[role].append(time.monotonic())
            self.acknowledged[role].append(body)
        else:
            self.errors[f"status {status}"] += 1
            if status != 503:
                self.violations.append(f"{role}: {status} {content[:500]!r}")

    def _drain(self) -> None:
        """Wait until everything acknowledged has had its effect, or half of PATIENCE has passed."""
        ends = time.monotonic() + PATIENCE / 2
        while self.lost() and time.monotonic() < ends:
            time.sleep(0.05)

    def _sent(self) -> list[str]:
        """The bodies of all messages of the room."""
        chat, bodies, last = Chat("office"), list[str](), 0
        while messages := chat.history("bob", after=last, limit=500).messages:
            bodies += [message.body for message in messages]
            last = messages[-1].id
        return bodies

    def _lines(self) -> list[tuple[float, str, str]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def _tail(self) -> str:
        return (self.log.parent / "output.log").read_text()[-3000:]


@contextmanager
def _started(
    modules: list[list[str]], environment: dict[str, str], output: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run Python with these modules and arguments during the block, all with one file for their output."""
    with ExitStack() as stack:
        file, started = stack.enter_context(output.open("ab")), []
        for arguments in modules:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env={**os.environ, **environment},
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        yield started
