"""What the user lets others see."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from ... import conf
from ...services.choices import Choices
from ..base import MessagingView


class ChoicesView(MessagingView):
    """Changes what others see: `online`, and `receipts`, what the user has read; what is absent, they don't.

    What the site shows to nobody is not changed.
    """

    def post(self, request: HttpRequest) -> HttpResponse:
        chosen = {what: what in request.POST for what in offered()}
        choice = Choices().choose(self.me, **chosen)
        return self.done(choice._asdict(), "blocks")


def offered() -> list[str]:
    """The choices that make a difference on this site."""
    settings = conf.current()
    shows = {
        "online": settings.LIVE and settings.PRESENCE_MAX_MEMBERS > 0,
        "receipts": settings.READ_RECEIPTS,
    }
    return [what for what, is_shown in shows.items() if is_shown]
