"""The search in a chat."""

from __future__ import annotations

import json
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import conf
from ...errors import ChatNotFound, InvalidArgument, NotAMember
from ...services.chats import Changes, Message, Page
from ...services.chats.direct import is_direct
from .. import problems
from ..base import (
    INVALID_POSITION,
    MAX_ID_DIGITS,
    ChatMixin,
    MessagingPage,
    MessagingView,
    conditional_json,
    get_checked_position,
    get_number,
    get_position,
    get_search,
    parse_id,
)
from ..people import Person, blocked_in
from ..problems import Problem
from ..rendering import (
    NAMES_IN_TITLE,
    MessageView,
    add_authors,
    add_rows,
    chat_face,
    chat_rows,
    count_fitting,
    event_views,
    fitting,
    join_names,
    kind_text,
    message_views,
    one_line,
    page_title,
    people_of_events,
    shown_title,
    split_changes,
)
from ..texts import body_html, markup, split
from .chats import ChatListMixin

#: messages on a page of a room
MESSAGES_PER_PAGE = 30
#: of these, how many are before the message that the page is about
MESSAGES_BEFORE = 10
#: the messages on a page of a room have at most so many bytes of HTML, but there is at least one
PAGE_BYTES = 128 * 1024
#: bytes of HTML around the text of a message
MARKUP_BYTES = 1200
#: a position after all messages
END = 2**52


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Messages of a chat around a position."""

    messages: Sequence[Message]
    #: whether there are older ones, and newer ones
    older: bool
    newer: bool

    def has_read(self, state: Changes) -> bool:
        """Whether the first unread message of the chat, if it is here, is the first one after those read."""
        return not self.older or self.messages[0].id <= state.read_id + 1


class RoomMixin(ChatMixin, MessagingView):
    """Reads a chat as one of its members sees it."""

    #: the members who joined first, up to 200; set by `state`
    member_ids: Sequence[str] = ()

    def state(self) -> Changes:
        """The chat without messages, in one round trip. Raises for users who are not members."""
        state = self.chat.changes(self.me, after=END)
        self.member_ids = state.members
        return state

    def window(
        self, state: Changes, position: int | None = None, *, limit: int = MESSAGES_PER_PAGE
    ) -> Window:
        """The messages around the one with id `position`, else the newest ones; as many as fit on a page."""
        if position is None:
            return newest_window(state, self.chat.history(self.me, limit=limit))
        first = max(min(position - MESSAGES_BEFORE, state.last_id - limit + 1), 1)
        messages = self.chat.history(self.me, after=first - 1, limit=limit).messages
        if messages and messages[-1].id < min(position, state.last_id):  # those before it are very long
            messages = self.chat.history(self.me, after=position - 1, limit=limit).messages
        return make_window(state, fitting_around(messages, position))

    def add_people(self, state: Changes) -> None:
        """Add the people whom the head and the texts of the room name, and those from whom they are told
        apart."""
        self.member_ids = state.members
        if is_direct(self.chat.id):
            self.people.show(self.others)
        shows_names = state.member_count == 2 or not shown_title(self.chat.id, state.title)
        named = {*state.typists, *people_of_events(state.events), *self.readers(state)}
        if named or (shows_names and self.others):
            self.people.add({*named, *self.member_ids})

    def message_views(
        self,
        messages: Sequence[Message],
        *,
        owner: bool,
        read_id: int | None = None,
        quoted: Sequence[Message] | None = None,
    ) -> list[MessageView]:
        """The messages as the user sees them; `owner`: whether the user is an owner of the chat. `quoted`:
        what `quoted` returns for them, if it was called before."""
        if quoted is None:
            quoted = self.quoted(messages)
        people, me = self.people, self.me
        return list(
            message_views(messages, people=people, me=me, owner=owner, read_id=read_id, quoted=quoted)
        )

    def quoted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that these reply to, and that are not among them."""
        known = {message.id for message in messages}
        ids = {message.reply_to for message in messages if message.reply_to and message.reply_to not in known}
        return self.chat.get_messages(self.me, sorted(ids)) if ids else []

    def title(self, title: str, member_count: int) -> str:
        """The chat's title, or the names of the other members."""
        return shown_title(self.chat.id, title) or self.names(member_count)

    def names(self, member_count: int) -> str:
        """The names of the other members, as they are shown for a chat without a title."""
        return join_names(self.told_apart(self.others), member_count - 1)

    @property
    def other(self) -> Person | None:
        """The other member of a direct chat."""
        return self.people[self.others[0]] if self.others and is_direct(self.chat.id) else None

    @property
    def others(self) -> list[str]:
        """The first of the other members."""
        return [member for member in self.member_ids if member != self.me][:NAMES_IN_TITLE]

    def companion(self, title: str, member_count: int) -> str:
        """In a group of two that has a title: the name of the other member, whom the title can't hide."""
        return self.names(2) if member_count == 2 and shown_title(self.chat.id, title) else ""

    def heading(self, state: Changes) -> dict[str, str]:
        """What the head of a room shows."""
        title, count, other = state.title, state.member_count, self.other
        return {
            "title": other.label if other else self.title(title, count),
            "companion": self.companion(title, count),
            "members": kind_text(self.chat.id, count),
            **(other.looks if other else {}),
        }

    def chat_context(self, state: Changes) -> dict[str, Any]:
        """What the pages about a chat show of the chat itself."""
        self.add_people(state)
        heading, other = self.heading(state), self.other
        return {
            "chat": state,
            "heading": heading,
            "other": other,
            "page_title": page_title(self.chat.id, other.name if other else heading["title"]),
            "face": chat_face(self.chat.id, heading["title"], other),
        }

    def seen_of(self, state: Changes) -> str:
        """The text that says who has read the user's newest message."""
        readers = self.readers(state)
        if not readers:
            return ""
        names = join_names(self.told_apart(readers[:NAMES_IN_TITLE]), len(readers))
        return _("Seen by %(names)s") % {"names": names}

    def readers(self, state: Changes) -> list[str]:
        """The members who have read the newest message, and let others see it, if it is the user's own."""
        if state.last_sender != self.me:
            return []
        return [
            member
            for member, read_id in state.positions.items()
            if member != self.me and read_id >= state.last_id and member not in state.newcomers
        ]

    def typing_text(self, typists: Sequence[str]) -> str:
        """Who is typing."""
        if not typists:
            return ""
        names = join_names(self.told_apart(typists[:NAMES_IN_TITLE]), len(typists))
        return ngettext("%(names)s is typing…", "%(names)s are typing…", len(typists)) % {"names": names}

    def told_apart(self, ids: Sequence[str]) -> list[str]:
        """The names of members."""
        return self.people.names(ids, among=self.member_ids)

    def room_state(self, state: Changes, window: Window) -> dict[str, Any]:
        """What the browser needs to know to show the window and to keep it up to date."""
        events = event_views(state.events, people=self.people, members=self.member_ids)
        return {
            "newest": state.last_id,
            "older": window.older,
            "newer": window.newer,
            "gap_text": gap_text(state.removed),
            "divider": divider_text(state.unread),
            **self.changing_state(state),
            "events": [event.as_json() for event in events],
        }

    def changing_state(self, state: Changes) -> dict[str, Any]:
        """The part of the state that each answer to a poll has."""
        return {
            "cursor": state.cursor,
            "edits": state.edits,
            "moved": state.moved,
            "event": state.event,
            "read_id": state.read_id,
            "unread": state.unread,
            "typing": self.typing_text(state.typists),
        }


