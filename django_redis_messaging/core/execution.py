"""Sends steps, repeats them where that is safe, and waits for the replies of blocking commands.

Written once, as coroutines for either world (worlds.py); those of the blocking world are never suspended.
"""

from __future__ import annotations

from collections.abc import Generator
from time import monotonic
from typing import Any, TypeVar, cast

from redis.crc import key_slot
from redis.exceptions import NoScriptError, RedisError, ResponseError, TimeoutError

from ..errors import MessagingError, Unavailable
from .calls import Batch, attempts_for, is_cross_slot, once, result, single_call
from .cluster import ASKING, Topology, ask_target
from .connections import Connections
from .endpoints import QUERY_TIMEOUT, endpoint, location, refresh_topology
from .retry import Attempts, NotSent, reading_time, seconds_allowed, time_left
from .routing import Cluster, Router, Unknown
from .sending import Sender
from .sharing import SharedWaits
from .sockets import Address
from .steps import Command, Listen, Script, Step, Wait
from .waiting import Pending
from .worlds import ASYNCIO, World

T = TypeVar("T")
#: seconds between two polls of a wait that has no connection of its own
POLL_INTERVAL = 0.1


class Client:
    """Sends steps to the Redis of an alias."""

    def __init__(self, alias: str, world: World) -> None:
        self.endpoint = endpoint(alias)
        self.connections = Connections(self.endpoint, world)
        self._sender = Sender(self.endpoint, self.connections, world)
        #: waits of an event loop only
        self._shared = SharedWaits(self.connections, self._sender) if world is ASYNCIO else None
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
        began, endpoint = monotonic(), self.endpoint
        router = endpoint.router
        error: Exception | None = None
        call = single_call(step, split=router.splits)
        if call is not None and router.is_known and endpoint.durability is None:
            try:
                reply = await self._call(call, began)
                return reply if call is step else result(step, [reply])
            except (RedisError, NotSent) as failure:
                error = failure
        return await self._retry(step, began, router, error)

    async def _call(self, call: Command | Script, began: float) -> Any:
        """Make the first attempt at a single call. Nearly all operations end here, so it does only what is
        necessary."""
        connections, address = self.connections, self.endpoint.route(call)
        allowed = seconds_allowed(began)
        seconds = reply_timeout = self.endpoint.reply_timeout(allowed)
        fresh = call.once
        connection = connections.take_idle(address, fresh=fresh)
        if connection is None:
            connection = await connections.take(address, reply_timeout, fresh=fresh)
            seconds = reading_time(reply_timeout, began + allowed)
            if isinstance(call, Script):  # it may have been queued for a while
                call.sent_at = monotonic()
        try:
            [reply] = await self._done(connection.exchange([call.words], seconds))
            if isinstance(reply, NoScriptError) and isinstance(call, Script):
                seconds = reading_time(reply_timeout, began + allowed)
                [reply] = await self._done(connection.exchange([call.in_full], seconds))
        except BaseException as error:
            connections.close_failed(connection, began, error)
            raise
        if isinstance(reply, Exception):
            self._sender.give_back(connection, [reply])
            raise reply
        connections.give_back(connection)
        return reply

    async def _retry(self, step: Step, began: float, known: Router, error: Exception | None) -> Any:
        """Make all attempts after the first one, which raised `error`; without an error, all attempts."""
        batch = Batch(step, split=known.splits)
        attempts = attempts_for(batch.calls, self.endpoint, began)
        try:
            while True:
                if error is not None:
                    await self._prepare_next(error, known, attempts, batch)
                try:
                    if batch.calls:
                        known = await self._detect(attempts.reading_time)
                    if known.splits and not batch.split:
                        batch = batch.split_up()
                    await self._sender.attempt(batch, attempts, fresh=error is not None or once(batch.calls))
                    return batch.result(unanswered=attempts.unanswered)
                except (RedisError, NotSent) as failure:
                    error = failure
        except MessagingError:
            partial = batch.partial_result(attempts.error_of)
            if partial is None:
                raise
            return partial

    async def _prepare_next(self, error: Exception, known: Router, attempts: Attempts, batch: Batch) -> None:
        """After a failed attempt, do what the next one needs; raises the final error if there is none."""
        if not batch.split and is_cross_slot(batch.step, error):
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
        await self._world.sleep(pause)

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
            await refresh_topology(self._world, self.endpoint, error, known)
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
            if self._shared is not None and isinstance(step, Listen) and redirect is None:
                router = self.endpoint.router
                slot = key_slot(step.stream.encode()) if router.guards else None
                return await self._shared.wait(step, self.endpoint.route(step), slot, ends)
            await self._world.sleep(min(max(ends - monotonic(), 0), POLL_INTERVAL))
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
                return result(step, [reply])
            pending = await self._send_wait(connection, step)
        if not pending.has_ended:
            await self.connections.keep(pending)
        else:
            self.connections.drop(connection, pending.sent_at)  # its server doesn't reply any more
            if monotonic() < ends:
                raise TimeoutError("no reply in time")
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
        seconds = self.endpoint.default_reply_timeout
        spare = int(self._shared is not None)  # the last one is for waits that share it
        connection = await self.connections.take_for_wait(address, seconds, spare=spare)
        if connection is None:
            return None
        if redirect:
            await self._sender.use(connection, connection.exchange, [ASKING], seconds)
        return await self._send_wait(connection, step)

    async def _send_wait(self, connection: Any, step: Wait) -> Pending:
        await self._sender.use(connection, connection.send, [step.sent], QUERY_TIMEOUT)
        return Pending(step.words, connection, monotonic())
