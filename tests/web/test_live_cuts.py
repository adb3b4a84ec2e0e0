"""A client of another kind follows a chat through cut connections."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx
import httpx_sse
import pytest
from django.contrib.auth.models import User

from django_redis_messaging import Chat

from ..support.asgi_site import CuttingProxy, serving
from .conftest import client_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timing, pytest.mark.promise]

CUTS = 50


def test_everything_arrives_once_through_cuts(person: Callable[..., User]) -> None:
    ann, bob = person("ann"), person("bob")
    chat = Chat.create(str(ann.pk), [str(bob.pk)], "First", title="Trip")
    cookies = {"sessionid": client_of(bob).cookies["sessionid"].value}
    stopped = threading.Event()
    sent: list[str] = []

    def speak() -> None:
        while not stopped.wait(0.005):
            sent.append(f"Message {len(sent)}")
            chat.send(str(ann.pk), sent[-1])

    received: list[str] = []
    speaker = threading.Thread(target=speak)
    with serving() as site, CuttingProxy(site, max_bytes=30_000) as proxy:
        proxy.cutting.set()
        speaker.start()
        last_id = ""
        try:
            while proxy.cuts < CUTS:
                last_id = follow(proxy.url, chat, cookies, last_id, received)
        finally:
            stopped.set()
            speaker.join()
        proxy.cutting.clear()
        while len(received) <= len(sent):
            last_id = follow(
                proxy.url, chat, cookies, last_id, received, enough=lambda: len(received) > len(sent)
            )
    assert proxy.cuts >= CUTS
    assert received == ["First", *sent]


def follow(
    url: str,
    chat: Chat,
    cookies: dict[str, str],
    last_id: str,
    received: list[str],
    *,
    enough: Callable[[], bool] = lambda: False,
) -> str:
    """Receive messages until the connection is cut; returns the id of the last event."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    parameters = {"room": chat.id, "after": 0}
    try:
        with (
            httpx.Client(cookies=cookies, headers=headers) as client,
            httpx_sse.connect_sse(client, "GET", f"{url}/messages/live/", params=parameters) as source,
        ):
            for event in source.iter_sse():
                last_id = event.id or last_id
                if event.event == "room":
                    received += [message["body"] for message in event.json()["messages"]]
                if enough():
                    break
    except httpx.TransportError:
        pass  # cut: the next connection goes on
    return last_id
