"""A third of all replies is lost together with the connection: nothing happens twice, nothing is lost."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_messaging import (
    Blocks,
    Chat,
    DelayQueue,
    Expiry,
    Inbox,
    Mailbox,
    NotPermitted,
    OutcomeUnknown,
)
from django_redis_messaging.core import commands
from django_redis_messaging.services.common.rates import Rate
from tests.support.proxy import LossyProxy

from ..conftest import Call
from ..support.faults import GENEROUS, Connect

pytestmark = pytest.mark.one_server


async def test_messages_are_sent_once(call: Call, lossy: LossyProxy) -> None:
    chat = Chat.create("ann", ["bob"])
    sent = [await call(chat, "send", "ann", f"{number}") for number in range(50)]
    assert [message.id for message in sent] == list(range(1, 51))
    assert [message.body for message in chat.history("bob", limit=100).messages] == [
        f"{n}" for n in range(50)
    ]
    assert lossy.lost > 10


async def test_chats_are_created_once(call: Call, lossy: LossyProxy) -> None:
    for number in range(20):
        await call(Chat, "create", "ann", ["bob", "cat"], "hello", chat_id=f"chat {number}")
    for user in ("ann", "bob", "cat"):
        summaries = Inbox(user).chats()
        assert {one.chat_id for one in summaries} == {f"chat {number}" for number in range(20)}
        assert {(one.unread, one.member_count) for one in summaries} == {(int(user != "ann"), 3)}
    assert lossy.lost > 10


async def test_members_join_once(call: Call, lossy: LossyProxy) -> None:
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


async def test_messages_are_read_in_order_and_acked(call: Call, lossy: LossyProxy) -> None:
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


async def test_messages_acked_by_pending_are_not_fetched_again(
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


async def test_what_was_received_before_a_lost_reply_is_kept(
    call: Call, connect: Connect, proxy: LossyProxy
) -> None:
    connect(proxy, COMMAND_DEADLINE=GENEROUS)
    for number in range(150):
        Chat.create("ann", ["bob"], "hello", chat_id=f"{number}")
    assert len(await call(Inbox("bob"), "pending")) == 150
    proxy.lose_one_after(1)
    with pytest.raises(OutcomeUnknown) as caught:
        await call(Inbox("bob"), "pending", ack=True)
    received = caught.value.received
    assert sum(len(found.messages) for found in received) == 100
    assert await call(Inbox("bob"), "pending") == []
    assert {Chat(found.chat_id).members()[1].read_id for found in received} == {1}


def test_threads_send_at_once(lossy: LossyProxy) -> None:
    people = [f"p{number}" for number in range(6)]
    chat = Chat.create(people[0], people[1:])

    def send_all(user: str) -> None:
        for number in range(15):
            chat.send(user, f"{user} {number}")

    threads = [threading.Thread(target=send_all, args=[user], daemon=True) for user in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    messages = chat.history("p0", limit=200).messages
    assert [message.id for message in messages] == list(range(1, 91))
    assert len({message.body for message in messages}) == 90
    assert lossy.lost > 15


async def test_losses_show_without_request_ids(
    call: Call, lossy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses are real: a planted bug is found."""
    read = commands.read
    line = "if recorded then"
    assert line in read("chats/send.lua")
    monkeypatch.setattr(
        commands,
        "read",
        lambda name: read(name).replace(line, "if false then") if name == "chats/send.lua" else read(name),
    )
    commands.load.cache_clear()
    try:
        await test_messages_are_sent_once(call, lossy)
    except AssertionError:
        return
    finally:
        commands.load.cache_clear()
    pytest.fail("repeated messages were not detected")


def chat_with_two_owners() -> Chat:
    chat = Chat.create("ann", ["bob"], "hello")
    chat.set_role("ann", "bob", "owner")
    return chat


def chat_with_one_member() -> Chat:
    return Chat.create("ann", [])


def queue_in_every_state() -> DelayQueue:
    """A queue with a job in every state: "running", "ready", "later", and two dead ones."""
    queue = DelayQueue(f"mail-{next(numbers)}")
    for job_id in ("dead", "dead too"):
        queue.push("x", job_id=job_id)
        queue.fail(queue.pop(1)[0], "why")
    queue.push("x", job_id="running")
    queue.pop(1)
    queue.push("x", job_id="ready")
    queue.push("x", job_id="later", delay=1000)
    return queue


def mailbox_with_mail() -> Mailbox:
    mailbox = Mailbox(f"ann-{next(numbers)}")
    for number in range(3):
        mailbox.send(number)
    return mailbox


