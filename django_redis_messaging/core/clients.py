"""The one seam to Redis: steps sent over connections, again where that helps.

A call takes a connection that is idle, or makes one, and gives it back: no pool's lock, and no health
check, before each command; a connection that turns out dead is replaced by the retry. As many are open
as calls were ever under way at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, cast

from django.core.signals import setting_changed
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as TimedOut

from .. import conf
from .connections import (
    Endpoint,
    Replies,
    aalive,
    aarrives,
    aconverse,
    alive,
    answered_already,
    areceive,
    arrives,
    asend,
    converse,
    exchange,
    receive,
    send,
)
from .retry import Attempts, NotSent
from .steps import Command, Many, Script, Step, Wait
from .waiting import Outstanding, Pop


def _batch(step: Step, *, apart: bool) -> list[Command | Script]:
    if isinstance(step, Many):
        return step.calls(apart=apart)
    return [step] if isinstance(step, Command | Script) else list(step)


def _attempts(batch: Iterable[Command | Script], endpoint: Endpoint, began: float) -> Attempts:
    return Attempts(
        conf.current().COMMAND_DEADLINE,
        began=began,
        patience=endpoint.patience,
        writes=not all(call.reads_only for call in batch),
        once=_once(batch),
    )


def _once(batch: Iterable[Command | Script]) -> bool:
    return any(call.once for call in batch)


def _result(step: Step, replies: Replies) -> Any:
    """The replies as the step wants them; the first error among them is raised."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    if isinstance(step, Many):
        return [item for reply in replies for item in reply]
    return replies[0] if isinstance(step, Command | Script) else replies


def _unknown_scripts(batch: list[Command | Script], replies: Replies) -> list[int]:
    return [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]


def _spans_slots(step: Step, error: Exception) -> bool:
    return isinstance(step, Many) and ("CROSSSLOT" in str(error) or "same slot" in str(error))


