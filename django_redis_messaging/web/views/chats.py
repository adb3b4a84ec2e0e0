"""The list of chats, new ones, and a chat as a room: the page, the same as JSON, and the search."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ... import conf
from ...errors import ChatExists, ChatNotFound, InvalidArgument, NotAMember, NotPermitted
from ...services.chats import Changes, Chat, ChatSummary, Message, Page
from ...services.chats.keys import direct_id
from ...services.directories.recent import RecentContacts
from ...services.live.stream import END
from ...services.users.privacy import Blocks
from ...signals import message_sent
from .. import problems
from ..base import (
    INVALID_POSITION,
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
from ..fields import NewChatForm, clean
from ..people import blocked_in, reachable_labels
from ..problems import Problem
from ..rendering import (
    ChatRow,
    add_authors,
    add_room,
    add_rows,
    changes_json,
    chat_rows,
    count_fitting,
    divider_text,
    fitting,
    gap_text,
    message_json,
    message_views,
    messages_json,
    one_line,
    room_context,
    room_heading,
    room_json,
    row_json,
    seen_text,
)
from ..texts import body_html
from .people import MAX_NEW_CONTACTS, PickerPage

#: chats on a page of the list
CHATS_PER_PAGE = 50
#: messages on a page of a room
MESSAGES_PER_PAGE = 30
#: of these, how many are before the message that the page is about
MESSAGES_BEFORE = 10
#: the messages on a page of a room have at most so many bytes of HTML, but there is at least one
PAGE_BYTES = 128 * 1024
#: bytes of HTML around the text of a message
MARKUP_BYTES = 1200
#: messages in an answer in JSON
MESSAGES_PER_ANSWER = 50
#: messages on a page of results
RESULTS_PER_PAGE = 20


class ChatListMixin(MessagingView):
    """Reads the list of chats for the list itself and for the sidebar of a room."""

    def rows(self, *, after: str | None = None) -> list[ChatRow]:
        """A page of the chats, newest activity first."""
        return chat_rows(self.summaries(after=after), people=self.people, me=self.me)

    def summaries(self, *, after: str | None = None) -> list[ChatSummary]:
        """The chats of the page; none for a script that has the list already."""
        if self.request.headers.get("Messaging-Without") == "list":
            return []
        return self.inbox(self.me).chats(limit=CHATS_PER_PAGE, after=after)


class ChatsView(ChatListMixin, MessagingPage):
    """The list of chats, with unread counts and newest messages."""

    template_name = "django_redis_messaging/chats.html"

    def get(self, request: HttpRequest) -> HttpResponse:
        after = request.GET.get("after") or None
        try:
            rows = self.rows(after=after)
        except InvalidArgument:
            # Not a cursor: show the first page.
            after, rows = None, self.rows()
        more = rows[-1].summary.cursor if len(rows) == CHATS_PER_PAGE else None
        return self.page({"rows": rows, "more": more, "further": after is not None})


class ChatsFeedView(ChatListMixin):
    """The first page of the list as JSON; with `html`, the HTML of each row instead of its texts."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        rows = self.rows()
        data = {
            "chats": [row_json(row, self.reader) for row in rows],
            "unread": sum(row.summary.unread for row in rows),
            "has_more": len(rows) == CHATS_PER_PAGE,
        }
        return conditional_json(request, data)


