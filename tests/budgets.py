"""What operations cost, and how large the package is: `python -m tests.budgets [CHECKOUT]`.

Costs are counts, not seconds: round trips, commands that Redis runs (inside scripts too), and calls of Python
functions and of C functions in the client. They don't depend on the load of the machine. budgets.toml has the
limit of each. With CHECKOUT, the operations of this file measure the code of another checkout of this app.

A process of its own measures, with a server of its own, so other tests and coverage change nothing.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import redis

ROOT = Path(__file__).parent.parent
PACKAGE = "django_redis_messaging"
TABLE = Path(__file__).with_name("budgets.toml")
#: the commit whose counts stand beside the budgets
REFERENCE = "29d0740"

#: how often an operation runs before it is measured: until its random request ids have used all shards
WARM_UP = 200
#: how often it is measured; the lowest counts are taken
RUNS = 30
#: instead of both, for operations that take some ms
SLOW_RUNS = 10
#: end of the key of the workers' heartbeats
WORKERS = ":workers"
#: chats of the user whose inbox is measured
CHATS = 100
#: module in the child process that holds its URLs and its task
SITE = "budget_site"
#: methods of a socket that send a request
SENDING = {"send", "sendall", "sendmsg"}
#: commands that run a script
SCRIPT_CALLS = {"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"}
#: environment variables that the measuring process inherits: none of coverage, or of a run of tests
ENVIRONMENT = {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV"}

#: the file of the module threading, whose calls don't count: their number depends on which thread is first
THREADING = threading.Thread.start.__code__.co_filename

#: what is counted, in the order of the table
KINDS = ("round trips", "commands", "Python calls", "C calls")

Call = Callable[[], object]


class Cost(NamedTuple):
    """What one call of an operation costs."""

    round_trips: int
    commands: int
    """Commands that Redis runs, inside scripts too. The calls of the scripts themselves don't count."""
    python_calls: int
    c_calls: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Operation:
    """An operation, and what runs before each call of it."""

    call: Call
    prepare: Call = lambda: None
    #: the cost of this call is subtracted
    base: Call | None = None
    warm_up: int = WARM_UP
    runs: int = RUNS
    #: whether only the calls in threads that it starts count. Those of the thread that supervises them depend
    #: on how many signals arrive at once.
    in_threads: bool = False


def chat_operations() -> Iterator[tuple[str, Operation]]:
    """Operations of chats and inboxes."""
    from django_redis_messaging import Chat, Inbox

    chat = Chat.create("ann", ["bob"], chat_id="room")
    latest = [0]

    def send() -> None:
        latest[0] = chat.send("ann", "hello").id

    yield "Chat.send", Operation(lambda: chat.send("ann", "hello"))
    yield "Chat.ack", Operation(lambda: chat.ack("bob", latest[0]), send)
    changes = chat.changes("bob", after=latest[0])
    known = {"edits": changes.edits, "moved": changes.moved, "events": changes.event}
    yield "Chat.changes, idle", Operation(lambda: chat.changes("bob", after=changes.cursor, **known))
    inbox, others = Inbox("idle"), [Chat.create("eve", ["idle"], "hello") for _ in range(CHATS)]
    inbox.pending(ack=True)
    yield "Inbox.pending, idle", Operation(lambda: inbox.pending())
    yield (
        "Inbox.pending, with news",
        Operation(lambda: inbox.pending(), lambda: (inbox.pending(ack=True), others[0].send("eve", "news"))),
    )
    with _settings(RATES_IN_SERVICES=True, SEND_RATE=10_000):
        limited = Chat.create("ann", ["bob"], chat_id="limited")
        yield "Chat.send, with a rate", Operation(lambda: limited.send("ann", "hello"))


@contextmanager
def _settings(**values: object) -> Iterator[None]:
    """Use these settings of the app. Not by Django's test utilities: a process that has imported them, unlike
    one of a site, checks at each call whether tests run."""
    before = _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, Any]) -> dict[str, Any]:
    from django.conf import settings
    from django.core.signals import setting_changed

    before: dict[str, Any] = settings.REDIS_MESSAGING
    settings.REDIS_MESSAGING = values
    setting_changed.send(sender=None, setting="REDIS_MESSAGING", value=values, enter=True)
    return before


