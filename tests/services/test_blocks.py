"""Blocks: who is blocked can't make a chat with a person, nor add them to one."""

from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Blocks, Chat, Inbox, LimitExceeded, NotPermitted, forget
from tests.conftest import Call

from .asking import all_keys, change, crash_after, index, snapshot


async def test_block_list_and_unblock(call: Call, settings: Settings) -> None:
    change(settings, USER_MAX_BLOCKS=3)
    blocks = Blocks("ann")
    assert await call(blocks, "list") == []
    assert [await call(blocks, "block", other) for other in ("bob", "cat", "bob", "dan")] == [
        True,
        True,
        False,
        True,
    ]
    assert await call(blocks, "list") == ["dan", "cat", "bob"]
    with pytest.raises(LimitExceeded) as caught:
        await call(blocks, "block", "eve")
    assert (caught.value.limit, caught.value.setting) == (3, "USER_MAX_BLOCKS")
    assert await call(blocks, "block", "cat") is False
    assert [await call(blocks, "unblock", other) for other in ("bob", "bob")] == [True, False]
    assert await call(blocks, "block", "bob") is True
    assert await call(blocks, "list") == ["bob", "dan", "cat"]
    with pytest.raises(ValueError, match="themselves"):
        await call(blocks, "block", "ann")
    assert Blocks("bob").list() == []
    forget("ann")
    assert all_keys() == []


def test_blocked_user_can_neither_create_nor_add() -> None:
    club = Chat.create("zoe", ["mallory"], chat_id="club", open=True)
    Blocks("ann").block("mallory")
    attempts: dict[str, Callable[[], Any]] = {
        "create": lambda: Chat.create("mallory", ["bob", "ann"]),
        "direct": lambda: Chat.direct("mallory", "ann"),
        "join": lambda: club.join("ann", by="mallory"),
        "add": lambda: club.add(["bob", "ann"], by="mallory"),
    }
    before = snapshot()
    for name, attempt in attempts.items():
        with pytest.raises(NotPermitted) as caught:
            attempt()
        assert str(caught.value) == "One of these people can't be added.", name
        assert snapshot() == before, name
    assert club.join("ann", by="zoe") is True
    Blocks("bob").block("mallory")
    assert club.join("bob") is True
    assert Chat.direct("ann", "mallory").info().member_count == 2


def test_members_who_block_each_other_stay_members() -> None:
    """Adding them to their chat once more adds nobody, as without the block; a repeat of create succeeds."""
    chat = Chat.create("mallory", ["ann"], "one", chat_id="club", request_id="r")
    Blocks("ann").block("mallory")
    before = snapshot(but=[index("bob"), index("mallory")])
    assert chat.join("ann", by="mallory") is False
    assert Chat.create("mallory", ["ann"], "one", chat_id="club", request_id="r").id == "club"
    assert chat.add(["ann"], by="mallory") == []
    assert {**before, **snapshot(but=[index("ann")])}.keys() == before.keys() | {index("mallory")}
    assert chat.add(["ann", "bob"], by="mallory") == ["bob"]
    assert [summary.chat_id for summary in Inbox("ann").chats()] == ["club"]
    chat.leave("ann")
    with pytest.raises(NotPermitted):
        chat.join("ann", by="mallory")
    with pytest.raises(NotPermitted):
        Chat.create("mallory", ["ann"], chat_id="other", request_id="r")


def test_blocked_user_cannot_use_an_entry_that_was_left_behind() -> None:
    chat = Chat.create("zoe", ["ann", "mallory"], chat_id="club")
    Blocks("ann").block("mallory")
    crash_after(chat.leave, 1, "ann")
    assert chat.add(["ann"], by="mallory") == []
    chat.delete("zoe")
    with pytest.raises(NotPermitted):
        Chat.create("mallory", ["ann"], chat_id="club")
    assert Inbox("ann").chats() == []
