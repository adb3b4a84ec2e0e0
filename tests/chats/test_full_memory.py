"""A server that is out of memory refuses operations that add data and changes nothing; others continue."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django_redis import get_redis_connection

from django_redis_messaging import Blocks, Broadcast, Chat, DelayQueue, Inbox, Mailbox, Unavailable, conf
from django_redis_messaging.core import clients
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.common.rates import Rate
from tests.conftest import Call

pytestmark = pytest.mark.one_server


Fill = Callable[[], None]


def content(raw: redis.Redis) -> dict[bytes, bytes | None]:
    """All keys of this test with their content."""
    keys = raw.scan_iter(match=f"{conf.prefix()}:1:*", count=1000)
    return {key: raw.dump(key) for key in sorted(keys)}


def chat_with_messages(chat_id: str) -> Chat:
    chat = Chat.create("ann", ["bob", "cat"], "one", chat_id=chat_id, keep_last=1)
    Blocks("cat").block("mallory")
    for body in ("two", "three", "four"):
        chat.send("ann", body)
    chat.send("bob", "five")
    return chat


REFUSED: dict[str, Callable[[Chat], object]] = {
    "send": lambda chat: chat.send("ann", "more"),
    "send by a member with unread messages": lambda chat: chat.send("cat", "more"),
    "create": lambda chat: Chat.create("ann", ["dan"], "more"),
    "join": lambda chat: chat.join("dan", by="ann"),
    "add": lambda chat: chat.add(["bob", "dan", "eve"], by="ann"),
    "block": lambda chat: Blocks("ann").block("mallory"),
    "edit": lambda chat: chat.edit("ann", 2, "x" * 200),
    "rename": lambda chat: chat.rename("ann", "another title"),
}


def can_ack_all(chat: Chat) -> bool:
    return chat.ack("cat", 5) == 5 and not Inbox("cat").pending() and Inbox("cat").unread() == 0


def can_fetch_with_ack(_: Chat) -> bool:
    return len(Inbox("bob").pending(ack=True)[0].messages) == 5 and not Inbox("bob").pending()


def can_leave(chat: Chat) -> bool:
    return chat.leave("ann") and chat.members()[0].role == "owner" and not Inbox("ann").chats()


def can_leave_for_good(chat: Chat) -> bool:
    """Those who left are still remembered."""
    assert chat.leave("cat", by="ann")
    assert chat.leave("bob", again=False)
    held = ChatKeys(conf.prefix(), chat.id)
    listed = [get_redis_connection(conf.alias()).zrange(key, 0, -1) for key in (held.removed, held.opted_out)]
    return listed == [[b"cat"], [b"bob"]]


ALLOWED: dict[str, Callable[[Chat], object]] = {
    "pending": lambda chat: Inbox("cat").pending()[0].messages[-1].id == 5,
    "chats": lambda chat: Inbox("cat").chats()[0].unread == 5,
    "rate": lambda chat: Rate("cat", "edit", limit=1, period=60).take() == 0.0,
    "unread": lambda chat: Inbox("cat").unread() == 5,
    "history": lambda chat: len(chat.history("cat").messages) == 5,
    "members": lambda chat: len(chat.members()) == 3,
    "info": lambda chat: chat.info().last_id == 5,
    "ack of all": can_ack_all,
    "ack of some": lambda chat: chat.ack("bob", 3) == 3 and Inbox("bob").unread() == 1,
    "fetch that acks": can_fetch_with_ack,
    "leave": can_leave,
    "leave for good": can_leave_for_good,
    "unblock": lambda chat: Blocks("cat").unblock("mallory"),
    "delete_message": lambda chat: chat.delete_message("ann", 2).deleted,  # type: ignore[union-attr]
    "delete": lambda chat: chat.delete("ann") and not Inbox("cat").chats(),
}


@pytest.mark.parametrize("operation", REFUSED)
def test_adding_is_refused_and_changes_nothing(operation: str, fill: Fill, raw: redis.Redis) -> None:
    chat = chat_with_messages("full")
    before = content(raw)
    fill()
    with pytest.raises(Unavailable, match="out of memory"):
        REFUSED[operation](chat)
    assert content(raw) == before
    raw.config_set("maxmemory", 0)
    assert REFUSED[operation](chat) is not False


@pytest.mark.parametrize("operation", ALLOWED)
def test_other_operations_continue(
    operation: str, fill: Fill, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    chat = chat_with_messages("full")
    fill()
    with pytest.raises(Unavailable):
        chat.send("ann", "more")
    assert ALLOWED[operation](chat)
    assert not caplog.records


def test_join_completes_if_memory_fills_before_its_last_step(fill: Fill) -> None:
    """The last step of a join runs when memory is full."""
    chat = chat_with_messages("full")
    steps = Chat.join.__wrapped__(chat, "dan", by="ann")  # type: ignore[attr-defined]
    execute = functools.partial(clients.execute, conf.alias())
    expecting = next(steps)
    joining = steps.send(execute(expecting))
    confirming = steps.send(execute(joining))
    fill()
    with pytest.raises(StopIteration) as returned:
        steps.send(execute(confirming))
    assert returned.value.value is True
    assert [one.chat_id for one in Inbox("dan").chats()] == ["full"]


@pytest.mark.parametrize(
    ("make", "verb", "arguments"),
    [
        (lambda: Chat.create("ann", ["bob"]), "send", ("ann", "hello")),
        (lambda: Broadcast("prices"), "publish", ({"apple": 3},)),
        (lambda: Mailbox("ann"), "send", ("hello",)),
        (lambda: DelayQueue("mail"), "push", ("hello",)),
    ],
    ids=["chat", "broadcast", "mailbox", "queue"],
)
async def test_repeat_returns_the_first_reply(
    make: Callable[[], Any], verb: str, arguments: tuple[Any, ...], call: Call, fill: Fill
) -> None:
    subject = make()
    first = await call(subject, verb, *arguments, request_id="one")
    fill()
    assert await call(subject, verb, *arguments, request_id="one") == first
    with pytest.raises(Unavailable, match="nothing was written"):
        await call(subject, verb, *arguments, request_id="two")