def rate_of_two() -> Rate:
    return Rate(f"ann-{next(numbers)}", "send", limit=2, period=3600)


def expiry_with_timer() -> Expiry:
    expiry = Expiry(f"order-{next(numbers)}")
    expiry.start("one", 1000)
    return expiry


numbers = itertools.count()
#: factory, method, arguments, result of the first call, result or error of a second call
REPEATABLE: dict[str, tuple[Callable[[], Any], str, tuple[Any, ...], Any, Any]] = {
    "leave": (chat_with_two_owners, "leave", ("bob",), True, False),
    "leave, the last": (chat_with_one_member, "leave", ("ann",), True, False),
    "delete": (chat_with_two_owners, "delete", ("ann",), True, False),
    "set_role": (chat_with_two_owners, "set_role", ("ann", "bob", "member"), True, False),
    "set_role of oneself": (chat_with_two_owners, "set_role", ("ann", "ann", "member"), True, NotPermitted),
    "cancel": (queue_in_every_state, "cancel", ("later",), True, False),
    "cancel a dead one": (queue_in_every_state, "cancel", ("dead",), True, False),
    "redrive": (queue_in_every_state, "redrive", (), 2, 0),
    "redrive one": (queue_in_every_state, "redrive", (["dead"],), 1, 0),
    "purge": (queue_in_every_state, "purge", (), 5, 0),
    "mark_read": (mailbox_with_mail, "mark_read", ([1, 2],), 2, 0),
    "clear": (mailbox_with_mail, "clear", (), 3, 0),
    "take of a rate": (rate_of_two, "take", (2,), 0.0, pytest.approx(3600, abs=60)),
}


@pytest.mark.parametrize("operation", REPEATABLE)
async def test_repeated_state_change_returns_the_first_reply(
    operation: str, call: Call, lossy: LossyProxy
) -> None:
    make, verb, arguments, first, second = REPEATABLE[operation]
    lossy.lose_next(0)
    for _ in range(2):  # the server has the script afterwards
        await call(make(), verb, *arguments)
    subject = make()
    lossy.lose_next(1)
    lost = lossy.lost
    assert await call(subject, verb, *arguments) == first
    assert lossy.lost == lost + 1
    if second is NotPermitted:
        with pytest.raises(NotPermitted):
            await call(subject, verb, *arguments)
    else:
        assert await call(subject, verb, *arguments) == second


@pytest.mark.parametrize("verb", ["ack", "retry", "release", "fail"])
async def test_lost_settlement_reply_is_unknown_rather_than_false(
    verb: str, call: Call, lossy: LossyProxy
) -> None:
    queue = DelayQueue("mail")
    lossy.lose_next(0)
    queue.push_many(range(3))
    more = ["why"] if verb == "fail" else []
    for _ in range(2):
        assert await call(queue, verb, queue.pop(1)[0], *more) is True
    [job] = queue.pop(1)
    lossy.lose_next(1)
    assert await call(queue, verb, job, *more) is None
    assert await call(queue, verb, job, *more) is False


@pytest.mark.parametrize(
    ("make", "verb", "argument"), [(mailbox_with_mail, "discard", 1), (expiry_with_timer, "cancel", "one")]
)
async def test_lost_discard_or_cancel_reply_is_unknown_rather_than_false(
    make: Callable[[], Any], verb: str, argument: Any, call: Call, lossy: LossyProxy
) -> None:
    lossy.lose_next(0)
    for _ in range(2):
        assert await call(make(), verb, argument) is True
    subject = make()
    lossy.lose_next(1)
    assert await call(subject, verb, argument) is None
    assert await call(subject, verb, argument) is False


async def test_lost_reply_to_an_unblocking_is_unknown_rather_than_false(
    call: Call, lossy: LossyProxy
) -> None:
    lossy.asking, blocks = b"ZREM", Blocks("ann")
    lossy.lose_next(0)
    blocks.block("mallory")
    lossy.lose_next(1)
    assert await call(blocks, "unblock", "mallory") is None
    assert await call(blocks, "unblock", "mallory") is False


async def test_no_user_keeps_a_deleted_chat_in_the_index(call: Call, lossy: LossyProxy) -> None:
    for end in ("leave", "delete"):
        lossy.lose_next(0)
        chat = Chat.create("ann", ["bob"])
        lossy.lose_next(1)
        assert await call(chat, end, "ann")
        lossy.lose_next(0)
        assert Inbox("ann").chats() == []
        chat.leave("bob")
        assert Inbox("bob").chats() == []
