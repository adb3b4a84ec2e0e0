"""A mail backend that fails, to show retries in the demo."""

from __future__ import annotations

from collections.abc import Sequence
from smtplib import SMTPServerDisconnected
from typing import Any
from urllib.parse import quote

from django.core.cache import caches
from django.core.mail import EmailMessage
from django.core.mail.backends.locmem import EmailBackend

#: how often a mail to an address that begins with "later" is refused
REFUSALS = 2


class UnreliableBackend(EmailBackend):
    """Keeps mails in memory, but first refuses mails to `later@…`, like a server that is down."""

    def send_messages(self, messages: Sequence[EmailMessage]) -> Any:
        """Store the mails, or raise the error of a broken connection."""
        for message in messages:
            if message.to[0].startswith("later") and self._count_attempts(message) <= REFUSALS:
                raise SMTPServerDisconnected("The mail server closed the connection.")
        return super().send_messages(messages)

    def _count_attempts(self, message: EmailMessage) -> int:
        """How often this mail was sent, including this time."""
        cache, key = caches["default"], f"refused-{quote(str(message.body), safe='')}"
        cache.add(key, 0)
        return cache.incr(key)
