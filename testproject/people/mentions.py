"""Notifies members of a chat who are mentioned in a message as `@username`."""

from __future__ import annotations

import re
from itertools import islice

from django.contrib.auth import get_user_model
from django.dispatch import receiver
from django.http import HttpRequest
from django.urls import reverse

from django_redis_messaging import Chat, Message, notify
from django_redis_messaging.signals import message_sent
from django_redis_messaging.web.identity import current as identity

#: maximum number of mentions in a message that are notified
MAX_MENTIONS = 20


@receiver(message_sent, dispatch_uid="people.mention")
def mention(request: HttpRequest, message: Message, **_: object) -> None:
    """Notify the mentioned members. Mentions in one chat are grouped until they are read."""
    text = f"{identity().label(request.user)} mentioned you: {message.body[:100]}"
    url = reverse("messaging:room", args=[message.chat_id])
    for member in mentioned_members(message):
        notify(
            member,
            text,
            url=url,
            group=message.chat_id,
            sender=message.sender,
            request_id=message.cursor,
        )


def mentioned_members(message: Message) -> set[str]:
    """Ids of the members of the chat that a message mentions, without the sender."""
    names = [match[1] for match in islice(re.finditer(r"@([\w.+-]*\w)", message.body), MAX_MENTIONS)]
    if not names:
        return set()
    users = get_user_model()._default_manager.filter(username__in=names)
    members = {member.user for member in Chat(message.chat_id).members(limit=1000)}
    return members & {identity().member_id(user) for user in users} - {message.sender}
