"""Messages, chats and events as one reader sees them: the same in pages, JSON, polls and streams.

The functions read nothing from Redis. They take what was read, the `people` whom it names, and the reader:
the member `me`, or a `Reader` for JSON. A function `add_…` adds the people whom the others will name; if all
are added before the first one is named, each hook of the identity is called once.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import chain
from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..services.chats import Changes, ChatEvent, ChatSummary, Message
from ..services.chats.keys import is_direct
from .people import People, Person, hue, initials
from .texts import body_html, is_cut, visible_text, without_bidi_controls

#: messages by one sender that are closer than this are grouped under one name
GROUPING_INTERVAL = timedelta(minutes=5)
#: members whose names make the title of a chat without one
NAMES_IN_TITLE = 3
#: characters of the newest message in the list of chats
EXCERPT_LENGTH = 120
#: bytes of the messages in an answer
MAX_BYTES = 256 * 1024


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """The member who gets an answer in JSON."""

    me: str
    request: HttpRequest
    #: whether messages and rows have HTML instead of their texts
    html: bool

    def render(self, template: str, **context: Any) -> SafeString:
        """The HTML of a template of the pages, with the URLs and the context processors of the request."""
        return render_to_string(f"django_redis_messaging/{template}", context, request=self.request)


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


def messages_json(
    messages: Sequence[Message], *, people: People, reader: Reader, owner: bool, quoted: Sequence[Message]
) -> Iterator[dict[str, Any]]:
    """The messages in the format of all JSON answers, rendered one by one: see `message_views`."""
    for view in message_views(messages, people=people, me=reader.me, owner=owner, quoted=quoted):
        yield message_json(view, reader)


def message_json(view: MessageView, reader: Reader) -> dict[str, Any]:
    """A message in the format of all JSON answers."""
    message = view.message
    data = {
        "id": message.id,
        "cursor": message.cursor,
        "nonce": message.nonce,
        "sender": message.sender,
        "label": view.author.label,
        **({} if view.mine else view.author.looks),
        "mine": view.mine,
        "data": message.data,
        "reply_to": message.reply_to,
        "mentions": message.mentions,
        "sent_at": message.sent_at.isoformat(),
        "edited_at": message.edited_at.isoformat() if message.edited_at else None,
        "deleted": message.deleted,
    }
    if reader.html:
        return {**data, "html": reader.render("_message.html", item=view, chat={"chat_id": message.chat_id})}
    return {**data, "body": message.body}


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


def one_line(message: Message) -> str:
    """The beginning of a message's text in one line."""
    if message.deleted:
        return _("Message deleted")
    body = without_bidi_controls(message.body[: EXCERPT_LENGTH * 2])
    return Truncator(" ".join(body.split())).chars(EXCERPT_LENGTH)


@dataclasses.dataclass(frozen=True, slots=True)
class Face:
    """The avatar of a chat: that of the other member of a direct chat, or the sign of a group."""

    hue: int
    initials: str
    is_group: bool
    picture: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """What a chat is called, and how it looks."""

    chat_id: str
    member_count: int
    title: str
    #: in a group of two that has a title: the name of the other member, whom the title can't hide
    companion: str
    #: the other member of a direct chat
    other: Person | None
    face: Face

    @property
    def members(self) -> str:
        """What the chat is, in words: a title alone can look like a person's name."""
        if is_direct(self.chat_id):
            return _("Direct chat")
        text = ngettext("Group · %(count)s member", "Group · %(count)s members", self.member_count)
        return text % {"count": self.member_count}

    @property
    def as_json(self) -> dict[str, str]:
        """What the head of a room shows."""
        looks = self.other.looks if self.other else {}
        return {"title": self.title, "companion": self.companion, "members": self.members, **looks}


def heading(chat: Changes | ChatSummary, *, people: People, me: str, among: Collection[str]) -> Heading:
    """What the member `me` calls a chat. Members whom it names are told apart from those `among`."""
    title, others = shown_title(chat.chat_id, chat.title), other_members(chat.members, me)
    other = people[others[0]] if others and is_direct(chat.chat_id) else None
    shows_names = not title or chat.member_count == 2
    labels = [other.label] if other else people.names(others if shows_names else (), among=among)
    names = join_names(labels, chat.member_count - 1)
    return Heading(
        chat_id=chat.chat_id,
        member_count=chat.member_count,
        title=title or names,
        companion=names if title and chat.member_count == 2 and others else "",
        other=other,
        face=_face(chat.chat_id, names, other),
    )


def shown_title(chat_id: str, title: str) -> str:
    """The title of a group, if it has one. A direct chat is shown under the name of the other member only."""
    return "" if is_direct(chat_id) else visible_text(title)


