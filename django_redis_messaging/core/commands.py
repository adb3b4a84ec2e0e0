"""The steps that operations yield: commands, Lua scripts, waits, calls for many resources, or lists of them.

A list of commands and scripts is a pipeline: one round trip, without atomicity.

A script is a file in the folder of its capability: `chats/send` is `services/chats/send.lua`. A header line
`-- uses _log.lua` inserts a file of the same folder before the script (`-- uses common/_time.lua`: of another
one), and before it the files that it uses in turn; each file once, whatever the order of the lines. A header
line `-- reads only` declares that the script changes nothing.

Redis creates every function of a script at each call, for 0.1 µs. So the functions that the script doesn't
call, directly or indirectly, are left out. With `-- rare` in the comment of a function, those that only such
functions need are moved into them, and created when these are called.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import islice
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Text = str | bytes
Argument = Text | int | float
#: the keys and arguments of one resource
Resource = tuple[Sequence[str], Sequence[Argument]]
#: the words of a command as they are sent
Words = tuple[Text, ...]
#: entries of a stream: id, and the fields with their values
Entries = Sequence[Sequence[Any]]
#: commands in one pipeline, unless a service says otherwise: a longer one delays other clients
PIPELINE_SIZE = 500
_TEXTS = frozenset({str, bytes})


class Confirmation(NamedTuple):
    """Replicas that must confirm what a call has written, as with the setting DURABILITY."""

    replicas: int
    #: seconds
    timeout: float
    #: whether a reply says that the call has written something that must be confirmed
    is_needed: Callable[[Any], bool]


class Command:
    """A Redis command. `reads`: it changes nothing. `settles`: see Script."""

    __slots__ = ("reads_only", "settles", "words")
    once = False
    confirmation: Confirmation | None = None

    def __init__(self, *words: Argument, reads: bool = False, settles: bool = False) -> None:
        self.words: Words = tuple(to_texts(words))
        self.reads_only = reads
        self.settles = settles

    @property
    def key(self) -> Text | None:
        """The key that determines the server; the first word after the name for a command without keys."""
        return self.words[1] if len(self.words) > 1 else None


class Clock(Command):
    """The clock of the server that has a key: without a key, any node of a Cluster would reply."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        super().__init__("TIME", reads=True)
        self._key = key

    @property
    def key(self) -> Text:
        return self._key

    @staticmethod
    def milliseconds(reply: Sequence[bytes]) -> int:
        """The time in a reply: ms."""
        seconds, microseconds = map(int, reply)
        return seconds * 1000 + microseconds // 1000


class BulkWords(Words):
    """Words of which the last one, bytes, may be large: it is sent without being copied."""

    __slots__ = ()


class BulkCommand(Command):
    """A Redis command whose last word, bytes, may be large. Packing copies a word several times; this one is
    sent as it is."""

    __slots__ = ()

    def __init__(self, *words: Argument, data: bytes) -> None:
        super().__init__(*words)
        self.words = BulkWords((*self.words, data))


class Script:
    """A call of a script. `once`: it must not be repeated after a lost reply. `settles`: it changes a state,
    and replies 0 if the state had changed already; so a 0 after a lost reply becomes None: unknown.
    `confirmation`: raise OutcomeUnknown if too few replicas confirm it in time.
    """

    __slots__ = ("confirmation", "has_nonexistent_key", "once", "sent_at", "settles", "source", "words")

    #: when it was sent last; monotonic. Not set if that was when its step began, as nearly always.
    sent_at: float

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Argument] = (),
        *,
        once: bool = False,
        settles: bool = False,
        confirmation: Confirmation | None = None,
    ) -> None:
        self.source: Source = load(name)
        self.words: Words = ("EVALSHA", self.source.sha, str(len(keys)), *keys, *to_texts(args))
        self.once = once
        self.settles = settles
        self.confirmation = confirmation
        self.has_nonexistent_key = False

    def add_nonexistent_key(self) -> None:
        """Add a key that never exists, for a Cluster.

        While a slot migrates, its node rejects a script if any of the keys is missing. It checks them when
        the script begins and at each command, so a key that the script itself removes would abort it
        halfway. The missing key makes the node reject the script at the beginning, and the call is retried.
        """
        if not self.has_nonexistent_key:
            self.has_nonexistent_key, self.source = True, load(self.source.name, has_nonexistent_key=True)
            number = int(self.words[2])
            keys, args = self.words[3 : 3 + number], self.words[3 + number :]
            missing = f"{keys[-1]!s}:%"  # in the same slot; encoded names never contain it
            self.words = ("EVALSHA", self.source.sha, str(number + 1), *keys, missing, *args)

    @property
    def reads_only(self) -> bool:
        return self.source.reads_only

    @property
    def key(self) -> Text:
        """The key that determines the server: all keys are in one slot."""
        return self.words[3]

    @property
    def last_key(self) -> Text:
        """One of the app's keys; the first one may be the site's, as that of a lock."""
        return self.words[2 + int(self.words[2])]

    def sent_since(self, began: float) -> float:
        """When the attempt that was answered was sent, in a step that began at `began`; both monotonic. A
        lease that the script has granted lasts from then on at least."""
        return max(began, getattr(self, "sent_at", began))

    @property
    def in_full(self) -> Words:
        """The same call for a server that doesn't have the script yet."""
        return ("EVAL", self.source.text, *self.words[2:])


