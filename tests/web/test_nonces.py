"""The nonce of the site's Content-Security-Policy in the pages."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace

import django
import pytest
from django.template import Context, Template
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from pytest_django import Settings

from ..support import content_policies
from .conftest import Room

pytestmark = pytest.mark.versions


#: the settings of docs/web.md
DJANGO_POLICY = {
    "script-src": ["<CSP_NONCE_SENTINEL>", "'strict-dynamic'"],
    "require-trusted-types-for": ["'script'"],
    "trusted-types": ["django-redis-messaging"],
}


class Lazy(SimpleLazyObject):
    """A nonce that is false until it is used, like that of Django."""

    def __bool__(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ({}, ""),
        ({"request": SimpleNamespace()}, ""),
        ({"csp_nonce": None, "request": SimpleNamespace(csp_nonce="b")}, ' nonce="b"'),
        ({"csp_nonce": Lazy(lambda: "a"), "request": SimpleNamespace(csp_nonce="b")}, ' nonce="a"'),
        ({"request": SimpleNamespace(csp_nonce=Lazy(lambda: '"<'))}, ' nonce="&quot;&lt;"'),
    ],
)
def test_the_nonce_of_the_site(context: dict[str, object], expected: str) -> None:
    template = Template("{% load messaging %}<script{% messaging_nonce %}>")
    assert template.render(Context(context)) == f"<script{expected}>"


@pytest.mark.parametrize("name", ["chats", "new", "contacts", "notifications", "room", "add", "message"])
def test_every_file_has_it(room: Room, settings: Settings, name: str) -> None:
    settings.TEST_POLICY = content_policies.STRICT
    args = {"room": [room.chat.id], "add": [room.chat.id], "message": [room.chat.id, 1]}.get(name, [])
    answer = room.client("owner").get(reverse(f"messaging:{name}", args=args))
    nonce = re.search(r"'nonce-([^']+)'", answer["Content-Security-Policy"])
    assert nonce
    files = re.findall(r"<(?:script|link)[^>]*django_redis_messaging/[^>]*>", answer.content.decode())
    assert len(files) >= 4
    assert [file for file in files if f' nonce="{nonce[1]}"' not in file] == []


@pytest.mark.skipif(django.VERSION < (6, 0), reason="Django 6.0 added its own policy")
def test_the_policy_of_django(room: Room, settings: Settings) -> None:
    settings.MIDDLEWARE = ["django.middleware.csp.ContentSecurityPolicyMiddleware", *settings.MIDDLEWARE]
    settings.SECURE_CSP = DJANGO_POLICY
    (templates,) = copy.deepcopy(settings.TEMPLATES)
    templates["OPTIONS"]["context_processors"].append("django.template.context_processors.csp")
    settings.TEMPLATES = [templates]
    answer = room.client("owner").get(reverse("messaging:room", args=[room.chat.id]))
    policy = answer["Content-Security-Policy"]
    nonce = re.match(
        r"script-src 'nonce-([^']+)' 'strict-dynamic'; require-trusted-types-for 'script'; "
        r"trusted-types django-redis-messaging$",
        policy,
    )
    assert nonce
    assert answer.content.decode().count(f'<script type="module" nonce="{nonce[1]}"') == 4
