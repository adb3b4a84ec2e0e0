"""Sends steps, repeats them where that is safe, and waits for the replies of blocking commands.

Written once, as coroutines for either world (worlds.py); those of the blocking world are never suspended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic
from typing import Any, TypeVar, cast

from redis.exceptions import NoScriptError, RedisError, ResponseError

from ..errors import MessagingError, Unavailable
from .calls import Batch, attempts_for, is_cross_slot, once, result, single_call
from .cluster import ASKING, Topology, ask_target
from .connections import Connections
from .endpoints import QUERY_TIMEOUT, endpoint, refresh_topology
from .retry import Attempts, NotSent, needs_other_connection, reading_time, seconds_allowed, time_left
from .sockets import Address, Replies
from .steps import Command, Script, Step, Wait, Words
from .waiting import Pending
from .worlds import World

T = TypeVar("T")
#: seconds between two polls of a wait that has no connection of its own
POLL_INTERVAL = 0.1


class Client:
    """Sends steps to the Redis of an alias."""

    def __init__(self, alias: str, world: World) -> None:
        self.endpoint = endpoint(alias)
        self.connections = Connections(self.endpoint, world)
        self._world = world
        self._done = world.done

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
            return cast(T, stop.value)

    async def execute(self, step: Step) -> Any:
        """Send `step`, repeatedly if necessary; returns the reply or raises an error of errors.py."""
        if isinstance(step, Wait):
            return await self._wait(step)
        began, known = monotonic(), self.endpoint.topology
        error: Exception | None = None
        call = single_call(step, split=self.endpoint.is_cluster)
        if call is not None and not call.once:
            try:
                reply = await self._call(call, began)
                return reply if call is step else result(step, [reply])
            except (RedisError, NotSent) as failure:
                error = failure
        return await self._retry(step, began, known, error)

    async def _call(self, call: Command | Script, began: float) -> Any:
        """Make the first attempt at a single call. Nearly all operations end here, so it does only what is
        necessary."""
        connections, address = self.connections, self.endpoint.route(call)
        allowed = seconds_allowed(began)
        seconds = reply_timeout = self.endpoint.reply_timeout(allowed)
        connection = connections.take_idle(address)
        if connection is None:
            connection = await connections.take(address, reply_timeout)
            seconds = reading_time(reply_timeout, began + allowed)
        try:
            [reply] = await self._done(connection.exchange([call.words], seconds))
            if isinstance(reply, NoScriptError) and isinstance(call, Script):
                seconds = reading_time(reply_timeout, began + allowed)
                [reply] = await self._done(connection.exchange([call.in_full], seconds))
        except BaseException as error:
            connections.close_failed(connection, began, error)
            raise
        if isinstance(reply, Exception):
            self._give_back(connection, [reply])
            raise reply
        connections.give_back(connection)
        return reply

    async def _retry(self, step: Step, began: float, known: Topology | None, error: Exception | None) -> Any:
        """Make all attempts after the first one, which raised `error`; without an error, all attempts."""
        batch = Batch(step, split=self.endpoint.is_cluster)
        attempts = attempts_for(batch.calls, self.endpoint, began)
        try:
            while True:
                if error is not None:
                    if not batch.split and is_cross_slot(step, error):
                        self.endpoint.is_cluster = True
                        batch = batch.split_up()
                    else:
                        pause = attempts.pause_after(error, partly=batch.is_partly_applied)
                        await self._refresh_topology(error, known)
                        await self._world.sleep(pause)
                known = self.endpoint.topology
                try:
                    await self._attempt(batch, attempts, fresh=error is not None or once(batch.calls))
                    return batch.result(unanswered=attempts.unanswered)
                except (RedisError, NotSent) as failure:
                    error = failure
        except MessagingError:
            partial = batch.partial_result(attempts.error_of)
            if partial is None:
                raise
            return partial

    async def _attempt(self, batch: Batch, attempts: Attempts, *, fresh: bool) -> None:
        """Send each call without a reply to its server."""
        for address, indexes in batch.route(self.endpoint).items():
            await self._send(address, batch, indexes, attempts, fresh=fresh)
            for target, redirected in batch.redirected(indexes).items():
                await self._send(target, batch, redirected, attempts, fresh=fresh, asking=True)

    async def _send(
        self,
        address: Address | None,
        batch: Batch,
        indexes: list[int],
        attempts: Attempts,
        *,
        fresh: bool,
        asking: bool = False,
    ) -> None:
        connection = await self.connections.take(address, attempts.reading_time, fresh=fresh)
        seconds = attempts.reading_time
        batch.mark_sent(indexes)
        batch.record(indexes, await self._exchange(connection, batch.words(indexes), seconds, asking=asking))
        missing, in_full = batch.missing_scripts(indexes)
        if missing:
            seconds = attempts.reading_time
            batch.mark_sent(missing)
            batch.record(missing, await self._exchange(connection, in_full, seconds, asking=asking))
        self._give_back(connection, [batch.replies[at] for at in indexes])

    async def _exchange(
        self, connection: Any, calls: list[Words], seconds: float, *, asking: bool
    ) -> Replies:
        """Send calls and return their replies. `asking`: this server is importing their slot."""
        sent = [words for call in calls for words in (ASKING, call)] if asking else calls
        began = monotonic()
        try:
            replies: Replies = await self._done(connection.exchange(sent, seconds))
        except BaseException as error:
            self.connections.close_failed(connection, began, error)
            raise
        return replies[1::2] if asking else replies

    async def _use(self, connection: Any, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of a connection. If it fails the connection is closed; after a network error, also
        those to the same server that have been idle since before."""
        began = monotonic()
        try:
            return await self._done(method(*args))
        except BaseException as error:
            self.connections.close_failed(connection, began, error)
            raise

    def _give_back(self, connection: Any, replies: Replies) -> None:
        """Give a connection back, or close it if a reply shows that another one is needed."""
        if needs_other_connection(replies):
            self.connections.drop(connection, monotonic())
        else:
            self.connections.give_back(connection)

    async def _refresh_topology(self, error: Exception, known: Topology | None) -> None:
        """After an error that may mean a new topology, read it, unless another call has done so since."""
        if self.endpoint.may_be_outdated(error) and self.endpoint.topology is known:
            await refresh_topology(self._world, self.endpoint, error)
            self.connections.close(self.endpoint.stale(self.connections.addresses))

    async def _wait(self, step: Wait) -> Any:
        """The reply, or None. A failure costs at most a hint, so the wait continues until its time is over;
        but a server that is unreachable for as long as the deadline raises Unavailable."""
        seconds = min(step.seconds, max(time_left(), 0))
        ends = monotonic() + seconds
        attempts: Attempts | None = None
        redirect: Address | None = None
        while True:
            known = self.endpoint.topology
            try:
                found = await self._wait_until(ends, step, redirect)
                if found is None and seconds < step.seconds:
                    raise Unavailable("The deadline of this block has passed.")
                return found
            except (RedisError, NotSent) as error:
                if attempts is None or (attempts.remaining <= 0 and not isinstance(error, NotSent)):
                    attempts = attempts_for([step], self.endpoint, monotonic())
                pause = attempts.pause_after(error)
                if isinstance(error, ResponseError) and monotonic() + pause >= ends:
                    return None
                redirect = ask_target(error)
                await self._refresh_topology(error, known)
                await self._world.sleep(pause)

    async def _wait_until(self, ends: float, step: Wait, redirect: Address | None) -> Any:
        pending = self._take_pending(step) or await self._start_wait(step, redirect)
        if pending is None:  # all connections that waits may occupy are in use
            await self._world.sleep(min(max(ends - monotonic(), 0), POLL_INTERVAL))
            return None
        connection = pending.connection
        while await self._use(connection, connection.readable, max(ends - monotonic(), 0)):
            reply = await self._use(connection, connection.receive, QUERY_TIMEOUT)
            if reply is not None or ends <= monotonic():
                self._give_back(connection, [reply])
                return result(step, [reply])
            pending = await self._send_wait(connection, step)
        await self.connections.keep(pending)
        return None

    def _take_pending(self, step: Wait) -> Pending | None:
        """A wait with the same words that an earlier call left pending."""
        pending = self.connections.waits.take(step.words)
        if pending is not None and pending.has_ended and not pending.connection.is_broken:
            self.connections.drop(pending.connection, pending.sent_at)  # its reply was lost
            return None
        return pending

    async def _start_wait(self, step: Wait, redirect: Address | None) -> Pending | None:
        address = redirect or self.endpoint.route(step)
        if not self.connections.may_wait(address):
            return None
        seconds = self.endpoint.default_reply_timeout
        connection = await self.connections.take(address, seconds, fresh=True)
        if redirect:
            await self._use(connection, connection.exchange, [ASKING], seconds)
        return await self._send_wait(connection, step)

    async def _send_wait(self, connection: Any, step: Wait) -> Pending:
        await self._use(connection, connection.send, [step.sent], QUERY_TIMEOUT)
        return Pending(step.words, connection, monotonic())
