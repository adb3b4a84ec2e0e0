"""Reads from the server of the site, and with the word `setup` also from that of tests."""

import os
import sys

import django

django.setup()

from django.test.utils import setup_test_environment, teardown_test_environment  # noqa: E402

from django_redis_messaging import Chat, Inbox  # noqa: E402

inbox = Inbox("1")
found = [inbox.unread()]
if sys.argv[1:]:
    setup_test_environment()
    found.append(inbox.unread())  # the same object, at once
    Chat.create("1", ["2"], "Hello!", chat_id="lunch")  # exists on the server of the site
    if sys.argv[1] == "variable":
        print("variable:", os.environ["REDIS_MESSAGING_TEST_RUN"])  # noqa: T201
    teardown_test_environment()
    found.append(inbox.unread())  # a process that has run tests does not return to the site
if sys.argv[1:] != ["variable"]:
    print("unread:", ", ".join(map(str, found)))  # noqa: T201
