"""Signals of the pages."""

from __future__ import annotations

from django.dispatch import Signal

#: Sent after a user has sent a message through a page; `sender` is the view class. Receivers get `request`
#: and `message` (a Message), and run inside the request: keep them fast, or enqueue a task. Exceptions of
#: receivers are logged; the message stays sent. A repeated request sends the signal again with the same
#: message: use its cursor as a request_id. Messages sent by code (Chat.send) don't send the signal.
message_sent = Signal()
