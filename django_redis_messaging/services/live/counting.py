"""What operators see of live streams: how many each user has, in this process and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.operations import Clock, Command, Steps
from ..users.keys import UserKeys
from . import hub


@dataclass(frozen=True, kw_only=True, slots=True)
class UserStreams:
    """The live streams of a user."""

    name: str
    """The user."""
    streams: int
    """In all processes."""
    online: bool
    """Whether others see that the user is online."""
    here: int
    """In this process."""


def streams_of_process(using: str, prefix: str) -> Counter[str]:
    """How many live streams each user has in this process, in all its event loops."""
    found = Counter[str]()
    for (alias, of_prefix, _), (_, one) in list(hub._hubs.items()):
        if (alias, of_prefix) == (using, prefix):
            found.update({user: one.count_streams(user) for user in one.users})
    return +found


def read_streams(using: str, prefix: str, users: Sequence[str]) -> Steps[list[UserStreams]]:
    """The streams of users, without users who have none."""
    if not users:
        return []
    keys = [UserKeys(prefix, user) for user in users]
    replies = yield [
        Clock(keys[0].streams),
        *(Command("ZRANGE", one.streams, 0, -1, "WITHSCORES", reads=True) for one in keys),
        *(Command("EXISTS", one.online, reads=True) for one in keys),
    ]
    now, here = Clock.milliseconds(replies[0]), streams_of_process(using, prefix)
    ends, online = replies[1 : len(users) + 1], replies[len(users) + 1 :]
    found = [
        UserStreams(name=user, streams=_count(flat, now), online=bool(seen), here=here[user])
        for user, flat, seen in zip(users, ends, online, strict=True)
    ]
    return [one for one in found if one.streams]


def _count(flat: Sequence[bytes], now: int) -> int:
    """The number of streams that count: token, and ms until which it does."""
    return sum(float(end) > now for end in flat[1::2])
