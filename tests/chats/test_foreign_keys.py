"""Keys of another type raise an error and nothing changes; flushing the script cache has no effect."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from django_redis_messaging import Chat, ConfigurationError, Inbox

from ..support.server import all_keys, ids, index, keys, server, snapshot

pytestmark = pytest.mark.worlds


@pytest.fixture
def chat() -> Chat:
    """An open chat of ann (owner) and bob, who is behind."""
    made = Chat.create("ann", ["bob"], "one", chat_id="club", open=True)
    made.send("bob", "two")
    made.send("ann", "three")
    return made


#: the operations, and the keys whose type each must check
TAKES: dict[str, tuple[Callable[[Chat], Any], str]] = {
    "send": (lambda chat: chat.send("bob", "x"), "newest members own log requests:0 requests:1 typing"),
    "ack": (lambda chat: chat.ack("bob", 2), "newest members own log"),
    "join": (
        lambda chat: chat.join("dan", by="ann"),
        "newest members roster standing info removed opted-out requests:0 requests:1",
    ),
    "join alone": (
        lambda chat: chat.join("dan"),
        "newest members roster standing info removed opted-out requests:0 requests:1",
    ),
    "history": (lambda chat: chat.history("bob"), "newest roster log"),
    "changes": (
        lambda chat: chat.changes("bob", after=0),
        "newest members roster log info standing own typing mutes",
    ),
    "pending": (lambda chat: Inbox("bob").pending(), "newest members log"),
    "pending with ack": (lambda chat: Inbox("bob").pending(ack=True), "newest members own log"),
    "unread": (lambda chat: Inbox("bob").unread(), "newest members own log"),
    "chats": (lambda chat: Inbox("bob").chats(), "newest members own log roster mutes info standing"),
    "leave": (
        lambda chat: chat.leave("bob"),
        "newest members own log roster standing typing mutes info requests:0 requests:1",
    ),
    "leave for good": (
        lambda chat: chat.leave("bob", again=False),
        "newest members own log roster standing typing mutes info opted-out requests:0 requests:1",
    ),
    "edit": (lambda chat: chat.edit("bob", 2, "x"), "newest roster log info"),
    "delete_message": (lambda chat: chat.delete_message("bob", 2), "newest roster log info"),
    "set_role": (
        lambda chat: chat.set_role("ann", "bob", "owner"),
        "roster info requests:0 requests:1 newest",
    ),
    "rename": (lambda chat: chat.rename("bob", "x"), "members info newest"),
    "mute": (lambda chat: chat.mute("bob", datetime(2099, 1, 1, tzinfo=UTC)), "members mutes"),
    "typing": (lambda chat: chat.typing("bob"), "members typing"),
    "members": (lambda chat: chat.members(), "members roster standing"),
    "seen_by": (lambda chat: chat.seen_by(1), "members roster"),
    "typists": (lambda chat: chat.typists(), "typing"),
    "info": (lambda chat: chat.info(), "newest info members log"),
}
#: the operations that leave out a broken chat, for it must not hide the others
LISTS = {"pending", "pending with ack", "unread", "chats"}


@pytest.mark.parametrize("operation", TAKES)
def test_chat_key_of_another_type(operation: str, chat: Chat, caplog: pytest.LogCaptureFixture) -> None:
    act, takes = TAKES[operation]
    copy = snapshot()
    for key in keys(chat).all_keys:
        for name in all_keys():
            server().delete(name)
        for name, dump in copy.items():
            server().restore(name, 0, dump)
        server().delete(key)
        server().sadd(key, "not ours")
        before = snapshot(but=[index("dan")])
        part = key.removeprefix(keys(chat).tag + ":")
        if operation in LISTS and part in takes.split():
            assert not act(chat), part
            assert "left out of a list: 'WRONGTYPE" in caplog.text
            caplog.clear()
            assert snapshot() == before, part
        elif part in takes.split():
            with pytest.raises(ConfigurationError, match="another type"):
                act(chat)
            assert snapshot(but=[index("dan")]) == before, part
        else:
            act(chat)
            assert snapshot()[key] == before[key], part


@pytest.mark.parametrize("operation", ["join", "pending", "unread", "chats", "create"])
def test_index_of_another_type(operation: str, chat: Chat) -> None:
    server().delete(index("bob"))
    server().sadd(index("bob"), "not ours")
    before = snapshot()
    acts: dict[str, Callable[[], Any]] = {
        "join": lambda: chat.join("bob"),
        "pending": lambda: Inbox("bob").pending(),
        "unread": lambda: Inbox("bob").unread(),
        "chats": lambda: Inbox("bob").chats(),
        "create": lambda: Chat.create("bob", []),
    }
    with pytest.raises(ConfigurationError, match="another type"):
        acts[operation]()
    assert snapshot() == before


def test_flushed_script_cache_has_no_effect(chat: Chat) -> None:
    operations: list[Callable[[], Any]] = [
        lambda: chat.send("ann", "four").id,
        lambda: chat.ack("bob", 4),
        lambda: chat.join("dan"),
        lambda: ids(chat.history("bob", after=3)),
        lambda: [ids(news) for news in Inbox("ann").pending()],
        lambda: Chat.create("ann", ["bob", "eve"], "x", chat_id="other").info().member_count,
        lambda: len(Inbox("bob").pending(ack=True)),
        lambda: chat.leave("dan"),
    ]
    answers = []
    for operation in operations:
        server().script_flush()
        answers.append(operation())
    assert answers == [4, 4, True, [4], [[2, 3, 4]], 3, 1, True]
