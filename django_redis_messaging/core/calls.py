"""Steps as calls: which calls a step consists of, how often they may be sent, and what their replies mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, NamedTuple

from redis import exceptions as driver

from ..errors import MessagingError
from .cluster import ASKING, ask_target
from .durability import Unconfirmed
from .endpoints import Endpoint
from .retry import Attempts, NotSent, seconds_allowed
from .sockets import Address, Replies
from .steps import Command, Fan, Many, Script, Step, Words

#: the reply to a call that has not been sent yet
_NOT_SENT = NotSent()
#: the reply to a call that has been sent, until its reply arrives
_NO_REPLY = driver.ConnectionError("no reply")


class Pipeline(NamedTuple):
    """Calls for one server, as indexes of a batch."""

    address: Address | None
    indexes: list[int]
    #: the server doesn't have these scripts: send their text
    in_full: bool = False
    #: the server is importing their slot
    asking: bool = False


class Batch:
    """The calls of a step, and the replies received so far."""

    __slots__ = ("calls", "replies", "split", "step")

    def __init__(self, step: Step, *, split: bool) -> None:
        self.step = step
        self.split = split
        self.calls = _calls_of(step, split=split)
        self.replies: Replies = [_NOT_SENT] * len(self.calls)

    def split_up(self) -> Batch:
        """The step as one call for each resource, for a Cluster, with the replies received so far."""
        batch = Batch(self.step, split=True)
        if isinstance(self.step, Fan):
            batch.replies = self._replies_by_resource(self.step)
        elif not isinstance(self.step, Many):  # the same calls
            batch.replies = self.replies
        return batch

    def pipelines(self, endpoint: Endpoint) -> list[Pipeline]:
        """The calls without a reply, or with an error, by server."""
        found: dict[Address | None, list[int]] = {}
        for at, call in enumerate(self.calls):
            if isinstance(self.replies[at], Exception):
                found.setdefault(endpoint.route(call), []).append(at)
        return [Pipeline(address, indexes) for address, indexes in found.items()]

    def follow_ups(self, sent: list[Pipeline]) -> list[Pipeline]:
        """What to send after the replies to these pipelines: scripts that a server doesn't have, and calls
        that another server gets once, because it is importing their slot."""
        found: list[Pipeline] = []
        for pipeline in sent:
            redirected: dict[Address, list[int]] = {}
            missing = []
            for at in pipeline.indexes:
                reply = self.replies[at]
                if isinstance(reply, driver.NoScriptError) and not pipeline.in_full:
                    missing.append(at)
                elif (target := ask_target(reply)) is not None and not pipeline.asking:
                    redirected.setdefault(target, []).append(at)
            if missing:
                found.append(pipeline._replace(indexes=missing, in_full=True))
            found += [Pipeline(target, indexes, asking=True) for target, indexes in redirected.items()]
        return found

    def words(self, pipeline: Pipeline) -> list[Words]:
        """The words to send for a pipeline."""
        calls = [self.calls[at] for at in pipeline.indexes]
        words = [one.in_full if pipeline.in_full and isinstance(one, Script) else one.words for one in calls]
        return [one for call in words for one in (ASKING, call)] if pipeline.asking else words

    def writes(self, pipeline: Pipeline) -> bool:
        """Whether a pipeline may change anything."""
        return not all(self.calls[at].reads_only for at in pipeline.indexes)

    def key(self, pipeline: Pipeline) -> str:
        """A key of the app in a slot of this pipeline."""
        call = self.calls[pipeline.indexes[0]]
        found = call.last_key if isinstance(call, Script) else call.key
        return found.decode() if isinstance(found, bytes) else str(found)

    def mark_sent(self, pipeline: Pipeline) -> None:
        """Store that these calls may be applied from now on."""
        now = monotonic()
        for at in pipeline.indexes:
            self.replies[at], call = _NO_REPLY, self.calls[at]
            if isinstance(call, Script):
                call.sent_at = now

    def record(self, pipeline: Pipeline, replies: Replies) -> None:
        """Store the replies to a pipeline."""
        own = replies[1::2] if pipeline.asking else replies
        for at, reply in zip(pipeline.indexes, own, strict=True):
            self.replies[at] = reply

    def mark_unconfirmed(self, pipeline: Pipeline, error: Unconfirmed) -> bool:
        """Replace the replies to writes that too few replicas have confirmed; returns whether any are."""
        found = [
            at
            for at in pipeline.indexes
            if not (self.calls[at].reads_only or isinstance(self.replies[at], Exception))
        ]
        for at in found:
            self.replies[at] = error
        return bool(found)

    def result(self, *, unanswered: bool) -> Any:
        """The reply to the step, see the function `result`."""
        return result(self.step, self.replies, unanswered=unanswered)

    def partial_result(self, error_of: Callable[[Exception, bool], MessagingError]) -> list[Any] | None:
        """The reply to a Fan that is sent once after some calls have failed finally: each of their resources
        has the error as its item. None for other steps, or if no call was answered."""
        if not (isinstance(self.step, Fan) and self.step.once and self.is_partly_applied):
            return None
        replies = self._replies_by_resource(self.step)
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