class Hint(str):
    """A key whose entries are only hints to poll: losing one costs time, never data."""

    __slots__ = ()


class Wait(Command):
    """A command that blocks; the reply is None if nothing arrived within `seconds`.

    The client keeps the time, since the server's timeouts can be 100 ms late. A command that is still
    pending then remains so for a while, and the next wait with the same words takes it over. A lost reply
    can't be repeated, so a wait must only ever receive a hint to poll.
    """

    __slots__ = ("seconds", "sent")
    #: seconds: the timeout that the server gets, after which it ends a pending command
    LINGER = 2.0

    def __init__(self, words: Words, sent: Words, *, seconds: float) -> None:
        super().__init__(*words, reads=True)
        #: the words to send, with the server's timeout
        self.sent = sent
        self.seconds = seconds


class PopHint(Wait):
    """Waits for a hint and removes it. The command lingers for `linger` seconds and may remove a hint that
    another client waits for, so a caller that may not wait again gives a short time."""

    __slots__ = ()

    def __init__(self, *keys: Hint, seconds: float, linger: float = Wait.LINGER) -> None:
        for key in keys:
            if not isinstance(key, Hint):
                raise TypeError(f"{key!r} is not a Hint: its data could be lost.")
        words: Words = ("BZPOPMIN", *keys)
        super().__init__(words, (*words, f"{min(max(linger, 0.01), self.LINGER):.3f}"), seconds=seconds)


class Listen(Wait):
    """Waits until a stream has an entry with an id above `last`. An entry wakes all waiting clients, or, if
    it is for one of them, the one whose `match` is among its values."""

    __slots__ = ("last", "match", "stream")

    def __init__(self, stream: str, last: int, *, seconds: float, match: bytes | None = None) -> None:
        words: Words = ("STREAMS", stream, f"{last}-0")
        sent: Words = ("XREAD", "BLOCK", str(int(1000 * self.LINGER)), *words)
        super().__init__(("XREAD", *words), sent, seconds=seconds)
        self.stream = stream
        self.last = last
        self.match = match

    @property
    def key(self) -> Text:
        """The stream."""
        return self.stream

    def finds(self, entries: Entries) -> bool:
        """Whether one of these entries of the stream ends the wait."""
        return any(
            entry_number(entry) > (self.last, 0) and (self.match is None or self.match in entry[1])
            for entry in entries
        )

    def after(self, entries: Entries) -> Listen:
        """A wait for later entries than these."""
        last = max((entry_number(entry)[0] for entry in entries), default=self.last)
        return Listen(self.stream, max(last, self.last), seconds=self.seconds, match=self.match)


def entry_number(entry: Sequence[Any]) -> tuple[int, int]:
    """The id of an entry of a stream, as two numbers."""
    first, _, second = entry[0].partition(b"-")
    return int(first), int(second)


class Many:
    """Calls for many resources, possibly in different slots: a single server gets hundreds of them in one
    call; a Cluster gets one call for each, in pipelines. The reply is a list with one item for each
    resource."""

    __slots__ = ()

    def calls(self, *, split: bool) -> list[Command | Script]:
        """The calls to send; `split`: one for each resource."""
        raise TypeError(f"{type(self).__name__} makes no calls")