class RoomView(ChatListMixin, RoomMixin, MessagingPage):
    """A chat around a position, with the form to write. Showing it acks nothing.

    Without parameters, it begins a little before the first unread message. `?at=` selects another message,
    `?before=` and `?after=` the pages around a position.
    """

    checks_membership_first = False
    template_name = "django_redis_messaging/room.html"
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        # Membership first: others must not learn from the answer whether the chat exists. And before the
        # messages: after an edit in between, the number is too low, and the next poll reads the edit.
        try:
            state = self.state()
        except (ChatNotFound, NotAMember):
            person = None if self.wants_json else blocked_in(self.active_identity, self.me, chat_id)
            if person is None:
                raise
            self.template_name = "django_redis_messaging/blocked.html"
            self.people.show_all([person])
            return self.page({"person": self.people[person.id], "chat_id": chat_id})
        window, owner = self.selected_window(state), state.role == "owner"
        read_id = state.read_id if window.has_read(state) else None
        quoted, replied = self.quoted(window.messages), self.selected_message("reply")
        summaries = self.summaries()
        # All people before the first one is read.
        add_rows(self.people, summaries, self.me)
        add_authors(self.people, [*window.messages, *quoted, *([replied] if replied else [])], me=self.me)
        context = self.chat_context(state)
        return self.page(
            {
                **context,
                "window": window,
                "rows": chat_rows(summaries, people=self.people, me=self.me),
                "message_views": self.message_views(
                    window.messages, owner=owner, read_id=read_id, quoted=quoted
                ),
                "last": window.messages[-1] if window.messages else None,
                "removed": gap_text(state.removed),
                "divider": divider_text(state.unread),
                "seen": self.seen_of(state),
                "editing": self.own_message("edit"),
                "replying": self.message_views([replied], owner=owner, quoted=())[0] if replied else None,
                "muted_until": timezone.localtime(state.muted_until) if state.muted_until else None,
                "request_id": uuid.uuid4().hex,
                "state": json.dumps(
                    {**self.room_state(state, window), **context["heading"], **self.constants()}
                ),
            }
        )

    def selected_window(self, state: Changes) -> Window:
        """The window that the parameters select."""
        query = self.request.GET
        before, after = get_position(query, "before"), get_position(query, "after")
        if before is not None:
            return newest_window(state, self.chat.history(self.me, before=before, limit=MESSAGES_PER_PAGE))
        if after is not None:
            page = self.chat.history(self.me, after=after, limit=MESSAGES_PER_PAGE)
            return make_window(state, fitting_around(page.messages, 0))
        if query.get("at"):
            return self.window(state, parse_id(query["at"]))
        return self.window(state, state.read_id + 1 if state.unread else None)

    def constants(self) -> dict[str, Any]:
        """What never changes while the page is shown."""
        chat_id = self.chat.id
        return {
            "chat": chat_id,
            "at": self.request.GET.get("at", ""),
            "window": conf.current().REQUEST_WINDOW,
            "urls": {
                "room": self.url("room", chat_id),
                "feed": self.url("room_feed", chat_id),
                **{name: self.url(name, chat_id) for name in ("send", "ack", "typing")},
            },
        }

    def own_message(self, parameter: str) -> Message | None:
        """The message that the parameter selects, if it is the user's own."""
        found = self.selected_message(parameter)
        return found if found and found.sender == self.me else None

    def selected_message(self, parameter: str) -> Message | None:
        value = self.request.GET.get(parameter)
        found = self.chat.get_messages(self.me, [parse_id(value)]) if value else []
        return next((message for message in found if not message.deleted), None)


