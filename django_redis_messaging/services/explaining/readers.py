"""Who has not read a chat or a mailbox."""

from __future__ import annotations

from functools import partial

from ...core.encoding import current_prefix
from ...core.operations import Script, Steps
from ..chats.keys import ChatKeys
from ..chats.values import limits
from ..common.arguments import to_datetime
from ..common.things import Thing
from ..mailboxes.mailbox import MailboxKeys, read_status
from .explanation import make
from .sights import Sight, Subject

#: members of a chat that an explanation names
MAX_READERS = 10
#: values of each in the reply of readers.lua
_FIELDS = 5


def chat_subject(thing: Thing, using: str) -> Subject:
    """A chat: the members who have read least."""
    return Subject(thing, using, partial(_read_chat, thing))


def mailbox_subject(thing: Thing, using: str) -> Subject:
    """The mailbox of a user."""
    return Subject(thing, using, partial(_read_mailbox, thing))


def _read_chat(thing: Thing) -> Steps[Sight]:
    keys = ChatKeys(current_prefix(), thing.name)
    reply = yield Script("explaining/readers", keys.following, (MAX_READERS, *limits()))
    if not reply:
        return Sight([make("unknown", thing)], exists=False)
    now, members, hidden, *values = reply
    causes = []
    for at in range(0, len(values), _FIELDS):
        name, position, unread, kept, muted = values[at : at + _FIELDS]
        until = to_datetime(muted) if muted > now else None
        causes.append(
            make(
                "unread", thing, member=name.decode(), position=position, unread=unread, kept=kept,
                muted_until=until,
            )
        )  # fmt: skip
    if hidden:
        causes.append(make("hidden_readers", thing, members=hidden))
    return Sight(causes or [make("all_read", thing, members=members)])


def _read_mailbox(thing: Thing) -> Steps[Sight]:
    status = yield from read_status(MailboxKeys(current_prefix(), thing.name))
    if not status.unread:
        return Sight([make("all_read", thing)])
    fetched = status.last_fetched_at
    return Sight([make("mail_unread", thing, unread=status.unread, fetched_at=fetched, full=status.full)])
