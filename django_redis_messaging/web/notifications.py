"""Notifications as the pages show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from ..services.mailboxes.notifications import Notification, notification
from ..services.mailboxes.values import Mail
from .identity import Identity
from .texts import without_bidi_controls


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NotificationView:
    """A notification with everything a template needs to show it."""

    mail: Mail
    content: Notification
    #: label of the sender; empty if it has none
    sender: str

    @property
    def level(self) -> str:
        """The level as a word: not everyone can distinguish colours."""
        words = {"success": _("Success"), "warning": _("Warning"), "error": _("Error")}
        return words.get(self.content.level, _("Information"))

    @property
    def as_json(self) -> dict[str, Any]:
        """The notification as JSON, without its payload: a browser gets only what the page shows."""
        mail = self.mail
        return {
            "id": mail.id,
            "cursor": mail.cursor,
            "text": self.content.text,
            "url": self.content.url,
            "level": self.content.level,
            "sender": mail.sender,
            "label": self.sender,
            "group": mail.group,
            "count": mail.count,
            "read": mail.read,
            "sent_at": mail.sent_at.isoformat(),
        }


def notification_views(mails: Sequence[Mail], *, identity: Identity) -> list[NotificationView]:
    """The mails as notifications; the labels of all senders are fetched together."""
    senders = {mail.sender for mail in mails if mail.sender is not None}
    labels = identity.labels(senders) if senders else {}
    return [
        NotificationView(
            mail=mail,
            content=notification(mail.payload),
            sender=without_bidi_controls(labels.get(mail.sender, mail.sender)) if mail.sender else "",
        )
        for mail in mails
    ]
