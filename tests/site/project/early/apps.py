import os

from django.apps import AppConfig


class EarlyConfig(AppConfig):
    name = "early"

    def ready(self) -> None:
        from django_redis_messaging import DelayQueue, Inbox, Mailbox

        #: made before, and connected
        self.inbox = Inbox("1")
        self.mailbox = Mailbox("1")
        self.queue = DelayQueue("early")
        if "IS_DOWN" not in os.environ and "REDIS_MESSAGING_TEST_RUN" not in os.environ:
            self.unread = self.inbox.unread()
