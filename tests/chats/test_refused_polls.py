"""A poll that also acks, of more chats than fit into one script, while the server refuses some scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from django_redis_messaging import Chat, Inbox, Pending, Unavailable, conf, deadline
from django_redis_messaging.core import commands
from django_redis_messaging.core.commands import Fan
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.chats.keys import ChatKeys
from django_redis_messaging.services.users.keys import UserKeys
from tests.conftest import Call

from ..support.faults import Connect

pytestmark = [pytest.mark.one_server, pytest.mark.promise, pytest.mark.usefixtures("closing")]

#: number of chats: two calls
CHATS = 150
#: added to the script; the error is the value of a key beside those of the call's first chat
REFUSAL = """
local refusal = redis.call('GET', KEYS[1] .. ':refusal')
if refusal then
  return redis.error_reply(refusal)
end
"""


@pytest.fixture
def inbox(connect: Connect, lasting: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    """An inbox with one message in each chat."""
    connect(lasting)
    read = commands.read

    def with_refusal(filename: str) -> str:
        return (REFUSAL if filename == "chats/inbox_pending.lua" else "") + read(filename)

    monkeypatch.setattr(commands, "read", with_refusal)
    commands.load.cache_clear()
    for at in range(CHATS):
        Chat.create("ann", ["bob"], f"{at}", chat_id=f"{at}")
    yield Inbox("bob")
    commands.load.cache_clear()


def refuse(raw: redis.Redis, text: str, *, first: int = 0, ms: int | None = None) -> None:
    """Refuse the script for 100 chats of the inbox from this one on."""
    index = UserKeys(conf.prefix(), "bob").chats
    chat_id = list(raw.hkeys(index))[first].decode()
    raw.set(f"{ChatKeys(conf.prefix(), chat_id).newest}:refusal", text, px=ms)


def texts(found: list[Pending]) -> list[str]:
    return [message.body for pending in found for message in pending.messages]


EVERY = sorted(str(at) for at in range(CHATS))


async def test_nothing_is_lost_if_a_script_is_refused_for_now(
    call: Call, inbox: Inbox, lasting: EmbeddedServer
) -> None:
    with lasting.client() as raw:
        refuse(raw, "NOREPLICAS for now", first=Fan.SIZE, ms=200)
    assert sorted(texts(await call(inbox, "pending", ack=True))) == EVERY
    assert await call(inbox, "pending") == []


@pytest.mark.parametrize("text", ["NOREPLICAS for ever", "OOM command not allowed"])
async def test_nothing_is_lost_if_a_script_is_refused_finally(
    text: str, call: Call, inbox: Inbox, lasting: EmbeddedServer
) -> None:
    with lasting.client() as raw:
        refuse(raw, text, first=Fan.SIZE)
        with deadline(0.3):
            received = texts(await call(inbox, "pending", ack=True))
        assert len(received) == Fan.SIZE
        raw.delete(*raw.scan_iter(match=f"{conf.prefix()}:*:refusal", count=1000))
    received += texts(await call(inbox, "pending", ack=True))
    assert sorted(received) == EVERY


async def test_chats_beyond_the_total_can_fail_without_loss(
    call: Call, inbox: Inbox, lasting: EmbeddedServer
) -> None:
    with lasting.client() as raw:
        refuse(raw, "NOREPLICAS for ever", first=Fan.SIZE)
    with deadline(0.3):
        received = texts(await call(inbox, "pending", total=50, ack=True))
    assert len(received) == 50
    with deadline(0.3), pytest.raises(Unavailable):
        await call(inbox, "pending", total=50)
