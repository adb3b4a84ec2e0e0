"""What users have chosen: what others see of them, and whether they want digests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.keys import name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from ..core.steps import batched
from .arguments import flag
from .users import UserKeys


class Choice(NamedTuple):
    """What a user has chosen."""

    online: bool = True
    """Whether others see that the user is online."""
    receipts: bool = True
    """Whether others see what the user has read."""
    digests: bool = True
    """Whether unread messages are mailed to the user, if the site does that."""


class Choices(Service):
    """What users let others see, and whether they want digests: all of it, unless they have chosen otherwise.

    >>> choices = Choices()
    >>> choices.choose("ann", receipts=False)
    Choice(online=True, receipts=False, digests=True)
    >>> choices.get("ann")
    Choice(online=True, receipts=False, digests=True)
    >>> choices.hiding_reading(["ann", "bob"])
    {'ann'}
    """

    @operation
    def get(self, user: str) -> Steps[Choice]:
        """Read the choices of a user."""
        key = self._keys(user).choices
        return _make((yield Command("HMGET", key, *Choice._fields, reads=True)))

    aget = asynchronous(get)

    @operation
    def choose(
        self,
        user: str,
        *,
        online: bool | None = None,
        receipts: bool | None = None,
        digests: bool | None = None,
    ) -> Steps[Choice]:
        """Change the choices that are given; returns all. Who doesn't want to be seen online is not from then
        on, in any process."""
        keys, given = self._keys(user), {"online": online, "receipts": receipts, "digests": digests}
        changed = [(what, flag(value, what)) for what, value in given.items() if value is not None]
        arguments = [part for pair in changed for part in pair]
        return _make((yield Script("choices_set", [keys.choices, keys.online], arguments)))

    achoose = asynchronous(choose)

    @operation
    def hiding_reading(self, users: Sequence[str]) -> Steps[set[str]]:
        """Those of the users who don't let others see what they have read. One round trip for each 500."""
        hiding = set()
        for page in batched(users):
            keys = [self._keys(user).choices for user in page]
            replies = yield [Command("HGET", key, "receipts", reads=True) for key in keys]
            hiding |= {user for user, reply in zip(page, replies, strict=True) if reply == b"0"}
        return hiding

    ahiding_reading = asynchronous(hiding_reading)

    def _keys(self, user: str) -> UserKeys:
        return UserKeys(self._prefix, name(user, "user"))


def forget_choices(prefix: str, user: str) -> Steps[None]:
    """Delete what a user has chosen, and that they are online."""
    keys = UserKeys(prefix, user)
    yield Command("DEL", keys.choices, keys.streams, keys.online)


def _make(values: Sequence[bytes | None]) -> Choice:
    return Choice(*(value != b"0" for value in values))
