"""Recorded answers: how long their hashes are kept after REQUEST_WINDOW was raised."""

from collections.abc import Callable

import pytest
from pytest_django import Settings

from django_redis_messaging import Broadcast, Chat, DelayQueue, Mailbox

from .asking import all_keys, change, ids, keys, server, server_ms, until

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
