"""Messages and chats as the pages show them."""

from __future__ import annotations

import dataclasses
import json
import logging
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..core.keys import MAX_NAME_BYTES
from ..errors import MessagingError
from ..services.chats import Changes, Chat, ChatEvent, ChatSummary, Message
from ..services.chats.chat import MAX_MENTIONS
from ..services.chats.direct import is_direct
from ..services.directories.folding import fold
from ..services.mailboxes import notify_many
from .identity import Identity
from .people import People, Person, hue, initials, people
from .texts import NameSearch, body_html, has_place, is_cut, plain_texts, visible_text, without_bidi_controls

#: bytes of the messages in an answer
MAX_BYTES = 256 * 1024


def fitting(messages: Iterable[dict[str, Any]], max_bytes: int = MAX_BYTES) -> list[dict[str, Any]]:
    """The first messages that have at most `max_bytes` together as JSON, but at least one. Takes at most one
    more from an iterator: what does not fit is not rendered.

    >>> fitting([{"id": 1}, {"id": 2}, {"id": 3}], max_bytes=20)
    [{'id': 1}, {'id': 2}]
    """
    found: list[dict[str, Any]] = []
    size = 0
    for message in messages:
        size += len(json.dumps(message, ensure_ascii=False).encode())
        if size > max_bytes and found:
            break
        found.append(message)
    return found


def count_fitting(sizes: Iterable[int], max_bytes: int) -> int:
    """How many of the first sizes have at most this sum, but at least one.

    >>> count_fitting([5, 5, 1], 9), count_fitting([10, 1], 9), count_fitting([], 9)
    (1, 1, 0)
    """
    count = total = 0
    for size in sizes:
        total += size
        if total > max_bytes and count:
            break
        count += 1
    return count


def split_changes(changes: Changes, count: int) -> tuple[Changes, Changes | None]:
    """The changes with the first `count` of the new and then of the edited messages, and those with the rest,
    as the next call would return them; None if there is no rest."""
    size, cut = len(changes.messages), max(count - len(changes.messages), 0)
    if count >= size + len(changes.edited):
        return changes, None
    messages = changes.messages[:count]
    left_out = changes.edit_numbers[cut:]
    first = dataclasses.replace(
        changes,
        messages=messages,
        cursor=messages[-1].cursor if messages else changes.cursor,
        edited=changes.edited[:cut],
        edit_numbers=changes.edit_numbers[:cut],
        # directly before the first one that is left out
        edits=left_out[0] - 1 if left_out else changes.edits,
        has_more=True,
    )
    rest = dataclasses.replace(
        changes,
        messages=changes.messages[count:],
        edited=changes.edited[cut:],
        edit_numbers=left_out,
        gap=0, reset=False, edits_missed=False, events=[],
    )  # fmt: skip
    return first, rest


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


#: messages by one sender that are closer than this are grouped under one name
GROUPING_INTERVAL = timedelta(minutes=5)
#: members whose names make the title of a chat without one
NAMES_IN_TITLE = 3
#: characters of the newest message in the list of chats
EXCERPT_LENGTH = 120


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """The message that another one replies to."""

    id: int
    author: Person
    #: its text in one line
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MessageView:
    """A message with everything a template needs to show it."""

    message: Message
    author: Person
    mine: bool
    may_delete: bool
    #: whether it is shown under the same name as the message before it
    follows: bool
    #: the day, if the message before it is of another day
    new_day: date | None
    #: whether it is the first message that the reader has not read
    first_unread: bool
    #: the message that it replies to; None if there is none, or if the reader can't see it (any more)
    quote: Quote | None
    #: the names of the members whom it mentions, and the reader's name if the reader is one of them
    mentions: Sequence[str]
    own_name: str

    @property
    def sent_at(self) -> datetime:
        """The time in the site's time zone; the browser shows it in the viewer's."""
        return timezone.localtime(self.message.sent_at)

    @property
    def may_edit(self) -> bool:
        return self.mine and not self.message.deleted

    @property
    def permissions(self) -> str:
        """What the reader may do with the message: some of the words "edit" and "delete"."""
        permitted = {"edit": self.may_edit, "delete": self.may_delete}
        return " ".join(action for action, is_permitted in permitted.items() if is_permitted)

    @property
    def html(self) -> SafeString:
        """The body, folded if it is long; only its first lines if `is_cut`."""
        return body_html(self.message.body, mentions=self.mentions, own=self.own_name)

    @property
    def is_cut(self) -> bool:
        """Whether the body is so long that only the page of this message shows all of it."""
        return is_cut(self.message.body)

    @property
    def excerpt(self) -> str:
        return one_line(self.message)

    @property
    def day(self) -> date:
        return local_day(self.message.sent_at)


