"""Latches: clients wait until a number of events, of all processes, have been counted."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from ...core.encoding import name as checked
from ...core.encoding import tag
from ...core.operations import Command, Listen, Script, Service, Steps, asynchronous, operation
from ...errors import LatchError
from ..common.arguments import Duration, checked_id, integer, milliseconds, request, window

#: maximum count: so many request ids of a round take 6 MB, and when they expire, 10 ms of the server's time
MAX_COUNT = 100_000
#: seconds; the maximum time between two polls of a waiting client, which notice what wakes nobody: that the
#: latch has expired, or that a failover has lost the entry of its opening
POLL_INTERVAL = 5.0


class LatchKeys:
    """The keys of one latch, in one slot."""

    def __init__(self, prefix: str, name: str) -> None:
        self.tag = tag(prefix, "latch", name)

    @property
    def state(self) -> str:
        """HASH of the present round: its number, the count, the remaining count, the latest round that has
        opened, and the round with which the latch was created. Expires `ttl` after the last change."""
        return self.tag + ":state"

    @property
    def counted(self) -> str:
        """HASH request id → remaining count: those given by callers in the present round. Expires with the
        state."""
        return self.tag + ":counted"

    @property
    def opening(self) -> str:
        """STREAM of one entry, whose id is the round that has opened, or a later number if the latch was
        deleted: wakes the waiting clients. Expires a minute later."""
        return self.tag + ":opening"

    @property
    def requests(self) -> list[str]:
        """HASH id of a call → first reply: two keys, used in turn for one window each. Each expires when its
        turn comes again."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    @functools.cached_property
    def all(self) -> list[str]:
        """The keys in the order of all scripts, see latch_at() in _latches.lua."""
        return [self.state, self.counted, self.opening, *self.requests]


@dataclass(frozen=True, kw_only=True, slots=True)
class LatchInfo:
    """The state of a latch at one moment."""

    count: int
    """The events that open it: the stored number, or the constructor's if none is stored."""
    remaining: int
    """The events that are missing; 0: it is open."""
    round: int
    """Identifies the round, and grows with each; 0 if nothing is stored."""


