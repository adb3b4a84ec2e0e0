"""Choosing people, and opening a chat with them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from ... import conf
from ...errors import LimitExceeded, MessagingError
from ...services.chats import Chat
from ...services.contacts import RecentContacts
from ...services.rates import Rate
from ...signals import message_sent
from .. import problems
from ..base import MessagingPage
from ..forms import NewChatForm, cleaned
from ..people import known, people, suggest
from ..problems import Problem

HOUR = 3600.0
#: recipients that become recent contacts: more at once are a mailing, not one's contacts
TOUCHED = 20


class PickerPage(MessagingPage):
    """A page with a form on which people are chosen: `to`, any number of times.

    Without JavaScript the form's search button posts it, and the same page comes back with what was
    filled in and with the people found.
    """

    def chosen_ids(self) -> list[str]:
        """Those chosen so far, each once, without the one who asks."""
        given = self.request.POST if self.request.method == "POST" else self.request.GET
        most = conf.current().CHAT_MAX_MEMBERS
        chosen = [member for member in dict.fromkeys(given.getlist("to")) if member and member != self.me]
        if len(chosen) >= most:
            raise problems.too_many_people()
        return chosen

    def show(self, *, trouble: Problem | None = None) -> HttpResponse:
        """The form, as it was filled in, with the people found."""
        given = self.request.POST if self.request.method == "POST" else self.request.GET
        wanted = given.get("q", "").replace("\0", "")
        # Only people of the user's directories are named: an address could ask for anybody's name.
        labels = known(self.who, self.request.user, self.chosen_ids())
        chosen = people(self.who, labels)
        found, more = suggest(self.who, self.request.user, wanted)
        context: dict[str, Any] = {
            "given": given,
            "chosen": chosen,
            "found": [person for person in found if person not in chosen],
            "found_more": more,
            "request_id": given.get("request_id") or uuid.uuid4().hex,
            "trouble": trouble,
            **self.extra(),
        }
        return self.page(context, status=trouble.status if trouble else 200)

    def extra(self) -> dict[str, Any]:
        """What else the template needs."""
        return {}

    def explain(self, trouble: Problem) -> HttpResponse:
        """The form again, as long as there is one to show."""
        if self.request.method != "POST" or trouble.status in (401, 404, 503):
            return super().explain(trouble)
        if trouble.code in ("too_many_people", "not_permitted"):
            return super().explain(trouble)
        try:
            return self.show(trouble=trouble)
        except MessagingError:
            # Redis went away in between, or the chat did.
            return super().explain(trouble)


class NewChatView(PickerPage):
    """Opens a chat with the people chosen, with a title and a first message if there are any."""

    template_name = "django_redis_messaging/new.html"
    tab = "new"

    def get(self, request: HttpRequest) -> HttpResponse:
        return self.show()

    def post(self, request: HttpRequest) -> HttpResponse:
        if "search" in request.POST:
            return self.show()
        data = cleaned(NewChatForm(request.POST))
        chosen = self.chosen_ids()
        self.check(chosen)
        wait = Rate(self.me, "create", limit=conf.current().CREATE_RATE, period=HOUR).take()
        if wait:
            raise problems.too_fast(wait)
        chat = self.create(chosen, data)
        self.announce(chat)
        for member in reversed(chosen[:TOUCHED]):
            RecentContacts(self.me).touch(member)
        return self.done({"id": chat.id, "url": self.url("room", chat.id)}, "room", chat.id)

    def announce(self, chat: Chat) -> None:
        """Signal the first message, if there is one and somebody listens."""
        if message_sent.has_listeners(type(self)):
            for message in chat.history(self.me, limit=1).messages:
                message_sent.send_robust(type(self), request=self.request, message=message)

    def check(self, chosen: Sequence[str]) -> None:
        """The guild rule, and the site's own."""
        if not chosen:
            raise problems.invalid(_("Choose somebody to write to."))
        if len(known(self.who, self.request.user, chosen)) < len(chosen):
            raise problems.not_in_directory()
        if not self.who.may_create(self.request.user, chosen):
            raise problems.not_permitted()

    def create(self, chosen: Sequence[str], data: dict[str, Any]) -> Chat:
        """The chat; a repeat with the same `request_id` gets the one of the first time."""
        request_id = data["request_id"] or None
        try:
            return self.service.create(
                self.me, chosen, data["body"], title=data["title"], request_id=request_id
            )
        except LimitExceeded:
            # Sizes were checked before: what is left is how many chats somebody may have.
            raise problems.too_many_chats() from None
        except ValueError:
            raise problems.invalid(_("This can't be sent.")) from None