def message_views(
    messages: Sequence[Message],
    *,
    people: People,
    me: str,
    owner: bool,
    read_id: int | None = None,
    quoted: Sequence[Message] = (),
) -> Iterator[MessageView]:
    """The messages as the member `me` sees them. `read_id`: up to where they have read; `quoted`: messages
    that these reply to."""
    known = {message.id: message for message in (*quoted, *messages)}
    add_authors(people, known.values(), me=me)
    first_unread = _first_unread_id(messages, me, read_id)
    previous: Message | None = None
    for message in messages:
        new_day = previous is None or local_day(previous.sent_at) != local_day(message.sent_at)
        yield MessageView(
            message=message,
            author=people[message.sender],
            mine=message.sender == me,
            may_delete=not message.deleted and (owner or message.sender == me),
            follows=(
                previous is not None
                and not new_day
                and message.id != first_unread
                and _is_grouped(previous, message)
            ),
            new_day=local_day(message.sent_at) if new_day else None,
            first_unread=message.id == first_unread,
            mentions=[people[member].label for member in message.mentions],
            own_name=people[me].label if me in message.mentions else "",
            quote=_quote(known.get(message.reply_to or 0), people),
        )
        previous = message


def add_authors(people: People, messages: Collection[Message], *, me: str) -> None:
    """Add the people whom the messages show to the member `me`, whose own ones have no name and no avatar."""
    quoted = {message.reply_to for message in messages}
    for message in messages:
        people.add([message.sender, *message.mentions])
        if message.sender != me or message.id in quoted:
            people.show([message.sender])


def _is_grouped(previous: Message, message: Message) -> bool:
    return previous.sender == message.sender and message.sent_at - previous.sent_at < GROUPING_INTERVAL


def _first_unread_id(messages: Sequence[Message], me: str, read_id: int | None) -> int | None:
    """The id of the first message by others after `read_id`, if that is known."""
    if read_id is None:
        return None
    return next((one.id for one in messages if one.id > read_id and one.sender != me), None)


def _quote(message: Message | None, people: People) -> Quote | None:
    if message is None:
        return None
    return Quote(id=message.id, author=people[message.sender], text=one_line(message))


def local_day(moment: datetime) -> date:
    """The day of `moment` in the current time zone."""
    return timezone.localtime(moment).date()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChatRow:
    """A chat in the list of chats."""

    summary: ChatSummary
    title: str
    #: the other member of a direct chat
    other: Person | None
    #: in a group of two that has a title: the name of the other member, whom the title can't hide
    companion: str
    #: the newest message and its sender, in one line
    excerpt: str
    face: Face

    @property
    def id(self) -> str:
        return self.summary.chat_id

    @property
    def version(self) -> str:
        """Changes with what the row shows: the browser replaces only the rows that changed."""
        message = self.summary.last_message
        # Not whether the other member has a namesake: that depends on the other rows.
        shown = (
            self.title,
            self.other and (self.other.description, self.other.picture),
            self.companion,
            self.excerpt,
            self.summary.unread,
            self.summary.muted,
            message and message.cursor,
        )
        return f"{zlib.crc32(repr(shown).encode()):x}"

    @property
    def sent_at(self) -> datetime | None:
        """The time of the newest message in the site's time zone; the browser shows it in the viewer's."""
        message = self.summary.last_message
        return timezone.localtime(message.sent_at) if message else None

    @property
    def active(self) -> int:
        """When something happened in the chat for the last time, in ms: the list is sorted by it."""
        return round(self.summary.active_at.timestamp() * 1000)

    @property
    def is_group(self) -> bool:
        return self.face.is_group


def chat_rows(summaries: Sequence[ChatSummary], *, people: People, me: str) -> list[ChatRow]:
    """The chats as the member `me` sees them."""
    add_rows(people, summaries, me)
    return [_chat_row(chat, people, me) for chat in summaries]


def add_rows(people: People, summaries: Iterable[ChatSummary], me: str) -> None:
    """Add the people whom the rows of the chats show."""
    for chat in summaries:
        (people.show if is_direct(chat.chat_id) else people.add)(_other_members(chat, me))
        people.add(_namesakes_in(chat))


def _chat_row(chat: ChatSummary, people: People, me: str) -> ChatRow:
    others, title = _other_members(chat, me), shown_title(chat.chat_id, chat.title)
    other = people[others[0]] if others and is_direct(chat.chat_id) else None
    shows_names = chat.member_count == 2 or not title
    named = [other.label] if other else people.names(others if shows_names else (), among=_namesakes_in(chat))
    names = join_names(named, chat.member_count - 1)
    return ChatRow(
        summary=chat,
        title=title or names,
        other=other,
        companion=names if title and chat.member_count == 2 and others else "",
        excerpt=_excerpt(chat, people, me),
        face=chat_face(chat.chat_id, names, other),
    )


