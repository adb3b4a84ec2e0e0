"""Steps as calls: which calls a step consists of, how often they may be sent, and what their replies mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from redis import exceptions as driver

from ..errors import MessagingError
from .cluster import ask_target
from .endpoints import Endpoint
from .retry import Attempts, NotSent, seconds_allowed
from .sockets import Address, Replies
from .steps import Command, Fan, Many, Script, Step, Words

#: the reply to a call that has not been sent yet
_NOT_SENT = NotSent()
#: the reply to a call that has been sent, until its reply arrives
_NO_REPLY = driver.ConnectionError("no reply")


class Batch:
    """The calls of a step, and the replies received so far."""

    __slots__ = ("_step", "calls", "replies", "split")

    def __init__(self, step: Step, *, split: bool) -> None:
        self._step = step
        self.split = split
        self.calls = _calls_of(step, split=split)
        self.replies: Replies = [_NOT_SENT] * len(self.calls)

    def split_up(self) -> Batch:
        """The step as one call for each resource, for a Cluster, with the replies received so far."""
        batch = Batch(self._step, split=True)
        if isinstance(self._step, Fan):
            batch.replies = self._replies_by_resource(self._step)
        return batch

    def route(self, endpoint: Endpoint) -> dict[Address | None, list[int]]:
        """The indexes of the calls without a reply, or with an error, by server: one pipeline for each."""
        found: dict[Address | None, list[int]] = {}
        for at, call in enumerate(self.calls):
            if isinstance(self.replies[at], Exception):
                found.setdefault(endpoint.route(call), []).append(at)
        return found

    def result(self, *, unanswered: bool) -> Any:
        """The reply to the step, see the function `result`."""
        return result(self._step, self.replies, unanswered=unanswered)

    def partial_result(self, error_of: Callable[[Exception, bool], MessagingError]) -> list[Any] | None:
        """The reply to a Fan that is sent once after some calls have failed finally: each of their resources
        has the error as its item. None for other steps, or if no call was answered."""
        if not (isinstance(self._step, Fan) and self._step.once and self.is_partly_applied):
            return None
        replies = self._replies_by_resource(self._step)
        return [error_of(one, self.split) if isinstance(one, Exception) else one[0] for one in replies]

    def _replies_by_resource(self, fan: Fan) -> Replies:
        """The replies as if each resource had a call of its own."""
        found: Replies = []
        for resources, reply in zip(fan.pages(split=self.split), self.replies, strict=True):
            failed = isinstance(reply, Exception)
            found += [reply] * len(resources) if failed else [[item] for item in reply]
        return found

    @property
    def is_partly_applied(self) -> bool:
        """Whether some calls that write have been answered, so that they were applied."""
        return any(
            not isinstance(reply, Exception) and not call.reads_only
            for call, reply in zip(self.calls, self.replies, strict=True)
        )

    def mark_sent(self, indexes: list[int]) -> None:
        """Store that these calls may be applied from now on."""
        self.record(indexes, [_NO_REPLY] * len(indexes))

    def words(self, indexes: list[int]) -> list[Words]:
        """The words to send for these calls."""
        return [self.calls[at].words for at in indexes]

    def record(self, indexes: list[int], replies: Replies) -> None:
        """Store the replies to these calls."""
        for at, reply in zip(indexes, replies, strict=True):
            self.replies[at] = reply

    def missing_scripts(self, indexes: list[int]) -> tuple[list[int], list[Words]]:
        """Which of these calls name a script that the server doesn't have, and what to send instead."""
        found = [at for at in indexes if isinstance(self.replies[at], driver.NoScriptError)]
        return found, [call.in_full for at in found if isinstance(call := self.calls[at], Script)]

    def redirected(self, indexes: list[int]) -> dict[Address, list[int]]:
        """Which of these calls to send once to another server, which is importing their slot."""
        found: dict[Address, list[int]] = {}
        for at in indexes:
            target = ask_target(self.replies[at])
            if target is not None:
                found.setdefault(target, []).append(at)
        return found


def _calls_of(step: Step, *, split: bool) -> list[Command | Script]:
    if isinstance(step, Many):
        return step.calls(split=split)
    return [step] if isinstance(step, (Command, Script)) else list(step)


def single_call(step: Step, *, split: bool) -> Command | Script | None:
    """The call of a step that consists of one; None if it consists of several."""
    if isinstance(step, (Command, Script)):
        return step
    if isinstance(step, Many):
        calls = step.calls(split=split)
        return calls[0] if len(calls) == 1 else None
    return None


def attempts_for(batch: Iterable[Command | Script], endpoint: Endpoint, began: float) -> Attempts:
    """The attempts at a batch, counted from `began` (monotonic)."""
    seconds = seconds_allowed(began)
    return Attempts(
        seconds,
        began=began,
        reply_timeout=endpoint.reply_timeout(seconds),
        writes=not all(call.reads_only for call in batch),
        once=once(batch),
    )


def once(batch: Iterable[Command | Script]) -> bool:
    """Whether one of these calls must not be repeated after a lost reply."""
    return any(call.once for call in batch)


def result(step: Step, replies: Replies, *, unanswered: bool = False) -> Any:
    """The replies in the form that the step promises; raises the first error among them. `unanswered`: an
    earlier attempt may have been applied, so that this one found nothing left to do."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    if isinstance(step, Many):
        return [item for reply in replies for item in reply]
    if unanswered and isinstance(step, Script) and step.settles and replies[0] == 0:
        return None
    return replies[0] if isinstance(step, (Command, Script)) else replies


def is_cross_slot(step: Step, error: Exception) -> bool:
    """Whether the server turned out to be a Cluster node, which rejects a call with keys of several slots."""
    return isinstance(step, Many) and ("CROSSSLOT" in str(error) or "same slot" in str(error))
