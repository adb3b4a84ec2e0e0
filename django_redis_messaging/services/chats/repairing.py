"""Rebuilds keys of chats that were lost, and the chats' entries in the indexes of members, for operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ... import conf
from ...core.commands import batched
from ...core.encoding import name
from ...core.operations import Command, Script, Service, Steps, operation
from ..users.keys import UserKeys
from . import values
from .joining import Joining, hiding_step
from .keys import ChatKeys
from .replies import checked_reply

#: number of chats, greater than that of any user: restored entries were within the limit before
_NO_LIMIT = 10**9


@dataclass(frozen=True, slots=True)
class Repair:
    """What was repaired of a chat."""

    rebuilt: list[str]
    """Names of its keys, such as "newest"."""
    restored: int
    """Number of entries in indexes of members."""


class ChatRepair(Service):
    """The repair of one chat. It never changes an intact chat, and may run while the chat is used."""

    def __init__(self, chat_id: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.id = name(chat_id, "chat_id")
        self._keys = ChatKeys(self._prefix, chat_id)

    @operation
    def run(self, users: Sequence[str] | None = None) -> Steps[Repair | None]:
        """Repair the chat, and its entries in the indexes of its members, or of these users.

        None if the chat does not exist, or if none of the users is a member. Raises ChatNotFound if so much
        is lost that nothing can be rebuilt.
        """
        if users is not None and not (yield from self._has_any(users)):
            return None
        keys = self._keys
        reply = yield Script("chats/repair", keys.all_keys, [conf.current().CHAT_KEEP_LAST])
        if reply == b"no chat":
            return None
        rebuilt = [part.decode() for part in checked_reply(reply, self.id)]
        return Repair(rebuilt, (yield from self._restore_entries(users)))

    def _has_any(self, users: Sequence[str]) -> Steps[bool]:
        keys = self._keys
        lines, positions = yield [
            Command("HMGET", keys.roster, *users, reads=True),
            Command("ZMSCORE", keys.members, *users, reads=True),
        ]
        return any(value is not None for value in (*lines, *positions))

    def _restore_entries(self, users: Sequence[str] | None) -> Steps[int]:
        """Write entries that are missing, or that name an earlier membership; returns their number."""
        memberships = yield from self._read_memberships(users)
        yield from self._restore_hidden([user for user, _ in memberships])
        restored = 0
        for page in batched(memberships):
            indexes = [UserKeys(self._prefix, user).chats for user, _ in page]
            found = yield [Command("HGET", index, self.id, reads=True) for index in indexes]
            lost = [
                user
                for (user, number), entry in zip(page, found, strict=True)
                if entry is None or int(entry.split(b" ")[0]) < number
            ]
            if lost:
                restored += yield from self._write_entries(lost)
        return restored

    def _restore_hidden(self, users: Sequence[str]) -> Steps[None]:
        """Hide what those members have read who have chosen so."""
        for page in batched(users):
            choices = [UserKeys(self._prefix, user).choices for user in page]
            replies = yield [Command("HGET", key, "receipts", reads=True) for key in choices]
            hiding = [user for user, reply in zip(page, replies, strict=True) if reply == b"0"]
            if hiding:
                yield [hiding_step(self._keys, user, hides=True) for user in hiding]

    def _read_memberships(self, users: Sequence[str] | None) -> Steps[list[tuple[str, int]]]:
        """The members, or those among `users`, with the join numbers of their memberships."""
        if users is None:
            flat = yield Command("HGETALL", self._keys.roster, reads=True)
            return [(user.decode(), _join_number(line)) for user, line in batched(flat, 2)]
        lines = yield Command("HMGET", self._keys.roster, *users, reads=True)
        return [
            (user, _join_number(line)) for user, line in zip(users, lines, strict=True) if line is not None
        ]

    def _write_entries(self, users: Sequence[str]) -> Steps[int]:
        """Write the entries as a joining does, so that they are right even if members leave meanwhile."""
        joining = Joining(self._prefix, self.id, asker="")
        yield [joining.reservation(user, max_chats=_NO_LIMIT, person="", is_own=True) for user in users]
        newest, lines = yield [
            Command("GET", self._keys.newest, reads=True),
            Command("HMGET", self._keys.roster, *users, reads=True),
        ]
        pairs = zip(users, lines, strict=True)
        current = [(user, _join_number(line)) for user, line in pairs if newest and line]
        members = dict(current)
        epoch = values.epoch_of(newest) if newest else 0
        yield from joining.confirm(current, epoch, dict.fromkeys(members, False))
        yield from joining.release([user for user in users if user not in members])
        return len(current)


def _join_number(line: bytes) -> int:
    """The join number of a membership, in a line of the roster."""
    return int(line.rpartition(b" ")[2])
