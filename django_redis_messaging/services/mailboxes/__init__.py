"""Mailboxes: one recipient, who pulls; and notifications, which are mails with a fixed payload format."""

from .mailbox import Mailbox
from .notifications import Notification, anotify, anotify_many, notify, notify_many
from .values import Mail, MailboxStatus, MailPage

__all__ = [
    "Mail",
    "MailPage",
    "Mailbox",
    "MailboxStatus",
    "Notification",
    "anotify",
    "anotify_many",
    "notify",
    "notify_many",
]
