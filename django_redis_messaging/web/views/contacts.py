"""Whom one wrote to, and whom one can write to."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _

from ...services.contacts import RecentContacts
from .. import problems
from ..base import MessagingPage, MessagingView
from ..people import known, recents, suggest


class ContactsView(MessagingPage):
    """The recent contacts, and a search over them and the directories."""

    template_name = "django_redis_messaging/contacts.html"
    tab = "contacts"

    def get(self, request: HttpRequest) -> HttpResponse:
        wanted = request.GET.get("q", "").replace("\0", "")
        found, more = suggest(self.who, request.user, wanted)
        lately = recents(self.who, request.user)
        reachable = known(self.who, request.user, [person.id for person in lately])
        context: dict[str, Any] = {
            "q": wanted,
            "found": found,
            "found_more": more,
            "recents": [(person, person.id in reachable) for person in lately],
        }
        return self.page(context)


class SuggestView(MessagingView):
    """People whose name begins with `q`, as JSON in the form that Django admin's own autocomplete has."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        page = request.GET.get("page", "1")
        if not (page.isascii() and page.isdigit() and 0 < len(page) < 5 and int(page)):
            raise problems.invalid(_("There is no such page."))
        wanted = request.GET.get("q", "").replace("\0", "")
        found, more = suggest(self.who, request.user, wanted, page=int(page))
        results = [
            {"id": one.id, "text": one.label, "initials": one.initials, "hue": one.hue} for one in found
        ]
        return JsonResponse({"results": results, "pagination": {"more": more}})


class ForgetContactView(MessagingView):
    """Takes somebody off one's recent contacts."""

    def post(self, request: HttpRequest) -> HttpResponse:
        try:
            RecentContacts(self.me).remove(request.POST.get("contact", ""))
        except ValueError:
            raise problems.invalid(_("Choose somebody.")) from None
        return self.done({"removed": True}, "contacts")
