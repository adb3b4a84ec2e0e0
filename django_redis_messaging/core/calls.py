"""Steps as calls: what is sent for one, how often, and what its replies are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis.exceptions import NoScriptError

from .cluster import asked_instead
from .endpoints import Endpoint
from .retry import Attempts, seconds_allowed
from .sockets import Address, Replies
from .steps import Command, Many, Script, Step, Words

#: in the place of a reply that there is not yet
_NONE = Exception()


class Batch:
    """The calls of a step, and the replies there are so far."""

    __slots__ = ("apart", "calls", "replies")

    def __init__(self, step: Step, *, apart: bool) -> None:
        self.apart = apart
        self.calls = _calls_of(step, apart=apart)
        self.replies: Replies = [_NONE] * len(self.calls)

    def routed(self, endpoint: Endpoint) -> dict[Address | None, list[int]]:
        """Which of those that have no reply, or were refused, go to which server; a pipeline for each."""
        found: dict[Address | None, list[int]] = {}
        for at, call in enumerate(self.calls):
            if isinstance(self.replies[at], Exception):
                found.setdefault(endpoint.route(call), []).append(at)
        return found

    @property
    def partly_applied(self) -> bool:
        """Whether some calls that write have been answered, so that they were applied."""
        return any(
            not isinstance(reply, Exception) and not call.reads_only
            for call, reply in zip(self.calls, self.replies, strict=True)
        )

    def words(self, places: list[int]) -> list[Words]:
        """What is sent for these."""
        return [self.calls[at].words for at in places]

    def answered(self, places: list[int], replies: Replies) -> None:
        """These are the replies to those."""
        for at, reply in zip(places, replies, strict=True):
            self.replies[at] = reply

    def unknown(self, places: list[int]) -> tuple[list[int], list[Words]]:
        """Which of these named a script that the server doesn't know, and what to send instead."""
        found = [at for at in places if isinstance(self.replies[at], NoScriptError)]
        return found, [call.in_full for at in found if isinstance(call := self.calls[at], Script)]

    def asked(self, places: list[int]) -> dict[Address, list[int]]:
        """Which of these another server is to be asked for just this time: their slot is on its way there."""
        found: dict[Address, list[int]] = {}
        for at in places:
            instead = asked_instead(self.replies[at])
            if instead is not None:
                found.setdefault(instead, []).append(at)
        return found


def _calls_of(step: Step, *, apart: bool) -> list[Command | Script]:
    if isinstance(step, Many):
        return step.calls(apart=apart)
    return [step] if isinstance(step, (Command, Script)) else list(step)


def only_call(step: Step, *, apart: bool) -> Command | Script | None:
    """The call of a step that is a single one."""
    if isinstance(step, (Command, Script)):
        return step
    if isinstance(step, Many):
        calls = step.calls(apart=apart)
        return calls[0] if len(calls) == 1 else None
    return None


def attempts_at(batch: Iterable[Command | Script], endpoint: Endpoint, began: float) -> Attempts:
    """How often a batch may be sent, counted from `began`."""
    seconds = seconds_allowed(began)
    return Attempts(
        seconds,
        began=began,
        patience=endpoint.patience(seconds),
        writes=not all(call.reads_only for call in batch),
        once=once(batch),
    )


def once(batch: Iterable[Command | Script]) -> bool:
    """Whether a lost reply of one of these must not be asked for again."""
    return any(call.once for call in batch)


def result(step: Step, replies: Replies, *, unanswered: bool = False) -> Any:
    """The replies as the step wants them; the first error among them is raised. `unanswered`: an attempt
    before may have been applied, so that there was nothing left to do for this one."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    if isinstance(step, Many):
        return [item for reply in replies for item in reply]
    if unanswered and isinstance(step, Script) and step.settles and replies[0] == 0:
        return None
    return replies[0] if isinstance(step, (Command, Script)) else replies


def spans_slots(step: Step, error: Exception) -> bool:
    """Whether a server turned out to be one of a Cluster, which takes no call about several slots."""
    return isinstance(step, Many) and ("CROSSSLOT" in str(error) or "same slot" in str(error))