class Fan(Many):
    """A script for many resources, each with its keys and arguments, which follow the common `args`.

    The script takes any number of resources and replies with a list, one item for each.

    With `once=True`, a call whose reply was lost is not repeated; calls that the server refused are, and the
    replies to the others are kept. If some calls fail finally, the item of each of their resources is the
    error: OutcomeUnknown if the call may have been applied, another MessagingError if it was not. If all
    fail, the step raises.
    """

    __slots__ = ("args", "name", "once", "resources")
    #: maximum number of resources in a call: keeps each script well below 5 ms
    SIZE = 100

    def __init__(
        self,
        name: str,
        resources: Sequence[Resource],
        args: Sequence[Argument] = (),
        *,
        once: bool = False,
    ) -> None:
        self.name = name
        self.resources = resources
        self.args = args
        self.once = once

    def pages(self, *, split: bool) -> Iterator[Sequence[Resource]]:
        """The resources of each call."""
        return batched(self.resources, 1 if split else self.SIZE)

    def calls(self, *, split: bool) -> list[Command | Script]:
        return [self.call(page) for page in self.pages(split=split)]

    def call(self, resources: Sequence[Resource]) -> Script:
        """One call for these resources."""
        keys = [key for names, _ in resources for key in names]
        args = [arg for _, values in resources for arg in values]
        return Script(self.name, keys, [*self.args, *args], once=self.once)


class InOrder(Many):
    """A script that uses resources one after another, each with its keys and arguments, which follow the
    common `args`. A single server gets all of them in one call.

    The servers of a Cluster can't keep an order, so a Cluster gets only the first `number` of them, a call
    for each: the caller begins with one, and adds one whenever it has the reply. The reply has an item for
    each resource that was sent.
    """

    __slots__ = ("args", "name", "number", "resources", "sent")

    def __init__(
        self, name: str, resources: Sequence[Resource], args: Sequence[Argument] = (), *, number: int
    ) -> None:
        self.name = name
        self.resources = resources
        self.args = args
        self.number = number
        #: the calls made last
        self.sent: list[Command | Script] = []

    def calls(self, *, split: bool) -> list[Command | Script]:
        fan = Fan(self.name, self.resources[: self.number], self.args)
        self.sent = fan.calls(split=True) if split else [fan.call(self.resources)]
        return self.sent

    def sent_since(self, began: float) -> float:
        """As that of a script: the earliest moment of all calls."""
        return min(call.sent_since(began) for call in self.sent if isinstance(call, Script))


class Gather(Many):
    """The STRINGs of many keys, after the items of the reply to `first`, if given."""

    __slots__ = ("first", "keys")
    #: maximum number of keys in a call
    SIZE = 1000

    def __init__(self, keys: Sequence[str], *, first: Command | None = None) -> None:
        self.keys = keys
        self.first = first

    def calls(self, *, split: bool) -> list[Command | Script]:
        size = 1 if split else self.SIZE
        pages = (self.keys[at : at + size] for at in range(0, len(self.keys), size))
        calls: list[Command | Script] = [] if self.first is None else [self.first]
        calls += [Command("MGET", *page, reads=True) for page in pages]
        return calls


class Together(Many):
    """Several steps for many resources in one round trip; the reply has their items one after another."""

    __slots__ = ("steps",)

    def __init__(self, *steps: Many) -> None:
        self.steps = steps

    def calls(self, *, split: bool) -> list[Command | Script]:
        return [call for step in self.steps for call in step.calls(split=split)]


#: what an operation may yield
Step = Command | Script | Many | Sequence[Command | Script]


def titles(step: Step) -> list[str]:
    """The names of the scripts and commands that a step sends, without keys and arguments.

    >>> titles([Command("TIME"), Command("HGETALL", "key")])
    ['TIME', 'HGETALL']
    """
    match step:
        case Script():
            return [step.source.name]
        case Command():
            return [str(step.words[0])]
        case Fan() | InOrder():
            return [step.name]
        case Gather():
            return [*titles([] if step.first is None else step.first), "MGET"]
        case Together():
            return [title for one in step.steps for title in titles(one)]
        case Many():
            return [type(step).__name__]
    return [title for one in step for title in titles(one)]


