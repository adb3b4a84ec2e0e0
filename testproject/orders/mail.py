"""A mail server that fails, to be seen in the demo."""

from __future__ import annotations

from collections.abc import Sequence
from smtplib import SMTPServerDisconnected
from typing import Any
from urllib.parse import quote

from django.core.cache import caches
from django.core.mail import EmailMessage
from django.core.mail.backends.locmem import EmailBackend

#: times that a mail to somebody called "later" is refused
REFUSALS = 2


class MoodyBackend(EmailBackend):
    """Keeps mails in memory; one to `later@…` is refused at first, as by a server that is down."""

    def send_messages(self, messages: Sequence[EmailMessage]) -> Any:
        """Send them, or raise what a broken connection raises."""
        for message in messages:
            if message.to[0].startswith("later") and self._refusals(message) <= REFUSALS:
                raise SMTPServerDisconnected("The mail server hung up.")
        return super().send_messages(messages)

    def _refusals(self, message: EmailMessage) -> int:
        cache, key = caches["default"], f"refused-{quote(str(message.body), safe='')}"
        cache.add(key, 0)
        return cache.incr(key)