def other_members(members: Sequence[str], me: str) -> list[str]:
    """The first of the other members, whose names can make a title."""
    return [member for member in members if member != me][:NAMES_IN_TITLE]


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


def _face(chat_id: str, names: str, other: Person | None) -> Face:
    """The avatar of a chat. `names`: of the other members; `other`: that of a direct chat."""
    if other is not None:
        return Face(other.hue, other.initials, False, other.picture)
    if is_direct(chat_id):
        return Face(hue(chat_id), initials(names), False)
    return Face(hue(chat_id), "", True)


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
        (people.show if is_direct(chat.chat_id) else people.add)(other_members(chat.members, me))
        people.add(_namesakes_in(chat))


def _chat_row(chat: ChatSummary, people: People, me: str) -> ChatRow:
    shown = heading(chat, people=people, me=me, among=_namesakes_in(chat))
    return ChatRow(
        summary=chat,
        title=shown.title,
        other=shown.other,
        companion=shown.companion,
        excerpt=_excerpt(chat, people, me),
        face=shown.face,
    )


def row_json(row: ChatRow, reader: Reader) -> dict[str, Any]:
    """A chat of the list in the format of all JSON answers."""
    message = row.summary.last_message
    data: dict[str, Any] = {
        "id": row.id,
        "version": row.version,
        "group": row.is_group,
        "unread": row.summary.unread,
        "muted": row.summary.muted,
        "members": row.summary.member_count,
        "last_id": message.id if message else None,
        "last_sent_at": message.sent_at.isoformat() if message else None,
    }
    if reader.html:
        return {**data, "html": reader.render("_row.html", row=row)}
    looks = row.other.looks if row.other else {}
    return {**data, "title": row.title, **looks, "excerpt": row.excerpt}


def row_variant(chat: ChatSummary, me: str) -> tuple[Any, ...]:
    """What decides whether two members get the same `row_json`, if both get HTML or neither does."""
    message = chat.last_message
    is_personal = me in chat.members or (message is not None and me == message.sender)
    return (chat.chat_id, chat.unread, chat.muted, message is not None, me if is_personal else "")


def _namesakes_in(chat: ChatSummary) -> set[str]:
    """The people from whom those whom a row names are told apart: so it doesn't depend on other rows."""
    if is_direct(chat.chat_id):
        return set()
    return {*chat.members, *([chat.last_message.sender] if chat.last_message else [])}


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


def add_room(people: People, state: Changes, me: str) -> None:
    """Add the people whom the head and the texts of a room name, and those from whom they are told apart."""
    others = other_members(state.members, me)
    if is_direct(state.chat_id):
        people.show(others)
    shows_names = state.member_count == 2 or not shown_title(state.chat_id, state.title)
    named = {*state.typists, *_people_of_events(state.events), *_readers(state, me)}
    if named or (shows_names and others):
        people.add({*named, *state.members})


def room_context(state: Changes, *, people: People, me: str) -> dict[str, Any]:
    """What the templates of the pages about a chat show of the chat itself."""
    add_room(people, state, me)
    shown = room_heading(state, people=people, me=me)
    name = shown.other.name if shown.other else shown.title
    return {
        "chat": state,
        "heading": shown,
        "other": shown.other,
        # Nothing else says there what it is.
        "page_title": name if is_direct(state.chat_id) else _("Group: %(title)s") % {"title": name},
        "face": shown.face,
    }


def room_heading(state: Changes, *, people: People, me: str) -> Heading:
    """The head of a room."""
    return heading(state, people=people, me=me, among=state.members)


def room_json(state: Changes, *, people: People, older: bool, newer: bool) -> dict[str, Any]:
    """What the browser needs to know to show some messages of a room, and to keep them up to date. `older`,
    `newer`: whether the room has others before and after them."""
    return {
        "newest": state.last_id,
        "older": older,
        "newer": newer,
        "gap_text": gap_text(state.removed),
        "divider": divider_text(state.unread),
        **_changing_json(state, people),
        "events": _events_json(state, people),
    }


def changes_json(
    changes: Changes, quoted: Sequence[Message], *, people: People, reader: Reader
) -> tuple[dict[str, Any], int]:
    """As much of the changes as fits into an answer, and how many of the messages that are. `quoted`: the
    messages that these reply to."""
    add_room(people, changes, reader.me)
    known = [*quoted, *changes.messages, *changes.edited]
    add_authors(people, known, me=reader.me)
    owner = changes.role == "owner"
    new, edited = (
        messages_json(messages, people=people, reader=reader, owner=owner, quoted=known)
        for messages in (changes.messages, changes.edited)
    )
    found = fitting(chain(new, edited))
    part, _ = split_changes(changes, len(found))
    size = len(part.messages)
    data = {**_besides_messages(part, people, reader.me), "messages": found[:size], "has_more": part.has_more}
    if len(found) > size:
        data["changed"] = sorted(found[size:], key=lambda message: message["id"])
    return data, len(found)


