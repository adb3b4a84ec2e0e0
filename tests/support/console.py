"""Pages of the console in the admin, and the forms on them."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode

from django_redis_messaging.services.audit import AuditTrail
from django_redis_messaging.services.common.things import Thing

#: a name that is markup, with characters that change the order or the screen
HOSTILE = '<script>alert(1)</script>" \u202e{x}%0A\n\x1b[31m/'
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;&quot; \\u202e{x}%0A\\n\\x1b[31m/"


def url(name: str, /, **query: Any) -> str:
    """The URL of a page."""
    values = {key: str(value) for key, value in query.items()}
    return reverse(f"admin:messaging_{name}") + ("?" + urlencode(values) if values else "")


def get(client: Client, name: str, /, **query: Any) -> Any:
    """The answer of a page."""
    return client.get(url(name, **query))


def page(client: Client, name: str, /, thing: Thing | str = "", **query: Any) -> str:
    """The text of a page."""
    answer = get(client, name, **({"thing": thing} if thing else {}), **query)
    assert answer.status_code == 200, answer.content.decode()
    return str(answer.content.decode())


def facts(shown: str) -> dict[str, str]:
    """The facts of a page, without markup."""
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", shown, re.DOTALL)
    return {name: " ".join(unescape(re.sub(r"<[^>]+>", " ", value)).split()) for name, value in found}


def rows(shown: str) -> list[list[str]]:
    """The rows of all tables of a page, without markup."""
    ours = shown[shown.index('id="drm-live"') :]  # after the sidebar of the admin
    found = re.findall(r"<tr>\n(.*?)</tr>", ours, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in found]
    return [[" ".join(unescape(re.sub(r"<[^>]+>", " ", one)).split()) for one in row] for row in cells]


def names(shown: str) -> list[str]:
    """The first cell of each row."""
    return [row[0] for row in rows(shown)]


def fields(shown: str, action: str) -> list[dict[str, str]]:
    """The hidden fields of the forms for an action, as a browser submits them."""
    forms = re.findall(rf'<form method="post" action="{url(action)}".*?</form>', shown, re.DOTALL)
    pattern = r'<input type="hidden" name="([^"]+)" value="([^"]*)">'
    found = [{name: unescape(value) for name, value in re.findall(pattern, form)} for form in forms]
    return [{name: one[name] for name in one if name != "csrfmiddlewaretoken"} for one in found]


def next_page(client: Client, shown: str) -> str:
    """The text of the page to which the button for the next one leads; empty without one."""
    found = re.search(r'<a href="([^"]+)" class="drm-button">Next page', shown)
    return client.get(unescape(found[1])).content.decode() if found else ""


def post(client: Client, action: str, /, *things: Thing, **data: str) -> Any:
    """Ask for a change."""
    return client.post(url(action), {"thing": list(map(str, things)), **data})


def confirm(client: Client, action: str, /, *things: Thing, **data: str) -> Any:
    """Make a change that was asked for."""
    return post(client, action, *things, confirmed="1", **data)


def change(client: Client, action: str, /, *things: Thing, **data: str) -> str:
    """Make a change; returns what the page then says."""
    answer = client.post(
        url(action), {"thing": list(map(str, things)), "confirmed": "1", **data}, follow=True
    )
    assert answer.redirect_chain, answer.content.decode()
    return str(answer.content.decode())


def changes() -> list[tuple[str, str, str]]:
    """Who did what with what, the latest first."""
    return [(one.by, one.action, one.thing) for one in AuditTrail().entries()]
