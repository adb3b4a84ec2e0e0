"""Notifies all members of a chat of a message that contains `@all`: an example of the signal `message_sent`.

The pages themselves notify members who are mentioned by name.
"""

from __future__ import annotations

import re

from django.core.cache import cache
from django.dispatch import receiver
from django.http import HttpRequest
from django.urls import reverse

from django_redis_messaging import Chat, Message, notify_many
from django_redis_messaging.signals import message_sent
from django_redis_messaging.web.identity import current as identity

#: larger chats are not notified
MAX_MEMBERS = 50
#: seconds: the members of a chat are notified at most once in this time
INTERVAL = 60


@receiver(message_sent, dispatch_uid="people.mention_all")
def mention_all(request: HttpRequest, message: Message, **_: object) -> None:
    """Notify the other members, except those who have blocked the sender: `notify_many` leaves them out."""
    if not re.search(r"(?<!\w)@all(?!\w)", message.body):
        return
    others = [
        member.user
        for member in Chat(message.chat_id).members(limit=MAX_MEMBERS + 1)
        if member.user != message.sender
    ]
    if len(others) >= MAX_MEMBERS or not _is_first(message):
        return
    notify_many(
        others,
        f"{identity().label(request.user)} mentioned everybody: {message.body[:100]}",
        url=f"{reverse('messaging:room', args=[message.chat_id])}?at={message.id}",
        group=message.chat_id,
        sender=message.sender,
        request_id=message.cursor,
    )


def _is_first(message: Message) -> bool:
    """Whether no other message has mentioned everybody in this chat lately. A repeated request may go on."""
    first = cache.get_or_set(f"mention-all:{message.chat_id}", message.cursor, INTERVAL)
    return bool(first == message.cursor)
