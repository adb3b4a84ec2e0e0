"""Fills the server of the site."""

import django

django.setup()

from django_redis_messaging import Chat, Directory, Inbox, notify  # noqa: E402

Chat.create("1", ["2"], "Hello!", chat_id="lunch", title="Lunch")
Chat.create("2", ["1"], "Unread", chat_id="dinner")
notify("1", "Welcome")
Directory("everyone").add("1", "Ann Site")
for user in ("1", "2"):
    Inbox(user).unread()  # the first read updates what is stored
