"""What has to be read, and the tasks that read it."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, NamedTuple

from ...core.failures import log_exception
from ...core.retry import without_deadline
from ...errors import MessagingError

logger = logging.getLogger(__name__)

#: seconds between two readings of the same resource
READ_INTERVAL = 0.02
#: number of resources that are read at the same time
MAX_READS = 8
#: seconds after a failed reading
RETRY_PAUSE = 1.0

#: what has changed in a chat: everything, who is typing, or nothing, but a stream is behind
EVERYTHING, TYPING, BEHIND = "m", "t", "behind"
#: what has changed in the index of a user: they joined or left chats, or it must be read as a whole
JOINED, WHOLE = "joined", "whole"
#: the beginning of a change of a member's position; the name follows
POSITION = "a"


class Resource(NamedTuple):
    """Something that can be read: the chat, the index, or the mailbox with this name."""

    kind: Literal["chat", "index", "mailbox"]
    name: str


class Marks:
    """Marked resources are read, each by one task at a time. While it is read, a resource is only marked
    again: a busy chat is read as fast as it can be, and no faster."""

    def __init__(self, read: Callable[[Resource, set[str]], Awaitable[None]]) -> None:
        self._read = read
        #: resource → what has changed in it
        self._marked: defaultdict[Resource, set[str]] = defaultdict(set)
        #: resource → the task that reads it
        self._tasks: dict[Resource, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_READS)
        self._context = without_deadline()

    def chat(self, chat_id: str, what: str = EVERYTHING) -> None:
        """Mark a chat."""
        self.add(Resource("chat", chat_id), what)

    def user(self, user: str) -> None:
        """Mark all that belongs to a user."""
        self.add(Resource("index", user), WHOLE)
        self.add(Resource("mailbox", user), EVERYTHING)

    def add(self, resource: Resource, *what: str) -> None:
        """Mark a resource, and begin to read it, unless that is being done."""
        self._marked[resource].update(what)
        if resource not in self._tasks:
            self._tasks[resource] = self.start(self._read_while_marked(resource))

    def later(self, seconds: float, resource: Resource, *what: str) -> None:
        """Mark a resource after a pause."""
        asyncio.get_running_loop().call_later(seconds, self.add, resource, *what)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task in the context of the hub: it outlives the request that needs it first."""
        return asyncio.get_running_loop().create_task(coroutine, context=self._context.copy())

    def clear(self) -> None:
        """Stop reading."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()  # a task that is cancelled before it has begun would not remove itself
        self._marked.clear()

    async def _read_while_marked(self, resource: Resource) -> None:
        try:
            while resource in self._marked:
                async with self._slots:
                    await self._attempt(resource, self._marked.pop(resource))
                await asyncio.sleep(READ_INTERVAL)
        finally:
            if self._tasks.get(resource) is asyncio.current_task():
                del self._tasks[resource]

    async def _attempt(self, resource: Resource, what: set[str]) -> None:
        try:
            await self._read(resource, what)
        except MessagingError as error:
            logger.warning("Reading %s %r for live streams failed, retrying: %s", *resource, error)
            self.later(RETRY_PAUSE, resource, *what)
        except Exception as error:  # the other resources must be read
            log_exception(logger, error, "Reading %s %r for live streams failed.", *resource)
