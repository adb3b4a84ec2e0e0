"""The clients that send steps to Redis: one for each process and alias, one for each event loop and alias.

Renewals of leases have clients of their own, so that they never queue for a connection behind busy callers.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Hashable, Sequence
from contextlib import suppress
from sys import modules
from time import monotonic
from typing import Any, NamedTuple, TypeVar, cast

from django.core.signals import setting_changed
from redis import exceptions as driver
from redis.crc import key_slot
from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError, TimeoutError

from .. import conf
from ..errors import MessagingError, Unavailable
from . import after_fork, testruns
from .commands import (
    Command,
    Confirmation,
    Entries,
    Fan,
    Listen,
    Many,
    Script,
    Step,
    Wait,
    Words,
    entry_number,
)
from .connection import (
    ASYNCIO,
    BLOCKING,
    Address,
    LoopSignal,
    Replies,
    Style,
    raise_first_error,
    run_blocking,
)
from .outcome import (
    DURABILITY_REPLIES,
    Attempts,
    Durability,
    NotSent,
    is_temporary,
    needs_other_connection,
    reading_time,
    seconds_allowed,
    time_left,
)
from .pool import Connections, PendingWait
from .topology import (
    ASKING,
    QUERY_TIMEOUT,
    Cluster,
    Endpoint,
    Router,
    Topology,
    Unknown,
    ask_target,
    endpoint,
    location,
    refresh_topology,
    remove_keys,
)

T = TypeVar("T")
#: seconds between two polls of a wait that has no connection of its own
POLL_INTERVAL = 0.1
#: ms after which the server ends a shared read, so that the next one includes what is waited for since
SHARED_READ_TIME = 100
#: streams that are read together; with more, they take turns
MAX_STREAMS = 500
#: the reply to a call that has not been sent yet
_NOT_SENT = NotSent()
#: the reply to a call that has been sent, until its reply arrives
_NO_REPLY = driver.ConnectionError("no reply")
__all__ = [
    "Client",
    "aclose",
    "aperform",
    "async_client",
    "blocking_client",
    "close",
    "execute",
    "perform",
    "perform_renewal",
    "server_of",
]

logger = logging.getLogger(__name__)

#: blocking clients, by alias
_blocking: dict[str, Client] = {}
#: blocking clients that only renew leases
_renewing: dict[str, Client] = {}
#: clients of event loops, by alias and id of the loop
_running: dict[tuple[str, int], tuple[asyncio.AbstractEventLoop, Client, AsyncGenerator[None, None]]] = {}
#: what a forked child has of its parent's event loops, see `_discard_inherited`
_inherited: list[object] = []


class Client:
    """Sends steps to the Redis of an alias."""

    def __init__(self, alias: str, style: Style) -> None:
        self.endpoint = endpoint(alias)
        self.connections = Connections(self.endpoint, style)
        self._sender = Sender(self.endpoint, self.connections, style)
        self._style = style
        self._is_async = style is ASYNCIO
        #: waits of an event loop only
        self._shared = SharedWaits(self.connections, self._sender) if self._is_async else None

    async def perform(self, steps: Generator[Step, Any, T]) -> T:
        """Run the steps of an operation; the error of a step is raised where it was yielded."""
        try:
            step = next(steps)
            while True:
                try:
                    reply = await self.execute(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def execute(self, step: Step) -> Any:
        """Send `step`, repeatedly if necessary; returns the reply or raises an error of errors.py."""
        if isinstance(step, Wait):
            return await self._wait(step)
        began, router = monotonic(), self.endpoint.router
        calls: Sequence[Command | Script]
        if isinstance(step, (Command, Script)):
            batch, calls = None, (step,)
        else:
            batch = Batch(step, split=router.splits)
            calls = batch.calls
        error: Exception | None = None
        goes_to_one = batch is None or len(calls) == 1 or (len(calls) > 1 and not router.splits)
        for call in calls:
            if call.confirmation is not None:
                goes_to_one = False
        if goes_to_one and router.is_known and self.endpoint.durability is None:
            try:
                replies, has_failed = await self._exchange(calls, began)
                if batch is None:
                    if not has_failed:
                        return replies[0]
                    error = replies[0]
                else:
                    batch.replies = replies
                    if not (has_failed and batch.lacks_scripts):
                        return batch.result(replies)
            except (RedisError, NotSent) as failure:
                error = failure
                if batch is not None:
                    batch.mark_failed(failure)
        return await self._make_attempts(batch or Batch(step, split=router.splits), began, router, error)

    async def _exchange(self, calls: Sequence[Command | Script], began: float) -> tuple[Replies, bool]:
        """Make the first attempt at calls that one server gets. Returns their replies, and whether some are
        errors. It calls as few functions as possible."""
        connections, endpoint = self.connections, self.endpoint
        address, fresh = None, False
        for call in calls:
            address, fresh = endpoint.route(call), fresh or call.once
        allowed = seconds_allowed(began)
        seconds = reply_timeout = endpoint.reply_timeout(allowed)
        connection = connections.take_idle(address, fresh=fresh)
        if connection is None:
            connection = await connections.take(address, reply_timeout, fresh=fresh)
            seconds = reading_time(reply_timeout, began + allowed)
            now = monotonic()
            for call in calls:
                if isinstance(call, Script):  # it may have been queued for a while
                    call.sent_at = now
        try:
            exchange = connection.exchange([call.words for call in calls], seconds)
            replies: Replies = await exchange if self._is_async else exchange
            has_failed = False
            for reply in replies:
                if isinstance(reply, Exception):
                    has_failed = True
            if has_failed and len(calls) == 1 and isinstance(replies[0], NoScriptError):
                seconds = reading_time(reply_timeout, began + allowed)
                exchange = connection.exchange([cast(Script, calls[0]).in_full], seconds)
                replies = await exchange if self._is_async else exchange
                has_failed = isinstance(replies[0], Exception)
        except BaseException as error:
            connections.close_failed(connection, began, error)
            raise
        if has_failed:
            self._sender.give_back(connection, replies)
        else:
            connections.give_back(connection)
        return replies, has_failed

    async def _make_attempts(self, batch: Batch, began: float, known: Router, error: Exception | None) -> Any:
        """Make all attempts after the first one, which raised `error`; without an error, all attempts."""
        attempts = self._attempts(batch.calls, began)
        try:
            while True:
                if error is not None:
                    await self._prepare_next(error, known, attempts, batch)
                try:
                    if batch.calls:
                        known = await self._detect(attempts.reading_time)
                    if known.splits and not batch.split:
                        batch = batch.split_up()
                    await self._sender.attempt(batch, attempts, fresh=error is not None or batch.once)
                    return batch.result(batch.replies, unanswered=attempts.unanswered)
                except (RedisError, NotSent) as failure:
                    error = failure
        except MessagingError:
            partial = batch.partial_result(attempts.error_of)
            if partial is None:
                raise
            return partial

    def _attempts(self, calls: Sequence[Command | Script], began: float) -> Attempts:
        """The attempts at these calls, counted from `began` (monotonic)."""
        seconds = seconds_allowed(began)
        return Attempts(
            seconds,
            began=began,
            reply_timeout=self.endpoint.reply_timeout(seconds),
            writes=not all(call.reads_only for call in calls),
            once=any(call.once for call in calls),
        )

    async def _prepare_next(self, error: Exception, known: Router, attempts: Attempts, batch: Batch) -> None:
        """After a failed attempt, do what the next one needs; raises the final error if there is none."""
        if not batch.split and batch.is_for_several_slots(error):
            if not self.endpoint.router.splits:
                self.endpoint.router = Cluster(Topology())  # one that may not be asked for its slots
            return
        try:
            pause = attempts.pause_after(error, partly=batch.is_partly_applied)
        except MessagingError:
            if attempts.remaining > 0:  # not to be repeated: the next operation must find the new primary
                await self._refresh_topology(error, known)
            raise
        await self._refresh_topology(error, known)
        await self._style.sleep(pause)

    async def _detect(self, seconds: float) -> Router:
        """The router; before the first call, detect what kind of server the alias names, over the connection
        that the call then uses."""
        router = self.endpoint.router
        if not isinstance(router, Unknown):
            return router
        connection = await self.connections.take(None, seconds)
        try:
            [reply] = await self._sender.use(connection, connection.exchange, [router.discovery], seconds)
            found = router.detect(reply, location(connection))
        except RedisError as error:
            self.connections.close_one(connection)
            raise NotSent from error  # nothing of the step
        if self.endpoint.router is router:
            self.endpoint.router = found
        if found.splits:
            self.connections.close_one(connection)
        else:
            self._sender.give_back(connection, [reply])
        return found

    async def _refresh_topology(self, error: Exception, known: Router) -> None:
        """After an error that may mean a new topology, read it, unless another call has done so since."""
        if self.endpoint.router is known and known.is_outdated(error):
            await refresh_topology(self._style, self.endpoint, error, known)
            self.connections.close_stale(self.endpoint.router.addresses)

    async def _wait(self, step: Wait) -> Any:
        """The reply, or None. A failure costs at most a hint, so the wait continues until its time is over;
        but a server that is unreachable for as long as the deadline raises Unavailable."""
        seconds = min(step.seconds, max(time_left(), 0))
        ends = monotonic() + seconds
        attempts: Attempts | None = None
        redirect: Address | None = None
        while True:
            known = self.endpoint.router
            try:
                known = await self._detect(self.endpoint.default_reply_timeout)
                found = await self._wait_until(ends, step, redirect)
                if found is None and seconds < step.seconds:
                    raise Unavailable("The deadline of this block has passed.")
                return found
            except (RedisError, NotSent) as error:
                if attempts is None or (attempts.remaining <= 0 and not isinstance(error, NotSent)):
                    attempts = self._attempts([step], monotonic())
                pause = attempts.pause_after(error)
                if isinstance(error, ResponseError) and monotonic() + pause >= ends:
                    return None
                redirect = ask_target(error)
                await self._refresh_topology(error, known)
                await self._style.sleep(pause)

    async def _wait_until(self, ends: float, step: Wait, redirect: Address | None) -> Any:
        pending = self._take_pending(step) or await self._start_wait(step, redirect)
        if pending is None:  # all connections that waits may occupy are in use
            if self._shared is not None and isinstance(step, Listen) and redirect is None:
                router = self.endpoint.router
                slot = key_slot(step.stream.encode()) if router.may_be_cluster else None
                return await self._shared.wait(step, self.endpoint.route(step), slot, ends)
            await self._style.sleep(min(max(ends - monotonic(), 0), POLL_INTERVAL))
            return None
        connection = pending.connection
        while await self._sender.use(connection, connection.readable, min(ends, pending.ends) - monotonic()):
            reply = await self._sender.use(connection, connection.receive, QUERY_TIMEOUT)
            if isinstance(step, Listen) and isinstance(reply, list):
                [[_, entries]] = reply
                if not step.finds(entries):  # an entry for another client
                    step, reply = step.after(entries), None
            if reply is not None or ends <= monotonic():
                self._sender.give_back(connection, [reply])
                raise_first_error([reply])
                return reply
            pending = await self._send_wait(connection, step)
        if not pending.has_ended:
            await self.connections.keep(pending)
        else:
            self.connections.drop(connection, pending.sent_at)  # its server doesn't reply any more
            if monotonic() < ends:
                raise TimeoutError("no reply in time")
        return None

    def _take_pending(self, step: Wait) -> PendingWait | None:
        """A wait with the same words that an earlier call left pending."""
        pending = self.connections.waits.take(step.words)
        if pending is not None and pending.has_ended and not pending.connection.is_broken:
            self.connections.drop(pending.connection, pending.sent_at)  # its reply was lost
            return None
        return pending

    async def _start_wait(self, step: Wait, redirect: Address | None) -> PendingWait | None:
        address = redirect or self.endpoint.route(step)
        seconds = self.endpoint.default_reply_timeout
        spare = int(self._shared is not None)  # the last one is for waits that share it
        connection = await self.connections.take_for_wait(address, seconds, spare=spare)
        if connection is None:
            return None
        if redirect:
            await self._sender.use(connection, connection.exchange, [ASKING], seconds)
        return await self._send_wait(connection, step)

    async def _send_wait(self, connection: Any, step: Wait) -> PendingWait:
        await self._sender.use(connection, connection.send, [step.sent], QUERY_TIMEOUT)
        return PendingWait(step.words, connection, monotonic())


class Batch:
    """The calls of a step, and the replies received so far."""

    __slots__ = ("calls", "replies", "split", "step")

    def __init__(self, step: Step, *, split: bool) -> None:
        self.step = step
        self.split = split
        self.calls = self._calls()
        self.replies: Replies = [_NOT_SENT] * len(self.calls)

    def _calls(self) -> list[Command | Script]:
        step = self.step
        if isinstance(step, Many):
            return step.calls(split=self.split)
        return [step] if isinstance(step, (Command, Script)) else list(step)

    @property
    def once(self) -> bool:
        """Whether one of the calls must not be repeated after a lost reply."""
        return any(call.once for call in self.calls)

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

    def durability(self, pipeline: Pipeline, endpoint: Endpoint) -> Durability | None:
        """How many replicas must confirm a pipeline: as many as the strictest of its calls needs."""
        found: list[Durability | Confirmation] = []
        if endpoint.durability is not None and self.writes(pipeline):
            found.append(endpoint.durability)
        if endpoint.has_replicas:
            calls = (self.calls[at].confirmation for at in pipeline.indexes)
            found += [one for one in calls if one is not None]
        if not found:
            return None
        return Durability(max(one.replicas for one in found), max(one.timeout for one in found))

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

    @property
    def lacks_scripts(self) -> bool:
        """Whether a server has replied that it doesn't have a script: the next attempt sends it."""
        return any(isinstance(reply, NoScriptError) for reply in self.replies)

    def mark_failed(self, error: Exception) -> None:
        """Store that an attempt at all calls has raised an error before it had their replies."""
        if self.replies[0] is _NOT_SENT and not isinstance(error, NotSent):
            self.replies = [_NO_REPLY] * len(self.calls)

    def record(self, pipeline: Pipeline, replies: Replies) -> None:
        """Store the replies to a pipeline."""
        own = replies[1::2] if pipeline.asking else replies
        for at, reply in zip(pipeline.indexes, own, strict=True):
            self.replies[at] = reply

    def mark_unconfirmed(self, pipeline: Pipeline, endpoint: Endpoint, confirmed: Any) -> Exception | None:
        """Replace the replies to writes that too few replicas have confirmed, given the reply to WAIT;
        returns the error that replaces the last one."""
        last = None
        for at in pipeline.indexes:
            call, reply, needed = self.calls[at], self.replies[at], endpoint.durability
            if call.reads_only or isinstance(reply, Exception):
                continue
            own = call.confirmation
            if own is not None and endpoint.has_replicas and own.is_needed(reply):
                needed = Durability(max(own.replicas, needed.replicas if needed else 0), own.timeout)
            error = needed and needed.failure(confirmed)
            if error:
                self.replies[at] = last = error
        return last

    def result(self, replies: Replies, *, unanswered: bool = False) -> Any:
        """The replies in the form that the step promises; raises the first error among them. `unanswered`: an
        earlier attempt may have been applied, so that this one found nothing left to do."""
        raise_first_error(replies)
        step = self.step
        if isinstance(step, Many):
            return [item for reply in replies for item in reply]
        if unanswered and isinstance(step, (Command, Script)) and step.settles and replies[0] == 0:
            return None
        return replies[0] if isinstance(step, (Command, Script)) else replies

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

    def is_for_several_slots(self, error: Exception) -> bool:
        """Whether an error shows that the server is a node of a Cluster, which rejects a call with keys of
        several slots."""
        return isinstance(self.step, Many) and ("CROSSSLOT" in str(error) or "same slot" in str(error))

    @property
    def is_partly_applied(self) -> bool:
        """Whether some calls that write have been answered, so that they were applied."""
        return any(
            not isinstance(reply, Exception) and not call.reads_only
            for call, reply in zip(self.calls, self.replies, strict=True)
        )


