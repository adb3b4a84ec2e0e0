"""Recent contacts, and the search for people."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext_lazy as _

from ...services.contacts import RecentContacts
from .. import problems
from ..base import MessagingPage, MessagingView
from ..params import get_search
from ..people import must_fill_directory, reachable_labels, recent_contacts, suggest

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
        found, more = suggest(identity, user, query)
        recents = recent_contacts(identity, user)
        reachable = reachable_labels(identity, user, [person.id for person in recents])
        context: dict[str, Any] = {
            "q": query,
            "found": found,
            "found_more": more,
            "must_fill_directory": not found and must_fill_directory(identity, user),
            "recents": [(person, person.id in reachable) for person in recents],
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
        found, more = suggest(self.active_identity, request.user, query, page=int(page))
        results = [
            {"id": person.id, "text": person.label, "initials": person.initials, "hue": person.hue}
            for person in found
        ]
        return JsonResponse({"results": results, "pagination": {"more": more}})


class ForgetContactView(MessagingView):
    """Removes a person from the recent contacts."""

    invalid_message = _("Choose a person.")

    def post(self, request: HttpRequest) -> HttpResponse:
        RecentContacts(self.me).remove(request.POST.get("contact", ""))
        return self.done({"removed": True}, "contacts")
