"""Sites that push a message to all who follow a chat: this app, Channels with each of its layers, and
django-eventstream. The peers check the session when a stream begins, and push the message; this app also
checks each reader's membership with each message, and pushes the list of chats and the unread counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

CHAT = "stage"
LAYERS = {
    "channels": "channels_redis.core.RedisChannelLayer",
    "channels-pubsub": "channels_redis.pubsub.RedisPubSubChannelLayer",
}


class Site(NamedTuple):
    """How a client uses a site."""

    path: str
    #: events that a stream begins with
    first: int
    send: Callable[[str], Awaitable[object]]


def configure(directory: Path, name: str) -> None:
    """Set up Django for a site, in its own process and in that of the clients."""
    import django
    from django.conf import settings

    socket = (directory / "redis-socket").read_text()
    peer = {"eventstream": ["django_eventstream"]}.get(name, [])
    settings.configure(
        SECRET_KEY="benchmark",  # noqa: S106
        ALLOWED_HOSTS=["127.0.0.1"],
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": directory / "db"}},
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "django.contrib.sessions",
            "django_redis_messaging",
            *peer,
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
        CACHES={
            "messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"unix://{socket}?db=0"}
        },
        REDIS_MESSAGING={"CHAT_MAX_MEMBERS": 10_000, "LIVE_MAX_STREAMS": 100},
        CHANNEL_LAYERS={
            "default": {"BACKEND": LAYERS.get(name, ""), "CONFIG": {"hosts": [f"unix://{socket}"]}}
        },
        EVENTSTREAM_REDIS={"unix_socket_path": socket},
    )
    django.setup()
    from django.urls import include, path

    settings.ROOT_URLCONF = (
        path("messages/", include("django_redis_messaging.urls")),
        *(path("events/", include(f"{one}.urls"), {"channels": [CHAT]}) for one in peer),
    )


def application(name: str) -> Any:
    """The ASGI application of a site."""
    from django.core.asgi import get_asgi_application

    return _channels_application() if name in LAYERS else get_asgi_application()


def _channels_application() -> Any:
    from channels.auth import AuthMiddlewareStack
    from channels.consumer import AsyncConsumer
    from channels.exceptions import StopConsumer

    class Stage(AsyncConsumer):  # type: ignore[misc]
        async def http_request(self, message: Any) -> None:
            assert self.scope["user"].is_authenticated
            await self.channel_layer.group_add(CHAT, self.channel_name)
            headers = [(b"Content-Type", b"text/event-stream")]
            await self.send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._push("open")

        async def stage_message(self, message: Any) -> None:
            await self._push(message["text"])

        async def http_disconnect(self, message: Any) -> None:
            await self.channel_layer.group_discard(CHAT, self.channel_name)
            raise StopConsumer

        async def _push(self, text: str) -> None:
            body = f"event: room\ndata: {text}\n\n".encode()
            await self.send({"type": "http.response.body", "body": body, "more_body": True})

    return AuthMiddlewareStack(Stage.as_asgi())


def site(name: str) -> Site:
    """How the clients use it."""
    if name in LAYERS:
        return Site("/stage/", 1, _send_to_group)
    if name == "eventstream":
        return Site("/events/", 1, _send_event)
    return Site(f"/messages/live/?room={CHAT}&html=1", 3, _send_message)


async def _send_message(text: str) -> None:
    from django_redis_messaging import Chat

    await Chat(CHAT).asend("speaker", text)


async def _send_to_group(text: str) -> None:
    from channels.layers import get_channel_layer

    await get_channel_layer().group_send(CHAT, {"type": "stage.message", "text": text})


async def _send_event(text: str) -> None:
    from asgiref.sync import sync_to_async
    from django_eventstream import send_event

    await sync_to_async(send_event)(CHAT, "room", {"text": text})
