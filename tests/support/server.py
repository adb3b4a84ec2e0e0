"""Helpers for the tests of chat services: a raw client, snapshots of keys, operations run step by step."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import django_redis
import pytest
from django.conf import settings as configured
from django.test import override_settings

from django_redis_messaging import Chat, ConfigurationError, Message, Page, Pending, conf
from django_redis_messaging.core import clients
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.users.keys import UserKeys

#: seconds that `until` waits at most
DEADLINE = 30.0
#: raw clients for aliases whose own one reaches only the keys of one node
raw_clients: dict[str, Any] = {}


def change(settings: Any, **changes: Any) -> None:
    """Change settings of the app for the rest of the test."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, **changes}


def server() -> Any:
    """A raw client of the server under test."""
    return get_redis_connection(conf.alias())


def get_redis_connection(alias: str) -> Any:
    """A raw client of the server of an alias: that of django-redis, or one for all nodes of a Cluster."""
    return raw_clients[alias] if alias in raw_clients else django_redis.get_redis_connection(alias)


def is_cluster() -> bool:
    """Whether the server under test belongs to a Cluster."""
    return conf.alias() in {"cluster", "primaries"}


def keys(chat: Chat | str) -> ChatKeys:
    return ChatKeys(conf.prefix(), chat if isinstance(chat, str) else chat.id)


def index(user: str) -> str:
    return UserKeys(conf.prefix(), user).chats


def joining(user: str) -> str:
    return UserKeys(conf.prefix(), user).joining


def all_keys() -> list[str]:
    """Every key of this test."""
    return sorted(key.decode() for key in server().scan_iter(match=f"{conf.prefix()}:*", count=1000))


def snapshot(*, but: Iterable[str] = ()) -> dict[str, bytes]:
    """Every key of this test with its content."""
    return contents([key for key in all_keys() if key not in set(but)])


def contents(keys: list[str]) -> dict[str, bytes]:
    """The contents of keys. Redis moves the fields of a hash that has grown by and by, which changes their
    order: reading many fields ends it."""
    pipeline = server().pipeline(transaction=False)
    for key in keys:
        pipeline.hmget(key, [""] * 64)
        pipeline.dump(key)
    return dict(zip(keys, pipeline.execute(raise_on_error=False)[1::2], strict=True))


def check_types(
    act: Callable[[], object], keys: dict[str, str], used: str, prepare: Callable[[], object]
) -> None:
    """An operation that uses a key of another type fails and changes nothing; it ignores other such keys.

    `keys`: the keys by what they contain; `used`: those that the operation uses; `prepare` makes them.
    """
    for part, key in keys.items():
        for name in all_keys():
            server().delete(name)
        prepare()
        server().delete(key)
        server().sadd(key, "not ours")
        before = snapshot()
        if part in used.split():
            with pytest.raises(ConfigurationError, match="another type"):
                act()
            assert snapshot() == before, part
        else:
            act()
            assert snapshot()[key] == before[key], part


@contextmanager
def no_server() -> Iterator[None]:
    """The app's server is not reachable."""
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nonexistent/redis.sock"}
    caches = {**configured.CACHES, conf.alias(): entry}
    messaging = {**configured.REDIS_MESSAGING, "COMMAND_DEADLINE": 0.1}
    with override_settings(CACHES=caches, REDIS_MESSAGING=messaging):
        yield


def copied(chat: Chat) -> dict[str, bytes]:
    """A copy of the chat's keys, such as a replica holds that is promoted later."""
    return {key: dump for key, dump in snapshot().items() if key.startswith(keys(chat).tag)}


def rolled_back(chat: Chat, copy: dict[str, bytes]) -> None:
    """Restore a copy of the chat's keys: everything written after it is lost."""
    for key in copied(chat):
        server().delete(key)
    for key, dump in copy.items():
        server().restore(key, 0, dump)


def until(holds: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait until a condition is true."""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.002)


def server_ms() -> int:
    seconds, micros = server().time()
    return int(seconds * 1000 + micros // 1000)


def let_pass(ms: int) -> None:
    """Wait until more than these ms of the server's clock have passed."""
    ends = server_ms() + ms
    until(lambda: server_ms() > ends)


def steps(operation: Any, *args: Any, **options: Any) -> Generator[Any, Any, Any]:
    """The generator of a bound operation, to be run step by step."""
    body: Generator[Any, Any, Any] = operation.__func__.__wrapped__(operation.__self__, *args, **options)
    return body


def reply_to(step: Any) -> Any:
    """Run one step of an operation."""
    return clients.execute(conf.alias(), step)


def finish(body: Generator[Any, Any, Any], step: Any) -> Any:
    """Run this step of an operation and all that follow; returns what the operation returns."""
    try:
        while True:
            step = body.send(reply_to(step))
    except StopIteration as ended:
        return ended.value


def crash_after(operation: Any, count: int, *args: Any, **options: Any) -> None:
    """Run the first `count` steps of an operation and no more, like a process that crashes."""
    body = steps(operation, *args, **options)
    step = next(body)
    for done in range(count):
        reply = reply_to(step)
        if done + 1 < count:
            step = body.send(reply)
    body.close()


def ids(found: Page | Pending | Iterable[Message]) -> list[int]:
    messages = found.messages if isinstance(found, Page | Pending) else found
    return [message.id for message in messages]


def bodies(found: Page | Pending | Iterable[Message]) -> list[str]:
    messages = found.messages if isinstance(found, Page | Pending) else found
    return [message.body for message in messages]


def said(chat: Chat, sender: str, *texts: str) -> list[Message]:
    return [chat.send(sender, text) for text in texts]


def create_chat(name: str, *texts: str, members: tuple[str, ...] = ("bob",)) -> Chat:
    """Create a chat of ann and others, with these messages by ann."""
    chat = Chat.create("ann", members, chat_id=name)
    said(chat, "ann", *texts)
    return chat
