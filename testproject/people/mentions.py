"""Notifies all members of a chat of a message that contains `@all`: an example of the signal `message_sent`.

The pages themselves notify members who are mentioned by name.
"""

from __future__ import annotations

import re

from django.dispatch import receiver
from django.http import HttpRequest
from django.urls import reverse

from django_redis_messaging import Chat, Message, notify
from django_redis_messaging.signals import message_sent
from django_redis_messaging.web.identity import current as identity

#: larger chats are not notified
MAX_MEMBERS = 50


@receiver(message_sent, dispatch_uid="people.mention_all")
def mention_all(request: HttpRequest, message: Message, **_: object) -> None:
    """Notify the other members. Those of one chat are grouped until they are read."""
    if not re.search(r"(?<!\w)@all(?!\w)", message.body):
        return
    members = [member.user for member in Chat(message.chat_id).members(limit=MAX_MEMBERS + 1)]
    if len(members) > MAX_MEMBERS:
        return
    text = f"{identity().label(request.user)} mentioned everybody: {message.body[:100]}"
    url = f"{reverse('messaging:room', args=[message.chat_id])}?at={message.id}"
    for member in set(members) - {message.sender}:
        notify(
            member,
            text,
            url=url,
            group=message.chat_id,
            sender=message.sender,
            request_id=message.cursor,
        )
