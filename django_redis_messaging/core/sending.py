"""Sends the calls of a step to their servers, to all of them side by side, and receives the replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from redis.exceptions import RedisError

from .calls import Batch, Pipeline
from .cluster import ASKING
from .connections import Connections
from .durability import REPLIES
from .endpoints import Endpoint
from .retry import Attempts, NotSent, needs_other_connection
from .sockets import Replies
from .worlds import World


class Sender:
    """Makes single attempts, over the connections of a client."""

    def __init__(self, endpoint: Endpoint, connections: Connections, world: World) -> None:
        self._endpoint = endpoint
        self._connections = connections
        self._done = world.done

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
        words, durability = batch.words(pipeline), self._endpoint.durability
        if durability is not None and batch.writes(pipeline):
            words += [ASKING] * pipeline.asking + durability.words(batch.key(pipeline), attempts.remaining)
        batch.mark_sent(pipeline)
        await self.use(connection, connection.send, words, attempts.reading_time)
        return connection

    async def _receive(self, batch: Batch, pipeline: Pipeline, connection: Any, attempts: Attempts) -> None:
        """Record the replies to a pipeline."""
        seconds, durability = attempts.reading_time, self._endpoint.durability
        count = len(pipeline.indexes) * (1 + pipeline.asking)
        if durability is None or not batch.writes(pipeline):
            replies = await self.use(connection, connection.receive_all, count, seconds)
            batch.record(pipeline, replies)
            self.give_back(connection, replies)
            return
        seconds += min(durability.timeout, max(attempts.remaining, 0))
        more = pipeline.asking + REPLIES
        replies = await self.use(connection, connection.receive_all, count + more, seconds)
        batch.record(pipeline, replies[:count])
        error = durability.failure(replies[-1])
        if error is not None and batch.mark_unconfirmed(pipeline, error):
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
