"""How a step is sent, again where that helps, and how what it replies is waited for.

Written once, as coroutines of either world (worlds.py): those of the blocking one are never suspended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from time import monotonic
from typing import Any, TypeVar, cast

from redis.exceptions import NoScriptError, RedisError, ResponseError

from ..errors import Unavailable
from .calls import Batch, attempts_at, once, only_call, result, spans_slots
from .cluster import ASKING, Topology, asked_instead
from .connections import Connections
from .endpoints import PATIENCE, endpoint, look
from .retry import Attempts, NotSent, misplaced, reading_time, seconds_allowed, time_left
from .sockets import Address, Replies
from .steps import Command, Script, Step, Wait, Words
from .waiting import Pending
from .worlds import World

T = TypeVar("T")
#: seconds between two looks of a wait that gets no connection of its own
LOOK = 0.1


class Client:
    """Sends steps to where an alias leads."""

    def __init__(self, alias: str, world: World) -> None:
        self.endpoint = endpoint(alias)
        self.connections = Connections(self.endpoint, world)
        self._world = world
        self._done = world.done

    async def perform(self, steps: Generator[Step, Any, T]) -> T:
        """Send the steps of an operation; the errors of a step are raised where it was yielded."""
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
        """Send `step`, and again where that helps; the reply, or an error of errors.py."""
        if isinstance(step, Wait):
            return await self._wait(step)
        began, known = monotonic(), self.endpoint.topology
        error: Exception | None = None
        call = only_call(step, apart=self.endpoint.apart)
        if call is not None and not call.once:
            try:
                reply = await self._call(call, began)
                return reply if call is step else result(step, [reply])
            except (RedisError, NotSent) as failure:
                error = failure
        return await self._again(step, began, known, error)

    async def _call(self, call: Command | Script, began: float) -> Any:
        """The first attempt at one call: what nearly every operation is, so with nothing around it."""
        connections, address = self.connections, self.endpoint.route(call)
        allowed = seconds_allowed(began)
        seconds = patience = self.endpoint.patience(allowed)
        connection = connections.idle(address)
        if connection is None:
            connection = await connections.take(address, patience)
            seconds = reading_time(patience, began + allowed)
        try:
            [reply] = await self._done(connection.exchange([call.words], seconds))
            if isinstance(reply, NoScriptError) and isinstance(call, Script):
                seconds = reading_time(patience, began + allowed)
                [reply] = await self._done(connection.exchange([call.in_full], seconds))
        except BaseException as error:
            connections.lose(connection, began, error)
            raise
        if isinstance(reply, Exception):
            self._give(connection, [reply])
            raise reply
        connections.give(connection)
        return reply

    async def _again(self, step: Step, began: float, known: Topology | None, error: Exception | None) -> Any:
        """All attempts after the first one, which ended with `error`; or all of them."""
        batch = Batch(step, apart=self.endpoint.apart)
        attempts = attempts_at(batch.calls, self.endpoint, began)
        while True:
            if error is not None:
                if not batch.apart and spans_slots(step, error):
                    self.endpoint.apart = True
                    batch = Batch(step, apart=True)
                else:
                    pause = attempts.after(error, partly=batch.partly_applied)
                    await self._find_out(error, known)
                    await self._world.sleep(pause)
            known = self.endpoint.topology
            try:
                await self._attempt(batch, attempts, fresh=error is not None or once(batch.calls))
                return result(step, batch.replies, unanswered=attempts.unanswered)
            except (RedisError, NotSent) as failure:
                error = failure

    async def _attempt(self, batch: Batch, attempts: Attempts, *, fresh: bool) -> None:
        """Send what has no reply yet, to whom it concerns."""
        for address, places in batch.routed(self.endpoint).items():
            await self._send(address, batch, places, attempts, fresh=fresh)
            for elsewhere, moving in batch.asked(places).items():
                await self._send(elsewhere, batch, moving, attempts, fresh=fresh, asking=True)

    async def _send(
        self,
        address: Address | None,
        batch: Batch,
        places: list[int],
        attempts: Attempts,
        *,
        fresh: bool,
        asking: bool = False,
    ) -> None:
        connection = await self.connections.take(address, attempts.reading_time, fresh=fresh)
        seconds = attempts.reading_time
        batch.answered(places, await self._exchange(connection, batch.words(places), seconds, asking=asking))
        unknown, in_full = batch.unknown(places)
        if unknown:
            seconds = attempts.reading_time
            batch.answered(unknown, await self._exchange(connection, in_full, seconds, asking=asking))
        self._give(connection, [batch.replies[at] for at in places])

    async def _exchange(
        self, connection: Any, calls: list[Words], seconds: float, *, asking: bool
    ) -> Replies:
        """The replies to calls. `asking`: their slot is on its way to this server."""
        each = [words for call in calls for words in (ASKING, call)] if asking else calls
        began = monotonic()
        try:
            replies: Replies = await self._done(connection.exchange(each, seconds))
        except BaseException as error:
            self.connections.lose(connection, began, error)
            raise
        return replies[1::2] if asking else replies

    async def _use(self, connection: Any, method: Callable[..., Any], *args: Any) -> Any:
        """What a method of a connection returns. One that fails is closed, with those that were idle since
        before, if the network is to blame."""
        began = monotonic()
        try:
            return await self._done(method(*args))
        except BaseException as error:
            self.connections.lose(connection, began, error)
            raise

    def _give(self, connection: Any, replies: Replies) -> None:
        """Give one back, unless another server, or a later moment, is to be looked for."""
        if misplaced(replies):
            self.connections.drop(connection, monotonic())
        else:
            self.connections.give(connection)

    async def _find_out(self, error: Exception, known: Topology | None) -> None:
        """Where to go after this error, if nobody has found out since."""
        if self.endpoint.outdated(error) and self.endpoint.topology is known:
            await look(self._world, self.endpoint, error)
            self.connections.close(self.endpoint.gone(self.connections.addresses))

    async def _wait(self, step: Wait) -> Any:
        """What came, or None. A failure costs at most the hint, so it waits on until its time is over; but
        a server that can't be reached for as long as the deadline is Unavailable."""
        seconds = min(step.seconds, max(time_left(), 0))
        ends = monotonic() + seconds
        attempts: Attempts | None = None
        instead: Address | None = None
        while True:
            known = self.endpoint.topology
            try:
                found = await self._wait_until(ends, step, instead)
                if found is None and seconds < step.seconds:
                    raise Unavailable("The time of this block's deadline is over.")
                return found
            except (RedisError, NotSent) as error:
                if attempts is None or (attempts.remaining <= 0 and not isinstance(error, NotSent)):
                    attempts = attempts_at([step], self.endpoint, monotonic())
                pause = attempts.after(error)
                if isinstance(error, ResponseError) and monotonic() + pause >= ends:
                    return None
                instead = asked_instead(error)
                await self._find_out(error, known)
                await self._world.sleep(pause)

    async def _wait_until(self, ends: float, step: Wait, instead: Address | None) -> Any:
        pending = self._pending(step) or await self._begun(step, instead)
        if pending is None:  # all connections that may wait do
            await self._world.sleep(min(max(ends - monotonic(), 0), LOOK))
            return None
        connection = pending.connection
        while await self._use(connection, connection.readable, max(ends - monotonic(), 0)):
            reply = await self._use(connection, connection.receive, PATIENCE)
            if reply is not None or ends <= monotonic():
                self._give(connection, [reply])
                return result(step, [reply])
            pending = await self._sent(connection, step)
        await self.connections.keep(pending)
        return None

    def _pending(self, step: Wait) -> Pending | None:
        """One with the same words that a call before has left."""
        pending = self.connections.waits.take(step.words)
        if pending is not None and pending.has_ended and not pending.connection.is_broken:
            self.connections.drop(pending.connection, pending.sent_at)  # its answer was lost
            return None
        return pending

    async def _begun(self, step: Wait, instead: Address | None) -> Pending | None:
        address = instead or self.endpoint.route(step)
        if not self.connections.may_wait(address):
            return None
        seconds = self.endpoint.patience_now
        connection = await self.connections.take(address, seconds, fresh=True)
        if instead:
            await self._use(connection, connection.exchange, [ASKING], seconds)
        return await self._sent(connection, step)

    async def _sent(self, connection: Any, step: Wait) -> Pending:
        await self._use(connection, connection.send, [step.sent], PATIENCE)
        return Pending(step.words, connection, monotonic())
