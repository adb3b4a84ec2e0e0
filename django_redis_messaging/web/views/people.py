"""People: contacts and the search for them, blocked people, and what users let others see."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views.decorators.csrf import csrf_exempt

from ... import conf
from ...errors import ChatNotFound, InvalidArgument, NotAMember
from ...services.chats.chat import direct_id, is_direct
from ...services.directories.recent import RecentContacts
from ...services.users.privacy import Blocks, Choices
from .. import problems
from ..base import MessagingPage, MessagingView, get_number, get_search, layout_context
from ..digests import member_of_token
from ..identity import Identity
from ..people import blocked_people, must_fill_directory, reachable_labels, recent_contacts, suggest
from ..problems import Answer, Problem

#: people on a page of the list
BLOCKS_PER_PAGE = 50
#: digits of the greatest page number that is accepted
MAX_PAGE_DIGITS = 4
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
        name = "django_redis_messaging/unsubscribe.html"
        everything = {**layout_context(self.request), **context}
        return TemplateResponse(self.request, name, everything, status=status)
