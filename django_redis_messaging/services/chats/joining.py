"""How users become members of a chat and leave it, and the entries in their indexes of chats.

The chat's roster is authoritative. Each user's list of chats is an index in another slot, so joining takes
three steps: reserve an index entry, join, confirm the entry. If joining is refused, the entry is released.
If it is interrupted, the index of a member still contains the chat: an entry without a membership is removed
by a later read, and a membership without an entry cannot occur. Each membership has a join number, given by
the chat, which only grows: a late step about an earlier one changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from ... import conf
from ...core.commands import batched
from ...core.operations import Command, Script, Steps
from ...errors import LimitExceeded, NotPermitted, OutcomeUnknown, Unavailable
from ..common.arguments import flag, request, window
from ..users.keys import UserKeys
from .keys import ChatKeys, direct_id
from .replies import checked_reply, raise_refusal
from .values import random_step

#: by how much the score of a suspended member is above their position: see _members.lua
HALF = 0.5
#: the beginning of a suspended member's line in the roster
SUSPENDED = b"suspended "
_logger = logging.getLogger(__name__)

#: how users join: see join.lua
Way = Literal["added", "alone", "returning"]

#: COMMAND_DEADLINEs: longer than a joining takes
_GRACE = 3

#: replies of leave.lua if no membership has ended
NO_MEMBERSHIP = (b"no chat", b"no member")

#: replies of inbox_reserve.lua if the entry was written: the user hides what they have read; an earlier
#: joining has not confirmed it
_HIDING, _UNCONFIRMED = (2, 4), (3, 4)

#: parts of the reply of inbox_confirm.lua: the user hides what they have read; of direct chats: the user has
#: blocked the other one, or has left for good, meanwhile
_HIDES, _HAS_BLOCKED, _HAS_DECLINED = 1, 2, 4


def read_block(prefix: str, user: str, other: str) -> Command:
    """The step that reads a block: None if `user` has not blocked `other`."""
    return Command("ZSCORE", UserKeys(prefix, user).blocks, other, reads=True)


def apply_block(prefix: str, user: str, other: str, *, is_blocked: bool) -> Steps[None]:
    """Suspend or resume the membership of `user` in the direct chat with `other`; safe to repeat."""
    keys, own = ChatKeys(prefix, direct_id(user, other)), UserKeys(prefix, user)
    applied = None
    while is_blocked is not applied:
        if is_blocked:
            yield Script("chats/suspend", keys.following, [user])
        else:
            yield Script("chats/resume", keys.listing, [user])
        applied = is_blocked
        is_blocked = bool((yield Script("users/blocks_check", own.joining_keys, [other])))


def refuse_blocked() -> NoReturn:
    """Raise the error for users who have blocked the asker, without their names."""
    raise NotPermitted("One of these people can't be added.")


def refuse_to_blocker(user: str, other: str) -> NoReturn:
    """Raise the error for a user who has blocked the other one of a direct chat."""
    raise NotPermitted(f"{user!r} has blocked {other!r}: unblock them first (Blocks.unblock).")


@dataclass(frozen=True, slots=True)
class Joining:
    """One attempt to make users members of a chat."""

    prefix: str
    chat_id: str
    asker: str
    """The member who adds the users, or the user who joins alone."""
    pair: tuple[str, str] | None = None
    """The two users of a direct chat."""
    token: str = field(default_factory=lambda: os.urandom(8).hex())
    """Names the attempt in the indexes of the users while it is in progress."""
    unconfirmed: set[str] = field(default_factory=set)
    """Users whom an earlier attempt, whose process has crashed, may have made members."""

    def reserve(self, users: Sequence[str]) -> Steps[dict[str, bool]]:
        """Write the chat into the users' indexes before they become members; into none if one is full, or if
        one of the users has blocked the asker.

        Leaves out, and doesn't return, members who have blocked the asker. Returns the others, and whether
        they hide what they have read.
        """
        reserved: dict[str, bool] = {}
        for page in batched(users):
            replies = yield [self._reservation(user) for user in page]
            for user, reply in zip(page, replies, strict=True):
                if type(reply) is int and reply:
                    reserved[user] = reply in _HIDING
                    if reply in _UNCONFIRMED:
                        self.unconfirmed.add(user)
            for user, reply in zip(page, replies, strict=True):
                if isinstance(reply, bytes):
                    yield from best_effort(self.release(reserved))
                    self._refuse(reply, user)
        return reserved

    def _reservation(self, user: str) -> Script:
        is_own = user == self.asker
        person = self._companion(user) if is_own else self.asker
        limit = _max_chats(user, self.asker)
        return self.reservation(user, max_chats=limit, person=person, is_own=is_own)

    def reservation(self, user: str, *, max_chats: int, person: str, is_own: bool) -> Script:
        """The step that writes the chat into the index of a user. `person`: who makes the user a member; if
        the user does so (`is_own`), the other one of a direct chat."""
        keys = UserKeys(self.prefix, user)
        arguments = (self.chat_id, self.token, max_chats, person, int(is_own), grace())
        return Script("chats/inbox_reserve", keys.joining_keys, arguments)

    def _refuse(self, refusal: bytes, user: str) -> NoReturn:
        """Raise the error for an entry that was not written."""
        if refusal == b"blocked":
            if user == self.asker:
                refuse_to_blocker(user, self._companion(user))
            refuse_blocked()
        if refusal == b"full":
            limit = _max_chats(user, self.asker)
            raise LimitExceeded("chats of a user", limit=limit, actual=limit + 1, setting="USER_MAX_CHATS")
        raise_refusal(refusal, self.chat_id, user, self.asker)

    def checked(self, reply: Any, users: Iterable[str]) -> Steps[Any]:
        """The reply of the script that makes the users members. If it refused, their entries are released
        before the error is raised. After other errors they stay: the users may be members."""
        refusal, _, user = reply.partition(b"\0") if isinstance(reply, bytes) else (reply, b"", b"")
        try:
            return checked_reply(refusal, self.chat_id, user.decode() or self.asker, self.asker)
        except Exception:
            yield from best_effort(self.release(users))
            raise

    def release(self, users: Iterable[str]) -> Steps[None]:
        """Remove what `reserve` has written."""
        for page in batched(users):
            yield [
                Script(
                    "chats/inbox_release",
                    UserKeys(self.prefix, user).index,
                    (self.chat_id, self.token, int(user not in self.unconfirmed)),
                )
                for user in page
            ]

    def confirm(
        self, members: Iterable[tuple[str, int | bytes]], epoch: int, hiding: Mapping[str, bool]
    ) -> Steps[None]:
        """Confirm the entries of users, given with the join numbers of their memberships; empty for a user
        who is not a member: that entry is released.

        Corrects the chat where it is wrong about who is `hiding` what they have read, because the user has
        chosen anew since the reservation.
        """
        known, pairs = dict(hiding), list(members)
        yield from self.release([user for user, number in pairs if not number])
        for page in batched([(user, number) for user, number in pairs if number]):
            waiting = list(page)
            while waiting:  # or the user has chosen anew meanwhile
                replies = yield [self._confirmation(user, number, epoch) for user, number in waiting]
                states = {user: reply for (user, _), reply in zip(waiting, replies, strict=True)}
                hides = {user: bool(state & _HIDES) for user, state in states.items()}
                wrong = {user: value for user, value in hides.items() if value != known.get(user)}
                if wrong:
                    keys = ChatKeys(self.prefix, self.chat_id)
                    yield [hiding_step(keys, user, hides=value) for user, value in wrong.items()]
                for user, state in states.items():
                    yield from self._apply_later_choice(user, state)
                known |= wrong
                waiting = [one for one in waiting if one[0] in wrong]

    def _confirmation(self, user: str, number: int | bytes, epoch: int) -> Script:
        keys = UserKeys(self.prefix, user)
        is_own = int(user == self.asker)
        arguments = (self.chat_id, self.token, number, epoch, self._companion(user), is_own)
        return Script("chats/inbox_confirm", keys.joining_keys, arguments)

    def _apply_later_choice(self, user: str, state: int) -> Steps[None]:
        """End or suspend the membership of a user who has left the direct chat for good, or blocked the other
        one, since the reservation."""
        if state & _HAS_BLOCKED:
            yield from apply_block(self.prefix, user, self._companion(user), is_blocked=True)
        if state & _HAS_DECLINED:
            yield from end_membership(self.prefix, self.chat_id, user, again=False)
            yield from self.release([user])

    def _companion(self, user: str) -> str:
        """The other user of a direct chat; empty for other chats."""
        first, second = self.pair or ("", "")
        return first if user == second else second


def end_membership(
    prefix: str, chat_id: str, user: str, by: str | None = None, *, again: bool
) -> Steps[bool]:
    """End a membership in the chat, then remove it from the user's index: see Chat.leave."""
    arguments = (user, by or "", request(None), window(), flag(again, "again"))
    reply = yield Script("chats/leave", ChatKeys(prefix, chat_id).all_keys, arguments)
    if reply in NO_MEMBERSHIP:
        return False
    number = checked_reply(reply, chat_id, user, by or "")
    yield from best_effort(remove_entries(prefix, chat_id, [(user, number)]))
    return True


