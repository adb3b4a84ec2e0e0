"""A call while pytest collects tests, before any fixture."""

import django
from django.apps import apps

if not apps.ready:  # without pytest-django
    django.setup()

from django_redis_messaging import Mailbox, notify

notify("1", "Hello!")


def test_mailbox() -> None:
    assert Mailbox("1").unread() == 1