class NewChatView(PickerPage):
    """Opens a chat with the people chosen; title and first message are optional.

    With one person and without a title, it is the one direct chat with that person, which may exist already.
    """

    template_name = "django_redis_messaging/new.html"
    tab = "new"
    invalid_message = _("This chat can't be created.")

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.show_form()

    def post(self, request: HttpRequest) -> HttpResponse:
        if "search" in request.POST:
            return self.show_form()
        data = clean(NewChatForm(request.POST))
        chosen = self.recipients()
        self.check_recipients(chosen)
        try:
            chat = self.open_chat(chosen, data)
        except ChatExists as error:
            return self.existing(error)
        for member in reversed(chosen[:MAX_NEW_CONTACTS]):
            RecentContacts(self.me).touch(member)
        return self.done({"id": chat.id, "url": self.url("room", chat.id)}, "room", chat.id)

    def check_recipients(self, chosen: Sequence[str]) -> None:
        """Raise the Problem unless the guild rule and the site's own rules allow this chat."""
        if not chosen:
            raise problems.invalid(_("Choose at least one person."), field="to")
        if len(reachable_labels(self.active_identity, self.request.user, chosen)) < len(chosen):
            raise Problem(problems.NOT_IN_DIRECTORY)
        if not self.active_identity.may_create(self.request.user, chosen):
            raise Problem(problems.NOT_PERMITTED)

    def existing(self, error: ChatExists) -> HttpResponse:
        """The answer to a repeat whose request id is no longer remembered: the chat of the first one."""
        try:
            self.service(error.chat_id).role(self.me)
        except (ChatNotFound, NotAMember):
            raise error from None
        if not self.wants_json:
            return self.done({}, "room", error.chat_id)
        exists = {"code": problems.EXISTS.code, "message": str(problems.EXISTS.message)}
        data = {"error": exists, "id": error.chat_id, "url": self.url("room", error.chat_id)}
        return JsonResponse(data, status=problems.EXISTS.status)

    def open_chat(self, chosen: Sequence[str], data: dict[str, Any]) -> Chat:
        """The chat with these people, with the first message."""
        if len(chosen) == 1 and not data["title"]:
            return self.open_direct_chat(chosen[0], data)
        return self.create_chat(chosen, data)

    def open_direct_chat(self, other: str, data: dict[str, Any]) -> Chat:
        """The one chat with another person, which may exist already."""
        try:
            self.service(direct_id(self.me, other)).role(self.me)
        except (ChatNotFound, NotAMember):
            self.count_use("create")
            self.count_use("invite")
        try:
            chat = self.service.direct(self.me, other)
        except NotPermitted:
            if other in Blocks(self.me).list():
                raise Problem(problems.BLOCKED) from None
            raise
        if data["body"].strip():
            self.count_use("send")
            message = chat.send(self.me, data["body"], request_id=data["request_id"] or None)
            message_sent.send_robust(type(self), request=self.request, message=message)
        return chat

    def create_chat(self, chosen: Sequence[str], data: dict[str, Any]) -> Chat:
        """A new chat. Repeating a request with the same `request_id` returns the chat of the first one."""
        self.count_use("create")
        self.count_use("invite", len(chosen))
        request_id = data["request_id"] or None
        chat = self.service.create(self.me, chosen, data["body"], title=data["title"], request_id=request_id)
        if message_sent.has_listeners(type(self)):
            for message in chat.history(self.me, limit=1).messages:
                message_sent.send_robust(type(self), request=self.request, message=message)
        return chat


