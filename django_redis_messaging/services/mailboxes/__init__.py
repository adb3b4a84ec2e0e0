"""Mailboxes: one recipient, who pulls; and notifications, which are mails with a fixed payload format."""

from .mailbox import Mail, Mailbox, MailboxStatus, MailPage
from .notifications import Notification, anotify, anotify_many, notify, notify_many

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
