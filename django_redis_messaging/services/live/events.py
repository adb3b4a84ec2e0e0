"""`events`: what changes for a user, for the site's own code."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping

from ...core.keys import name
from ...errors import InvalidArgument
from .hub import hub_of
from .values import Known, LiveEvent

#: chats that a stream follows with their messages
MAX_ROOMS = 10


async def events(
    user: str, *, rooms: Mapping[str, Known] | Iterable[str] = (), using: str | None = None
) -> AsyncGenerator[LiveEvent, None]:
    """What changes for a user, as it happens: an async generator that doesn't end by itself.

    It begins with the state: `ChatsChanged` with the newest 50 chats, `MailChanged`, and a `RoomChanged` for
    each of the `rooms`, chats to follow with their messages. These begin with the newest message, or after
    what the reader knows: `{chat_id: Known(cursor)}`, or the `known` of an earlier event. Then nothing is
    missed and nothing comes twice, whatever fails in between. `RoomClosed` follows where the user is not a
    member.

    All streams of a process share one subscription, and one reading of each change. While the code that
    iterates is busy, changes accumulate in Redis. Close the generator (`contextlib.aclosing`) or cancel its
    task to end it.

    >>> import asyncio, contextlib
    >>> async def follow():
    ...     chat = await Chat.acreate("ann", ["bob"], "One", chat_id="live")
    ...     stream = live.events("bob", rooms={"live": live.Known(0)})
    ...     async with contextlib.aclosing(stream):
    ...         async for event in stream:
    ...             if isinstance(event, live.RoomChanged):
    ...                 return [message.body for message in event.changes.messages]
    >>> asyncio.run(follow())
    ['One']
    """
    known = dict(rooms) if isinstance(rooms, Mapping) else {chat_id: Known() for chat_id in rooms}
    name(user, "user")
    for chat_id in known:
        name(chat_id, "chat_id")
    if len(known) > MAX_ROOMS:
        raise InvalidArgument(f"rooms must have at most {MAX_ROOMS} items, not {len(known)}.")
    async with hub_of(using).stream(user, known) as stream:
        while True:
            for event in await stream.take():
                yield event
