"""What others may do and see: the people whom the user has blocked, and the user's choices."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from ...errors import ChatNotFound, InvalidArgument, NotAMember
from ...services.blocks import Blocks
from ...services.chats.direct import direct_id, is_direct
from ...services.choices import Choices
from ...services.contacts import RecentContacts
from .. import problems
from ..base import MessagingPage, MessagingView
from ..params import get_number
from ..people import blocked_people, reachable_labels
from ..problems import Problem
from .choices import offered

#: people on a page of the list
BLOCKS_PER_PAGE = 50


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