class Pipeline(NamedTuple):
    """Calls for one server, as indexes of a batch."""

    address: Address | None
    indexes: list[int]
    #: the server doesn't have these scripts: send their text
    in_full: bool = False
    #: the server is importing their slot
    asking: bool = False


class Sender:
    """Makes single attempts, over the connections of a client."""

    def __init__(self, endpoint: Endpoint, connections: Connections, style: Style) -> None:
        self._endpoint = endpoint
        self._connections = connections
        self._done = style.done

    async def attempt(self, batch: Batch, attempts: Attempts, *, fresh: bool) -> None:
        """Send each call without a reply to its server."""
        pipelines = batch.pipelines(self._endpoint)
        while pipelines:
            # One for each server, in the order of the addresses: while all connections are in use, operations
            # don't wait for connections that they hold themselves.
            now = {one.address: one for one in sorted(pipelines, key=lambda one: one.address or ("", 0))}
            await self._send_side_by_side(batch, [*now.values()], attempts, fresh=fresh)
            later = [one for one in pipelines if now[one.address] is not one]
            pipelines = later + batch.follow_ups([*now.values()])

    async def _send_side_by_side(
        self, batch: Batch, pipelines: list[Pipeline], attempts: Attempts, *, fresh: bool
    ) -> None:
        """Send pipelines, then record the replies. A server that fails stops no other; its error is raised
        at the end."""
        errors: list[Exception] = []
        sent: deque[tuple[Pipeline, Any]] = deque()
        try:
            for pipeline in pipelines:
                try:
                    sent.append((pipeline, await self._send(batch, pipeline, attempts, fresh=fresh)))
                except (RedisError, NotSent) as error:
                    errors.append(error)
            while sent:
                pipeline, connection = sent.popleft()
                try:
                    await self._receive(batch, pipeline, connection, attempts)
                except RedisError as error:
                    errors.append(error)
        finally:
            for _, connection in sent:  # interrupted
                self._connections.close_one(connection)
        if errors:  # one that leaves the outcome unknown, if any
            raise next((one for one in errors if isinstance(one, RedisError)), errors[0])

    async def _send(self, batch: Batch, pipeline: Pipeline, attempts: Attempts, *, fresh: bool) -> Any:
        """Send a pipeline; returns the connection that will have its replies."""
        connection = await self._connections.take(pipeline.address, attempts.reading_time, fresh=fresh)
        words, durability = batch.words(pipeline), batch.durability(pipeline, self._endpoint)
        if durability is not None:
            words += [ASKING] * pipeline.asking + durability.words(batch.key(pipeline), attempts.remaining)
        batch.mark_sent(pipeline)
        await self.use(connection, connection.send, words, attempts.reading_time)
        return connection

    async def _receive(self, batch: Batch, pipeline: Pipeline, connection: Any, attempts: Attempts) -> None:
        """Record the replies to a pipeline."""
        seconds, durability = attempts.reading_time, batch.durability(pipeline, self._endpoint)
        count = len(pipeline.indexes) * (1 + pipeline.asking)
        if durability is None:
            replies = await self.use(connection, connection.receive_all, count, seconds)
            batch.record(pipeline, replies)
            self.give_back(connection, replies)
            return
        seconds += min(durability.timeout, max(attempts.remaining, 0))
        more = pipeline.asking + DURABILITY_REPLIES
        replies = await self.use(connection, connection.receive_all, count + more, seconds)
        batch.record(pipeline, replies[:count])
        error = batch.mark_unconfirmed(pipeline, self._endpoint, replies[-1])
        if error is not None:
            self._connections.drop(connection, monotonic())  # it may be a former primary
            raise error
        self.give_back(connection, replies[:count])

    async def use(self, connection: Any, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of a connection. If it fails the connection is closed; after a network error, also
        those to the same server that have been idle since before."""
        began = monotonic()
        try:
            return await self._done(method(*args))
        except BaseException as error:
            self._connections.close_failed(connection, began, error)
            raise

    def give_back(self, connection: Any, replies: Replies) -> None:
        """Give a connection back, or close it if a reply shows that another one is needed."""
        if needs_other_connection(replies):
            self._connections.drop(connection, monotonic())
        else:
            self._connections.give_back(connection)


class SharedWaits:
    """The shared waits of an event loop's client."""

    def __init__(self, connections: Connections, sender: Sender) -> None:
        self._connections = connections
        self._sender = sender
        self._groups: dict[Hashable, _Group] = {}

    async def wait(self, step: Listen, address: Address | None, slot: int | None, ends: float) -> Any:
        """The entries, or None when the time is over; earlier if no connection is left, or one of several
        streams can't be read."""
        one, key = _Listener(step, ends), (address, slot)
        group = self._groups.setdefault(key, _Group(address))
        group.add(one)
        try:
            while one.reply is None and (left := one.ends - monotonic()) > 0:
                group.leader = group.leader or one
                if group.leader is not one:
                    await one.signal.wait(left)
                elif not await self._receive(group, ends):
                    self._end_others(group, one)
                    await asyncio.sleep(min(left, SHARED_READ_TIME / 1000))
                    break
        finally:
            self._leave(key, group, one)
        return one.reply

    def _end_others(self, group: _Group, leader: _Listener) -> None:
        """End the waits of the others early. What they do next, such as to poll, needs no shared read."""
        for one in group.listeners():
            if one is not leader:
                group.remove(one)
                one.ends = 0.0
                one.signal.set()

    def _leave(self, key: Hashable, group: _Group, one: _Listener) -> None:
        group.remove(one)
        if group.leader is one:
            group.leader = next(iter(group.listeners()), None)
            if group.leader is not None:
                group.leader.signal.set()
        if group.streams:
            return
        if self._groups.get(key) is group:
            del self._groups[key]
        pending, connection = group.pending, group.connection
        group.pending = group.connection = None
        if pending is not None:
            self._connections.park(pending)
        if connection is not None:
            self._connections.give_back(connection)

    async def _receive(self, group: _Group, ends: float) -> bool:
        """Wait for the reply to a read, as the leader. False: there is no connection for it, or an error
        whose stream is unknown."""
        pending = group.pending or await self._send(group)
        if pending is None:
            return False
        connection = pending.connection
        # not by `use`: a cancellation must not close the connection
        if not await connection.readable(min(ends, pending.ends) - monotonic()):
            if pending.has_ended:
                group.pending = None
                self._connections.drop(connection, pending.sent_at)
                raise TimeoutError("no reply in time")
            return True
        group.pending = None
        reply = await self._sender.use(connection, connection.receive, QUERY_TIMEOUT)
        if isinstance(reply, Exception):
            self._sender.give_back(connection, [reply])
            if pending.words.index("STREAMS") < len(pending.words) - 3 and _is_of_one_stream(reply):
                return False
            raise reply
        group.connection = connection
        for stream, entries in reply or ():
            group.deliver(stream.decode(), entries)
        return True

    async def _send(self, group: _Group) -> PendingWait | None:
        connection, group.connection = group.connection, None
        if connection is None:
            connection = await self._connections.take_for_wait(group.address, QUERY_TIMEOUT)
        if connection is None:
            return None
        words = group.words()
        await self._sender.use(connection, connection.send, [words], QUERY_TIMEOUT)
        group.pending = PendingWait(words, connection, monotonic())
        return group.pending


class _Group:
    """The calls that share a connection."""

    def __init__(self, address: Address | None) -> None:
        self.address = address
        self.streams: dict[str, dict[_Listener, None]] = {}
        self.leader: _Listener | None = None
        #: the connection between two reads
        self.connection: Any = None
        self.pending: PendingWait | None = None

    def add(self, one: _Listener) -> None:
        self.streams.setdefault(one.step.stream, {})[one] = None

    def remove(self, one: _Listener) -> None:
        listeners = self.streams.get(one.step.stream, {})
        listeners.pop(one, None)
        if not listeners:
            self.streams.pop(one.step.stream, None)

    def listeners(self) -> list[_Listener]:
        """All calls, copied, as below: one that is destroyed unfinished leaves at any time."""
        return [one for some in list(self.streams.values()) for one in list(some)]

    def words(self) -> Words:
        """The words of the next read."""
        names = list(self.streams)[:MAX_STREAMS]
        if len(self.streams) > MAX_STREAMS:
            for name in names:
                self.streams[name] = self.streams.pop(name, {})
        ids = [
            f"{min((one.last for one in list(self.streams.get(name, ()))), default=0)}-0" for name in names
        ]
        return ("XREAD", "BLOCK", str(SHARED_READ_TIME), "STREAMS", *names, *ids)

    def deliver(self, name: str, entries: Entries) -> None:
        """Wake the calls for which a stream has an entry."""
        newest = max(entry_number(entry)[0] for entry in entries)
        for one in list(self.streams.get(name, ())):
            if one.step.finds(entries):
                one.reply = entries
                self.remove(one)
                one.signal.set()
            one.last = max(one.last, newest)


class _Listener:
    """A call that waits."""

    __slots__ = ("ends", "last", "reply", "signal", "step")

    def __init__(self, step: Listen, ends: float) -> None:
        self.step = step
        self.ends = ends
        #: entries up to this id have been examined
        self.last = step.last
        self.signal = LoopSignal()
        self.reply: Any = None


def _is_of_one_stream(error: Exception) -> bool:
    """Whether an error may be about one of the streams only, such as a key of another type."""
    if not isinstance(error, ResponseError) or type(error) not in (ResponseError, NoPermissionError):
        return False
    return not is_temporary(error)


def perform(using: str, steps: Generator[Step, Any, T]) -> T:
    """Run the steps of an operation against the Redis of an alias; blocks the thread."""
    # nearly always that of blocking_client(), which costs a call
    client = None if testruns.UTILS in modules else _blocking.get(using)
    return run_blocking((client or blocking_client(using)).perform, steps)


def execute(using: str, step: Step) -> Any:
    """Send one step and return its reply; blocks the thread."""
    return run_blocking(blocking_client(using).execute, step)


def aperform(using: str, steps: Generator[Step, Any, T]) -> Coroutine[Any, Any, T]:
    """Run the steps of an operation against the Redis of an alias, in the running event loop."""
    return async_client(using).perform(steps)


def perform_renewal(using: str, steps: Generator[Step, Any, T]) -> T:
    """`perform` for the renewal of a lease, on a connection that other operations don't use."""
    if testruns.UTILS in modules:
        testruns.current()
    client = _renewing.get(using) or _renewing.setdefault(using, Client(using, BLOCKING))
    return run_blocking(client.perform, steps)


def server_of(using: str, step: Command | Script) -> Address | None:
    """The server to which the blocking client sends a step now; None: the alias's server."""
    return blocking_client(using).endpoint.route(step)


def blocking_client(alias: str) -> Client:
    """The blocking client of an alias."""
    if (
        testruns.UTILS in modules
    ):  # in tests only: the test environment may have been set up since the last call
        testruns.current()
    try:
        return _blocking[alias]
    except KeyError:
        return _blocking.setdefault(alias, Client(alias, BLOCKING))


def async_client(alias: str) -> Client:
    """The client of an alias for the running event loop."""
    if testruns.UTILS in modules:
        testruns.current()
    loop = asyncio.get_running_loop()
    found = _running.get((alias, id(loop)))
    if found is not None and found[0] is loop:
        return found[1]
    for key, (other, *_) in list(_running.items()):
        if other.is_closed():
            _running.pop(key, None)
    client = Client(alias, ASYNCIO)
    closing = _closing(client)
    with suppress(StopIteration):
        closing.asend(None).send(None)  # runs to its yield, without a suspension
    _running[alias, id(loop)] = (loop, client, closing)
    return client


async def _closing(client: Client) -> AsyncGenerator[None, None]:
    """Close a client's connections when its loop ends: asyncio.run() shuts down the loop's asynchronous
    generators before it closes the loop."""
    try:
        yield
    finally:
        client.connections.close(retire=True)
        await asyncio.sleep(0)  # the loop closes the sockets in its next iteration


def close() -> None:
    """Close the idle blocking connections; the next call opens new ones."""
    for client in (*_blocking.values(), *_renewing.values()):
        client.connections.close()


async def aclose() -> None:
    """Close the idle connections of the running event loop."""
    loop = asyncio.get_running_loop()
    for key, (owner, client, _) in list(_running.items()):
        if owner is loop:
            _running.pop(key, None)
            client.connections.close(retire=True)
    await asyncio.sleep(0)  # the loop closes the sockets in its next iteration


def _discard_all() -> None:
    _blocking.clear()
    _renewing.clear()
    _running.clear()


def _discard_inherited() -> None:
    # In a forked child the sockets belong to the parent, so the child must not use them. Those of an event
    # loop are kept alive: destroying them would remove them from the epoll instance that parent and child
    # share, and the parent would never see its replies.
    _inherited.extend(_running.values())
    _discard_all()


def _reset(*, setting: str, **_: object) -> None:
    if setting in {conf.NAME, "CACHES"}:
        _retire_all()


def _retire_all(*_: object, **__: object) -> None:
    """Close all connections, those in use when they are given back; the next calls make new clients."""
    for client in (*_blocking.values(), *_renewing.values()):
        client.connections.close(retire=True)
    for loop, client, _closing in list(_running.values()):
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(functools.partial(client.connections.close, retire=True))
    _discard_all()
    endpoint.cache_clear()


def _remove_keys(sender: testruns.Run, **_: object) -> None:
    """Remove the keys of a run of tests that uses the servers of the site."""
    for alias in sender.aliases:
        try:
            remove_keys(endpoint(alias), sender.root)
        except (MessagingError, RedisError) as error:
            logger.warning("Keys %s:* of CACHES[%r] could not be removed: %s", sender.root, alias, error)


after_fork(_discard_inherited)
setting_changed.connect(_reset, dispatch_uid="django_redis_messaging.clients")
testruns.changed.connect(_retire_all, dispatch_uid="django_redis_messaging.clients")
testruns.ending.connect(_remove_keys, dispatch_uid="django_redis_messaging.clients")
