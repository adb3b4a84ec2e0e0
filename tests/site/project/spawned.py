"""What other processes and threads do."""

import django


def unread_after(name: str) -> int:
    """Notify a user; returns the number of unread notifications."""
    django.setup()
    from django_redis_messaging import Mailbox, notify

    notify(name, "from multiprocessing")
    return Mailbox(name).unread()
