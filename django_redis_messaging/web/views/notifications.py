"""The notifications of a user: the page, the same as JSON, the bell's count, and changes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import urlencode, urljoin

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ...core.outcome import deadline
from ...errors import InvalidArgument, MessagingError
from ...services.mailboxes import Mailbox
from ...services.mailboxes.mailbox import MailPage
from ...services.mailboxes.notifications import checked_url
from .. import bell, problems
from ..base import MessagingPage, MessagingView, parse_id, parse_position
from ..bell import NotificationView, add_senders, notification_views

_logger = logging.getLogger(__name__)
#: notifications in a section of the page
NOTIFICATIONS_PER_PAGE = 50
#: maximum number of notifications that one request may mark as read
MAX_IDS = 100
#: values of `?show=`; without one, the page shows all notifications, unread ones first
FILTERS = ("time", "unread")
#: seconds after which a link is followed although the notification could not be marked as read
MARK_TIMEOUT = 2.0


class MailboxMixin(MessagingView):
    """Reads the mailbox of the user."""

    #: the service; a subclass may replace it by its own
    service_of_mail: type[Mailbox] = Mailbox

    @cached_property
    def mailbox(self) -> Mailbox:
        return self.service_of_mail(self.me)

    def read(self, *, unread: bool | None) -> MailPage:
        """A page of notifications, newest first, after the cursor in the URL."""
        after = self.request.GET.get("after") or None
        try:
            return self.mailbox.fetch(
                after=after, limit=NOTIFICATIONS_PER_PAGE, unread=unread, newest_first=True
            )
        except InvalidArgument:
            # The URL has no valid cursor: show the first page.
            return self.mailbox.fetch(limit=NOTIFICATIONS_PER_PAGE, unread=unread, newest_first=True)

    def views(self, page: MailPage) -> list[NotificationView]:
        return notification_views(page.messages, people=self.people)

    @property
    def show(self) -> str:
        """The filter: one of FILTERS, or empty for all."""
        given = self.request.POST if self.request.method == "POST" else self.request.GET
        value = given.get("show", "")
        return value if value in FILTERS else ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Notifications under a heading."""

    title: str
    notifications: list[NotificationView]
    #: query string of the next page, and the text of the link to it; empty on the last page
    more: str
    more_title: str


class NotificationsView(MailboxMixin, MessagingPage):
    """The notifications: unread ones first, by time, or unread ones only.

    Showing them marks none as read.
    """

    template_name = "django_redis_messaging/notifications.html"
    tab = "notifications"

    def get(self, request: HttpRequest) -> HttpResponse:
        further = "after" in request.GET
        pages = self.pages(further=further)
        for page in pages.values():
            add_senders(self.people, page.messages)
        sections = [self.section(kind, page) for kind, page in pages.items() if page.messages]
        first = [] if further or not sections else sections[0].notifications
        context = {
            "show": self.show,
            "sections": sections,
            "further": further,
            # "Mark all as read" marks up to here: later notifications were not on the page and stay unread.
            "newest": first[0].mail if any(not shown.mail.read for shown in first) else None,
            # All sections have the same gap; it is shown once, at the end.
            "gap": _gap_text([*pages.values()][-1].gap),
        }
        return self.page(context)

    def pages(self, *, further: bool) -> dict[str, MailPage]:
        if self.show == "time":
            return {"time": self.read(unread=None)}
        if self.show == "unread":
            return {"unread": self.read(unread=True)}
        # Further pages have only read notifications: further unread ones are at ?show=unread.
        unread = {} if further else {"unread": self.read(unread=True)}
        return {**unread, "read": self.read(unread=False)}

    def section(self, kind: str, page: MailPage) -> Section:
        titles = {
            "time": (_("Newest first"), _("Older notifications")),
            "unread": (_("New"), _("More unread notifications")),
            "read": (_("Earlier"), _("Older notifications")),
        }
        title, more_title = map(str, titles[kind])
        show = {} if kind == "read" else {"show": kind}
        more = "?" + urlencode({**show, "after": page.cursor}) if page.has_more else ""
        return Section(title=title, notifications=self.views(page), more=more, more_title=more_title)


def _gap_text(gap: int) -> str:
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
        page = self.read(unread=True if self.show == "unread" else None)
        return JsonResponse(
            {
                "notifications": [shown.as_json for shown in self.views(page)],
                "cursor": page.cursor,
                "has_more": page.has_more,
                "gap": page.gap,
                "gap_text": _gap_text(page.gap),
                "reset": page.reset,
                "unread": self.mailbox.unread(),
            }
        )


class BellView(MailboxMixin):
    """The content of the bell as JSON. Browsers poll it, so it takes a single round trip to Redis."""

    json_only = True

    def get(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse(bell.as_json(self.mailbox.status()))


class NotificationChange(MailboxMixin):
    """Changes notifications; answers with a redirect to the page, or with the new unread count."""

    def ids(self) -> list[int]:
        ids = [parse_id(value) for value in self.request.POST.getlist("id")]
        if not ids or len(ids) > MAX_IDS or min(ids) < 1:
            raise problems.invalid(_("Choose a notification."))
        return ids

    def change_done(self) -> HttpResponse:
        if self.wants_json:
            return JsonResponse({"unread": self.mailbox.unread()})
        response = self.done({}, "notifications")
        if self.show:
            response["Location"] += f"?show={self.show}"
        return response


class ReadNotificationsView(NotificationChange):
    """Marks notifications as read: those in `id`, which may be repeated, or all up to a cursor, in `up_to`.

    With `next`, the URL of the notification that the user follows, it redirects there.
    """

    invalid_message = _("This is not a valid notification or link.")

    def post(self, request: HttpRequest) -> HttpResponse:
        target = self.target()
        if target is None:
            self.mark_read()
            return self.change_done()
        try:
            # A link must work even when Redis is unavailable.
            with deadline(MARK_TIMEOUT):
                self.mark_read()
        except InvalidArgument:
            raise
        except MessagingError as error:
            _logger.warning("Marking a followed notification as read failed, it stays unread: %s", error)
        return HttpResponseRedirect(target)

    def target(self) -> str | None:
        """The URL of the notification, if it is followed. Only URLs that `notify` accepts are allowed."""
        url = checked_url(self.request.POST.get("next", ""))
        return urljoin(self.url("notifications"), url) if url else None

    def mark_read(self) -> None:
        up_to = self.request.POST.get("up_to")
        if up_to:
            self.mailbox.ack(parse_position(up_to))
        else:
            self.mailbox.mark_read(self.ids())


class DiscardNotificationView(NotificationChange):
    """Removes a notification, by `id`."""

    def post(self, request: HttpRequest) -> HttpResponse:
        ids = self.ids()
        if len(ids) > 1:
            raise problems.invalid(_("Choose a single notification."))
        self.mailbox.discard(ids[0])
        return self.change_done()
