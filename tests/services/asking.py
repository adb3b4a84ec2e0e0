"""What the tests of the chat services ask with: a raw client, looks at all keys, operations by steps."""

import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

from django_redis import get_redis_connection

from django_redis_messaging import Chat, Message, Page, Pending, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.keys import ChatKeys, UserKeys

#: seconds that something awaited may take
DEADLINE = 30.0


def change(settings: Any, **changes: Any) -> None:
    """Put these settings of the app in force for the rest of the test."""
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, **changes}


def server() -> Any:
    """A raw client of the server under test, past all our code."""
    return get_redis_connection(conf.alias())


def keys(chat: Chat | str) -> ChatKeys:
    return ChatKeys(conf.prefix(), chat if isinstance(chat, str) else chat.id)


def index(user: str) -> str:
    return UserKeys(conf.prefix(), user).chats


def all_keys() -> list[str]:
    """Every key of this test."""
    return sorted(key.decode() for key in server().scan_iter(match=f"{conf.prefix()}:*", count=1000))


def snapshot(*, but: Iterable[str] = ()) -> dict[str, bytes]:
    """Every key of this test with its content."""
    return {key: server().dump(key) for key in all_keys() if key not in set(but)}


def copied(chat: Chat) -> dict[str, bytes]:
    """What the chat's slot holds, as a replica may have it that is promoted later."""
    return {key: dump for key, dump in snapshot().items() if key.startswith(keys(chat).tag)}


def rolled_back(chat: Chat, copy: dict[str, bytes]) -> None:
    """The chat's slot is as it was: what came after the copy is lost."""
    for key in copied(chat):
        server().delete(key)
    for key, dump in copy.items():
        server().restore(key, 0, dump)


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    ends = time.monotonic() + DEADLINE
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"not within {DEADLINE} s")
        time.sleep(0.002)


def server_ms() -> int:
    seconds, micros = server().time()
    return int(seconds * 1000 + micros // 1000)


def steps(operation: Any, *args: Any, **options: Any) -> Generator[Any, Any, Any]:
    """The body of a bound operation, to be driven step by step."""
    body: Generator[Any, Any, Any] = operation.__func__.__wrapped__(operation.__self__, *args, **options)
    return body


def reply_to(step: Any) -> Any:
    """Do one step of an operation."""
    return clients.ask(conf.alias(), step)


def crash_after(operation: Any, count: int, *args: Any, **options: Any) -> None:
    """Do the first `count` steps of an operation, and no more: its process is gone."""
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


def talk(name: str, *texts: str, members: tuple[str, ...] = ("bob",)) -> Chat:
    """A chat of ann and others, into which ann says these."""
    chat = Chat.create("ann", members, chat_id=name)
    said(chat, "ann", *texts)
    return chat
