"""The awaiting client: as the blocking one, for one event loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import suppress
from time import monotonic
from typing import Any

from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as TimedOut

from .calls import Batch, attempts_at, once, result, spans_slots
from .cluster import ASKING, QUESTION, Address, Topology, asked_instead
from .connections import aalive, aarrives, aconverse, answered_already, areceive, asend
from .endpoints import aconnected, alook, endpoint
from .retry import Attempts, NotSent, demoted
from .steps import Step, Wait
from .waiting import Outstanding, Pop


class AwaitingClient:
    """Sends steps over awaiting connections; one an event loop and alias."""

    def __init__(self, alias: str) -> None:
        self.endpoint = endpoint(alias)
        #: by the server's address
        self._idle: defaultdict[Address | None, list[Any]] = defaultdict(list)
        self._outstanding = Outstanding()
        #: suspended until the event loop ends
        self.closing: AsyncGenerator[None, None] | None = None

    async def execute(self, step: Step) -> Any:
        """Send `step`, and again where that helps; the reply, or an error of errors.py."""
        if isinstance(step, Wait):
            return await self._wait(step)
        batch = Batch(step, apart=self.endpoint.apart)
        attempts = attempts_at(batch.calls, self.endpoint, monotonic())
        while True:
            known = self.endpoint.topology
            try:
                await self._attempt(batch, attempts)
                return result(step, batch.replies)
            except (RedisError, NotSent) as error:
                if not batch.apart and spans_slots(step, error):
                    self.endpoint.apart = True
                    batch = Batch(step, apart=True)
                    continue
                pause = attempts.after(error)
                await self._find_out(error, known)
                await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close the idle connections, and those on which a wait is outstanding."""
        for connection in self._outstanding.take_all():
            await connection.disconnect()
        for idle in list(self._idle.values()):
            while idle:
                await idle.pop().disconnect()

    async def _find_out(self, error: Exception, known: Topology | None) -> None:
        """Where to go after this error, if nobody has found out since."""
        if demoted(error):
            await self.close()
        if self.endpoint.outdated(error) and self.endpoint.topology is known:
            await alook(self.endpoint, error)
            for address in self.endpoint.gone(self._idle):
                for connection in self._idle.pop(address, []):
                    await connection.disconnect(nowait=True)

    async def _wait(self, step: Wait) -> Any:
        attempts = attempts_at([step], self.endpoint, monotonic())
        attempts.ends += step.seconds
        ends = monotonic() + step.seconds
        instead: Address | None = None
        while True:
            known = self.endpoint.topology
            try:
                return await self._wait_until(ends, step, instead, attempts)
            except (RedisError, NotSent) as error:
                pause = attempts.after(error)
                if isinstance(error, ResponseError) and monotonic() + pause >= ends:
                    return None
                instead = asked_instead(error)
                await self._find_out(error, known)
                await asyncio.sleep(pause)

    async def _wait_until(self, ends: float, step: Wait, instead: Address | None, attempts: Attempts) -> Any:
        pop = self._outstanding.take(step.words)
        if pop is not None and pop.overdue:
            await pop.connection.disconnect(nowait=True)
            pop = None
        address = pop.address if pop else instead or self.endpoint.route(step)
        connection = pop.connection if pop else await self._take(address, attempts.reading_time, fresh=True)
        try:
            if instead and not pop:
                await aconverse(connection, [ASKING])
            pop = pop or await self._sent(connection, address, step)
            while await aarrives(connection, max(ends - monotonic(), 0)):
                reply = await areceive(connection)
                if reply is not None or ends <= monotonic():
                    self._idle[address].append(connection)
                    return result(step, [reply])
                pop = await self._sent(connection, address, step)
        except asyncio.CancelledError:
            await connection.disconnect(nowait=True)
            raise
        for ended in self._outstanding.keep(pop, answered_already):
            with suppress(RedisError):  # it is closed then: nobody waits for it
                await areceive(ended.connection)
                self._idle[ended.address].append(ended.connection)
        return None

    async def _sent(self, connection: Any, address: Address | None, step: Wait) -> Pop:
        await asend(connection, step.sent)
        return Pop(step.words, connection, address, monotonic())

    async def _attempt(self, batch: Batch, attempts: Attempts) -> None:
        """Send what has no reply yet, to whom it concerns."""
        for address, places in batch.routed(self.endpoint).items():
            await self._send(address, batch, places, attempts)
            for elsewhere, moving in batch.asked(places).items():
                await self._send(elsewhere, batch, moving, attempts, asking=True)

    async def _send(
        self,
        address: Address | None,
        batch: Batch,
        places: list[int],
        attempts: Attempts,
        *,
        asking: bool = False,
    ) -> None:
        seconds = attempts.reading_time
        connection = await self._take(address, seconds, fresh=attempts.failed or once(batch.calls))
        try:
            async with asyncio.timeout(seconds):
                batch.answered(places, await aconverse(connection, batch.words(places), asking=asking))
                unknown, in_full = batch.unknown(places)
                if unknown:
                    batch.answered(unknown, await aconverse(connection, in_full, asking=asking))
        except TimeoutError as error:
            raise TimedOut("no reply in time") from error
        self._idle[address].append(connection)

    async def _take(self, address: Address | None, seconds: float, *, fresh: bool) -> Any:
        idle = self._idle[address]
        while idle:
            connection = idle.pop()
            if connection.is_connected and (not fresh or await aalive(connection)):
                return connection
            await connection.disconnect(nowait=True)
        try:
            async with asyncio.timeout(seconds):
                connection = await aconnected(self.endpoint, address)
                if not self.endpoint.asked:
                    self.endpoint.learn_kind((await aconverse(connection, [QUESTION]))[0])
                return connection
        except (RedisError, TimeoutError) as error:
            raise NotSent from error
