"""Mentions: members whose name follows an @ in a message are notified."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection

from django.utils.translation import gettext as _

from ..core.keys import MAX_NAME_BYTES
from ..errors import MessagingError
from ..services.chats import Chat, Message
from ..services.chats.direct import is_direct
from ..services.chats.messages import MAX_MENTIONS
from ..services.directories.folding import fold
from ..services.mailboxes import notify_many
from .identity import Identity
from .names import NameSearch, has_place
from .people import people
from .texts import plain_texts

_logger = logging.getLogger(__name__)

#: the members who joined first, who can be mentioned
MENTIONABLE = 200


def find_mentions(
    identity: Identity, chat: Chat, sender: str, body: str, chosen: Collection[str] = ()
) -> list[str]:
    """The ids of the members whose name follows an @ in the body, without the sender.

    Of several members with one name, those whom the sender has `chosen`, else all. Reads the members only if
    there is an @ outside of code.
    """
    texts = [text for text in plain_texts(body) if has_place(text)]
    if not texts:
        return []
    ids = [member.user for member in chat.members(limit=MENTIONABLE) if member.user != sender]
    by_name = defaultdict(list)
    for person in people(identity, ids):
        by_name[fold(person.label)].append(person.id)
    names = NameSearch(by_name)
    wanted = set(chosen)
    found: dict[str, None] = {}
    for text in texts:
        for place in names.find(text):
            namesakes = by_name[place.name]
            found |= dict.fromkeys([one for one in namesakes if one in wanted] or namesakes)
    return list(found)[:MAX_MENTIONS]


def notify_mentioned(message: Message, *, label: str, title: str, url: str) -> None:
    """Notify the mentioned members, except those who have blocked the sender.

    `label` is the name of the sender, `title` that of the chat or "", `url` that of the message. The message
    has been sent already: a failure is logged.
    """
    if is_direct(message.chat_id):
        text = _("%(name)s mentioned you.")
    elif title:
        text = _("%(name)s mentioned you in the group “%(chat)s”.")
    else:
        text = _("%(name)s mentioned you in a group.")
    group = f"mention {message.chat_id}"
    try:
        notify_many(
            message.mentions,
            text % {"name": label, "chat": title},
            url=url,
            group=group if len(group.encode()) <= MAX_NAME_BYTES else None,
            sender=message.sender,
            request_id=message.cursor,
        )
    except (MessagingError, ValueError) as error:
        _logger.warning("Notifying of mentions in chat %r failed: %s", message.chat_id, error)
