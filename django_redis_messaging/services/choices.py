"""What users have chosen: what others see of them, and whether they want digests."""

from __future__ import annotations

from typing import NamedTuple

from ..core.keys import name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from ..core.steps import batched
from .arguments import flag
from .chats.joining import hiding_step
from .chats.keys import ChatKeys
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
    """

    @operation
    def get(self, user: str) -> Steps[Choice]:
        """Read the choices of a user."""
        key = self._keys(user).choices
        return _Stored(*(yield Command("HMGET", key, *_Stored._fields, reads=True))).choice

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
        """Change the choices that are given; returns all. They hold when the call returns, in all processes
        and chats; only what the user was typing just before is still shown until `TYPING_WINDOW` has passed.

        Takes one round trip; if `receipts` changes, two more, and one for each 500 chats of the user. If that
        is interrupted, some chats know the choice and others don't, and `get` returns `receipts` as True:
        repeat the call.
        """
        keys, given = self._keys(user), {"online": online, "receipts": receipts, "digests": digests}
        changed = [(what, flag(value, what)) for what, value in given.items() if value is not None]
        arguments = [part for pair in changed for part in pair]
        stored = _Stored(*(yield Script("choices_set", [keys.choices, keys.online], arguments)))
        # `receipts` is always applied: a repeat repairs a chat that a process was joining when it crashed.
        applied = stored.applied if receipts is None else b""
        while applied != stored.changes:  # or the user has chosen anew meanwhile
            yield from self._apply(user, keys, hides=stored.receipts == b"0")
            applied = stored.changes
            stored = _Stored(*(yield Script("choices_apply", [keys.choices], [applied or 0])))
        return stored.choice

    achoose = asynchronous(choose)

    def _apply(self, user: str, keys: UserKeys, *, hides: bool) -> Steps[None]:
        """Let all chats of the user know whether they hide what they have read. A chat that the user is
        joining learns it at the end of that."""
        for page in batched((yield Command("HKEYS", keys.chats, reads=True))):
            chats = [ChatKeys(self._prefix, chat_id.decode()) for chat_id in page]
            yield [hiding_step(chat, user, hides=hides) for chat in chats]

    def _keys(self, user: str) -> UserKeys:
        return UserKeys(self._prefix, name(user, "user"))


def forget_choices(prefix: str, user: str) -> Steps[None]:
    """Delete what a user has chosen, and that they are online."""
    keys = UserKeys(prefix, user)
    yield Command("DEL", keys.choices, keys.streams, keys.online)


class _Stored(NamedTuple):
    """The fields of UserKeys.choices."""

    online: bytes | None
    receipts: bytes | None
    digests: bytes | None
    changes: bytes | None
    applied: bytes | None

    @property
    def is_interrupted(self) -> bool:
        """Whether some chats may not know whether the user hides what they have read."""
        return self.changes != self.applied

    @property
    def choice(self) -> Choice:
        shows_receipts = self.receipts != b"0" or self.is_interrupted
        return Choice(self.online != b"0", shows_receipts, self.digests != b"0")
