"""A process that a test starts: sends to the user that is named, and writes what the user has."""

import sys

import django

django.setup()

from django_redis_messaging import Mailbox, notify  # noqa: E402

notify(sys.argv[1], "from another process")
sys.stdout.write(str(Mailbox(sys.argv[1]).unread()))
