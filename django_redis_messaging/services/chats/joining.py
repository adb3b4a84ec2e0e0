"""Joining and leaving a chat.

The chat's roster is authoritative. Each user's list of chats is an index in another slot, so joining takes
three steps: reserve an index entry, join, confirm the entry. If joining is refused, the entry is released.
If it is interrupted, the index of a member still contains the chat: an entry without a membership is removed
by a later read, and a membership without an entry cannot occur.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from ... import conf
from ...core.keys import name
from ...core.operations import Script, Steps, asynchronous, operation
from ...core.steps import batched
from ...errors import InvalidArgument, LimitExceeded, NotPermitted
from ..arguments import flag, request, window
from ..users import UserKeys
from .base import ChatBase, best_effort
from .direct import apply_block, digest, direct_id, is_direct
from .keys import ChatKeys

#: users that one call adds
_MAX_ADDED = 500

#: parts of the reply of inbox_confirm: the user hides what they have read; of direct chats: the user has
#: blocked the other one, or has left for good, meanwhile
_HIDES, _HAS_BLOCKED, _HAS_DECLINED = 1, 2, 4

#: how users join: see lua/chat_join.lua
Way = Literal["added", "alone", "returning"]


class Joining(ChatBase):
    """Joining and leaving, and the entries in the users' indexes of chats."""

    #: the two users of a direct chat, while one of them opens it, joins it or adds the other one
    _pair: tuple[str, str] | None = None

    @operation
    def join(self, user: str, *, by: str | None = None) -> Steps[bool]:
        """Make a user a member who sees the messages sent from then on; False if they are a member already.

        `by` is the member who adds them, as in `add`; without it the user joins alone, and the chat must be
        open. Takes three round trips: the user's index of chats, the chat, the index again.

        >>> Chat.create("ann", [], chat_id="club").join("bob", by="ann")
        True

        Raises NotAMember, ChatNotFound, LimitExceeded (CHAT_MAX_MEMBERS, USER_MAX_CHATS), NotPermitted (see
        `add`; a user whom an owner removed can't join alone).
        """
        name(user, "user")
        if by is None:
            return bool((yield from self._join([user], "alone", user)))
        self._refuse_third([user], name(by, "by"))
        yield from self._count_use(by, "invite")
        return bool((yield from self._join([user], "added", by)))

    ajoin = asynchronous(join)

    @operation
    def add(self, users: Iterable[str], *, by: str, request_id: str | None = None) -> Steps[list[str]]:
        """Make at most 500 users members, all of them or none; returns those who were not members already.

        `by` is the member who adds them. Others can fill at most nine tenths of a user's USER_MAX_CHATS. A
        repeat with the same `request_id` by the same member adds nobody and returns the first answer.
        Takes three round trips, like `join`.

        >>> Chat.create("ann", ["bob"], chat_id="team").add(["bob", "cat", "dan"], by="ann")
        ['cat', 'dan']

        Raises NotAMember, ChatNotFound, LimitExceeded (CHAT_MAX_MEMBERS, USER_MAX_CHATS), and NotPermitted if
        one of the users has blocked `by`, has left with `again=False`, or was removed by an owner and `by` is
        not an owner.
        """
        if isinstance(users, str):
            raise TypeError("users must be a list of names, not a str: wrap it in a list.")
        unique = list(dict.fromkeys(name(user, "user") for user in users))
        if len(unique) > _MAX_ADDED:
            raise InvalidArgument(f"users must have at most {_MAX_ADDED} items, not {len(unique)}.")
        self._refuse_third(unique, name(by, "by"))
        if unique:
            yield from self._count_use(by, "invite", len(unique))
        return (yield from self._join(unique, "added", by, request_id))

    aadd = asynchronous(add)

    @operation
    def leave(self, user: str, *, by: str | None = None, again: bool = True) -> Steps[bool]:
        """End a membership; False if the user is not a member. `by` is the owner who removes another member.

        Only owners can add a user again whom an owner removed. With `again=False` nobody can add the user
        again; alone, the user can still join an open chat, or open a direct chat, which ends this. A chat
        remembers the latest 1000 users of each kind, until it is deleted. With `again=False`, a user
        remembers the latest 1000 direct chats.

        The last member to leave deletes the chat; if the last owner leaves, the longest-standing member
        becomes an owner. Raises NotPermitted or NotAMember for `by`.
        """
        name(user, "user")
        is_removal = by is not None and name(by, "by") != user
        if is_removal and not flag(again, "again"):
            raise InvalidArgument("again=False is for users who leave by themselves: omit it with by=….")
        if is_direct(self.id) and not flag(again, "again"):
            yield Script("inbox_decline", [UserKeys(self._prefix, user).declined], [self.id])
        return (yield from self._leave(user, by, again=again))

    aleave = asynchronous(leave)

    def _leave(self, user: str, by: str | None = None, *, again: bool) -> Steps[bool]:
        """End a membership in the chat, then remove it from the user's index."""
        arguments = (user, by or "", request(None), window(), flag(again, "again"))
        reply = yield Script("chat_leave", self._keys.ending, arguments)
        if reply in (b"no chat", b"no member"):
            return False
        token = self._checked(reply, user, by or "").decode()
        yield from best_effort(self._remove_entries([(user, token)]))
        return True

    def _join(
        self, users: Sequence[str], way: Way, asker: str, request_id: str | None = None
    ) -> Steps[list[str]]:
        """Make users members; returns those who were not. `asker` is the member who adds them, or joins."""
        request_key = request(request_id)
        token = digest("join", asker, request_key)
        reserved = yield from self._reserve(users, token, asker)
        records_nothing = int(request_id is not None)
        limit = conf.current().CHAT_MAX_MEMBERS
        reply = yield Script(
            "chat_join",
            self._keys.joining,
            (way, asker, request_key, records_nothing, window(), token, limit, *joining_users(reserved)),
        )
        epoch, is_member, joined, *tokens = yield from self._checked_joining(reply, reserved, token, asker)
        confirmed = zip(reserved, tokens, strict=True)
        yield from best_effort(self._confirm(confirmed, token, int(epoch), reserved, asker))
        if way == "added" and not is_member:  # a repeat
            self._raise_refusal(b"not added", "", asker)
        return joined.decode().split("\0") if joined else []

    def _refuse_third(self, users: Iterable[str], by: str) -> None:
        """A direct chat has two members, who can only add each other."""
        if not is_direct(self.id):
            return
        if any(direct_id(by, user) != self.id for user in users):
            raise NotPermitted(f"Nobody can be added to {self.id!r}, a direct chat: create another chat.")
        for user in users:
            self._pair = by, user

    def _companion(self, user: str) -> str:
        """The other user of a direct chat; empty for other chats."""
        first, second = self._pair or ("", "")
        return first if user == second else second

    def _index(self, user: str) -> str:
        return UserKeys(self._prefix, user).chats

    def _reservation(self, user: str, token: str, asker: str) -> Script:
        """The step that writes the chat into the index of a user whom the asker makes a member."""
        keys = UserKeys(self._prefix, user)
        is_own = user == asker
        person = self._companion(user) if is_own else asker
        arguments = (self.id, token, _max_chats(user, asker), person, int(is_own))
        return Script("inbox_reserve", [keys.chats, keys.blocks, keys.declined, keys.choices], arguments)

    def _reserve(self, users: Sequence[str], token: str, asker: str) -> Steps[dict[str, bool]]:
        """Write the chat into the users' indexes before they become members; into none if one is full, or if
        one of the users has blocked the asker. Leaves out, and doesn't return, members who have blocked the
        asker. Returns the others, and whether they hide what they have read."""
        reserved: dict[str, bool] = {}
        for page in batched(users):
            replies = yield [self._reservation(user, token, asker) for user in page]
            reserved |= {
                user: reply == 2 for user, reply in zip(page, replies, strict=True) if reply in (1, 2)
            }
            for user, reply in zip(page, replies, strict=True):
                if isinstance(reply, bytes):
                    yield from best_effort(self._release(reserved, token))
                    self._raise_no_reservation(reply, user, asker)
        return reserved

    def _raise_no_reservation(self, refusal: bytes, user: str, asker: str) -> NoReturn:
        if refusal == b"blocked":
            if user == asker:
                refuse_to_blocker(user, self._companion(user))
            refuse_blocked()
        if refusal == b"full":
            limit = _max_chats(user, asker)
            raise LimitExceeded("chats of a user", limit=limit, actual=limit + 1, setting="USER_MAX_CHATS")
        self._raise_refusal(refusal, user, asker)

    def _checked_joining(self, reply: Any, users: Iterable[str], token: str, asker: str) -> Steps[Any]:
        """Like `_checked`, for a script that adds the users: if it refused, their entries are released first.

        After other errors they stay: the users may be members.
        """
        refusal, _, user = reply.partition(b"\0") if isinstance(reply, bytes) else (reply, b"", b"")
        try:
            return self._checked(refusal, user.decode() or asker, asker)
        except Exception:
            yield from best_effort(self._release(users, token))
            raise

    def _release(self, users: Iterable[str], token: str) -> Steps[None]:
        """Remove what `_reserve` has written."""
        for page in batched(users):
            yield [Script("inbox_release", [self._index(user)], (self.id, token)) for user in page]

    def _confirm(
        self,
        members: Iterable[tuple[str, str | bytes]],
        token: str,
        epoch: int,
        hiding: Mapping[str, bool],
        asker: str,
    ) -> Steps[None]:
        """Confirm the entries of users, given with the tokens of their memberships in force; empty for a
        user who is not a member. `asker` has made them members. Corrects the chat where it is wrong about
        who is `hiding` what they have read, because the user has chosen anew since the reservation."""
        seen = f"0-0-0-{epoch}-0"
        current = [(user, in_force) for user, in_force in members if in_force]
        known = dict(hiding)
        for page in batched(current):
            waiting = list(page)
            while waiting:  # or the user has chosen anew meanwhile
                replies = yield [
                    self._confirmation(user, token, in_force, seen, is_own=user == asker)
                    for user, in_force in waiting
                ]
                states = {user: reply for (user, _), reply in zip(waiting, replies, strict=True)}
                hides = {user: bool(state & _HIDES) for user, state in states.items()}
                wrong = {user: value for user, value in hides.items() if value != known.get(user)}
                if wrong:
                    yield [hiding_step(self._keys, user, hides=value) for user, value in wrong.items()]
                for user, state in states.items():
                    if state & _HAS_BLOCKED:
                        yield from apply_block(self._prefix, user, self._companion(user), is_blocked=True)
                    if state & _HAS_DECLINED:
                        yield from self._leave(user, again=False)
                        yield from self._release([user], token)
                known |= wrong
                waiting = [one for one in waiting if one[0] in wrong]

    def _confirmation(
        self, user: str, token: str, in_force: str | bytes, seen: str, *, is_own: bool
    ) -> Script:
        keys = UserKeys(self._prefix, user)
        arguments = (self.id, token, in_force, seen, self._companion(user), int(is_own))
        own = [keys.chats, keys.choices, keys.blocks, keys.declined]
        return Script("inbox_confirm", own, arguments)

    def _remove_entries(self, members: Iterable[tuple[str, str]]) -> Steps[None]:
        """Remove the chat from the indexes of former members, given as (user, token) pairs."""
        for page in batched(members):
            yield [Script("inbox_leave", [self._index(user)], (0, self.id, token)) for user, token in page]


def hiding_step(keys: ChatKeys, user: str, *, hides: bool) -> Script:
    """The step after which a chat knows whether a member hides what they have read."""
    return Script("chat_hide", [keys.members, keys.hidden], (user, int(hides)))


def joining_users(reserved: Mapping[str, bool]) -> list[str | int]:
    """Users as the scripts that make them members take them: their number, all, and those who hide what they
    have read."""
    return [len(reserved), *reserved, *(user for user, hides in reserved.items() if hides)]


def _max_chats(user: str, asker: str) -> int:
    """How many chats a user may have for the asker to make the user a member of another one. Others can fill
    nine tenths of USER_MAX_CHATS, rounded up."""
    limit = conf.current().USER_MAX_CHATS
    return limit if user == asker else limit - limit // 10


def refuse_blocked() -> NoReturn:
    """Raise the error for users who have blocked the asker, without their names."""
    raise NotPermitted("One of these people can't be added.")


def refuse_to_blocker(user: str, other: str) -> NoReturn:
    """Raise the error for a user who has blocked the other one of a direct chat."""
    raise NotPermitted(f"{user!r} has blocked {other!r}: unblock them first (Blocks.unblock).")