def service_operations() -> Iterator[tuple[str, Operation]]:
    """Operations of the other services."""
    from django_redis_messaging import Broadcast, Directory, Expiry, Lock, Mailbox, ReadWriteLock, Semaphore

    directory = Directory("everyone")
    directory.add_many([(f"u{number}", f"Name {number}") for number in range(200)])
    yield "Directory.suggest", Operation(lambda: directory.suggest("nam"))
    channel = Broadcast("news")
    yield "Broadcast.publish", Operation(lambda: channel.publish("hello"))
    cursor = channel.fetch().cursor
    while (batch := channel.fetch(cursor)).events:
        cursor = batch.cursor
    yield "Broadcast.fetch, idle", Operation(lambda: channel.fetch(cursor))
    mailbox = Mailbox("ann")
    yield "Mailbox.send", Operation(lambda: mailbox.send("hello"))
    # with a shorter timeout, a release sets the TTL of a key unless the last one was within the same ms
    lock, semaphore, shelf = Lock("door"), Semaphore("printers", 3, timeout=60), ReadWriteLock("shelf")
    reader, writer = shelf.read, shelf.write

    def use_lock() -> None:
        lock.acquire()
        lock.release()

    def use_semaphore() -> None:
        semaphore.acquire()
        semaphore.release()

    def read() -> None:
        reader.acquire()
        reader.release()

    def write() -> None:
        writer.acquire()
        writer.release()

    yield "Lock.acquire and release", Operation(use_lock)
    yield "Semaphore.acquire and release", Operation(use_semaphore)
    yield "ReadLock.acquire and release", Operation(read)
    yield "WriteLock.acquire and release", Operation(write)
    yield from rate_operations()
    timers = Expiry("order")
    yield "Expiry.start", Operation(lambda: timers.start("17", 3600), lambda: timers.cancel("17"))


def rate_operations() -> Iterator[tuple[str, Operation]]:
    """Rate limits, which checkouts of before don't have."""
    try:
        from django_redis_messaging import RateLimit
    except ImportError:
        return
    # limits that are not reached, for longer than this takes
    gcra = RateLimit("login", 1000, per=3600)
    window = RateLimit("login", 1000, per=3600, algorithm="window")
    yield "RateLimit.take", Operation(lambda: gcra.take("ann"))
    yield "RateLimit.take, window", Operation(lambda: window.take("ann"))


def job_operations() -> Iterator[tuple[str, Operation]]:
    """Operations of queues."""
    from django_redis_messaging import DelayQueue

    pushed, popped = DelayQueue("pushed"), DelayQueue("popped")
    jobs: list[Any] = []

    def pop() -> None:
        popped.push("hello")
        jobs[:] = popped.pop(1)

    yield "DelayQueue.push", Operation(lambda: pushed.push("hello"))
    yield "DelayQueue.pop", Operation(lambda: popped.pop(1), lambda: popped.push("hello"))
    yield "DelayQueue.ack", Operation(lambda: popped.ack(jobs[0]), pop)


def task_operations(task: Any) -> Iterator[tuple[str, Operation]]:
    """Enqueueing a task, and its round in a worker: claim, run, settle."""
    from django.core.management import call_command

    waiting, run = task.using(queue_name="waiting"), task.using(queue_name="run")

    def work() -> None:
        call_command("run_worker", burst=True, concurrency=1, queue=["run"], verbosity=0)

    yield "task.enqueue", Operation(lambda: waiting.enqueue())
    with _without_flushes():
        yield (
            "a task in a worker",
            Operation(work, lambda: run.enqueue(), work, SLOW_RUNS, SLOW_RUNS),
        )


@contextmanager
def _without_flushes() -> Iterator[None]:
    """Let workers record what they run, but not flush it to the history: a flush is for all tasks of ten
    seconds, here it would be for one."""
    try:
        from django_redis_messaging.services.history.recording import Recorder
    except ImportError:  # of an older checkout
        yield
        return
    start = Recorder.start
    Recorder.start = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Recorder.start = start  # type: ignore[method-assign]


def paths(task: Any) -> Iterator[tuple[str, Operation]]:
    """Actions whose files are counted: those of the package in which a function runs."""
    from django_redis_messaging import Chat, Inbox

    inbox, room, run = Inbox("followed"), Chat.create("eve", ["followed"]), task.using(queue_name="run")
    yield "Inbox.pending, idle", Operation(lambda: inbox.pending())
    yield "Inbox.pending, with news", Operation(lambda: inbox.pending(), lambda: room.send("eve", "news"))

    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client  # last: a process that has imported it does more in each operation
    from django.urls import reverse

    user = User.objects.create(username="ann")
    client, member = Client(), str(user.pk)
    client.force_login(user)
    url = reverse("messaging:send", args=[Chat.create(member, ["bob"], chat_id="posted").id])

    def enqueue_and_run() -> None:
        run.enqueue()
        call_command("run_worker", burst=True, concurrency=1, queue=["run"], verbosity=0)

    yield "POST of a message", Operation(lambda: client.post(url, {"body": "hello"}))
    yield "a task, enqueued and run", Operation(enqueue_and_run)


