"""Recorded answers: how long their hashes are kept after REQUEST_WINDOW was raised."""

from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Broadcast, Chat, ChatExists, DelayQueue, Inbox, Mailbox, NotAMember
from tests.conftest import Call

from ..support.server import all_keys, change, ids, keys, server, server_ms, until

#: ms: the default of REQUEST_WINDOW
WINDOW = 120_000
#: operation → what happens before it, and the operation
OPERATIONS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "create": (
        lambda: Chat.create("ann", ["bob"], chat_id="trip").delete("ann"),
        lambda: Chat.create("ann", ["bob"], chat_id="trip"),
    ),
    "send": (lambda: Chat.create("ann", ["bob"], chat_id="trip"), lambda: Chat("trip").send("ann", "a")),
    "promote": (
        lambda: Chat.create("ann", ["bob"], chat_id="trip"),
        lambda: Chat("trip").set_role("ann", "bob", "owner"),
    ),
    "mail": (lambda: Mailbox("ann").send("a"), lambda: Mailbox("ann").send("b")),
    "publish": (lambda: Broadcast("news").publish("a"), lambda: Broadcast("news").publish("b")),
    "push": (
        lambda: DelayQueue("mails").push("a", request_id="r") and DelayQueue("mails").pop(lease=None),
        lambda: DelayQueue("mails").push("b", request_id="r"),
    ),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "ttl", [5_000, None, 30 * 86_400_000], ids=["short", "missing", "after the clock was set back"]
)
def test_each_answer_is_kept_for_a_window(ttl: int | None, operation: str) -> None:
    """Also in a hash that would expire too early, since the window was raised, or years later."""
    prepare, operate = OPERATIONS[operation]
    prepare()
    hashes = {f"{key[:-1]}{turn}" for key in all_keys() if ":requests:" in key for turn in (0, 1)}
    for key in hashes:
        server().delete(key)
        server().hset(key, "earlier", "1")
        if ttl:
            server().pexpire(key, ttl)
    operate()
    written = [key for key in hashes if server().hlen(key) > 1]
    assert written
    assert all(WINDOW - 2_000 < server().pttl(key) <= 2 * WINDOW for key in written)


@pytest.mark.timing
def test_message_is_not_duplicated_after_the_window_was_raised(settings: Settings) -> None:
    change(settings, REQUEST_WINDOW=1)
    chat = Chat.create("ann", ["bob"])
    # both hashes exist, with the expiry of the short window
    until(lambda: chat.send("ann", "a") and server().exists(*keys(chat).requests) == 2)
    began = server_ms()
    change(settings, REQUEST_WINDOW=120)
    sent = chat.send("ann", "b", request_id="r")
    until(lambda: server_ms() > began + 2_000)
    assert chat.send("ann", "b", request_id="r") == sent
    assert ids(chat.history("bob", limit=1)) == [sent.id]


async def test_request_ids_of_create_belong_to_the_sender(call: Call) -> None:
    options: dict[str, Any] = {"chat_id": "trip", "request_id": "r"}
    await call(Chat, "create", "bob", ["ann"], "hi", **options)
    with pytest.raises(ChatExists):
        await call(Chat, "create", "cat", ["ann"], "mine", **options)
    assert Inbox("cat").chats() == []
    assert (await call(Chat, "create", "bob", ["ann"], "hi", **options)).info().last_id == 1


async def test_request_ids_of_add_belong_to_a_member(call: Call) -> None:
    chat = Chat.create("ann", ["bob"], chat_id="trip")
    assert await call(chat, "add", ["cat", "bob"], by="ann", request_id="r") == ["cat"]
    assert await call(chat, "add", ["dan"], by="bob", request_id="r") == ["dan"]
    chat.leave("cat")
    assert await call(chat, "add", ["cat", "bob"], by="ann", request_id="r") == ["cat"]
    assert await call(chat, "add", ["bob"], by="ann", request_id="nobody") == []
    chat.leave("bob")
    assert await call(chat, "add", ["bob"], by="ann", request_id="nobody") == []
    assert [one.user for one in chat.members()] == ["ann", "dan"]
    for user, added in (("cat", "fay"), ("bob", "dan")):  # bob repeats his request
        with pytest.raises(NotAMember, match=user):
            await call(chat, "add", [added], by=user, request_id="r")
    assert [len(Inbox(user).chats()) for user in ("fay", "dan")] == [0, 1]


async def test_request_ids_of_mail_belong_to_the_sender(call: Call) -> None:
    box = Mailbox("ann")
    sent = [await call(box, "send", sender, sender=sender, request_id="r") for sender in ("bob", "cat", None)]
    assert [mail.id for mail in sent] == [1, 2, 3]
    assert await call(box, "send", "cat", sender="cat", request_id="r") == sent[1]
