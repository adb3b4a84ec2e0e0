"""A third of all replies is lost, and the connection with them: nothing happens twice, nothing is lost."""

from __future__ import annotations

import threading

import pytest

from django_redis_messaging import Chat, Inbox, OutcomeUnknown
from django_redis_messaging.core import scripts
from tests.core.proxy import LossyProxy

from ..conftest import Call
from .conftest import GENEROUS, Connect


async def test_no_message_twice_and_none_lost(call: Call, lossy: LossyProxy) -> None:
    chat = Chat.create("ann", ["bob"])
    sent = [await call(chat, "send", "ann", f"{number}") for number in range(50)]
    assert [message.id for message in sent] == list(range(1, 51))
    assert [message.body for message in chat.history("bob", limit=100).messages] == [
        f"{n}" for n in range(50)
    ]
    assert lossy.lost > 10


async def test_no_chat_is_refused_to_its_own_creator(call: Call, lossy: LossyProxy) -> None:
    for number in range(20):
        await call(Chat, "create", "ann", ["bob", "cat"], "hello", chat_id=f"chat {number}")
    for user in ("ann", "bob", "cat"):
        summaries = Inbox(user).chats()
        assert {one.chat_id for one in summaries} == {f"chat {number}" for number in range(20)}
        assert {(one.unread, one.member_count) for one in summaries} == {(int(user != "ann"), 3)}
    assert lossy.lost > 10


async def test_everybody_joins_once(call: Call, lossy: LossyProxy) -> None:
    chat = Chat.create("host", [])
    guests = [f"g{number}" for number in range(20)]
    assert [await call(chat, "join", guest, by="host") for guest in guests] == [True] * 20
    assert [await call(chat, "join", guest, by="host") for guest in guests[:5]] == [False] * 5
    assert [member.user for member in chat.members()] == ["host", *guests]
    assert [len(Inbox(guest).chats()) for guest in guests] == [1] * 20
    for guest in guests:
        await call(chat, "leave", guest)
    assert [member.user for member in chat.members()] == ["host"]
    assert [Inbox(guest).chats() for guest in guests] == [[]] * 20
    assert lossy.lost > 20


async def test_everything_is_read_in_order_and_acked(call: Call, lossy: LossyProxy) -> None:
    chat = Chat.create("ann", ["bob"])
    for number in range(40):
        chat.send("ann", f"{number}")
    read: list[str] = []
    while found := await call(Inbox("bob"), "pending", limit=3):
        read += [message.body for message in found[0].messages]
        last = found[0].messages[-1]
        assert await call(chat, "ack", "bob", last.cursor) == last.id
    assert read == [f"{number}" for number in range(40)]
    assert lossy.lost > 15


async def test_what_fetching_acked_is_not_fetched_again(
    call: Call, connect: Connect, proxy: LossyProxy
) -> None:
    connect(proxy, COMMAND_DEADLINE=GENEROUS)
    chat = Chat.create("ann", ["bob"])
    for number in range(3):
        chat.send("ann", f"{number}")
    assert await call(Inbox("bob"), "pending", limit=1)
    proxy.lose_next(1)
    with pytest.raises(OutcomeUnknown):
        await call(Inbox("bob"), "pending", limit=2, ack=True)
    [found] = await call(Inbox("bob"), "pending", ack=True)
    assert [message.body for message in found.messages] == ["2"]


def test_threads_that_send_at_once(lossy: LossyProxy) -> None:
    people = [f"p{number}" for number in range(6)]
    chat = Chat.create(people[0], people[1:])

    def talk(user: str) -> None:
        for number in range(15):
            chat.send(user, f"{user} {number}")

    threads = [threading.Thread(target=talk, args=[user], daemon=True) for user in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    messages = chat.history("p0", limit=200).messages
    assert [message.id for message in messages] == list(range(1, 91))
    assert len({message.body for message in messages}) == 90
    assert lossy.lost > 15


async def test_without_request_ids_it_would_show(
    call: Call, lossy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is real: a planted bug is found."""
    read = scripts.read
    line = "if answered then"
    assert line in read("chat_send.lua")
    monkeypatch.setattr(
        scripts,
        "read",
        lambda name: read(name).replace(line, "if false then") if name == "chat_send.lua" else read(name),
    )
    scripts.load.cache_clear()
    try:
        await test_no_message_twice_and_none_lost(call, lossy)
    except AssertionError:
        return
    finally:
        scripts.load.cache_clear()
    pytest.fail("messages were sent again, and nobody noticed")