class RoomMixin(ChatMixin):
    """Reads the messages of a chat around a position."""

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
            page = self.blocked_page(chat_id)
            if page is None:
                raise
            return page
        window, owner = self.selected_window(state), state.role == "owner"
        quoted, replied = self.quoted(window.messages), self.selected_message("reply")
        summaries = self.summaries()
        # All people before the first one is read.
        people, me = self.people, self.me
        add_rows(people, summaries, me)
        add_authors(people, [*window.messages, *quoted, *([replied] if replied else [])], me=me)
        context = room_context(state, people=people, me=me)
        read_id = state.read_id if window.has_read(state) else None
        views = message_views(
            window.messages, people=people, me=me, owner=owner, read_id=read_id, quoted=quoted
        )
        replying = message_views([replied] if replied else [], people=people, me=me, owner=owner)
        return self.page(
            {
                **context,
                "window": window,
                "rows": chat_rows(summaries, people=people, me=me),
                "message_views": list(views),
                "last": window.messages[-1] if window.messages else None,
                "removed": gap_text(state.removed),
                "divider": divider_text(state.unread),
                "seen": seen_text(state, people=people, me=me),
                "editing": self.own_message("edit"),
                "replying": next(replying, None),
                "muted_until": timezone.localtime(state.muted_until) if state.muted_until else None,
                "request_id": uuid.uuid4().hex,
                "state": json.dumps(self.browser_state(state, window)),
            }
        )

    def blocked_page(self, chat_id: str) -> HttpResponse | None:
        """The page of a direct chat with a person whom the user has blocked; None for any other chat."""
        person = None if self.wants_json else blocked_in(self.active_identity, self.me, chat_id)
        if person is None:
            return None
        self.template_name = "django_redis_messaging/blocked.html"
        self.people.show_all([person])
        return self.page({"person": self.people[person.id], "chat_id": chat_id})

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

    def browser_state(self, state: Changes, window: Window) -> dict[str, Any]:
        """What the scripts of the page begin with."""
        return {
            **room_json(state, people=self.people, older=window.older, newer=window.newer),
            **room_heading(state, people=self.people, me=self.me).as_json,
            **self.constants(),
        }

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
        """The message that the parameter selects."""
        value = self.request.GET.get(parameter)
        found = self.chat.get_messages(self.me, [parse_id(value)]) if value else []
        return next((message for message in found if not message.deleted), None)


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
        quoted, people, me = self.quoted(window.messages), self.people, self.me
        add_room(people, state, me)
        add_authors(people, [*window.messages, *quoted], me=me)
        messages = messages_json(
            window.messages, people=people, reader=self.reader, owner=state.role == "owner", quoted=quoted
        )
        return {
            **room_json(state, people=people, older=window.older, newer=window.newer),
            "messages": list(messages),
            **room_heading(state, people=people, me=me).as_json,
            "seen": seen_text(state, people=people, me=me),
        }

    def changes(self, after: str | int, **known: int | None) -> dict[str, Any]:
        """New and edited messages, and what else changed."""
        changes = self.chat.changes(self.me, after=after, limit=MESSAGES_PER_ANSWER, **known)
        quoted = self.quoted([*changes.messages, *changes.edited])
        data, _ = changes_json(changes, quoted, people=self.people, reader=self.reader)
        return data

    def older(self, before: str | int) -> dict[str, Any]:
        """The newest of the messages before a position, as many as fit into an answer."""
        page = self.chat.history(self.me, before=before, limit=MESSAGES_PER_ANSWER)
        views = message_views(
            page.messages,
            people=self.people,
            me=self.me,
            owner=page.role == "owner",
            quoted=self.quoted(page.messages),
        )
        messages = fitting(message_json(view, self.reader) for view in reversed([*views]))
        return self.part(page, messages[::-1])

    def newer(self, after: str | int) -> dict[str, Any]:
        """The oldest of the messages after a position, as many as fit into an answer."""
        page = self.chat.history(self.me, after=after, limit=MESSAGES_PER_ANSWER)
        messages = messages_json(
            page.messages,
            people=self.people,
            reader=self.reader,
            owner=page.role == "owner",
            quoted=self.quoted(page.messages),
        )
        return self.part(page, fitting(messages))

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


class SearchView(ChatMixin, MessagingPage):
    """The messages of a chat that contain a text, newest first. Each page searches up to 500 messages."""

    checks_membership_first = False
    template_name = "django_redis_messaging/search.html"
    invalid_message = INVALID_POSITION

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        state, query = self.state(), get_search(request.GET).strip()
        results = self.results(query, state) if query else {}
        return self.page({**room_context(state, people=self.people, me=self.me), "q": query, **results})

    def results(self, query: str, state: Changes) -> dict[str, Any]:
        """The results, and where the next page begins."""
        self.count_use("search")
        before = get_position(self.request.GET, "before")
        found = self.chat.search(self.me, query, before=before, limit=RESULTS_PER_PAGE)
        add_room(self.people, state, self.me)
        quoted = self.quoted(found.messages)
        views = message_views(found.messages, people=self.people, me=self.me, owner=False, quoted=quoted)
        return {
            "results": [(view, one_line(view.message)) for view in views],
            "older": None if found.complete else found.before,
        }


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