class Profile:
    """The calls of this thread during `run`, and those of threads that start meanwhile."""

    def __init__(self) -> None:
        #: thread, event, and the file of a Python function or the name of a socket's method
        self._events: list[tuple[int, str, str]] = []

    def run(self, call: Call) -> None:
        """Call it, and record the calls within."""
        threading.setprofile(self._record)
        sys.setprofile(self._record)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def cost(self, *, in_threads: bool) -> Cost:
        """The counts, without those of `run` itself."""
        own = threading.get_ident()
        events = [one[1:] for one in self._events if not in_threads or one[0] != own]
        python = sum(event == "call" for event, _ in events)
        c = sum(event == "c_call" for event, _ in events)
        sent = sum(event == "c_call" and name in SENDING for event, name in events)
        return Cost(sent, 0, python - (not in_threads), c - (not in_threads))

    def files(self, folder: str) -> int:
        """The number of files in this folder in which a function ran."""
        return len({file for _, event, file in self._events if event == "call" and file.startswith(folder)})

    def _record(self, frame: FrameType, event: str, arg: Any) -> None:
        file = frame.f_code.co_filename
        if file == THREADING:
            return
        if event == "call":
            self._events.append((threading.get_ident(), event, file))
        elif event == "c_call":
            is_socket = isinstance(getattr(arg, "__self__", None), socket.socket)
            self._events.append((threading.get_ident(), event, arg.__name__ if is_socket else ""))


def count(operation: Operation, client: redis.Redis) -> Cost:
    """The lowest counts of several calls."""
    for _ in range(operation.warm_up):
        operation.prepare()
        operation.call()
    measured = [_count_once(operation, client) for _ in range(operation.runs)]
    found = Cost(*map(min, zip(*measured, strict=True)))
    if operation.base is None:
        return found
    return found - count(replace(operation, call=operation.base, prepare=lambda: None, base=None), client)


def _count_once(operation: Operation, client: redis.Redis) -> Cost:
    operation.prepare()
    profile = Profile()
    profile.run(operation.call)
    operation.prepare()
    commands = _commands(operation.call, client)
    return profile.cost(in_threads=operation.in_threads)._replace(commands=commands)


def _commands(call: Call, client: redis.Redis) -> int:
    """The number of commands that the server runs meanwhile. MONITOR lists those inside scripts, too.

    Heartbeats don't count: a worker sends the first one beside its work, so a short run may end before it."""
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]
        call()
        client.execute_command("ECHO", "end of the call")  # type: ignore[no-untyped-call]
        #: what each request of a client made the server run
        requests: list[list[str]] = [[]]
        while not (command := monitor.next_command())["command"].startswith("ECHO "):
            if command["client_type"] != "lua":
                requests.append([])
            if command["command"].partition(" ")[0].upper() not in SCRIPT_CALLS:
                requests[-1].append(command["command"])
        return sum(len(ran) for ran in requests if not any(WORKERS in one for one in ran))


def count_files(operation: Operation, folder: str) -> int:
    """The lowest number of files in several calls."""
    for _ in range(SLOW_RUNS):
        operation.prepare()
        operation.call()
    found = []
    for _ in range(SLOW_RUNS):
        operation.prepare()
        profile = Profile()
        profile.run(operation.call)
        found.append(profile.files(folder))
    return min(found)


def measure_here(checkout: Path, url: str) -> dict[str, dict[str, Any]]:
    """Measure the package of a checkout, which this process must not have imported."""
    sys.path.insert(0, str(checkout))
    gc.disable()  # it calls finalizers and weak references' callbacks at any moment
    with redis.Redis.from_url(url) as client:
        folder = str(checkout / PACKAGE) + os.sep
        imported = _set_up(url, folder)
        site = _site()
        groups = (chat_operations(), service_operations(), job_operations(), task_operations(site.nothing))
        operations = {name: count(operation, client) for group in groups for name, operation in group}
        if "django.test.utils" in sys.modules:
            raise RuntimeError("A site doesn't import Django's test utilities, with which calls do more.")
        files = {name: count_files(operation, folder) for name, operation in paths(site.nothing)}
        return {"operations": operations, "files": {"django.setup()": imported, **files}}