def changes_variant(changes: Changes, me: str) -> tuple[Any, ...]:
    """What decides whether two members get the same `changes_json`, apart from their own positions."""
    messages = [*changes.messages, *changes.edited]
    is_personal = (
        me == changes.last_sender
        or any(message.sender == me or me in message.mentions for message in messages)
        or changes.member_count == 2  # each sees the name of the other
        or (not visible_text(changes.title) and me in changes.members[:NAMES_IN_TITLE])
    )
    hidden = tuple(one.reply_to for one in messages if one.reply_to and one.reply_to < changes.oldest_id)
    edited = tuple(message.id for message in changes.edited)
    return (changes.role, tuple(changes.typists), edited, hidden, me if is_personal else "")


def _besides_messages(changes: Changes, people: People, me: str) -> dict[str, Any]:
    """What changed besides the messages."""
    data = {
        **_changing_json(changes, people),
        "gap": changes.gap,
        "gap_text": gap_text(changes.gap),
        "reset": changes.reset,
        "edits_missed": changes.edits_missed,
        "events": _events_json(changes, people),
    }
    if changes.members:
        data |= room_heading(changes, people=people, me=me).as_json
        data["read"] = changes.positions
        data["seen"] = seen_text(changes, people=people, me=me)
    return data


def _changing_json(state: Changes, people: People) -> dict[str, Any]:
    """The part of the state that each answer to a poll has."""
    return {
        "cursor": state.cursor,
        "edits": state.edits,
        "moved": state.moved,
        "event": state.event,
        "read_id": state.read_id,
        "unread": state.unread,
        "typing": _typing_text(state, people),
    }


def presence_json(chat_id: str, online: Collection[str]) -> dict[str, Any]:
    """Who else is online in a room."""
    count = len(online)
    text = ngettext("%(count)d online", "%(count)d online", count) % {"count": count} if count else ""
    return {"chat": chat_id, "online": sorted(online), "text": text}


def seen_text(state: Changes, *, people: People, me: str) -> str:
    """The text that says who has read the newest message, if it is of the member `me`."""
    readers = _readers(state, me)
    if not readers:
        return ""
    names = people.names(readers[:NAMES_IN_TITLE], among=state.members)
    return _("Seen by %(names)s") % {"names": join_names(names, len(readers))}


def _readers(state: Changes, me: str) -> list[str]:
    """The members who have read the newest message, and let others see it, if it is the member's own."""
    if state.last_sender != me:
        return []
    return [
        member
        for member, read_id in state.positions.items()
        if member != me and read_id >= state.last_id and member not in state.newcomers
    ]


def _typing_text(state: Changes, people: People) -> str:
    """The text that says who is typing."""
    typists = state.typists
    if not typists:
        return ""
    names = join_names(people.names(typists[:NAMES_IN_TITLE], among=state.members), len(typists))
    return ngettext("%(names)s is typing…", "%(names)s are typing…", len(typists)) % {"names": names}


def divider_text(unread: int) -> str:
    """The text above the first of `unread` messages."""
    return ngettext("%(count)s new message", "%(count)s new messages", unread) % {"count": unread}


def gap_text(gap: int) -> str:
    """The text that is shown where `gap` messages are missing."""
    if not gap:
        return ""
    text = ngettext("%(count)s older message was removed.", "%(count)s older messages were removed.", gap)
    return text % {"count": gap}


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


def _events_json(state: Changes, people: People) -> list[dict[str, Any]]:
    """The quiet entries between the messages: who joined or left, and what was changed. Those whom they name
    are told apart from the members, too."""
    ids = _people_of_events(state.events)
    among = {*ids, *state.members} if ids else set()
    return [
        {
            "number": event.number,
            "after": event.after_id,
            "at": event.at.isoformat(),
            "text": _event_text(event, people, among),
        }
        for event in state.events
    ]


def _people_of_events(events: Iterable[ChatEvent]) -> set[str]:
    return {user for event in events for user in (*event.users, event.actor) if user}


def _event_text(event: ChatEvent, people: People, among: Collection[str]) -> str:
    title = visible_text(event.title)
    kind = "untitled" if event.kind == "renamed" and not title else event.kind
    users = join_names(people.names(event.users, among=among), event.count) if event.users else ""
    actor = "".join(people.names([event.actor] if event.actor else [], among=among))
    return str(_EVENT_TEXTS[kind]) % {"actor": actor, "users": users, "title": title}


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
