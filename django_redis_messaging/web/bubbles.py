"""Messages and chats as the pages show them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta

from django.utils import timezone
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..services.chats import ChatSummary, Message
from .identity import Identity
from .people import Person, hue, initials, people

#: messages of one person closer than this stand under one name
TOGETHER = timedelta(minutes=5)
#: how many members' names stand for a chat without a title
NAMED = 3
#: characters of a message that a list shows
EXCERPT = 120

_ADDRESS = re.compile(r"""https?://[^\s<>"'\x00-\x1f]+""")
#: what ends a sentence is no part of the address before it
_TRAILING = ".,;:!?)]}*_'\""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bubble:
    """A message with what its surroundings say about it."""

    message: Message
    author: Person
    mine: bool
    may_delete: bool
    #: it stands under the name of the one before it
    follows: bool
    #: the day, where it is another than that of the one before it
    new_day: date | None
    #: it is the first of what the reader has not read
    first_unread: bool

    @property
    def may_edit(self) -> bool:
        return self.mine and not self.message.deleted

    @property
    def html(self) -> SafeString:
        return linked(self.message.body)

    @property
    def day(self) -> date:
        return day_of(self.message.sent_at)


def bubbles(
    messages: Sequence[Message], *, identity: Identity, me: str, owner: bool, unread: int = 0
) -> Iterator[Bubble]:
    """Each message as shown to the member `me`, of whose view the last `unread` by others are unread."""
    authors = {person.id: person for person in people(identity, {entry.sender for entry in messages})}
    begin = _first_unread(messages, me, unread)
    previous: Message | None = None
    for message in messages:
        moved_on = previous is None or day_of(previous.sent_at) != day_of(message.sent_at)
        yield Bubble(
            message=message,
            author=authors[message.sender],
            mine=message.sender == me,
            may_delete=not message.deleted and (owner or message.sender == me),
            follows=previous is not None and not moved_on and _together(previous, message),
            new_day=day_of(message.sent_at) if moved_on else None,
            first_unread=message.id == begin,
        )
        previous = message


def _together(previous: Message, message: Message) -> bool:
    return previous.sender == message.sender and message.sent_at - previous.sent_at < TOGETHER


def _first_unread(messages: Sequence[Message], me: str, unread: int) -> int | None:
    others = [message.id for message in messages if message.sender != me]
    return others[-unread:][0] if unread and others else None


def day_of(moment: datetime) -> date:
    return timezone.localtime(moment).date()


def linked(body: str) -> SafeString:
    """The body escaped, with web addresses as links.

    >>> linked("<b> see https://example.com/?a=1&b.")
    '&lt;b&gt; see <a href="https://example.com/?a=1&amp;b" rel="noopener noreferrer nofollow ugc" \
target="_blank">https://example.com/?a=1&amp;b</a>.'
    """
    parts, end = [], 0
    for match in _ADDRESS.finditer(body):
        address = match[0].rstrip(_TRAILING)
        parts += [escape(body[end : match.start()]), _link(address)]
        end = match.start() + len(address)
    # Every part is escaped, by escape() or format_html().
    return mark_safe("".join([*parts, escape(body[end:])]))  # noqa: S308


def _link(address: str) -> SafeString:
    attributes = mark_safe('rel="noopener noreferrer nofollow ugc" target="_blank"')
    return format_html('<a href="{0}" {1}>{0}</a>', address, attributes)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A chat in the list."""

    summary: ChatSummary
    title: str
    #: what was said last, and by whom, in one line
    excerpt: str
    #: for its avatar: a chat of two has the other one's
    face: Person

    @property
    def id(self) -> str:
        return self.summary.chat_id

    @property
    def initials(self) -> str:
        return initials(self.title)

    @property
    def hue(self) -> int:
        return hue(self.face.id)


def rows(summaries: Sequence[ChatSummary], *, identity: Identity, me: str) -> list[Row]:
    """The chats as shown to the member `me`."""
    others = {chat.chat_id: _others(chat, me) for chat in summaries if not chat.title}
    senders = {chat.last_message.sender for chat in summaries if chat.last_message}
    labels = identity.labels(senders.union(*others.values()))
    return [_row(chat, others.get(chat.chat_id, []), labels, me) for chat in summaries]


def _row(chat: ChatSummary, others: Sequence[str], labels: dict[str, str], me: str) -> Row:
    title = chat.title or named([labels[member] for member in others], chat.member_count - 1)
    face = others[0] if chat.member_count == 2 and others else chat.chat_id
    return Row(
        summary=chat,
        title=title,
        excerpt=_excerpt(chat.last_message, labels, me, alone=chat.member_count <= 2),
        face=Person(face, title),
    )


def _others(chat: ChatSummary, me: str) -> list[str]:
    return [member for member in chat.members if member != me][:NAMED]


def named(labels: Iterable[str], count: int) -> str:
    """What a chat without a title is called: by the names of `count` others, of whom some are given."""
    shown = list(labels)
    if not shown:
        return _("Only you")
    names = ", ".join(shown)
    rest = count - len(shown)
    if rest <= 0:
        return names
    text = ngettext("%(names)s and %(rest)s other", "%(names)s and %(rest)s others", rest)
    return text % {"names": names, "rest": rest}


def _excerpt(message: Message | None, labels: dict[str, str], me: str, *, alone: bool) -> str:
    if message is None:
        return ""
    if message.deleted:
        return _("Message deleted")
    text = Truncator(" ".join(message.body[: EXCERPT * 2].split())).chars(EXCERPT)
    if message.sender == me:
        return _("You: %(text)s") % {"text": text}
    if alone:
        return text
    return _("%(name)s: %(text)s") % {"name": labels[message.sender], "text": text}
