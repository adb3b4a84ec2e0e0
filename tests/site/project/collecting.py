"""A call while pytest collects tests, before any fixture."""

import os

import django
from django.apps import apps

if not apps.ready:  # without pytest-django
    django.setup()

from django_redis_messaging import Mailbox, notify
from django_redis_messaging.testing import current_run

notify("collected", "Hello!")
if "SERVERS" in os.environ:
    with open(os.environ["SERVERS"], "a", encoding="utf-8") as file:
        file.write(f"{current_run().url}\n")


def test_mailbox() -> None:
    assert Mailbox("collected").unread() == 1
