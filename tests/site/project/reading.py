"""Uses the server of the site, then that of tests, and after their end none."""

import os

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.test.utils import setup_test_environment, teardown_test_environment  # noqa: E402

from django_redis_messaging import Chat, ConfigurationError, Inbox, notify  # noqa: E402
from django_redis_messaging.core import testruns  # noqa: E402

call_command("check", tags=["messaging"], deploy=testruns.VARIABLE in os.environ)
inbox = Inbox("1")
found = [inbox.unread()]
setup_test_environment()
found.append(inbox.unread())  # the same object, at once
Chat.create("1", ["2"], "Hello!", chat_id="lunch")  # exists on the server of the site
variable = os.environ[testruns.VARIABLE]
teardown_test_environment()
found.append(inbox.unread())  # a process that has run tests does not return to the site
notify("1", "Hello again!")
testruns.end()
print("unread:", found, "variable:", variable)  # noqa: T201
try:
    notify("1", "Too late")  # as a thread does that a test has left
except ConfigurationError as error:
    print("refused:", error)  # noqa: T201