def remove_entries(prefix: str, chat_id: str, members: Iterable[tuple[str, bytes]]) -> Steps[None]:
    """Remove the chat from the indexes of former members, given with the join numbers of their memberships;
    empty if it was lost: then a read removes the entry."""
    for page in batched([(user, number) for user, number in members if number]):
        yield [
            Script("chats/inbox_leave", UserKeys(prefix, user).index, (chat_id, number))
            for user, number in page
        ]


def hiding_step(keys: ChatKeys, user: str, *, hides: bool) -> Script:
    """The step that stores in a chat whether a member hides what they have read."""
    return Script("chats/hide", keys.following, (user, int(hides), random_step()))


def joining_users(reserved: Mapping[str, bool]) -> list[str | int]:
    """Users as the scripts that make them members take them: their number, all, and those who hide what they
    have read."""
    return [len(reserved), *reserved, *(user for user, hides in reserved.items() if hides)]


def best_effort(steps: Steps[None]) -> Steps[None]:
    """Update an index after the operation itself has been applied.

    A failure must not reach the caller, who would take the operation for failed. The next read of the inbox
    repairs the index.
    """
    try:
        yield from steps
    except (Unavailable, OutcomeUnknown) as error:
        _logger.warning("Updating an index of chats failed, repaired on the next read: %s", error)


def grace() -> int:
    """How long a joining can be in progress: ms. Meanwhile a read removes no entry, although the user is no
    member, because a joining writes the entry first."""
    return int(conf.current().COMMAND_DEADLINE * _GRACE * 1000)


def _max_chats(user: str, asker: str) -> int:
    """How many chats a user may have for the asker to make the user a member of another one. Others can fill
    nine tenths of USER_MAX_CHATS, rounded up."""
    limit = conf.current().USER_MAX_CHATS
    return limit if user == asker else limit - limit // 10
