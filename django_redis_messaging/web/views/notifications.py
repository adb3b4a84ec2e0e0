"""What a user was told: a page, the same as JSON, the bell's count, and what changes it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...services.mailboxes import Mailbox
from ...services.mails import MailPage
from .. import bell, problems
from ..base import MessagingPage, MessagingView
from ..notices import Notice, notices
from ..places import number

#: notifications on a page, of each kind
SHOWN = 50
#: notifications that are marked by one request
MOST = 100


class MailboxMixin(MessagingView):
    """Reads the mailbox of the one who asks."""

    #: the service; a subclass may put its own in its place
    service_of_mail: type[Mailbox] = Mailbox

    @cached_property
    def mailbox(self) -> Mailbox:
        return self.service_of_mail(self.me)

    def read(self, *, unread: bool | None) -> MailPage:
        """A page of them, newest first, after the cursor of the address; anew where that is none."""
        after = self.request.GET.get("after") or None
        try:
            return self.mailbox.fetch(after=after, limit=SHOWN, unread=unread, newest_first=True)
        except ValueError:
            return self.mailbox.fetch(limit=SHOWN, unread=unread, newest_first=True)

    def notices(self, page: MailPage) -> list[Notice]:
        return notices(page.messages, identity=self.who)

    @property
    def only_unread(self) -> bool:
        given = self.request.POST if self.request.method == "POST" else self.request.GET
        return given.get("show") == "unread"


class NotificationsView(MailboxMixin, MessagingPage):
    """The notifications, unread ones first. Shows; moves no position and marks nothing."""

    template_name = "django_redis_messaging/notifications.html"
    tab = "notifications"

    def get(self, request: HttpRequest) -> HttpResponse:
        further = "after" in request.GET
        unread = None if further and not self.only_unread else self.read(unread=True)
        read = None if self.only_unread else self.read(unread=False)
        # at least one of them is there, and each tells the gap
        *_, last = (page for page in (unread, read) if page)
        newest = unread.messages[0] if unread and unread.messages and not further else None
        context: dict[str, Any] = {
            "unread": self.notices(unread) if unread else [],
            "more_unread": unread.cursor if unread and unread.has_more else None,
            "read": self.notices(read) if read else [],
            "more_read": read.cursor if read and read.has_more else None,
            "only_unread": self.only_unread,
            "further": further,
            "newest": newest,
            "gap": _gap_in_words(last.gap),
        }
        return self.page(context)


def _gap_in_words(gap: int) -> str:
    if not gap:
        return ""
    text = ngettext(
        "%(count)d older notification was removed: there were too many, or it was too old.",
        "%(count)d older notifications were removed: there were too many, or they were too old.",
        gap,
    )
    return text % {"count": gap}


class NotificationsFeedView(MailboxMixin):
    """A page of the notifications as JSON, newest first."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        page = self.read(unread=True if self.only_unread else None)
        return JsonResponse(
            {
                "notifications": [notice.as_json for notice in self.notices(page)],
                "cursor": page.cursor,
                "has_more": page.has_more,
                "gap": page.gap,
                "gap_text": _gap_in_words(page.gap),
                "reset": page.reset,
                "unread": self.mailbox.unread(),
            }
        )


class BellView(MailboxMixin):
    """What the bell shows, as JSON: asked for again and again, so it is one round trip to Redis."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        unread = self.mailbox.unread()
        return JsonResponse({"unread": unread, "label": bell.label(unread), "text": bell.text(unread)})


class NotificationChange(MailboxMixin):
    """Changes some notifications, and goes back to the page, or answers what is unread."""

    def ids(self) -> list[int]:
        ids = [number(value) for value in self.request.POST.getlist("id")]
        if not ids or len(ids) > MOST or min(ids) < 1:
            raise problems.invalid(_("Choose a notification."))
        return ids

    def changed(self) -> HttpResponse:
        if self.wants_json:
            return JsonResponse({"unread": self.mailbox.unread()})
        answer = self.done({}, "notifications")
        if self.only_unread:
            answer["Location"] += "?show=unread"
        return answer


class ReadNotificationsView(NotificationChange):
    """Marks some as read, by `id`, any number of times; or all up to a place, by `up_to`, a cursor."""

    def post(self, request: HttpRequest) -> HttpResponse:
        up_to = request.POST.get("up_to")
        if up_to:
            self.ack(up_to)
        else:
            self.mailbox.mark_read(self.ids())
        return self.changed()

    def ack(self, up_to: str) -> None:
        try:
            self.mailbox.ack(number(up_to) if up_to.isdigit() else up_to)
        except ValueError:
            raise problems.invalid(_("This is no place among your notifications.")) from None


class DiscardNotificationView(NotificationChange):
    """Removes one, by `id`."""

    def post(self, request: HttpRequest) -> HttpResponse:
        ids = self.ids()
        if len(ids) > 1:
            raise problems.invalid(_("Choose a notification."))
        self.mailbox.discard(ids[0])
        return self.changed()
