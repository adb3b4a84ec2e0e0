"""What the digest of a user contains, and until when messages were mailed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ...core import encoding
from ...core.operations import Clock, Command, Fan, Service, Steps, asynchronous, operation
from ..common.arguments import UserOrId, member_id, to_datetime
from ..users.keys import UserKeys, digest_run_key
from . import ChatSummary, Message, replies
from .inbox import Inbox, is_broken
from .keys import ChatKeys
from .values import author_json, limits_without_bytes, make_message

_logger = logging.getLogger(__name__)

_LEFT_OUT = "Chat %r was left out of a digest: %r"

#: older messages are in no digest; so a record may expire at this age
MAX_AGE = timedelta(days=30)
#: scripts that read one digest
MAX_SCRIPTS = 100


class DigestState(NamedTuple):
    """What a digest of a user depends on. Moments are of the server's clock."""

    now: datetime
    since: datetime
    """A digest contains messages that were sent after this."""
    wanted: bool
    """The user's choice; true if the user has made none."""
    blocked: list[str]
    """Whom the user has blocked."""


class DigestRecord(Service):
    """Until when a user's unread messages were mailed.

    >>> record = DigestRecord("digest-example")
    >>> state = record.read()
    >>> (state.now - state.since).days
    30
    >>> record.save(state.now)
    >>> record.read().since == state.now
    True
    """

    def __init__(self, user: UserOrId, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self._keys = UserKeys(self._prefix, member_id(user, "user"))

    @operation
    def read(self) -> Steps[DigestState]:
        """Read the server's clock, the end of the last digest, at most MAX_AGE ago, and what the user has
        chosen."""
        keys = self._keys
        clock, until, chosen, blocked = yield [
            Clock(keys.digest),
            Command("GET", keys.digest, reads=True),
            Command("HGET", keys.choices, "digests", reads=True),
            Command("ZRANGE", keys.blocks, 0, -1, reads=True),
        ]
        now = to_datetime(Clock.milliseconds(clock))
        oldest = now - MAX_AGE
        last = oldest if until is None else to_datetime(until)
        # A later record than now: the clock was set back. Repeating what is unread loses nothing.
        since = oldest if last > now else max(last, oldest)
        return DigestState(now, since, chosen != b"0", [other.decode() for other in blocked])

    aread = asynchronous(read)

    @operation
    def save(self, until: datetime) -> Steps[None]:
        """Store that messages sent until this moment were mailed. Safe to repeat."""
        yield Command("SET", self._keys.digest, _ms(until), "PX", MAX_AGE // timedelta(milliseconds=1))

    asave = asynchronous(save)


class UnreadChat(NamedTuple):
    """What a user has not read in a chat and was sent in a period."""

    summary: ChatSummary
    """Its `unread` counts these messages only, `last_message` is the latest of them."""
    latest: list[Message]
    """Excerpts of the latest of them, the oldest first."""


class _Examined(NamedTuple):
    """What was found in a chat: an item of the reply of chats/inbox_digest."""

    epoch: bytes
    title: bytes
    active: bytes
    member_count: int
    members: list[bytes]
    counted: int
    """How many of the examined messages count."""
    lowest: int
    """The lowest id examined."""
    rest: int
    """How many unread messages below it were not examined."""
    latest: list[Any]
    """Id, excerpt, …: the latest of those that count, the newest first."""

    def joined(self, older: _Examined) -> _Examined:
        """This, with what was found among older messages of the same chat."""
        return self._replace(
            counted=self.counted + older.counted,
            lowest=older.lowest,
            rest=older.rest,
            latest=self.latest + older.latest,
        )


class DigestInbox(Inbox):
    """The chats of a user, for a digest.

    >>> chat = Chat.create("ann", ["digest-bob"], "Hello", chat_id="digest-inbox")
    >>> inbox, state = DigestInbox("digest-bob"), DigestRecord("digest-bob").read()
    >>> [message.body for chat in inbox.find(state.since, state.now) for message in chat.latest]
    ['Hello']
    >>> inbox.find(state.since, state.now, hidden=["ann"])
    []
    """

    @operation
    def find(
        self, since: datetime, until: datetime, *, hidden: Sequence[str] = (), latest: int = 3
    ) -> Steps[list[UnreadChat]]:
        """Find what the user has not read and was sent after `since`, and not after `until`, in chats that
        are not muted; the chats with the latest activity first.

        Deleted messages, and those by the users in `hidden`, don't count. Each script reads 100 chats, but
        examines at most 1000 messages or 1 MiB, and returns at most `latest` excerpts of a chat. After
        MAX_SCRIPTS, the messages that are left count without being examined.
        """
        chats, entries, newest, _ = yield from self._read_index()
        index = {chat: (entry, value) for chat, entry, value in zip(chats, entries, newest, strict=True)}
        changed = [
            place.chat_id.decode()
            for place in replies.sort_places(chats, newest)[0]
            if place.active > _ms(since) and not _is_read(*index[place.chat_id])
        ]
        authors = [author_json(user) for user in (self.user, *hidden)]
        items = yield from self._examine(
            changed, (self.user, *limits_without_bytes(), _ms(since), _ms(until), latest, *authors)
        )
        return list(_decoded(items, latest))

    afind = asynchronous(find)

    def _examine(self, chats: Sequence[str], arguments: Sequence[str | int]) -> Steps[dict[str, _Examined]]:
        """Examine chats until nothing is left; returns what was found in each."""
        found: dict[str, _Examined] = {}
        below: dict[str, int] = {}
        waiting = chats
        for _ in range(MAX_SCRIPTS):
            size = Fan.SIZE - len(below)
            below |= dict.fromkeys(waiting[:size], 0)
            waiting = waiting[size:]
            if not below:
                break
            resources = [(ChatKeys(self._prefix, chat).listing, (lowest,)) for chat, lowest in below.items()]
            items = yield Fan("chats/inbox_digest", resources, arguments)
            replies, below = zip(below, items, strict=True), {}
            for chat, item in replies:
                if isinstance(item, int):  # nothing is left
                    if chat in found:
                        found[chat] = found[chat]._replace(rest=0)
                elif is_broken(item):
                    _logger.warning(_LEFT_OUT, chat, item[0].decode())
                else:
                    examined = _Examined(*item)
                    found[chat] = found[chat].joined(examined) if chat in found else examined
                    if examined.rest:
                        below[chat] = examined.lowest
        return found


def _is_read(entry: bytes, newest: bytes | None) -> bool:
    """Whether nothing has changed in a chat since the user has acked everything."""
    return newest is not None and entry.endswith(b" " + newest)


def _decoded(items: dict[str, _Examined], latest: int) -> Iterator[UnreadChat]:
    """The chats in which a message counts. One with entries that this app has not written hides no others."""
    for chat, item in items.items():
        try:
            if item.latest:
                yield _make(chat, item, latest)
        except (ValueError, TypeError, LookupError) as error:
            _logger.warning(_LEFT_OUT, chat, error)


def _make(chat: str, item: _Examined, latest: int) -> UnreadChat:
    ids, excerpts = item.latest[::2][:latest], item.latest[1::2][:latest]
    decoded = encoding.loads_all(excerpts)
    messages = [make_message(chat, int(item.epoch), *one) for one in zip(ids, decoded, strict=True)]
    summary = ChatSummary(
        **replies.summary_fields(chat, item.title, item.active, item.member_count, item.members),
        unread=item.counted + item.rest,
        last_message=messages[0],
        muted=False,
    )
    return UnreadChat(summary, messages[::-1])


def _ms(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


class DigestRun(Service):
    """How far the run of `send_digests` has come: where the next one begins if this one doesn't end.

    >>> run = DigestRun()
    >>> run.save("17")
    >>> run.read()
    '17'
    >>> run.end()
    >>> run.read() is None
    True
    """

    @operation
    def read(self) -> Steps[str | None]:
        """Read the primary key of the last user of the run before, as text; None if that run has ended."""
        value = yield Command("GET", digest_run_key(self._prefix), reads=True)
        return None if value is None else value.decode()

    aread = asynchronous(read)

    @operation
    def save(self, last: str) -> Steps[None]:
        """Store the primary key of the last user, as text."""
        yield Command("SET", digest_run_key(self._prefix), last, "PX", MAX_AGE // timedelta(milliseconds=1))

    asave = asynchronous(save)

    @operation
    def end(self) -> Steps[None]:
        """All users are done: the next run begins with the first one."""
        yield Command("UNLINK", digest_run_key(self._prefix))

    aend = asynchronous(end)


def forget_digest(prefix: str, user: str) -> Steps[None]:
    """Delete until when messages were mailed to a user."""
    yield Command("UNLINK", UserKeys(prefix, user).digest)
