"""Requests to the console, through the admin."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode

from django_redis_messaging.services.common.things import Thing

#: a name that is markup, with characters that change the order or the screen
HOSTILE = '<script>alert(1)</script>" \u202e{x}%0A\n\x1b[31m/'
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;&quot; \\u202e{x}%0A\\n\\x1b[31m/"


def url(name: str, **query: str) -> str:
    """The URL of a page."""
    return reverse(f"admin:messaging_{name}") + ("?" + urlencode(query) if query else "")


def page(client: Client, name: str, /, thing: Thing | None = None, **query: str) -> str:
    """The text of a page."""
    answer = client.get(url(name, **({"thing": str(thing)} if thing else {}), **query))
    assert answer.status_code == 200, answer.content.decode()
    return str(answer.content.decode())


def post(client: Client, action: str, /, *things: Thing, **data: str) -> Any:
    """Ask for a change, or with `confirmed`, make it."""
    return client.post(url(action), {"thing": list(map(str, things)), **data})


def change(client: Client, action: str, /, *things: Thing, **data: str) -> str:
    """Make a change; returns what the page then says."""
    answer = client.post(
        url(action), {"thing": list(map(str, things)), "confirmed": "1", **data}, follow=True
    )
    assert answer.redirect_chain, answer.content.decode()
    return str(answer.content.decode())
