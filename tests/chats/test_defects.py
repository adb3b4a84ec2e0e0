"""Defects of the well-known chat example with lists and counters in Redis, each as a regression test."""

import itertools
import threading
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, Inbox, NotAMember

from ..support.server import bodies, change, crash_after, ids, keys, reply_to, said, server, steps


def test_crash_after_fetch_loses_no_messages() -> None:
    chat = Chat.create("ann", ["bob", "cat", "dan"], "one")
    for asked, user in enumerate(("bob", "cat", "dan"), 1):
        crash_after(Inbox(user).pending, asked)
        assert bodies(Inbox(user).pending()[0]) == ["one"]
    crash_after(chat.history, 1, "bob")
    assert Inbox("bob").unread() == 1


def test_crash_leaves_no_lock_behind() -> None:
    chat = Chat.create("ann", ["bob"], "one", open=True)
    said(chat, "bob", "two")
    crash_after(chat.send, 1, "ann", "three")
    for asked in (1, 2):
        crash_after(chat.leave, asked, "bob")
        crash_after(chat.join, asked, "cat")
        assert chat.send("ann", "on").id == 3 + asked
        assert chat.join("bob") is True
    assert chat.join("cat") is False
    assert chat.send("cat", "on").id == 6
    assert chat.ack("ann", 6) == 6


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("PPPLL"))), ids="".join)
def test_fetch_racing_leave_restores_no_membership(order: tuple[str, ...]) -> None:
    chat = Chat.create("ann", ["bob"], "one", keep_last=0)
    bodies_of = {
        "P": steps(Inbox("bob").pending, ack=True),
        "L": steps(chat.leave, "bob"),
    }
    replies: dict[str, Any] = dict.fromkeys(bodies_of)
    for name in order:
        try:
            replies[name] = reply_to(bodies_of[name].send(replies[name]))
        except StopIteration:
            continue
    for body in bodies_of.values():
        body.close()
    chat.leave("bob")
    said(chat, "ann", "two", "three")
    assert server().zrange(keys(chat).members, 0, -1) == [b"ann"]
    assert server().llen(keys(chat).log) == 0
    with pytest.raises(NotAMember):
        chat.ack("bob", 3)
    assert Inbox("bob").pending() == []


def test_own_messages_do_not_count_as_unread() -> None:
    chat = Chat.create("ann", ["bob"], "one")
    said(chat, "bob", "two", "three")
    said(chat, "ann", "four")
    assert (Inbox("ann").unread(), Inbox("bob").unread()) == (2, 2)


def test_sending_does_not_ack_messages_of_others() -> None:
    chat = Chat.create("ann", ["bob"], "one")
    said(chat, "bob", "two")
    assert bodies(Inbox("bob").pending()[0]) == ["one", "two"]
    assert Inbox("bob").unread() == 1


def test_recreated_chat_has_no_stale_positions() -> None:
    old = Chat.create("ann", ["bob"], "old", chat_id="x")
    said(old, "ann", *"23456789")
    stale = old.history("bob").messages[-1]
    old.ack("bob", stale.cursor)
    assert Inbox("bob").pending() == []
    for user in ("ann", "bob"):
        old.leave(user)
    new = Chat.create("ann", ["bob"], "new", chat_id="x")
    assert bodies(Inbox("bob").pending()[0]) == ["new"]
    assert new.ack("bob", stale.cursor) == 0
    page = new.history("bob", after=stale.cursor)
    assert (bodies(page), page.reset) == (["new"], True)
    assert Inbox("bob").unread() == 1


def test_recipients_list_is_not_modified() -> None:
    recipients = ["bob", "bob"]
    Chat.create("ann", recipients, "one")
    Chat.create("ann", recipients, "two")
    assert recipients == ["bob", "bob"]


def test_absent_member_does_not_grow_memory_without_bound(settings: Settings) -> None:
    change(settings, CHAT_MAX_LENGTH=10)
    chat = Chat.create("ann", ["bob", "absent"])
    for number in range(1, 50):
        chat.send("ann", "x" * 100)
        chat.ack("bob", number)
        assert server().llen(keys(chat).log) <= 10
    (news,) = Inbox("absent").pending()
    assert (ids(news), news.gap) == (list(range(40, 50)), 39)


def test_reads_and_cleanup_are_atomic() -> None:
    chat = Chat.create("ann", ["bob", "cat"], keep_last=0)
    told: dict[str, list[int]] = {"bob": [], "cat": []}
    done = threading.Event()

    def read(user: str) -> None:
        while not done.is_set() or Inbox(user).unread():
            for news in Inbox(user).pending(limit=3):
                assert (news.gap, news.reset) == (0, False)
                told[user] += ids(news)
                chat.ack(user, news.messages[-1].cursor)

    readers = [threading.Thread(target=read, args=[user], daemon=True) for user in told]
    for reader in readers:
        reader.start()
    said(chat, "ann", *"x" * 200)
    done.set()
    for reader in readers:
        reader.join()
    assert told == {"bob": list(range(1, 201)), "cat": list(range(1, 201))}
    assert server().llen(keys(chat).log) == 0