def _set_up(url: str, folder: str) -> int:
    """Set up Django. Returns the number of files in this folder that it imports."""
    import django
    from django.conf import settings
    from django.core.management import call_command

    contrib = ["auth", "contenttypes", "sessions", "messages"]
    middleware = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        SECRET_KEY="budgets",
        USE_TZ=True,
        INSTALLED_APPS=[*(f"django.contrib.{name}" for name in contrib), PACKAGE],
        MIDDLEWARE=middleware,
        ROOT_URLCONF=SITE,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        REDIS_MESSAGING={"ALIAS": "default"},
        TASKS={
            "default": {"BACKEND": f"{PACKAGE}.tasks.RedisBackend", "QUEUES": ["waiting", "run"]},
        },
        LOGGING={"version": 1, "loggers": {"django.tasks": {"level": "WARNING"}}},
    )
    profile = Profile()
    profile.run(django.setup)
    call_command("migrate", verbosity=0)
    return profile.files(folder)


def _site() -> ModuleType:
    """A module with the URLs and a task, as a site would have."""
    from django.urls import include, path

    from django_redis_messaging.tasks import task

    def nothing() -> None: ...

    nothing.__module__, nothing.__qualname__ = SITE, nothing.__name__
    site: Any = ModuleType(SITE)
    site.urlpatterns = [path("messages/", include(f"{PACKAGE}.urls"))]
    sys.modules[SITE] = site
    site.nothing = task(queue_name="run")(nothing)
    return site  # type: ignore[no-any-return]


def measure(checkout: Path = ROOT) -> dict[str, dict[str, Any]]:
    """Measure the package of a checkout in a new process, which imports no other one."""
    from django_redis_messaging.devserver.server import EmbeddedServer

    environment = {key: value for key, value in os.environ.items() if key in ENVIRONMENT}
    with EmbeddedServer() as server:
        done = subprocess.run(
            [sys.executable, "-m", "tests.budgets", "--server", server.url, str(checkout)],
            cwd=ROOT, env={**environment, "PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    operations = {name: Cost(*cost) for name, cost in found["operations"].items()}
    return {"operations": operations, "files": found["files"]}


@dataclass(frozen=True)
class Budget:
    """The counts of an operation, or of the files of a path: their limits, and those of the reference."""

    limit: list[int]
    reference: list[int]


def read_table() -> dict[str, Budget]:
    """The budgets, by the name of the operation; "files: " stands before the names of paths."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    budgets = {name: Budget(**one) for name, one in table["operations"].items()}
    files = {f"files: {name}": Budget(**one) for name, one in table["files"].items()}
    return budgets | files


def flat(measured: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
    """What was measured, with the names of the table."""
    operations = {name: list(cost) for name, cost in measured["operations"].items()}
    return operations | {f"files: {name}": [number] for name, number in measured["files"].items()}


def sizes(root: Path) -> dict[str, int]:
    """The sizes of a checkout."""
    files = [path for path in sorted((root / PACKAGE).rglob("*")) if _is_text(path)]
    python = [path for path in files if path.suffix == ".py"]
    documents = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return {
        "lines of Python": _lines(python),
        "lines of Lua": _lines(path for path in files if path.suffix == ".lua"),
        "lines of JavaScript": _lines(path for path in files if path.suffix == ".js"),
        "lines of templates": _lines(path for path in files if "templates" in path.parts),
        "files of Python": len(python),
        "files of Lua, JavaScript and templates": sum(
            path.suffix in {".lua", ".js"} or "templates" in path.parts for path in files
        ),
        "lines of imports": sum(map(_import_lines, python)),
        "lines of tests": _lines((root / "tests").rglob("*.py")),
        "words of README and docs": sum(len(path.read_text(encoding="utf-8").split()) for path in documents),
    }


def _is_text(path: Path) -> bool:
    return path.suffix in {".py", ".lua", ".js", ".html", ".txt"} and "__pycache__" not in path.parts


def _lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def _import_lines(path: Path) -> int:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    imports = (node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)


def report(root: Path) -> Iterator[str]:
    """The lines that a release note can show. A * marks counts above those of the reference."""
    yield f"{f'now (at {REFERENCE})':32}{''.join(f'{kind:>14}' for kind in KINDS)}"
    budgets = read_table()
    for name, counts in flat(measure(root)).items():
        reference = budgets[name].reference if name in budgets else counts
        pairs = zip(counts, reference, strict=True)
        cells = (f"{number}{'*' if number > old else ''} ({old})" for number, old in pairs)
        yield f"{name:32}{''.join(f'{cell:>14}' for cell in cells)}"
    yield ""
    yield from (f"{name:40}{number:>8,}" for name, number in sizes(root).items())
    yield ""
    yield "The seconds of the gate: each step, at the end of the output of .ci/run."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("checkout", type=Path, nargs="?", default=ROOT, help="another checkout to measure")
    chosen = parser.parse_args()
    if chosen.server:
        json.dump(measure_here(chosen.checkout, chosen.server), sys.stdout)
    else:
        sys.stdout.writelines(f"{line}\n" for line in report(chosen.checkout.resolve()))
