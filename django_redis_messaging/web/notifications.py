"""Notifications as the pages show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from django.utils.translation import gettext as _

from ..services.mailboxes.notifications import Notification, notification
from ..services.mailboxes.values import Mail
from .people import People, Person


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NotificationView:
    """A notification with everything a template needs to show it."""

    mail: Mail
    content: Notification
    #: None if the mail has none
    sender: Person | None

    @property
    def level(self) -> str:
        """The level as a word: not everyone can distinguish colours."""
        words = {"success": _("Success"), "warning": _("Warning"), "error": _("Error")}
        return words.get(self.content.level, _("Information"))

    @property
    def as_json(self) -> dict[str, Any]:
        """The notification as JSON, without its payload: a browser gets only what the page shows."""
        mail, sender = self.mail, self.sender
        return {
            "id": mail.id,
            "cursor": mail.cursor,
            "text": self.content.text,
            "url": self.content.url,
            "level": self.content.level,
            "sender": mail.sender,
            "label": sender.label if sender else "",
            **(sender.looks if sender else {}),
            "group": mail.group,
            "count": mail.count,
            "read": mail.read,
            "sent_at": mail.sent_at.isoformat(),
        }


def notification_views(mails: Sequence[Mail], *, people: People) -> list[NotificationView]:
    """The mails as notifications."""
    add_senders(people, mails)
    return [
        NotificationView(
            mail=mail,
            content=notification(mail.payload),
            sender=people[mail.sender] if mail.sender else None,
        )
        for mail in mails
    ]


def add_senders(people: People, mails: Iterable[Mail]) -> None:
    """Add the senders of the mails."""
    people.show(mail.sender for mail in mails if mail.sender)
