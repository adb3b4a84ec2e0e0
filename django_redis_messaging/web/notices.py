"""Notifications as the pages show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from ..services.mails import Mail
from ..services.notifications import Notification, notification
from .identity import Identity


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """A mail with what it says."""

    mail: Mail
    said: Notification
    #: what its sender is called; empty where it has none
    sender: str

    @property
    def level(self) -> str:
        """The level in words: colour alone tells some people nothing."""
        words = {"success": _("Success"), "warning": _("Warning"), "error": _("Error")}
        return words.get(self.said.level, _("Information"))

    @property
    def as_json(self) -> dict[str, Any]:
        """Without the payload: what it says, and no more, is for a browser."""
        mail = self.mail
        return {
            "id": mail.id,
            "cursor": mail.cursor,
            "text": self.said.text,
            "url": self.said.url,
            "level": self.said.level,
            "sender": mail.sender,
            "label": self.sender,
            "group": mail.group,
            "count": mail.count,
            "read": mail.read,
            "sent_at": mail.sent_at.isoformat(),
        }


def notices(mails: Sequence[Mail], *, identity: Identity) -> list[Notice]:
    """The mails as shown; the senders' labels are asked for together."""
    senders = {mail.sender for mail in mails if mail.sender is not None}
    labels = identity.labels(senders) if senders else {}
    return [
        Notice(
            mail=mail,
            said=notification(mail.payload),
            sender=labels.get(mail.sender, mail.sender) if mail.sender else "",
        )
        for mail in mails
    ]
