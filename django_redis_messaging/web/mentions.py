"""Mentions: members whose name follows an @ in a message are notified, and their names are highlighted."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

from django.utils.translation import gettext as _

from ..errors import MessagingError
from ..services.blocks import Blocks
from ..services.chats import Chat, Message
from ..services.directories.folding import fold
from ..services.mailboxes import notify
from .identity import Identity
from .people import people
from .texts import without_code

_logger = logging.getLogger(__name__)

#: the members who joined first, who can be mentioned
MENTIONABLE = 200
#: mentions in one message
MAX_MENTIONS = 20
#: places with an @ that are looked at
MAX_PLACES = 100
#: characters of a name, folded
MAX_NAME = 200
_AT = re.compile(r"(?<!\w)@(?=\w)")


def find_mentions(identity: Identity, chat: Chat, sender: str, body: str) -> list[str]:
    """The ids of the members whose name follows an @ in the body, without the sender.

    Reads the members only if there is an @ outside of code.
    """
    rests = list(_rests(without_code(body)))
    if not rests:
        return []
    ids = [member.user for member in chat.members(limit=MENTIONABLE) if member.user != sender]
    by_name = {fold(person.label): person.id for person in people(identity, ids)}
    longest_first = sorted(by_name, key=len, reverse=True)
    names = (next((name for name in longest_first if _begins_with(rest, name)), None) for rest in rests)
    return list(dict.fromkeys(by_name[name] for name in names if name))[:MAX_MENTIONS]


def _rests(body: str) -> Iterator[str]:
    """What follows each @, folded."""
    for place, match in enumerate(_AT.finditer(body)):
        if place == MAX_PLACES:
            return
        yield fold(body[match.end() : match.end() + MAX_NAME])


def _begins_with(rest: str, name: str) -> bool:
    """Whether the text begins with the name as a whole word."""
    return rest.startswith(name) and not rest[len(name) : len(name) + 1].isalnum()


def mentioned(message: Message) -> Sequence[str]:
    """The ids of the members that a message of the pages mentions."""
    data: Any = message.data
    ids = data.get("mentions") if isinstance(data, dict) else None
    return [one for one in ids if isinstance(one, str)][:MAX_MENTIONS] if isinstance(ids, list) else []


def notify_mentioned(message: Message, *, label: str, title: str, url: str) -> None:
    """Notify the mentioned members, except those who have blocked the sender.

    `label` is the name of the sender, `title` that of the chat or "", `url` that of the message. The message
    has been sent already: a failure is logged.
    """
    text = _("%(name)s mentioned you in %(chat)s.") if title else _("%(name)s mentioned you.")
    text = text % {"name": label, "chat": title}
    for member in mentioned(message):
        try:
            if message.sender not in Blocks(member).list():
                group = f"mention {message.chat_id}"[:100]
                notify(member, text, url=url, group=group, sender=message.sender, request_id=message.cursor)
        except (MessagingError, ValueError) as error:
            _logger.warning("Notifying %r of a mention in %r failed: %s", member, message.chat_id, error)
