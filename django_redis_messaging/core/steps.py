"""What an operation may yield: one script, one command, a wait, a script over many resources, or a list
of scripts and commands (a pipeline: one round trip, each for itself)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .scripts import Source, load

Text = str | bytes
Argument = Text | int | float
#: the words of a command as they go over the wire
Words = tuple[Text, ...]
_TEXTS = frozenset({str, bytes})


def texts(arguments: Iterable[Argument]) -> list[Text]:
    """Arguments with their numbers written out.

    Not by the packer (hiredis 3.5): Python looks for signals while it writes out a number, and where a
    handler raises then, as Ctrl-C does, the packer crashes the process.
    """
    written: list[Any] = [one if one.__class__ in _TEXTS else str(one) for one in arguments]
    return written


class Command:
    """One command of Redis. `reads`: it changes nothing."""

    __slots__ = ("reads_only", "words")
    once = False

    def __init__(self, *words: Argument, reads: bool = False) -> None:
        self.words: Words = tuple(texts(words))
        self.reads_only = reads

    @property
    def key(self) -> Text | None:
        """What says where it goes; of a command without keys, any word does."""
        return self.words[1] if len(self.words) > 1 else None


class Script:
    """One call of a script. `once`: it must not be sent again when its reply is lost. `settles`: it moves a
    state, and replies 0 where that has moved already, so after a lost reply a 0 is given as None: not known.
    """

    __slots__ = ("guarded", "once", "settles", "source", "words")

    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Argument] = (),
        *,
        once: bool = False,
        settles: bool = False,
    ) -> None:
        self.source: Source = load(name)
        self.words: Words = ("EVALSHA", self.source.sha, str(len(keys)), *keys, *texts(args))
        self.once = once
        self.settles = settles
        self.guarded = False

    def guard(self) -> None:
        """Give it one more key, that never exists: for a Cluster.

        A node refuses a script whose slot is on its way to another, if there are keys that it has not. It
        looks when the script begins, and at each command in it: a key that the script has removed itself
        would break it off in the midst. So it is refused at the beginning, and tried again.
        """
        if not self.guarded:
            self.guarded, self.source = True, load(self.source.name, guarded=True)
            number = int(self.words[2])
            keys, args = self.words[3 : 3 + number], self.words[3 + number :]
            guard = f"{keys[-1]!s}:%"  # of the same slot; names that people give have no such sign
            self.words = ("EVALSHA", self.source.sha, str(number + 1), *keys, guard, *args)

    @property
    def reads_only(self) -> bool:
        return self.source.reads_only

    @property
    def key(self) -> Text:
        """What says where it goes: all its keys are in one slot."""
        return self.words[3]

    @property
    def in_full(self) -> Words:
        """The same call for a server that doesn't have the script yet."""
        return ("EVAL", self.source.text, *self.words[2:])


class Hint(str):
    """A key whose entries are only hints to look: losing one costs time, never data."""

    __slots__ = ()


class Wait(Command):
    """A command that blocks; the reply is None when nothing came for `seconds`.

    The server would keep time on the grid of its own timer, up to 100 ms late, so the client does. What is
    still pending then stays for a while, and the next wait of the same words goes on with it. A lost reply is
    not asked for again, only waited for again, so what is waited for is only ever a hint to look.
    """

    __slots__ = ("seconds", "sent")
    #: seconds after which the server ends what nobody waits for any more, at the latest
    LIFE = 2.0

    def __init__(self, words: Words, sent: Words, *, seconds: float) -> None:
        super().__init__(*words, reads=True)
        #: as it goes over the wire, with its timeout
        self.sent = sent
        self.seconds = seconds


class PopHint(Wait):
    """Waits for a hint, and takes it. What is pending for `life` seconds more may take what others wait for:
    whoever may not come back says a short life."""

    __slots__ = ()

    def __init__(self, *keys: Hint, seconds: float, life: float = Wait.LIFE) -> None:
        for key in keys:
            if not isinstance(key, Hint):
                raise TypeError(f"{key!r} is not a Hint: what it holds could be lost.")
        words: Words = ("BZPOPMIN", *keys)
        super().__init__(words, (*words, f"{min(max(life, 0.01), self.LIFE):.3f}"), seconds=seconds)


class Listen(Wait):
    """Waits until a stream has an entry above `last`; wakes all who wait, and takes nothing away."""

    __slots__ = ()

    def __init__(self, stream: str, last: int, *, seconds: float) -> None:
        words: Words = ("STREAMS", stream, f"{last}-0")
        sent: Words = ("XREAD", "BLOCK", str(int(1000 * self.LIFE)), *words)
        super().__init__(("XREAD", *words), sent, seconds=seconds)

    @property
    def key(self) -> Text:
        """The stream."""
        return self.words[2]


class Many:
    """Calls about many resources of different slots: one server takes them together, some hundreds a call;
    a Cluster gets one for each resource, in a pipeline. The reply is a list, one item for each."""

    __slots__ = ()

    def calls(self, *, apart: bool) -> list[Command | Script]:
        """The calls to make; `apart`: one for each resource."""
        raise TypeError(f"{type(self).__name__} makes no calls")


class Fan(Many):
    """A script over many resources, each with its keys and arguments; `args` come first, once.

    The script takes any number of resources and replies with a list, one item for each.
    """

    __slots__ = ("args", "name", "once", "resources")
    #: resources a call takes: keeps each script far below 5 ms
    SIZE = 100

    def __init__(
        self,
        name: str,
        resources: Sequence[tuple[Sequence[str], Sequence[Argument]]],
        args: Sequence[Argument] = (),
        *,
        once: bool = False,
    ) -> None:
        self.name = name
        self.resources = resources
        self.args = args
        self.once = once

    def calls(self, *, apart: bool) -> list[Command | Script]:
        size = 1 if apart else self.SIZE
        return [self._call(self.resources[at : at + size]) for at in range(0, len(self.resources), size)]

    def _call(self, resources: Sequence[tuple[Sequence[str], Sequence[Argument]]]) -> Script:
        keys = [key for names, _ in resources for key in names]
        args = [arg for _, values in resources for arg in values]
        return Script(self.name, keys, [*self.args, *args], once=self.once)


class Gather(Many):
    """One STRING of each of many resources; behind the items that `first` replies with, if there is one."""

    __slots__ = ("first", "keys")
    SIZE = 1000

    def __init__(self, keys: Sequence[str], *, first: Command | None = None) -> None:
        self.keys = keys
        self.first = first

    def calls(self, *, apart: bool) -> list[Command | Script]:
        size = 1 if apart else self.SIZE
        pages = (self.keys[at : at + size] for at in range(0, len(self.keys), size))
        calls: list[Command | Script] = [] if self.first is None else [self.first]
        calls += [Command("MGET", *page, reads=True) for page in pages]
        return calls


Step = Command | Script | Many | Sequence[Command | Script]
