"""Recent contacts, and the search for people."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext_lazy as _

from ...services.blocks import Blocks
from ...services.contacts import RecentContacts
from .. import problems
from ..base import MessagingPage, MessagingView
from ..params import get_search
from ..people import must_fill_directory, reachable_labels, recent_contacts, suggest
from ..problems import Problem
from .blocks import may_know

#: digits of the greatest page number that is accepted
MAX_PAGE_DIGITS = 4


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
