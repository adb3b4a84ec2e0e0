"""Who is online, and what users let others see."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_redis_messaging import Choices, InvalidArgument, forget, live
from django_redis_messaging.core.keys import current_prefix
from django_redis_messaging.services.live.presence import GRACE, LIFETIME
from django_redis_messaging.services.users import UserKeys

from .asking import server

PEOPLE = ["ann", "bob", "cat"]


@pytest.fixture
def presence() -> live.Presence:
    return live.Presence()


def remaining(user: str) -> int:
    return server().pttl(UserKeys(current_prefix(), user).online)


def test_online_while_there_is_a_stream(presence: live.Presence) -> None:
    assert presence.enter("ann", "one")
    assert presence.enter("ann", "two")
    assert presence.online(PEOPLE) == {"ann"}
    presence.leave("ann", "one")
    assert GRACE < remaining("ann") <= LIFETIME
    presence.leave("ann", "two")
    assert 0 < remaining("ann") <= GRACE
    assert presence.online(PEOPLE) == {"ann"}  # maybe on the way to another page
    presence.renew({"three": "bob"})
    assert presence.online(PEOPLE) == {"ann", "bob"}
    assert presence.online([]) == set()


def test_streams_of_killed_processes_end(presence: live.Presence) -> None:
    assert presence.enter("ann", "one")
    keys = UserKeys(current_prefix(), "ann")
    server().zadd(keys.streams, {"dead": 1})
    assert presence.enter("ann", "two")
    assert server().zrange(keys.streams, 0, -1) == [b"one", b"two"]
    assert 0 < server().pttl(keys.streams) <= LIFETIME


def test_no_more_streams_than_the_limit(presence: live.Presence, settings: Settings) -> None:
    settings.REDIS_MESSAGING = {**settings.REDIS_MESSAGING, "LIVE_MAX_STREAMS": 2}
    assert presence.enter("ann", "one")
    assert presence.enter("ann", "two")
    assert not presence.enter("ann", "three")
    assert presence.enter("bob", "one")
    presence.renew({"one": "ann", "two": "ann"})
    presence.leave("ann", "one")
    assert presence.enter("ann", "three")


def test_who_is_not_seen_online(presence: live.Presence) -> None:
    presence.enter("ann", "one")
    assert Choices().choose("ann", online=False) == (False, True, True)
    assert presence.online(PEOPLE) == set()
    presence.renew({"one": "ann"})
    assert presence.online(PEOPLE) == set()
    assert Choices().choose("ann", online=True) == (True, True, True)
    presence.renew({"one": "ann"})
    assert presence.online(PEOPLE) == {"ann"}


def test_choices_and_forgetting() -> None:
    choices = Choices()
    assert choices.get("ann") == choices.choose("ann") == (True, True, True)
    assert choices.choose("ann", receipts=False) == choices.get("ann") == (True, False, True)
    assert choices.choose("ann", online=False) == (False, False, True)
    assert choices.hiding_reading(PEOPLE) == {"ann"}
    forget("ann")
    assert choices.get("ann") == (True, True, True)
    assert choices.hiding_reading(PEOPLE) == set()
    with pytest.raises(TypeError, match="online must be True or False"):
        choices.choose("ann", online=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        choices.get("")


async def test_async(presence: live.Presence) -> None:
    assert await presence.aenter("ann", "one")
    await presence.arenew({"one": "ann"})
    assert await presence.aonline(PEOPLE) == {"ann"}
    await presence.aleave("ann", "one")
    assert (
        await Choices().achoose("ann", receipts=False) == await Choices().aget("ann") == (True, False, True)
    )
    assert await Choices().ahiding_reading(PEOPLE) == {"ann"}
