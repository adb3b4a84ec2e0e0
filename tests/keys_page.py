"""docs/keys.md: every key of the app, as the docstrings of the key builders describe it, and examples.

A docstring begins with the Redis type. Its first sentence says what the key holds. From the first later
sentence on that has a word of REMOVAL, it says when the key is removed. If none has, that of its class does.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
import subprocess
import types
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import django_redis_messaging
from django_redis_messaging import Blocks, Chat, DelayQueue, RecentContacts, notify, services, tasks
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.jobs.keys import JobKeys

from .support.aliases import entry, leading_to

PACKAGE = Path(str(django_redis_messaging.__file__)).parent
DOCS = PACKAGE.parent / "docs"
#: the prefix on the page: the default
PREFIX = "messaging"
#: Redis's types, and the command with which the page reads a key: {} is the key
READING = {
    "STRING": "GET {}",
    "HASH": "HGETALL {}",
    "ZSET": "ZRANGE {} 0 -1 WITHSCORES",
    "LIST": "LRANGE {} 0 -1",
    "SET": "SMEMBERS {}",
    "STREAM": "XRANGE {} - +",
}
SCHEMA = re.compile(rf"({'|'.join(READING)})\b[:,]? (?:of )?(.+)", re.DOTALL)
SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`\"])")
REMOVAL = re.compile(
    r"\b(expires?|deletes?|deleted|removes?|removed|capped|stays|newest \d+)\b", re.IGNORECASE
)
#: values of parameters in the keys of the page; of those of one function, by its name and theirs
ARGUMENTS: dict[str, str | int] = {
    "action": "send",
    "batch_id": "7f3a",
    "channel": "logs",
    "consumer": "country",
    "job_id": "7f3a",
    "lock": "report",
    "name": "17",
    "period.name": "2026-05-19",
    "position.name": "billing",
    "namespace": "order",
    "node": "a1b2c3",
    "number": 0,
    "place": 0,
    "seconds": 60,
    "series": "queue:default/mail",
    "shard": 5,
    "user": "ann",
}
#: the arguments of builders: the names of their resources
EXAMPLES = {
    "AggregateKeys": ("visits",),
    "BroadcastKeys": ("prices",),
    "ChatKeys": ("42",),
    "DirectoryKeys": ("staff",),
    "FileChannelKeys": ("logs",),
    "FileKeys": ("logs/7",),
    "HistoryKeys": (),
    "JobKeys": ("queue", "mail"),
    "LatchKeys": ("import",),
    "LockKeys": (f"{PREFIX}:{FORMAT}:{{lock:report}}",),
    "MailboxKeys": ("ann",),
    "RateKeys": ("login", "ann", 60_000),
    "ReadWriteLockKeys": ("catalogue",),
    "SemaphoreKeys": ("printer",),
    "UserKeys": ("ann",),
}

#: the titles of services that are not the names of their folders
TITLES = {"rwlocks": "Read-write locks"}
#: the resources of which the page shows what is stored
EXAMPLE_TAGS = {
    "A chat": "{chat:42}",
    "A user": "{user:ann}",
    "A mailbox": "{mailbox:ann}",
    "A queue": "{queue:mail}",
}
#: what is before this line of the page is written by hand
MARKER = "<!-- The rest is generated: MESSAGING_KEYS=write uv run pytest -n 0 tests/test_keys_page.py -->"


class Row(NamedTuple):
    """A key, or a few that hold the same."""

    keys: list[str]
    type: str
    holds: str
    removed: str

    @property
    def line(self) -> str:
        """The row of the table."""
        first, *more = [f"`{key}`" for key in self.keys]
        shown = [first, *(more if len(more) < 2 else [f"… {more[-1]}"])]
        cells = ["<br>".join(shown), self.type, escaped(self.holds), escaped(self.removed)]
        return f"| {' | '.join(cells)} |"


class Section(NamedTuple):
    """The keys of a builder, or those of the functions of a service."""

    intro: str
    rows: list[Row]

    @property
    def lines(self) -> Iterator[str]:
        """The section as Markdown."""
        yield from ("", escaped(self.intro)) if self.intro else ()
        yield from ("", "| key | type | what it holds | when it is removed |", "|---|---|---|---|")
        yield from (row.line for row in self.rows)


def escaped(text: str) -> str:
    """Text without characters that have a meaning in tables of Markdown."""
    return re.sub(r"[|*<]", r"\\\g<0>", text)


def paragraph_of(documented: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def row_of(keys: list[str], documented: Any, what: str, *, by_default: str = "") -> Row:
    """The row that a docstring describes; raises ValueError if it doesn't."""
    schema = SCHEMA.match(paragraph_of(documented))
    if schema is None:
        raise ValueError(f"The docstring of {what} must begin with a type of Redis: {', '.join(READING)}.")
    first, *others = SENTENCE.split(schema[2])
    at = next((at for at, one in enumerate(others) if REMOVAL.search(one)), len(others))
    removed = " ".join(others[at:]) or by_default
    if not removed:
        raise ValueError(f"The docstring of {what} must say when the key expires, or is removed.")
    return Row(keys, schema[1], " ".join([first, *others[:at]]), removed)