class Latch(Service):
    """A latch that opens when `count` events have been counted, and lets all clients pass that wait for it.

    >>> latch = Latch("import 7", 2)
    >>> latch.count_down(), latch.wait_until_open(timeout=0.01)
    (1, False)
    >>> latch.count_down(), latch.wait_until_open()
    (0, True)

    The first use stores `count`; after that only `reset` changes it. A latch expires `ttl` seconds after the
    last change: a count, a reset, or the first wait. It is open until then; `reset` closes it.

    The semantics are those of Java's CountDownLatch, with request ids, rounds and expiry.
    """

    def __init__(self, name: str, count: int, *, ttl: Duration = 86_400, using: str | None = None) -> None:
        super().__init__(using=using)
        self.name = checked(name, "name")
        self._count = integer(count, "count", minimum=1, maximum=MAX_COUNT)
        self._ttl = milliseconds(ttl, "ttl", minimum=1)
        self._keys = LatchKeys(self._prefix, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._count})"

    @operation
    def count_down(
        self, n: int = 1, *, request_id: str | None = None, round: int | None = None
    ) -> Steps[int]:
        """Count `n` events; returns how many are missing still. 0: the latch is open.

        An open latch stays as it is. A `request_id` is counted once in a round, for as long as the latch
        exists, and a repeat returns the first result: a task that may be delivered twice passes one.

        >>> latch = Latch("report", 3)
        >>> [latch.count_down(request_id=f"part-{part}") for part in (1, 2, 2)]
        [2, 1, 1]

        With `round`, events are counted only for the round of this number; LatchError if it is over.
        """
        events = integer(n, "n", minimum=1, maximum=MAX_COUNT)
        given = "" if request_id is None else request(request_id)
        number = 0 if round is None else checked_id(round, "round", min_id=1)
        args = (events, request(None), given, number, self._count, self._ttl, window())
        remaining = int((yield Script("latches/count_down", self._keys.all, args)))
        if remaining < 0:
            raise LatchError(f"Round {number} of the latch {self.name!r} is over: nothing was counted.")
        return remaining

    acount_down = asynchronous(count_down)

    @operation
    def wait_until_open(self, timeout: Duration | None = None) -> Steps[bool]:
        """Wait until the latch is open, for `timeout` seconds at most; returns whether it is, or was since
        the call.

        The opening wakes all waiting clients. If a new round begins before it, they wait for that one.

        >>> Latch("nightly", 1).wait_until_open(timeout=0)
        False

        Raises LatchError if the latch expires, is deleted or is lost while it waits, even if another client
        has created it anew; Unavailable or OutcomeUnknown, after which it can be repeated.
        """
        ends = monotonic() + (math.inf if timeout is None else milliseconds(timeout, "timeout") / 1000)
        number = yield from self._poll(0)
        while number and (left := ends - monotonic()) > 0:
            pause = random.uniform(0.5, 1) * POLL_INTERVAL  # noqa: S311
            yield Listen(self._keys.opening, number - 1, seconds=min(left, pause))
            number = yield from self._poll(number)
        return not number

    await_until_open = asynchronous(wait_until_open)

    @operation
    def count(self) -> Steps[int]:
        """The number of events that are missing; 0: the latch is open.

        >>> Latch("nightly", 3).count()
        3
        """
        return (yield from self._info()).remaining

    acount = asynchronous(count)

    @operation
    def info(self) -> Steps[LatchInfo]:
        """The count, the remaining count and the round.

        >>> Latch("nightly", 3).info()
        LatchInfo(count=3, remaining=3, round=0)
        """
        return (yield from self._info())

    ainfo = asynchronous(info)

    @operation
    def reset(self, count: int | None = None) -> Steps[int]:
        """Begin a new round, of `count` events, or as many as before; returns its number.

        Events of the earlier round that are counted later count for the new one, unless they name their
        `round`. Request ids can be used again.

        >>> latch = Latch("rounds", 1)
        >>> first = latch.reset()
        >>> second = latch.reset(5)
        >>> latch.count(), second > first
        (5, True)
        """
        wanted = 0 if count is None else integer(count, "count", minimum=1, maximum=MAX_COUNT)
        args = (request(None), wanted, self._count, self._ttl, window())
        return int((yield Script("latches/reset", self._keys.all, args)))

    areset = asynchronous(reset)

    @operation
    def delete(self) -> Steps[bool]:
        """Delete the latch; returns whether it existed. Clients that wait for it get a LatchError.

        A later count or wait creates it anew.

        >>> Latch("nightly", 3).delete()
        False
        """
        return bool((yield Script("latches/delete", self._keys.all, (request(None), window()))))

    adelete = asynchronous(delete)

    def _poll(self, number: int) -> Steps[int]:
        """Ask whether the latch has opened since this round, or, with 0, whether it is open. Returns 0 if so,
        else the round since which this client waits."""
        args = (number, self._count, self._ttl)
        reply = int((yield Script("latches/wait", self._keys.all, args)))
        if reply < 0:
            raise LatchError(
                f"The latch {self.name!r} was deleted, was lost, or has expired ({self._ttl / 1000:g} s after"
                " the last change) while this client waited for it."
            )
        return reply

    def _info(self) -> Steps[LatchInfo]:
        found = parse_info((yield info_command(self._keys)))
        return found or LatchInfo(count=self._count, remaining=self._count, round=0)


def info_command(keys: LatchKeys) -> Command:
    """The command that reads the state of a latch."""
    return Command("HMGET", keys.state, "count", "remaining", "round", reads=True)


def parse_info(reply: Sequence[bytes | None]) -> LatchInfo | None:
    """The reply of `info_command`; None if nothing is stored."""
    numbers = [int(field) for field in reply if field is not None]
    if not numbers:
        return None
    count, remaining, number = numbers
    return LatchInfo(count=count, remaining=remaining, round=number)