class BlockingClient:
    """Sends steps over blocking connections; one a process and alias, safe to share between threads."""

    def __init__(self, alias: str) -> None:
        self.endpoint = Endpoint(alias)
        # list.pop and list.append are atomic: no lock needed
        self._idle: list[Any] = []
        self._outstanding = Outstanding()

    def execute(self, step: Step) -> Any:
        """Send `step`, and again where that helps; the reply, or an error of errors.py."""
        if isinstance(step, Wait):
            return self._wait(step)
        began = monotonic()
        batch = _batch(step, apart=self.endpoint.apart)
        attempts: Attempts | None = None
        while True:
            try:
                if attempts is None and isinstance(step, Command | Script) and not step.once:
                    return self._call(step)
                return _result(step, self._attempt(batch, attempts))
            except (RedisError, NotSent) as error:
                if _spans_slots(step, error) and not self.endpoint.apart:
                    self.endpoint.apart = True
                    batch = _batch(step, apart=True)
                    continue
                attempts = attempts or _attempts(batch, self.endpoint, began)
                sleep(attempts.after(error))

    def close(self) -> None:
        """Close the idle connections, and those on which a wait is outstanding."""
        self._idle += self._outstanding.take_all()
        while self._idle:
            self._idle.pop().disconnect()

    def _wait(self, step: Wait) -> Any:
        attempts = _attempts([step], self.endpoint, monotonic())
        attempts.ends += step.seconds
        ends = monotonic() + step.seconds
        while True:
            try:
                return self._wait_until(ends, step)
            except (RedisError, NotSent) as error:
                sleep(attempts.after(error))

    def _wait_until(self, ends: float, step: Wait) -> Any:
        pop = self._outstanding.take(step.words)
        if pop is not None and pop.overdue:
            pop.connection.disconnect()
            pop = None
        connection = pop.connection if pop else self._take(fresh=True)
        pop = pop or self._sent(connection, step)
        while arrives(connection, max(ends - monotonic(), 0)):
            reply = receive(connection)
            if reply is not None or ends <= monotonic():
                self._idle.append(connection)
                return _result(step, [reply])
            pop = self._sent(connection, step)
        for answered in self._outstanding.keep(step.words, pop, arrives):
            receive(answered)
            self._idle.append(answered)
        return None

    def _sent(self, connection: Any, step: Wait) -> Pop:
        send(connection, step.sent)
        return Pop(connection, monotonic())

    def _call(self, call: Command | Script) -> Any:
        """The first attempt at one call: what nearly every operation is, so with nothing around it."""
        connection = self._take(fresh=False)
        reply = exchange(connection, call.words)
        if isinstance(reply, NoScriptError) and isinstance(call, Script):
            reply = exchange(connection, call.in_full)
        self._idle.append(connection)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _attempt(self, batch: list[Command | Script], attempts: Attempts | None) -> Replies:
        if not batch:
            return []
        connection = self._take(fresh=attempts is not None or _once(batch))
        timeout = attempts.reading_time if attempts else None  # None: as the connection says
        replies = converse(connection, [call.words for call in batch], timeout)
        unknown = _unknown_scripts(batch, replies)
        if unknown:
            again = converse(connection, [cast(Script, batch[at]).in_full for at in unknown], timeout)
            for at, reply in zip(unknown, again, strict=True):
                replies[at] = reply
        self._idle.append(connection)
        return replies

    def _take(self, *, fresh: bool) -> Any:
        """An idle connection, or a new one. `fresh`: surely alive, so that what fails was not sent."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if not fresh or alive(connection):
                return connection
            connection.disconnect()
        connection = self.endpoint.connection()
        try:
            connection.connect()
        except RedisError as error:
            raise NotSent from error
        return connection


class AwaitingClient:
    """Sends steps over awaiting connections; one an event loop and alias."""

    def __init__(self, alias: str) -> None:
        self.endpoint = Endpoint(alias)
        self._idle: list[Any] = []
        self._outstanding = Outstanding()
        #: suspended until the event loop ends
        self.closing: AsyncGenerator[None, None] | None = None

    async def execute(self, step: Step) -> Any:
        """Send `step`, and again where that helps; the reply, or an error of errors.py."""
        if isinstance(step, Wait):
            return await self._wait(step)
        batch = _batch(step, apart=self.endpoint.apart)
        attempts = _attempts(batch, self.endpoint, monotonic())
        while True:
            try:
                return _result(step, await self._attempt(batch, attempts))
            except (RedisError, NotSent) as error:
                if _spans_slots(step, error) and not self.endpoint.apart:
                    self.endpoint.apart = True
                    batch = _batch(step, apart=True)
                    continue
                await asyncio.sleep(attempts.after(error))

    async def close(self) -> None:
        """Close the idle connections, and those on which a wait is outstanding."""
        self._idle += self._outstanding.take_all()
        while self._idle:
            await self._idle.pop().disconnect()

    async def _wait(self, step: Wait) -> Any:
        attempts = _attempts([step], self.endpoint, monotonic())
        attempts.ends += step.seconds
        ends = monotonic() + step.seconds
        while True:
            try:
                return await self._wait_until(ends, step, attempts)
            except (RedisError, NotSent) as error:
                await asyncio.sleep(attempts.after(error))

    async def _wait_until(self, ends: float, step: Wait, attempts: Attempts) -> Any:
        pop = self._outstanding.take(step.words)
        if pop is not None and pop.overdue:
            await pop.connection.disconnect(nowait=True)
            pop = None
        connection = pop.connection if pop else await self._take(attempts.reading_time, fresh=True)
        try:
            pop = pop or await self._sent(connection, step)
            while await aarrives(connection, max(ends - monotonic(), 0)):
                reply = await areceive(connection)
                if reply is not None or ends <= monotonic():
                    self._idle.append(connection)
                    return _result(step, [reply])
                pop = await self._sent(connection, step)
        except asyncio.CancelledError:
            await connection.disconnect(nowait=True)
            raise
        for answered in self._outstanding.keep(step.words, pop, answered_already):
            await areceive(answered)
            self._idle.append(answered)
        return None

    async def _sent(self, connection: Any, step: Wait) -> Pop:
        await asend(connection, step.sent)
        return Pop(connection, monotonic())

    async def _attempt(self, batch: list[Command | Script], attempts: Attempts) -> Replies:
        if not batch:
            return []
        seconds = attempts.reading_time
        connection = await self._take(seconds, fresh=attempts.failed or _once(batch))
        try:
            async with asyncio.timeout(seconds):
                replies = await aconverse(connection, [call.words for call in batch])
                unknown = _unknown_scripts(batch, replies)
                if unknown:
                    missing = [cast(Script, batch[at]).in_full for at in unknown]
                    for at, reply in zip(unknown, await aconverse(connection, missing), strict=True):
                        replies[at] = reply
        except TimeoutError as error:
            raise TimedOut("no reply in time") from error
        self._idle.append(connection)
        return replies

    async def _take(self, seconds: float, *, fresh: bool) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_connected and (not fresh or await aalive(connection)):
                return connection
            await connection.disconnect(nowait=True)
        connection = self.endpoint.awaiting_connection()
        try:
            async with asyncio.timeout(seconds):
                await connection.connect()
        except (RedisError, TimeoutError) as error:
            raise NotSent from error
        return connection


_blocking: dict[str, BlockingClient] = {}
_awaiting: dict[tuple[str, int], tuple[asyncio.AbstractEventLoop, AwaitingClient]] = {}
_inherited: list[object] = []


def blocking(alias: str) -> BlockingClient:
    """The blocking client of an alias."""
    try:
        return _blocking[alias]
    except KeyError:
        return _blocking.setdefault(alias, BlockingClient(alias))


def awaiting(alias: str) -> AwaitingClient:
    """The awaiting client of an alias, for the event loop that runs."""
    loop = asyncio.get_running_loop()
    found = _awaiting.get((alias, id(loop)))
    if found is not None and found[0] is loop:
        return found[1]
    for key, (other, _) in list(_awaiting.items()):
        if other.is_closed():
            del _awaiting[key]
    client = AwaitingClient(alias)
    client.closing = _closing(client)
    with suppress(StopIteration):
        client.closing.asend(None).send(None)  # as far as its yield: nothing is awaited before
    _awaiting[alias, id(loop)] = (loop, client)
    return client


async def _closing(client: AwaitingClient) -> AsyncGenerator[None, None]:
    """Closes a client's connections when its loop ends: whoever runs a loop shuts down the asynchronous
    generators that began in it, before closing it."""
    try:
        yield
    finally:
        await client.close()


def close() -> None:
    """Close the idle blocking connections; the next call opens new ones."""
    for client in list(_blocking.values()):
        client.close()


async def aclose() -> None:
    """Close the idle connections of the event loop that runs."""
    loop = asyncio.get_running_loop()
    for key, (owner, client) in list(_awaiting.items()):
        if owner is loop:
            del _awaiting[key]
            await client.close()


def _forget_all() -> None:
    _blocking.clear()
    _awaiting.clear()


def _forget_the_parents() -> None:
    # In a forked child the sockets are the parent's: forget them, don't talk over them. Awaiting ones
    # are kept alive, unused: destroyed, they would leave the epoll that parent and child share, and the
    # parent would not see its replies any more.
    _inherited.extend(_awaiting.values())
    _forget_all()


def _forget(*, setting: str, **_: object) -> None:
    if setting in {conf.NAME, "CACHES"}:
        close()
        _forget_all()


os.register_at_fork(after_in_child=_forget_the_parents)
setting_changed.connect(_forget, dispatch_uid="django_redis_messaging.clients")
