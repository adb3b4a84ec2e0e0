"""A third of all replies is lost, and the connection with them: nothing happens twice, nothing is lost."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_redis_messaging import Chat, DelayQueue, Expiry, Inbox, Mailbox, NotPermitted, OutcomeUnknown
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
    line = "if recorded then"
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


def talk() -> Chat:
    chat = Chat.create("ann", ["bob"], "hello")
    chat.set_role("ann", "bob", "owner")
    return chat


def alone() -> Chat:
    return Chat.create("ann", [])


def filled() -> DelayQueue:
    """A queue with a job in every state: "running", "ready", "later", and two that are dead."""
    queue = DelayQueue(f"mail-{next(numbers)}")
    for job_id in ("dead", "dead too"):
        queue.push("x", job_id=job_id)
        queue.fail(queue.pop(1)[0], "why")
    queue.push("x", job_id="running")
    queue.pop(1)
    queue.push("x", job_id="ready")
    queue.push("x", job_id="later", delay=1000)
    return queue


def notified() -> Mailbox:
    mailbox = Mailbox(f"ann-{next(numbers)}")
    mailbox.send("hello")
    return mailbox


def started() -> Expiry:
    expiry = Expiry(f"order-{next(numbers)}")
    expiry.start("one", 1000)
    return expiry


numbers = itertools.count()
#: what is made, what is done with it, what that returns, and what doing it again returns or raises
REMEMBERED: dict[str, tuple[Callable[[], Any], str, tuple[Any, ...], Any, Any]] = {
    "leave": (talk, "leave", ("bob",), True, False),
    "leave, the last": (alone, "leave", ("ann",), True, False),
    "delete": (talk, "delete", ("ann",), True, False),
    "set_role": (talk, "set_role", ("ann", "bob", "member"), True, False),
    "set_role of oneself": (talk, "set_role", ("ann", "ann", "member"), True, NotPermitted),
    "cancel": (filled, "cancel", ("later",), True, False),
    "cancel a dead one": (filled, "cancel", ("dead",), True, False),
    "redrive": (filled, "redrive", (), 2, 0),
    "redrive one": (filled, "redrive", (["dead"],), 1, 0),
    "purge": (filled, "purge", (), 5, 0),
}


@pytest.mark.parametrize("what", REMEMBERED)
async def test_what_moves_a_state_is_answered_as_the_first_time(
    what: str, call: Call, lossy: LossyProxy
) -> None:
    make, verb, arguments, first, second = REMEMBERED[what]
    lossy.lose_next(0)
    for _ in range(2):  # the server knows the script then
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
async def test_the_end_of_a_job_is_not_known_rather_than_false(
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


@pytest.mark.parametrize(("make", "verb", "argument"), [(notified, "discard", 1), (started, "cancel", "one")])
async def test_nor_is_that_of_a_mail_or_a_timer(
    make: Callable[[], Any], verb: str, argument: Any, call: Call, lossy: LossyProxy
) -> None:
    lossy.lose_next(0)
    for _ in range(2):
        assert await call(make(), verb, argument) is True
    subject = make()
    lossy.lose_next(1)
    assert await call(subject, verb, argument) is None
    assert await call(subject, verb, argument) is False


async def test_nobody_is_left_in_the_list_of_a_chat_that_is_gone(call: Call, lossy: LossyProxy) -> None:
    for end in ("leave", "delete"):
        lossy.lose_next(0)
        chat = Chat.create("ann", ["bob"])
        lossy.lose_next(1)
        assert await call(chat, end, "ann")
        lossy.lose_next(0)
        assert Inbox("ann").chats() == []
        chat.leave("bob")
        assert Inbox("bob").chats() == []