def batched(items: Iterable[T], size: int = PIPELINE_SIZE) -> Iterator[tuple[T, ...]]:
    """Split a long list over several steps: yield tuples of `size` items each; the last one may be shorter.

    >>> list(batched("abcde", 2))
    [('a', 'b'), ('c', 'd'), ('e',)]
    """
    rest = iter(items)
    while batch := tuple(islice(rest, size)):
        yield batch


def to_texts(arguments: Iterable[Argument]) -> list[Text]:
    """Convert the numbers among the arguments to text.

    The packer (hiredis 3.5) must not do it: Python runs signal handlers during the conversion, and if a
    handler raises, as for Ctrl-C, the packer crashes the process.
    """
    converted: list[Any] = [one if one.__class__ in _TEXTS else str(one) for one in arguments]
    return converted


_USES = re.compile(r"^-- uses ((?:\w+/)?_\w+\.lua)$", re.MULTILINE)
_READS_ONLY = re.compile(r"^-- reads only$", re.MULTILINE)
#: a function at the top level of a file, with the comment above it
_FUNCTION = re.compile(r"^(?:--[^\n]*\n)*local function (\w+)\([^\n]*\n(.*?)^end\n", re.MULTILINE | re.DOTALL)
_RARE = re.compile(r"^-- rare$", re.MULTILINE)
_COMMENT = re.compile(r"--.*")
_WORD = re.compile(r"\w+")
#: removes the key that `Script.add_nonexistent_key` adds
_WITHOUT_LAST_KEY = "local KEYS = {unpack(KEYS, 1, #KEYS - 1)} "


class Source(NamedTuple):
    """The text of a script with the files that it uses."""

    name: str
    text: str
    sha: str
    reads_only: bool


@functools.cache
def load(name: str, *, has_nonexistent_key: bool = False) -> Source:
    """Load the script `name` with the files it uses; see also `Script.add_nonexistent_key`."""
    body = read(f"{name}.lua")
    library = "\n".join(map(read, pieces(f"{name}.lua")))
    text = (_WITHOUT_LAST_KEY if has_nonexistent_key else "") + with_needed(library, body)
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Source(name, text, sha, bool(_READS_ONLY.search(body)))


def path_of(filename: str) -> Traversable:
    """Where a file is: `chats/send.lua` is in the folder `services`, `tasks/periodic_look.lua` beside it."""
    package = files("django_redis_messaging")
    return (package if filename.startswith("tasks/") else package / "services") / filename


def read(filename: str) -> str:
    """The text of one file."""
    return path_of(filename).read_text(encoding="utf-8")


def pieces(filename: str) -> list[str]:
    """The files that a file uses, directly or indirectly, each after those that it uses itself."""
    found: dict[str, None] = {}
    folder = filename.rpartition("/")[0]
    for used in _USES.findall(read(filename)):
        used = used if "/" in used or not folder else f"{folder}/{used}"
        found |= dict.fromkeys([*pieces(used), used])
    return list(found)


def with_needed(library: str, body: str) -> str:
    """The text of a script with the files that it uses, without the functions that it doesn't need. What only
    a rare function needs is moved into that function."""
    text = library + "\n" + body
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(text)}
    calls = {name: _named(function, functions) for name, function in functions.items()}
    rare = {name for name, function in functions.items() if _RARE.search(function)}
    at_once = _reached(_named(_FUNCTION.sub("", text), functions), calls, rare)

    def place(found: re.Match[str]) -> str:
        name = found[1]
        if name not in at_once:
            return ""
        inner = _reached(calls[name], calls, set()) - at_once if name in rare else set()
        start = found.start(2) - found.start()
        own = "".join(function for other, function in functions.items() if other in inner)
        return found[0][:start] + own + found[0][start:]

    return _FUNCTION.sub(place, text)


def _named(code: str, functions: Collection[str]) -> set[str]:
    """The functions that this code names."""
    return set(_WORD.findall(_COMMENT.sub("", code))) & set(functions)


def _reached(called: set[str], calls: Mapping[str, set[str]], ends: Collection[str]) -> set[str]:
    """These functions, and those that they call directly or indirectly; not through those in `ends`."""
    found: set[str] = set()
    waiting = list(called)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += () if name in ends else calls[name]
    return found
