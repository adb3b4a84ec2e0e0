"""Who is in a chat.

The chat holds the truth; each user's list of chats is an index in another slot, so a joining takes three
steps: it writes the index, joins, and confirms the index. Whatever stops in between, a member's index has
the chat: an entry without a membership is healed away later, a membership without an entry never is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import cast, get_args

from ... import conf
from ...core import payloads
from ...core.batches import batched
from ...core.keys import UserKeys, name
from ...core.operations import Script, Steps, asynchronous, operation
from ...errors import LimitExceeded
from ..arguments import count, until_ms
from ..requests import request, window
from . import entries
from .base import ChatBase, upkeep
from .values import ChatInfo, Member, Role

#: index writes in one pipeline
_PIPELINE = 500


class Membership(ChatBase):
    """Joining, leaving, roles, and what is said about a chat rather than in it."""

    @operation
    def join(self, user: str, *, by: str | None = None) -> Steps[bool]:
        """Make a user a member, who sees what is sent from then on; False if they are one already.

        `by` is the member who adds them; without it the chat must be open.
        Three round trips: the user's list of chats, the chat, the list again.

        >>> Chat.create("ann", [], chat_id="club").join("bob", by="ann")
        True

        Raises NotAMember, ChatNotFound, LimitExceeded (CHAT_MAX_MEMBERS, USER_MAX_CHATS).
        """
        name(user, "user")
        if by is not None:
            name(by, "by")
        token = os.urandom(8).hex()
        yield from self._expect([user], token)
        keys = self._keys
        reply = yield Script(
            "chat_join",
            (keys.newest, keys.members, *keys.requests, keys.roster, keys.standing, keys.info),
            (user, by or "", token, window(), conf.current().CHAT_MAX_MEMBERS),
        )
        joined, in_force, epoch = self._accepted(reply, user, by or "")
        yield from upkeep(self._confirm([(user, in_force.decode())], token, int(epoch)))
        return bool(joined)

    ajoin = asynchronous(join)

    @operation
    def leave(self, user: str, *, by: str | None = None) -> Steps[bool]:
        """End a membership; False if there is none. `by` is the owner who removes somebody else.

        The last one out deletes the chat; the last owner's rights pass to the longest-standing member.
        Raises NotPermitted or NotAMember for `by`.
        """
        name(user, "user")
        if by is not None:
            name(by, "by")
        reply = yield Script("chat_leave", self._keys.ending, (user, by or "", window(), request(None)))
        if reply in (b"no chat", b"no member"):
            return False
        token = self._accepted(reply, user, by or "").decode()
        yield from upkeep(self._forget([(user, token)]))
        return True

    aleave = asynchronous(leave)

    @operation
    def members(self, *, limit: int = 500, after: str | None = None) -> Steps[list[Member]]:
        """List members, the longest-standing first; `after` is the last one of the page before.

        Raises ChatNotFound; NotAMember where `after` is none.
        """
        keys = self._keys
        begin = "" if after is None else name(after, "after")
        reply = yield Script(
            "chat_members",
            (keys.info, keys.members, keys.roster, keys.standing),
            (begin, count(limit, "limit")),
        )
        return list(_members(self._accepted(reply, other=begin)))

    amembers = asynchronous(members)

    @operation
    def set_role(self, user: str, member: str, role: Role) -> Steps[bool]:
        """Make a member an "owner" or a plain "member"; False if they are that already.

        For owners; a chat keeps at least one. Raises NotPermitted, NotAMember, ChatNotFound.
        """
        name(user, "user")
        name(member, "member")
        if role not in get_args(Role):
            raise ValueError(f"role must be one of {', '.join(get_args(Role))}.")
        keys = self._keys
        reply = yield Script(
            "chat_promote",
            (keys.info, keys.roster, *keys.requests),
            (user, member, role, request(None), window()),
        )
        return bool(self._accepted(reply, user, member))

    aset_role = asynchronous(set_role)

    @operation
    def rename(self, user: str, title: str) -> Steps[None]:
        """Give the chat another title. For members. Raises NotAMember, ChatNotFound, LimitExceeded."""
        name(user, "user")
        checked = payloads.text(title, "title", limit=conf.current().TITLE_MAX_BYTES)
        self._accepted(
            (yield Script("chat_rename", (self._keys.info, self._keys.members), (user, checked))), user
        )

    arename = asynchronous(rename)

    @operation
    def mute(self, user: str, until: datetime | None) -> Steps[None]:
        """Mute the chat for a member until a moment; None ends it. It still counts as unread.

        Raises NotAMember, ChatNotFound.
        """
        name(user, "user")
        keys = self._keys
        arguments = (user, until_ms(until, "until"))
        reply = yield Script("chat_mute", (keys.info, keys.members, keys.mutes), arguments)
        self._accepted(reply, user)

    amute = asynchronous(mute)

    @operation
    def delete(self, user: str) -> Steps[bool]:
        """Delete the chat with all it holds; False if there is none. For owners.

        Raises NotPermitted, NotAMember.
        """
        name(user, "user")
        reply = yield Script("chat_delete", self._keys.ending, (user, window(), request(None)))
        if reply == b"no chat":
            return False
        tokens = [part.decode() for part in self._accepted(reply, user)]
        yield from upkeep(self._forget(zip(tokens[::2], tokens[1::2], strict=True)))
        return True

    adelete = asynchronous(delete)

    @operation
    def seen_by(self, message_id: int, *, limit: int = 500) -> Steps[list[str]]:
        """List the members who have acked a message. Raises ChatNotFound."""
        number = entries.identifier(message_id, "message_id")
        keys = self._keys
        arguments = (number, count(limit, "limit"))
        reply = yield Script("chat_seen", (keys.info, keys.members, keys.roster), arguments)
        return [member.decode() for member in self._accepted(reply)]

    aseen_by = asynchronous(seen_by)

    @operation
    def typing(self, user: str) -> Steps[None]:
        """Note that a member is typing, for TYPING_WINDOW seconds. Raises NotAMember, ChatNotFound."""
        name(user, "user")
        keys, settings = self._keys, conf.current()
        reply = yield Script(
            "chat_type",
            (keys.info, keys.members, keys.typing),
            (user, int(settings.TYPING_WINDOW * 1000), settings.TYPING_MAX_MEMBERS),
        )
        self._accepted(reply, user)

    atyping = asynchronous(typing)

    @operation
    def typists(self) -> Steps[list[str]]:
        """List who is typing, the latest last. Raises ChatNotFound."""
        reply = yield Script("chat_typists", (self._keys.info, self._keys.typing))
        return [member.decode() for member in self._accepted(reply)]

    atypists = asynchronous(typists)

    @operation
    def info(self) -> Steps[ChatInfo]:
        """Describe the chat. Raises ChatNotFound."""
        keys = self._keys
        reply = yield Script("chat_describe", (keys.newest, keys.info, keys.members, keys.log))
        title, is_open, created, edits, active, last, first, keep, members = self._accepted(reply)
        return ChatInfo(
            chat_id=self.id,
            title=title.decode(),
            open=is_open == b"1",
            keep_last=keep,
            created_at=entries.moment(created),
            active_at=entries.moment(active),
            last_id=last,
            first_id=first,
            edits=int(edits),
            member_count=members,
        )

    ainfo = asynchronous(info)

    def _index(self, user: str) -> str:
        return UserKeys(self._prefix, user).chats

    def _expect(self, users: Sequence[str], token: str) -> Steps[None]:
        """Write the chat into the users' indexes, before they become members."""
        most = conf.current().USER_MAX_CHATS
        for page in batched(users, _PIPELINE):
            replies = yield [
                Script("inbox_expect", [self._index(user)], (self.id, token, most)) for user in page
            ]
            if b"full" in replies:
                raise LimitExceeded("chats of a user (USER_MAX_CHATS)", limit=most, actual=most + 1)

    def _confirm(self, members: Iterable[tuple[str, str]], token: str, epoch: int) -> Steps[None]:
        """Write it again, now that they are: with the token that is in force for each."""
        line = f"0-0-{epoch}-0"
        for page in batched(members, _PIPELINE):
            yield [
                Script("inbox_confirm", [self._index(user)], (self.id, token, in_force, line))
                for user, in_force in page
            ]

    def _forget(self, members: Iterable[tuple[str, str]]) -> Steps[None]:
        """Remove it from the indexes of those who were members, each by the token of the membership."""
        for page in batched(members, _PIPELINE):
            yield [Script("inbox_leave", [self._index(user)], (0, self.id, token)) for user, token in page]


def _members(flat: list[bytes | int]) -> Iterator[Member]:
    for user, read_id, line in batched(flat, 3):
        _, joined_at, role, _ = cast(bytes, line).decode().split(" ")
        yield Member(
            user=cast(bytes, user).decode(),
            read_id=cast(int, read_id),
            joined_at=entries.moment(joined_at.encode()),
            role=cast(Role, role),
        )