def listed(found: Any) -> list[str]:
    return [found] if isinstance(found, str) else list(found)


def called(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """The keys that a function builds for the values of ARGUMENTS."""
    wanted = list(inspect.signature(function).parameters)[len(arguments) :]
    values = (ARGUMENTS.get(f"{function.__name__}.{name}", ARGUMENTS.get(name)) for name in wanted)
    return listed(function(*arguments, *values))


def members(kind: type) -> dict[str, Any]:
    """The functions behind the public properties and methods of a class, first those with a schema."""
    found = {name: getattr(one, "fget", getattr(one, "func", one)) for name, one in vars(kind).items()}
    public = {name: one for name, one in found.items() if name[0] != "_" and inspect.isfunction(one)}
    return dict(sorted(public.items(), key=lambda one: not has_schema(one[1])))


def has_schema(documented: Any) -> bool:
    return SCHEMA.match(paragraph_of(documented)) is not None


def rows_of(kind: type, made: Any) -> Iterator[Row]:
    """The keys of a builder. Members without a schema must build keys that others have described."""
    known: set[str] = set()
    removed = "See above." if REMOVAL.search(paragraph_of(kind)) else ""
    for name, function in members(kind).items():
        if isinstance(vars(kind)[name], property | functools.cached_property):
            keys = listed(getattr(made, name))
        else:
            keys = called(function, made) if has_schema(function) else []
        if has_schema(function) or not known.issuperset(map(shape, keys)):
            yield row_of(keys, function, f"{kind.__name__}.{name}", by_default=removed)
            known.update(map(shape, keys))


def make(kind: type) -> Any:
    """The builder of the keys of an example."""
    if kind.__name__ == "QueueKeys":
        return JobKeys(PREFIX, *EXAMPLES["JobKeys"]).queue("jobs")
    return kind(PREFIX, *EXAMPLES[kind.__name__])


def modules(package: types.ModuleType) -> list[types.ModuleType]:
    """A package and its modules."""
    inner = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [package, *(importlib.import_module(one.name) for one in inner)]


def builders(package: types.ModuleType) -> list[type]:
    """The classes of a package that build keys, in the order of its modules."""
    return [
        one
        for module in modules(package)
        for name, one in vars(module).items()
        if name.endswith("Keys") and one.__module__ == module.__name__
    ]


def single(package: types.ModuleType) -> list[Callable[..., str]]:
    """The functions of a package that build one key: `queues_key(prefix)`."""
    return [
        one
        for module in modules(package)
        for name, one in vars(module).items()
        if name.endswith("_key") and inspect.isfunction(one) and one.__module__ == module.__name__
        if next(iter(inspect.signature(one).parameters), "") == "prefix"
        if inspect.signature(one).return_annotation == "str"
    ]


def sections_of(package: types.ModuleType) -> Iterator[Section]:
    """The keys of a service."""
    known: set[str] = set()
    for kind in builders(package):
        rows = list(rows_of(kind, make(kind)))
        known.update(key for row in rows for key in row.keys)
        yield Section(paragraph_of(kind), rows)
    found = [(called(one, PREFIX), one) for one in single(package)]
    rows = [row_of(keys, one, f"{one.__name__}()") for keys, one in found if not known.issuperset(keys)]
    if rows:
        yield Section("", rows)


def services_with_keys() -> dict[str, list[Section]]:
    """The sections by the package of their service; tasks have one, too."""
    inner = pkgutil.iter_modules(services.__path__, f"{services.__name__}.")
    packages = [*(importlib.import_module(one.name) for one in inner), tasks]
    return {package.__name__: found for package in packages if (found := list(sections_of(package)))}


def schema() -> Iterator[str]:
    """The tables of all keys, as Markdown."""
    for name, sections in services_with_keys().items():
        folder = name.rpartition(".")[2]
        yield from ("", f"## {TITLES.get(folder, folder.title())}", "")
        yield escaped(paragraph_of(importlib.import_module(name)))
        for section in sections:
            yield from section.lines


def shape(text: str) -> str:
    """Text without what differs in each run: numbers, such as times, and random tokens."""
    return re.sub(r"[0-9a-f]{12,}|\d+", "#", text)


def comparable(page: str) -> str:
    """The page with the shape of its examples only. Hashes have no order."""
    page = re.sub(r"^\*\*.*?\*\*", lambda key: shape(key[0]), page, flags=re.MULTILINE)
    examples = re.compile(r"^```text$.*?^```$", re.MULTILINE | re.DOTALL)
    return examples.sub(lambda block: "\n".join(sorted(shape(block[0]).splitlines())), page)


def store_examples() -> None:
    """Write a chat, notifications, contacts and jobs."""
    chat = Chat.create("ann", ["bob"], "Hello, Bob", title="Trip", chat_id="42", request_id="r1")
    reply = chat.send("bob", "On Monday?", request_id="r2")
    chat.ack("ann", reply.cursor)
    chat.mute("bob", datetime.now(UTC) + timedelta(hours=1))
    RecentContacts("ann").touch("bob")
    Blocks("ann").block("eve")
    notify("ann", "Your order is confirmed.", group="orders", request_id="r3")
    queue = DelayQueue("mail")
    queue.push({"to": "ann"}, job_id="welcome-ann", request_id="r4")
    queue.pop()
    queue.push({"to": "bob"}, job_id="welcome-bob", delay=3600, request_id="r5")


def examples(cli: str, prefix: str) -> Iterator[str]:
    """What redis-cli shows of the examples, as Markdown. `prefix`: the one of the test, which is replaced."""
    sections = [section for found in services_with_keys().values() for section in found]
    rows = {shape(key): row for section in sections for row in section.rows for key in row.keys}
    with EmbeddedServer() as server, leading_to(entry(server.url), PREFIX=prefix):
        store_examples()

        def run(*words: str) -> str:
            command = [cli, "-s", str(server.socket), *words]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        for title, tag in EXAMPLE_TAGS.items():
            pattern = f":{FORMAT}:{tag}:*"
            keys = sorted(run("--scan", "--pattern", prefix + pattern).splitlines())
            suffixes = [key.removeprefix(prefix) for key in keys]
            command = f"--scan --pattern '{PREFIX}{pattern}' | sort"
            yield from ("", f"### {title}", *session(command, "\n".join(PREFIX + one for one in suffixes)))
            for suffix in suffixes:
                row = rows[shape(PREFIX + suffix)]
                command = READING[row.type]
                reply = run("--no-raw", *command.format(prefix + suffix).split())
                if reply.startswith("(error)"):
                    raise ValueError(f"{suffix} is not a {row.type}: {reply}")
                holds = SENTENCE.split(row.holds)[0]
                yield from ("", f"**{suffix.partition('}:')[2]}**, {row.type}: {escaped(holds)}")
                yield from session(command.format(f"'{PREFIX}{suffix}'"), reply.rstrip("\n"))


def session(command: str, reply: str) -> Iterator[str]:
    """A command of redis-cli and what it prints."""
    yield from ("", "```text", f"$ redis-cli {command}", reply, "```")


def page(stored: str, cli: str, prefix: str) -> str:
    """The text of docs/keys.md, with the part that is written by hand as it is stored."""
    head = stored.partition(MARKER)[0] + MARKER
    return "\n".join([head, *examples(cli, prefix), *schema()]) + "\n"