def make_window(state: Changes, messages: Sequence[Message]) -> Window:
    """The window of these messages of a chat."""
    if not messages:
        return Window(messages=(), older=False, newer=False)
    older, newer = messages[0].id > state.oldest_id, messages[-1].id < state.last_id
    return Window(messages=messages, older=older, newer=newer)


def newest_window(state: Changes, page: Page) -> Window:
    """The newest messages of a page, as many as fit."""
    return make_window(state, fitting_around(page.messages, END))


def fitting_around(messages: Sequence[Message], position: int) -> Sequence[Message]:
    """As many messages as fit on a page: those from `position` on first, then those before them."""
    start = next((index for index, one in enumerate(messages) if one.id >= position), len(messages))
    newer, older = messages[start:], messages[:start]
    sizes = [len(body_html(message.body).encode()) + MARKUP_BYTES for message in (*newer, *reversed(older))]
    count = count_fitting(sizes, PAGE_BYTES)
    return messages[start - max(count - len(newer), 0) : start + count] if count else []


def divider_text(unread: int) -> str:
    """The text above the first of `unread` messages."""
    return ngettext("%(count)s new message", "%(count)s new messages", unread) % {"count": unread}


def gap_text(gap: int) -> str:
    """The text that is shown where `gap` messages are missing."""
    if not gap:
        return ""
    text = ngettext("%(count)s older message was removed.", "%(count)s older messages were removed.", gap)
    return text % {"count": gap}


#: messages in an answer
MESSAGES_PER_ANSWER = 50


