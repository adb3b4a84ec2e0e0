"""What a user was told: a page, the same as JSON, the bell's count, and what changes it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import urlencode, urljoin

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...core.retry import deadline
from ...errors import MessagingError
from ...services.mailboxes import Mailbox
from ...services.mails import MailPage
from ...services.notifications import checked_url
from .. import bell, problems
from ..base import MessagingPage, MessagingView
from ..notices import Notice, notices
from ..places import number

_logger = logging.getLogger(__name__)
#: notifications on a page, of each kind
SHOWN = 50
#: notifications that are marked by one request
MOST = 100
#: what the page can show besides all with the unread ones first: `?show=`
CHOICES = ("time", "unread")
#: seconds that following a link waits until the notification is marked as read
PATIENCE = 2.0


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
    def show(self) -> str:
        """Which are shown: one of CHOICES, or all."""
        given = self.request.POST if self.request.method == "POST" else self.request.GET
        wanted = given.get("show", "")
        return wanted if wanted in CHOICES else ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Some notifications under a heading."""

    title: str
    notices: list[Notice]
    #: the query of the page with the next of them, and what the link to it says
    more: str
    more_title: str


class NotificationsView(MailboxMixin, MessagingPage):
    """The notifications: unread ones first, all by time, or unread ones only. Moves no position and marks
    nothing."""

    template_name = "django_redis_messaging/notifications.html"
    tab = "notifications"

    def get(self, request: HttpRequest) -> HttpResponse:
        further = "after" in request.GET
        pages = self.pages(further=further)
        sections = [self.section(kind, page) for kind, page in pages.items() if page.messages]
        first = [] if further or not sections else sections[0].notices
        context = {
            "show": self.show,
            "sections": sections,
            "further": further,
            # what comes after the page was made stays unread when all are marked
            "newest": first[0].mail if any(not notice.mail.read for notice in first) else None,
            # each page tells the same, at the end
            "gap": _gap_in_words([*pages.values()][-1].gap),
        }
        return self.page(context)

    def pages(self, *, further: bool) -> dict[str, MailPage]:
        if self.show == "time":
            return {"time": self.read(unread=None)}
        if self.show == "unread":
            return {"unread": self.read(unread=True)}
        # the second page of what is read; the unread ones have theirs under their own address
        unread = {} if further else {"unread": self.read(unread=True)}
        return {**unread, "read": self.read(unread=False)}

    def section(self, kind: str, page: MailPage) -> Section:
        titles = {
            "time": (_("Newest first"), _("Older notifications")),
            "unread": (_("New"), _("More unread ones")),
            "read": (_("Earlier"), _("Older notifications")),
        }
        title, more_title = titles[kind]
        show = {} if kind == "read" else {"show": kind}
        more = "?" + urlencode({**show, "after": page.cursor}) if page.has_more else ""
        return Section(title=title, notices=self.notices(page), more=more, more_title=more_title)


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
        page = self.read(unread=True if self.show == "unread" else None)
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
        status = self.mailbox.status()
        words = {"label": bell.label(status.unread), "text": bell.text(status.unread)}
        return JsonResponse({"unread": status.unread, **words, "state": bell.state(status)})


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
        if self.show:
            answer["Location"] += f"?show={self.show}"
        return answer


class ReadNotificationsView(NotificationChange):
    """Marks some as read, by `id`, any number of times; or all up to a place, by `up_to`, a cursor.

    With `next`, the address of the notification that is followed, it leads there.
    """

    def post(self, request: HttpRequest) -> HttpResponse:
        target = self.target()
        if target is None:
            self.mark()
            return self.changed()
        try:
            # Where a link leads must not depend on Redis.
            with deadline(PATIENCE):
                self.mark()
        except MessagingError as error:
            _logger.warning("A notification that was followed stays unread: %s", error)
        return HttpResponseRedirect(target)

    def target(self) -> str | None:
        """Where the notification leads, if it is followed: what `notify` would accept, and nothing else."""
        try:
            url = checked_url(self.request.POST.get("next", ""))
        except ValueError:
            raise problems.invalid(_("This address is not allowed.")) from None
        return urljoin(self.url("notifications"), url) if url else None

    def mark(self) -> None:
        up_to = self.request.POST.get("up_to")
        if not up_to:
            self.mailbox.mark_read(self.ids())
            return
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
