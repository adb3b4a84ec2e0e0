"""The panel of the debug toolbar, in pages of a site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import sync_to_async
from django.core.checks.registry import registry
from django.test import AsyncClient, Client, override_settings
from pytest_django import Settings

from django_redis_messaging.core.operations import are_observed

pytestmark = [pytest.mark.one_server, pytest.mark.versions]

PANEL = "django_redis_messaging.debug_panel.MessagingPanel"


@pytest.fixture
def toolbar(settings: Settings) -> Iterator[None]:
    """A site with the toolbar and the panel. The checks that it registers don't run in other tests."""
    checks = mock.patch.object(registry, "registered_checks", set(registry.registered_checks))
    with (
        checks,
        override_settings(
            INSTALLED_APPS=[*settings.INSTALLED_APPS, "debug_toolbar"],
            MIDDLEWARE=["debug_toolbar.middleware.DebugToolbarMiddleware", *settings.MIDDLEWARE],
            DEBUG_TOOLBAR_PANELS=["debug_toolbar.panels.history.HistoryPanel", PANEL],
            DEBUG_TOOLBAR_CONFIG={"SHOW_TOOLBAR_CALLBACK": lambda request: True},
            DEBUG=True,
            ROOT_URLCONF=f"{__package__}.toolbar_urls",
        ),
    ):
        yield


def shown(client: Client, page: str) -> tuple[str, list[list[str]]]:
    """The panel's title, and the cells of its rows, after a page."""
    from .toolbar_urls import SECRET  # which can be imported with the toolbar only

    [request_id] = re.findall(r'data-request-id="(\w+)"', page)
    parameters = {"request_id": request_id, "panel_id": "MessagingPanel"}
    content = client.get("/__debug__/render_panel/", parameters).json()["content"]
    assert SECRET not in content
    [title] = re.findall(r"\d+ operations? in [\d.]+ ms", page)
    rows = re.findall(r"<tr>(.*?)</tr>", content, re.DOTALL)
    cells = (re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in rows)
    return title, [[re.sub(r"<[^>]+>", "", cell).strip() for cell in row] for row in cells if row]


@pytest.mark.parametrize("view", ["page", "apage"])
@pytest.mark.parametrize("client", [Client, AsyncClient])
async def test_operations_of_a_request(view: str, client: Any, toolbar: None, closing: None) -> None:
    if client is Client:
        response = await sync_to_async(Client().get)(f"/{view}/")
    else:
        response = await AsyncClient().get(f"/{view}/")
    title, (total, *rows) = shown(Client(), response.content.decode())
    assert title.startswith("3 operations in ")
    assert total[:2] == ["3", "5"]
    assert [(name, sent, trips, error) for name, sent, trips, _, error in rows] == [
        ("Chat.create", "2 chats/inbox_reserve, chats/create, 2 chats/inbox_confirm", "3", ""),
        ("Chat.changes", "chats/changes", "1", ""),
        ("Chat.send", "chats/send", "1", "NotAMember"),
    ]
    assert all(re.fullmatch(r"\d+\.\d\d ms", row[3]) for row in rows)
    assert response.headers["Server-Timing"].startswith("MessagingPanel_messaging;dur=")
    assert not are_observed()
