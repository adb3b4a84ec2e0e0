"""People: contacts and choosing among them, blocked people, and what users let others see."""

from __future__ import annotations

import math
import uuid
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views.decorators.csrf import csrf_exempt

from ... import conf
from ...errors import ChatNotFound, InvalidArgument, LimitExceeded, MessagingError, NotAMember
from ...services.chats.keys import direct_id, is_direct
from ...services.directories.recent import RecentContacts
from ...services.users.privacy import Blocks, Choices
from .. import problems
from ..base import MessagingPage, MessagingView, get_number, get_search, shown_again
from ..digest_mailing import member_of_token
from ..identity import Identity
from ..people import (
    Person,
    blocked_people,
    must_fill_directory,
    people_named,
    reachable_labels,
    recent_contacts,
    suggest,
    with_named,
)
from ..problems import Answer, Problem

#: people on a page of the list
BLOCKS_PER_PAGE = 50
#: digits of the greatest page number that is accepted
MAX_PAGE_DIGITS = 4
#: people that a link may name, and that count as one search when they are shown
MAX_LINKED = 20
#: the problems with a typed name
_SEVERAL = _("Several people match “%(name)s”. Choose one of them.")
_UNKNOWN = _("Nobody whom you can choose is called “%(name)s”.")
#: maximum number of recipients that become recent contacts: a mailing must not push out the others
MAX_NEW_CONTACTS = 20
_BAD_LINK = Answer(404, "not_found", _("This link is not valid. Copy all of it from the e-mail."))


class ContactsView(MessagingPage):
    """The recent contacts, and a search through them and the directories."""

    template_name = "django_redis_messaging/contacts.html"
    tab = "contacts"

    def get(self, request: HttpRequest) -> HttpResponse:
        identity, user = self.active_identity, request.user
        query = get_search(request.GET)
        if query:
            self.count_use("search")
        recents = recent_contacts(identity, user, self.people)
        found, more = suggest(identity, user, query, recents)
        reachable = reachable_labels(identity, user, [person.id for person in recents])
        self.people.show_all([*found, *recents])
        context: dict[str, Any] = {
            "q": query,
            "found": [self.people[person.id] for person in found],
            "found_more": more,
            "must_fill_directory": not found and must_fill_directory(identity, user),
            "recents": [(self.people[person.id], person.id in reachable) for person in recents],
        }
        return self.page(context)


