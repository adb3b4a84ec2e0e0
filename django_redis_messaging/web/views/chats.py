"""The list of chats, and new ones: choosing people, and creating a chat with them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.utils.translation import gettext_lazy as _

from ... import conf
from ...errors import (
    ChatExists,
    ChatNotFound,
    InvalidArgument,
    LimitExceeded,
    MessagingError,
    NotAMember,
    NotPermitted,
)
from ...services.chats import Chat, ChatSummary
from ...services.chats.chat import direct_id
from ...services.directories.recent import RecentContacts
from ...services.users.privacy import Blocks
from ...signals import message_sent
from .. import problems
from ..base import MessagingPage, MessagingView, conditional_json, get_search, shown_again
from ..fields import NewChatForm, clean
from ..people import (
    Person,
    must_fill_directory,
    people_named,
    reachable_labels,
    recent_contacts,
    suggest,
    with_named,
)
from ..problems import Answer, Problem
from ..rendering import ChatRow, chat_rows, row_json

#: chats on a page of the list
CHATS_PER_PAGE = 50


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


#: people that a link may name, and that count as one search when they are shown
MAX_LINKED = 20
#: the problems with a typed name
_SEVERAL = _("Several people match “%(name)s”. Choose one of them.")
_UNKNOWN = _("Nobody whom you can choose is called “%(name)s”.")
#: maximum number of recipients that become recent contacts: a mailing must not push out the others
MAX_NEW_CONTACTS = 20


class PickerPage(MessagingPage):
    """A page with a form to choose people: in `to`, a parameter that may be repeated.

    Without JavaScript, the form's search button posts the form, and the page shows it again with the
    same input and with the people found.
    """

    @property
    def given(self) -> QueryDict:
        return self.request.POST if self.request.method == "POST" else self.request.GET

    def given_ids(self) -> list[str]:
        """The people chosen so far, without duplicates and without the user."""
        return [one for one in dict.fromkeys(self.given.getlist("to")) if one and one != self.me]

    def chosen_ids(self) -> list[str]:
        """The same. Raises the Problem if they are too many."""
        chosen = self.given_ids()
        if len(chosen) >= conf.current().CHAT_MAX_MEMBERS:
            raise Problem(problems.TOO_MANY_MEMBERS)
        if self.request.method == "GET" and len(chosen) > MAX_LINKED:
            raise problems.invalid(_("A link can't name this many people."))
        return chosen

    def recipients(self) -> list[str]:
        """The people chosen, and the one whose name is in the search field. Raises the Problem if it isn't
        clear who that is: a typed name must not be left out."""
        chosen, typed = self.chosen_ids(), get_search(self.given).strip()
        if not typed:
            return chosen
        self.count_use("search")
        named = people_named(self.active_identity, self.request.user, typed)
        everyone = with_named(named, chosen, self.given.getlist("to-found"))
        if everyone is None:
            text = _SEVERAL if named else _UNKNOWN
            raise problems.invalid(text % {"name": typed}, field="to")
        return everyone

    def show_form(self, *, problem: Answer | None = None) -> HttpResponse:
        """The form with the user's input and the people found."""
        given = self.given
        query = get_search(given)
        # Too many can be sent, but a link must not name as many.
        chosen_ids = self.given_ids() if self.request.method == "POST" else self.chosen_ids()
        # Showing people by their ids must not reveal more names than searching does.
        searches = bool(query) + math.ceil(len(chosen_ids) / MAX_LINKED)
        if searches:
            self.count_use("search", searches)
        # Only labels from the user's directories: a URL with `?to=` must not reveal other names.
        labels = reachable_labels(self.active_identity, self.request.user, chosen_ids)
        chosen = [Person(member, label) for member, label in labels.items()]
        self.add_others()
        recents = recent_contacts(self.active_identity, self.request.user, self.people)
        found, more = suggest(self.active_identity, self.request.user, query, recents)
        self.people.show_all([*chosen, *found])
        ids = [person.id for person in chosen]
        context = {
            "chosen": [self.people[member] for member in ids],
            "found": [self.people[person.id] for person in found if person.id not in ids],
            "found_more": more,
            "must_fill_directory": not found and must_fill_directory(self.active_identity, self.request.user),
            **self.extra_context(),
        }
        return self.form_page(given, context, problem)

    def form_page(self, given: QueryDict, context: dict[str, Any], problem: Answer | None) -> HttpResponse:
        """The form with this input."""
        everything: dict[str, Any] = {
            "given": shown_again(given),
            "request_id": given.get("request_id") or uuid.uuid4().hex,
            "problem": problem,
            **context,
        }
        return self.page(everything, status=problem.status if problem else 200)

    def add_others(self) -> None:
        """Add the people whom the template shows besides those to choose from."""

    def extra_context(self) -> dict[str, Any]:
        """More context for the template."""
        return {}

    def problem_page(self, problem: Answer, **context: Any) -> HttpResponse:
        """The form again with the problem, if the user can correct the input."""
        correctable = problem.status not in (401, 404)
        if self.request.method == "POST" and correctable and self.me:
            try:
                return self.show_form(problem=problem)
            except LimitExceeded:  # no search is left: what was typed must not be lost
                # Nor what else is known of them: a browser may have made up the ids.
                chosen = [Person(member, member) for member in self.given_ids()]
                return self.form_page(self.request.POST, {"chosen": chosen, **self.extra_context()}, problem)
            except (MessagingError, Problem):
                pass  # Redis has become unavailable, the chat was deleted, or the input can't be shown.
        return super().problem_page(problem, **context)


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