class RoomFeedView(RoomMixin):
    """Parts of a chat as JSON. The parameters select which one:

    - `after` a cursor: what changed since; `edits`, `moved` and `events` are those of the last answer
    - `before` or `newer`: the messages directly before or after a position
    - `at` a message id, "unread" or "newest": the state of the room with the messages around that position
    """

    checks_membership_first = False
    json_only = True
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        query = request.GET
        try:
            places = {name: get_checked_position(query, name) for name in ("after", "before", "newer")}
            known = {name: get_number(query, name) for name in ("edits", "moved", "events")}
            at = query.get("at", "")
            position = parse_id(at) if at not in ("", "unread", "newest") else None
        except (InvalidArgument, Problem):
            # Others must get the same answer, in as many round trips, whatever the position.
            self.state()
            raise
        if at:
            return JsonResponse(self.around(at, position), json_dumps_params={"ensure_ascii": False})
        if places["before"] is not None:
            data = self.older(places["before"])
        elif places["newer"] is not None:
            data = self.newer(places["newer"])
        else:
            data = self.changes(places["after"] or 0, **known)
        return conditional_json(request, data)

    def around(self, at: str, position: int | None) -> dict[str, Any]:
        """The state of the room, with the messages around a position."""
        state = self.state()
        if at == "unread" and state.unread:
            position = state.read_id + 1
        window = self.window(state, position, limit=MESSAGES_PER_ANSWER)
        quoted = self.quoted(window.messages)
        self.add_people(state)
        add_authors(self.people, [*window.messages, *quoted], me=self.me)
        return {
            **self.room_state(state, window),
            "messages": list(self.as_json(window.messages, state, quoted)),
            **self.heading(state),
            "seen": self.seen_of(state),
        }

    def changes(self, after: str | int, **known: int | None) -> dict[str, Any]:
        """New and edited messages, and what else changed."""
        changes = self.chat.changes(self.me, after=after, limit=MESSAGES_PER_ANSWER, **known)
        return self.fitting_part(changes)[0]

    def changed(self, changes: Changes) -> dict[str, Any]:
        """What changed besides the messages."""
        events = event_views(changes.events, people=self.people, members=self.member_ids)
        data = {
            **self.changing_state(changes),
            "gap": changes.gap,
            "gap_text": gap_text(changes.gap),
            "reset": changes.reset,
            "edits_missed": changes.edits_missed,
            "events": [event.as_json() for event in events],
        }
        if changes.members:
            data |= self.heading(changes)
            data["read"] = changes.positions
            data["seen"] = self.seen_of(changes)
        return data

    def fitting_part(self, changes: Changes) -> tuple[dict[str, Any], int]:
        """As much of the changes as fits into an answer, and how many of the messages that are."""
        quoted = self.quoted([*changes.messages, *changes.edited])
        self.add_people(changes)
        known = [*quoted, *changes.messages, *changes.edited]
        add_authors(self.people, known, me=self.me)
        new = self.as_json(changes.messages, changes, known)
        edited = self.as_json(changes.edited, changes, known)
        found = fitting(chain(new, edited))
        part, _ = split_changes(changes, len(found))
        changed = found[len(part.messages) :]
        data = {
            **self.changed(part),
            "messages": found[: len(part.messages)],
            "has_more": part.has_more,
        }
        if changed:
            data["changed"] = sorted(changed, key=lambda message: message["id"])
        return data, len(found)

    def older(self, before: str | int) -> dict[str, Any]:
        """The newest of the messages before a position, as many as fit into an answer."""
        page = self.chat.history(self.me, before=before, limit=MESSAGES_PER_ANSWER)
        views = self.message_views(page.messages, owner=page.role == "owner")
        messages = fitting(message_json(self, view) for view in reversed(views))
        return self.part(page, messages[::-1])

    def newer(self, after: str | int) -> dict[str, Any]:
        """The oldest of the messages after a position, as many as fit into an answer."""
        page = self.chat.history(self.me, after=after, limit=MESSAGES_PER_ANSWER)
        return self.part(page, fitting(self.as_json(page.messages, page)))

    def part(self, page: Page, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Messages of a page: all of them, or only some."""
        is_cut = len(messages) < len(page.messages)
        gap = 0 if is_cut else page.gap
        return {
            "messages": messages,
            "gap": gap,
            "gap_text": gap_text(gap),
            "has_more": page.has_more or is_cut,
            "reset": page.reset,
        }

    def as_json(
        self, messages: Sequence[Message], read: Page | Changes, quoted: Sequence[Message] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The messages with their authors, rendered one by one."""
        for view in self.message_views(messages, owner=read.role == "owner", quoted=quoted):
            yield message_json(self, view)


def message_json(view: MessagingView, shown: MessageView) -> dict[str, Any]:
    """A message in the format of all JSON answers; if requested, with HTML instead of the body."""
    message = shown.message
    data = {
        "id": message.id,
        "cursor": message.cursor,
        "nonce": message.nonce,
        "sender": message.sender,
        "label": shown.author.label,
        **({} if shown.mine else shown.author.looks),
        "mine": shown.mine,
        "data": message.data,
        "reply_to": message.reply_to,
        "mentions": message.mentions,
        "sent_at": message.sent_at.isoformat(),
        "edited_at": message.edited_at.isoformat() if message.edited_at else None,
        "deleted": message.deleted,
    }
    if view.request.GET.get("html"):
        context = {"item": shown, "chat": {"chat_id": message.chat_id}}
        name = "django_redis_messaging/_message.html"
        return {**data, "html": render_to_string(name, context, request=view.request)}
    return {**data, "body": message.body}


class MessagePageView(RoomMixin, MessagingPage):
    """The whole text of a message, and what can be done with it. Long texts are shown in parts: `?from=` the
    position of a character selects one."""

    template_name = "django_redis_messaging/message.html"

    def get(self, request: HttpRequest, chat_id: str, message_id: str) -> HttpResponse:
        item = self.find(parse_number(message_id))
        if self.wants_json:
            data = {"message": message_json(self, item)}
            return JsonResponse(data, json_dumps_params={"ensure_ascii": False})
        parts = split(item.message.body)
        context = {"chat": {"chat_id": chat_id}, "item": item, **self.part(parts, item)}
        return self.page(context)

    def find(self, message_id: int) -> MessageView:
        """The message as the user sees it. Raises the Problem for one that doesn't exist."""
        # Also reads the chat for an id that no message can have: outsiders get 404 whatever the id.
        page = self.chat.history(self.me, before=message_id + 1, limit=1)
        found = [one for one in page.messages if one.id == message_id and not one.deleted]
        if not found:
            raise Problem(problems.GONE)
        return self.message_views(found, owner=page.role == "owner")[0]

    def part(self, parts: Sequence[str], item: MessageView) -> dict[str, Any]:
        """The part of the text that `?from=` selects, and the positions of its neighbours."""
        starts = [0, *accumulate(len(part) for part in parts[:-1])]
        index = bisect_right(starts, parse_number(self.request.GET.get("from", ""))) - 1
        return {
            "part": markup(parts[index], mentions=item.mentions, own=item.own_name),
            "number": index + 1,
            "count": len(parts),
            "previous": starts[index - 1] if index else None,
            "next": starts[index + 1] if index + 1 < len(parts) else None,
        }


def parse_number(value: str) -> int:
    """The number in a URL; 0 for anything else."""
    return int(value) if value.isascii() and value.isdigit() and len(value) <= MAX_ID_DIGITS else 0


#: messages on a page of results
RESULTS_PER_PAGE = 20


class SearchView(RoomMixin, MessagingPage):
    """The messages of a chat that contain a text, newest first. Each page searches up to 500 messages."""

    checks_membership_first = False
    template_name = "django_redis_messaging/search.html"
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        state, query = self.state(), get_search(request.GET).strip()
        results = self.results(query, state) if query else {}
        return self.page({**self.chat_context(state), "q": query, **results})

    def results(self, query: str, state: Changes) -> dict[str, Any]:
        """The results, and where the next page begins."""
        self.count_use("search")
        before = get_position(self.request.GET, "before")
        found = self.chat.search(self.me, query, before=before, limit=RESULTS_PER_PAGE)
        self.add_people(state)
        views = self.message_views(found.messages, owner=False)
        return {
            "results": [(view, one_line(view.message)) for view in views],
            "older": None if found.complete else found.before,
        }