class SuggestView(MessagingView):
    """People whose name begins with `q`, as JSON in the format of Django admin's autocomplete."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        page = request.GET.get("page", "1")
        if not (page.isascii() and page.isdigit() and len(page) <= MAX_PAGE_DIGITS and int(page)):
            raise problems.invalid(_("This page doesn't exist."))
        query = get_search(request.GET)
        self.count_use("search")
        identity, user = self.active_identity, request.user
        recents = recent_contacts(identity, user, self.people)
        found, more = suggest(identity, user, query, recents, page=int(page))
        self.people.show_all(found)
        results = [self.people[person.id].as_json for person in found]
        return JsonResponse({"results": results, "pagination": {"more": more}})


class PersonView(MessagingPage):
    """A card of the person `id`: a contact, or a fellow member of the chat `chat`."""

    template_name = "django_redis_messaging/person.html"
    tab = "contacts"
    invalid_message = _("Choose a person.")

    def get(self, request: HttpRequest) -> HttpResponse:
        person, chat_id = request.GET.get("id", ""), request.GET.get("chat", "")
        # The card shows a name: it must not reveal others than searching does.
        self.count_use("search")
        if not may_know(self, person, chat_id):
            raise Problem(problems.NO_PERSON)
        identity, user = self.active_identity, request.user
        self.people.show([person])
        context: dict[str, Any] = {
            "person": self.people[person],
            "chat": {"chat_id": chat_id} if chat_id else None,
            "is_me": person == self.me,
            "reachable": bool(reachable_labels(identity, user, [person])),
            "blocked": person in Blocks(self.me).list(),
            "recent": person in RecentContacts(self.me).list(),
        }
        return self.page(context)


class ForgetContactView(MessagingView):
    """Removes a person from the recent contacts."""

    invalid_message = _("Choose a person.")

    def post(self, request: HttpRequest) -> HttpResponse:
        RecentContacts(self.me).remove(request.POST.get("contact", ""))
        return self.done({"removed": True}, "contacts")


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


class BlocksView(MessagingPage):
    """The blocked people, each with a button to unblock them, and what the user has chosen."""

    template_name = "django_redis_messaging/blocks.html"
    tab = "contacts"

    def get(self, request: HttpRequest) -> HttpResponse:
        first = get_number(request.GET, "from") or 0
        blocked, has_more = blocked_people(self.active_identity, request.user, first, BLOCKS_PER_PAGE)
        self.people.show_all(blocked)
        return self.page(
            {
                "blocked": [self.people[person.id] for person in blocked],
                "more": first + BLOCKS_PER_PAGE if has_more else None,
                "offered": offered(self.active_identity, request.user),
                "choice": Choices().get(self.me),
            }
        )


class BlockView(MessagingView):
    """Blocks a `person`: a contact, or a fellow member of `chat`."""

    invalid_message = _("Choose a person.")

    def post(self, request: HttpRequest) -> HttpResponse:
        person = request.POST.get("person", "")
        # The list of blocked people shows their names: it must not reveal others than searching does.
        self.count_use("search")
        if not may_know(self, person, request.POST.get("chat", "")):
            raise Problem(problems.NOT_IN_DIRECTORY)
        Blocks(self.me).block(person)
        return self.done({"blocked": person}, "blocks")


class UnblockView(MessagingView):
    """Unblocks a person. The page of their direct chat names the `chat`, to return to it."""

    invalid_message = _("Choose a person.")

    def post(self, request: HttpRequest) -> HttpResponse:
        person = request.POST.get("person", "")
        chat_id = request.POST.get("chat", "")
        Blocks(self.me).unblock(person)
        page = ("room", chat_id) if chat_id == direct_id(self.me, person) else ("blocks",)
        return self.done({"unblocked": person}, *page)


def may_know(view: MessagingView, person: str, chat_id: str) -> bool:
    """Whether the user can find the person, has written to them, or shares this chat with them."""
    identity, user = view.active_identity, view.request.user
    if reachable_labels(identity, user, [person]):
        return True
    if person in RecentContacts(view.me).list():
        return True
    return bool(chat_id) and _are_fellow_members(view, person, chat_id)


def _are_fellow_members(view: MessagingView, person: str, chat_id: str) -> bool:
    try:
        chat = view.service(chat_id)
        chat.role(view.me)
        if is_direct(chat_id):  # a member who is suspended looks like any other
            return any(member.user == person for member in chat.members())
        return bool(chat.role(person))
    except (ChatNotFound, InvalidArgument, NotAMember):
        return False


class ChoicesView(MessagingView):
    """Changes what others see: `online`, and `receipts`, what the user has read; and whether the user gets
    `digests`. Choices that are absent are switched off.

    Choices that the site doesn't offer stay as they are.
    """

    def post(self, request: HttpRequest) -> HttpResponse:
        chosen = {what: what in request.POST for what in offered(self.active_identity, request.user)}
        self.count_use("change")
        choice = Choices().choose(self.me, **chosen)
        return self.done(choice._asdict(), "blocks")


def offered(identity: Identity, user: Any) -> list[str]:
    """The choices that make a difference to the user on this site."""
    settings = conf.current()
    makes_difference = {
        "online": settings.LIVE and settings.PRESENCE_MAX_MEMBERS > 0,
        "receipts": settings.READ_RECEIPTS,
        "digests": bool(settings.DIGEST_BASE_URL) and identity.wants_digest(user),
    }
    return [what for what, is_offered in makes_difference.items() if is_offered]


# Mail programs post to the link without cookies (RFC 8058). The link permits this, and nothing else.
@method_decorator(csrf_exempt, name="dispatch")
class UnsubscribeView(MessagingView):
    """Stops the digests of the user to whom the link was mailed, signed in or not. GET changes nothing: the
    programs that check mails follow their links."""

    def check_access(self, request: HttpRequest) -> None:
        member = member_of_token(self.kwargs["token"])
        if member is None:
            raise Problem(_BAD_LINK)
        self.me = member

    def get(self, request: HttpRequest, token: str) -> HttpResponse:
        return self.show()

    def post(self, request: HttpRequest, token: str) -> HttpResponse:
        Choices().choose(self.me, digests=False)
        if self.wants_json:
            return JsonResponse({"digests": False})
        # No redirect: mail programs follow none.
        return self.show(done=True)

    def problem_page(self, problem: Answer, **context: Any) -> HttpResponse:
        return self.show(status=problem.status, problem=problem, **context)

    def show(self, *, status: int = 200, **context: Any) -> HttpResponse:
        return self.in_layout("django_redis_messaging/unsubscribe.html", context, status=status)
