"""Signals of the pages."""

from __future__ import annotations

from django.dispatch import Signal

#: Somebody sent a message by a page; `sender` is the view. Receivers are called with `request` and `message`
#: (a Message), in the request that sent it: be quick, or enqueue a task. What a receiver raises is logged,
#: and the message is sent all the same. A request that is repeated calls them again, with the same message:
#: its cursor makes a good request_id. What code sends by Chat.send is not announced.
message_sent = Signal()
