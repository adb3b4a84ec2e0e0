"""Who has not read a chat or a mailbox, or not handled the files or events of a channel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...core.commands import batched
from ...core.encoding import current_prefix
from ...core.operations import Command, Script, Steps
from ..broadcasts.usage import read_usage
from ..chats.keys import ChatKeys
from ..chats.values import limits
from ..common.arguments import to_datetime
from ..common.leases import task_of_token
from ..common.pages import read_followers
from ..common.things import Thing
from ..files.keys import FileChannelKeys, lease_key
from ..mailboxes.mailbox import MailboxKeys, read_status
from .explanation import Cause, make
from .sights import Sight, Subject

#: members of a chat, or consumers of a channel, that an explanation names
MAX_READERS = 10
#: calls of SCAN that search for the named consumers of a broadcast channel
MAX_SCANS = 6
#: values of each in the reply of readers.lua, and of consumers.lua
_FIELDS, _CONSUMER_FIELDS = 5, 4


def chat_subject(thing: Thing, using: str) -> Subject:
    """A chat: the members who have read least."""
    return Subject(thing, using, partial(_read_chat, thing))


def mailbox_subject(thing: Thing, using: str) -> Subject:
    """The mailbox of a user."""
    return Subject(thing, using, partial(_read_mailbox, thing))


def broadcast_subject(thing: Thing, using: str) -> Subject:
    """A broadcast channel: its named consumers, which are searched."""
    return Subject(thing, using, partial(_read_broadcast, thing, using))


def files_subject(thing: Thing, using: str) -> Subject:
    """A file channel: the consumers that have acked least."""
    return Subject(thing, using, partial(_read_files, thing))


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


def _read_files(thing: Thing) -> Steps[Sight]:
    prefix = current_prefix()
    reply = yield Script("explaining/consumers", FileChannelKeys(prefix, thing.name).all, (MAX_READERS,))
    if not reply:
        return Sight([make("unknown", thing)], exists=False)
    places, *values = reply
    consumers = [*batched(values, _CONSUMER_FIELDS)]
    keys = [lease_key(prefix, thing.name, name.decode()) for name, *_ in consumers]
    holders = (yield [Command("GET", key, reads=True) for key in keys]) if keys else []
    causes = [make("consumers_missing", thing, consumers=places)] if places else []
    causes += [_not_acked(thing, *pair) for pair in zip(consumers, holders, strict=True)]
    if not causes:
        return Sight([make("all_read", thing)])
    # the chain goes on with the last cause
    holder = holders[0] if len(holders) == 1 else None
    return Sight(causes, task_of_token(holder.decode(errors="replace")) if holder else None)


def _not_acked(thing: Thing, consumer: Sequence[Any], holder: bytes | None) -> Cause:
    """A consumer that has not acked all files."""
    name, waiting, first, seen = consumer
    return make(
        "files_unread", thing, consumer=name.decode(), files=waiting, since=to_datetime(int(first) / 1000),
        seen_at=to_datetime(int(seen)) if int(seen) else None,
        holder=holder.decode(errors="replace") if holder else None,
    )  # fmt: skip


def _read_broadcast(thing: Thing, using: str) -> Steps[Sight]:
    found = yield from read_usage(using, [thing.name])
    if not found:
        return Sight([make("unknown", thing)], exists=False)
    [usage] = found
    page = yield from read_followers(using, current_prefix(), usage, scans=MAX_SCANS)
    behind = sorted((one for one in page.items if one.behind), key=lambda one: (-one.behind, one.name))
    causes = [
        make(
            "events_unread", thing, consumer=one.name, events=one.behind, kept=min(one.behind, usage.events),
            since=one.read_at,
        )
        for one in behind[:MAX_READERS]
    ]  # fmt: skip
    if page.cursor:
        causes.append(make("search_ended", thing))
    return Sight(causes or [make("all_read", thing)])