def _namesakes_in(chat: ChatSummary) -> set[str]:
    """The people from whom those whom a row names are told apart: so it doesn't depend on other rows."""
    if is_direct(chat.chat_id):
        return set()
    return {*chat.members, *([chat.last_message.sender] if chat.last_message else [])}


def shown_title(chat_id: str, title: str) -> str:
    """The title of a group, if it has one. A direct chat is shown under the name of the other member only."""
    return "" if is_direct(chat_id) else visible_text(title)


@dataclasses.dataclass(frozen=True, slots=True)
class Face:
    """The avatar of a chat: that of the other member of a direct chat, or the sign of a group."""

    hue: int
    initials: str
    is_group: bool
    picture: str = ""


def chat_face(chat_id: str, names: str, other: Person | None) -> Face:
    """The avatar of a chat. `names`: of the other members; `other`: that of a direct chat."""
    if other is not None:
        return Face(other.hue, other.initials, False, other.picture)
    if is_direct(chat_id):
        return Face(hue(chat_id), initials(names), False)
    return Face(hue(chat_id), "", True)


def kind_text(chat_id: str, member_count: int) -> str:
    """What a chat is, in words: a title alone can look like a person's name."""
    if is_direct(chat_id):
        return _("Direct chat")
    text = ngettext("Group · %(count)s member", "Group · %(count)s members", member_count)
    return text % {"count": member_count}


def page_title(chat_id: str, title: str) -> str:
    """The name of a chat for the title of its pages, where nothing else says what it is."""
    return title if is_direct(chat_id) else _("Group: %(title)s") % {"title": title}


def _other_members(chat: ChatSummary, me: str) -> list[str]:
    return [member for member in chat.members if member != me][:NAMES_IN_TITLE]


def join_names(labels: Iterable[str], total: int) -> str:
    """A list of people in words: `labels`, and the number of others if `total` is greater."""
    shown = list(labels)
    if not shown:
        return _("Only you")
    names = ", ".join(shown)
    rest = total - len(shown)
    if rest <= 0:
        return names
    text = ngettext("%(names)s and %(rest)s other", "%(names)s and %(rest)s others", rest)
    return text % {"names": names, "rest": rest}


def _excerpt(chat: ChatSummary, people: People, me: str) -> str:
    message = chat.last_message
    if message is None:
        return ""
    text = one_line(message)
    if message.deleted:
        return text
    if message.sender == me:
        return _("You: %(text)s") % {"text": text}
    if chat.member_count <= 2:
        return text
    (name,) = people.names([message.sender], among=_namesakes_in(chat))
    return _("%(name)s: %(text)s") % {"name": name, "text": text}


def one_line(message: Message) -> str:
    """The beginning of a message's text in one line."""
    if message.deleted:
        return _("Message deleted")
    body = without_bidi_controls(message.body[: EXCERPT_LENGTH * 2])
    return Truncator(" ".join(body.split())).chars(EXCERPT_LENGTH)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EventView:
    """A quiet entry between the messages: who joined or left, or what was changed."""

    event: ChatEvent
    text: str

    def as_json(self) -> dict[str, Any]:
        event = self.event
        return {
            "number": event.number,
            "after": event.after_id,
            "at": event.at.isoformat(),
            "text": self.text,
        }


#: kind of event → its text
_EVENT_TEXTS = {
    "joined": gettext_lazy("%(users)s joined."),
    "added": gettext_lazy("%(actor)s added %(users)s."),
    "left": gettext_lazy("%(users)s left."),
    "removed": gettext_lazy("%(actor)s removed %(users)s."),
    "renamed": gettext_lazy("%(actor)s renamed the chat to “%(title)s”."),
    "untitled": gettext_lazy("%(actor)s removed the chat's title."),
    "owner": gettext_lazy("%(users)s became an owner."),
    "member": gettext_lazy("%(users)s is no longer an owner."),
}


def event_views(events: Sequence[ChatEvent], *, people: People, members: Iterable[str]) -> list[EventView]:
    """The quiet entries as members see them; those whom they name are told apart from the `members`, too."""
    ids = people_of_events(events)
    among = {*ids, *members} if ids else set()
    return [EventView(event=event, text=_event_text(event, people, among)) for event in events]


def people_of_events(events: Iterable[ChatEvent]) -> set[str]:
    """The people whom the quiet entries name."""
    return {user for event in events for user in (*event.users, event.actor) if user}


def _event_text(event: ChatEvent, people: People, among: Collection[str]) -> str:
    title = visible_text(event.title)
    kind = "untitled" if event.kind == "renamed" and not title else event.kind
    users = join_names(people.names(event.users, among=among), event.count) if event.users else ""
    actor = "".join(people.names([event.actor] if event.actor else [], among=among))
    return str(_EVENT_TEXTS[kind]) % {"actor": actor, "users": users, "title": title}
