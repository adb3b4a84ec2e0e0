"""What the user has chosen: what others see, and whether digests are mailed."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views.decorators.csrf import csrf_exempt

from ... import conf
from ...services.choices import Choices
from ..base import MessagingView
from ..digests import member_of_token
from ..identity import Identity
from ..layout import layout_context
from ..problems import Answer, Problem

_BAD_LINK = Answer(404, "not_found", _("This link is not valid. Copy all of it from the e-mail."))


class ChoicesView(MessagingView):
    """Changes what others see: `online`, and `receipts`, what the user has read; and whether the user gets
    `digests`. What is absent is switched off.

    What the site offers to nobody is not changed.
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


# Mail programs post to the link without cookies (RFC 8058). Whoever has the link may do this, and only this.
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
