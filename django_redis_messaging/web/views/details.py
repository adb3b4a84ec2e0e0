"""A chat's members and settings: the page with the details, and the changes that it offers, POST only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from ... import conf
from ...services.chats import Changes, Member
from ...services.chats.keys import is_direct
from ...services.chats.values import Role
from ...services.directories.recent import RecentContacts
from ...services.live import Presence
from .. import problems
from ..base import ChatMixin, MessagingPage
from ..fields import TitleForm, clean
from ..people import Person, reachable_labels
from ..problems import Problem
from ..rendering import add_room, room_context
from .people import MAX_NEW_CONTACTS, PickerPage

#: allowed durations of muting, in hours; 0 unmutes
MUTE_HOURS = {"0": 0, "1": 1, "8": 8, "24": 24, "168": 168}
#: members on a page of the details
MEMBERS_PER_PAGE = 100


class DetailsView(ChatMixin, MessagingPage):
    """The members with their roles, a page at a time, and the settings of a chat."""

    checks_membership_first = False
    template_name = "django_redis_messaging/details.html"

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        state = self.state()
        members = self.chat.members(limit=MEMBERS_PER_PAGE + 1, after=request.GET.get("after") or None)
        shown = members[:MEMBERS_PER_PAGE]
        self.people.show(member.user for member in shown)
        return self.page(
            {
                **room_context(state, people=self.people, me=self.me),
                "roster": self.roster(shown),
                "more": shown[-1].user if len(members) > len(shown) else None,
                "online": self.online(state, shown),
                "owner": state.role == "owner",
                "me": self.me,
            }
        )

    def online(self, state: Changes, members: Sequence[Member]) -> set[str]:
        """The members who are online, if the chat shows it."""
        settings = conf.current()
        if not settings.LIVE or state.member_count > settings.PRESENCE_MAX_MEMBERS:
            return set()
        # Neither sees the other one in a direct chat that is suspended.
        suspended = any(member.suspended for member in members)
        return Presence().online([self.me] if suspended else [member.user for member in members])

    def roster(self, members: Sequence[Member]) -> list[tuple[Person, Member]]:
        """The members as persons, too."""
        return [(self.people[member.user], member) for member in members]


class RenameView(ChatMixin):
    """Changes the title of a chat."""

    checks_membership_first = False

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        with self.admitted("rename"):
            title = clean(TitleForm(request.POST))["title"]
            if is_direct(chat_id):
                raise problems.invalid(_("A direct chat has no title."))
        self.chat.rename(self.me, title)
        return self.done({"title": title}, "room", chat_id)


class MuteView(ChatMixin):
    """Mutes a chat for some hours, or unmutes it."""

    checks_membership_first = False

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        with self.admitted("change"):
            hours = MUTE_HOURS.get(request.POST.get("hours", ""))
            if hours is None:
                raise problems.invalid(_("Choose how long to mute the chat."))
        until = timezone.now() + timedelta(hours=hours) if hours else None
        self.chat.mute(self.me, until)
        return self.done({"until": until.isoformat() if until else None}, "room", chat_id)


class RoleView(ChatMixin):
    """Makes another member an owner, or takes that away. Only owners may."""

    checks_membership_first = False
    invalid_message = _("Choose a person.")

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        role: Role = "owner" if request.POST.get("role") == "owner" else "member"
        self.admit("change")
        self.chat.set_role(self.me, request.POST.get("member", ""), role)
        return self.done({"role": role}, "details", chat_id)


class LeaveView(ChatMixin):
    """Removes the user from a chat; with `never_again`, nobody can add them again."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if not self.chat.leave(self.me, again="never_again" not in request.POST):
            raise Problem(problems.NOT_FOUND)
        return self.done({"left": True}, "chats")


class DeleteChatView(ChatMixin):
    """Deletes a chat with all its messages. Only owners may."""

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if not self.chat.delete(self.me):
            raise Problem(problems.NOT_FOUND)
        return self.done({"deleted": True}, "chats")


class RemoveView(ChatMixin):
    """Removes another member from a chat. Only owners may."""

    invalid_message = _("Choose a person.")

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        removed = self.chat.leave(request.POST.get("member", ""), by=self.me)
        return self.done({"removed": removed}, "details", chat_id)


class AddView(PickerPage, ChatMixin):
    """Adds people to a chat: the page to choose them on, and the change itself."""

    template_name = "django_redis_messaging/add.html"

    def get(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        return self.show_form()

    def post(self, request: HttpRequest, chat_id: str) -> HttpResponse:
        if "search" in request.POST:
            return self.show_form()
        chosen = self.recipients()
        self.check_recipients(chosen)
        self.count_use("invite", len(chosen))
        added = self.chat.add(chosen, by=self.me)
        for member in reversed(added[:MAX_NEW_CONTACTS]):
            RecentContacts(self.me).touch(member)
        return self.done({"added": added}, "room", chat_id)

    def check_recipients(self, chosen: Sequence[str]) -> None:
        """Raise the Problem unless the guild rule and the site's own rules allow to add these people."""
        if not chosen:
            raise problems.invalid(_("Choose a person."))
        identity, user = self.active_identity, self.request.user
        if len(reachable_labels(identity, user, chosen)) < len(chosen):
            raise Problem(problems.NOT_IN_DIRECTORY)
        if not all(identity.may_add(user, self.chat.id, member) for member in chosen):
            raise Problem(problems.NOT_PERMITTED)

    @cached_property
    def read_state(self) -> Changes:
        return self.state()

    def add_others(self) -> None:
        add_room(self.people, self.read_state, self.me)

    def extra_context(self) -> dict[str, object]:
        return room_context(self.read_state, people=self.people, me=self.me)
