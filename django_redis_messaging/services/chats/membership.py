"""The members of a chat.

The chat's roster is authoritative. Each user's list of chats is an index in another slot, so joining takes
three steps: reserve an index entry, join, confirm the entry. If joining is refused, the entry is released.
If it is interrupted, the index of a member still contains the chat: an entry without a membership is removed
by a later read, and a membership without an entry cannot occur.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, cast, get_args

from ... import conf
from ...core import payloads
from ...core.keys import name
from ...core.operations import Script, Steps, asynchronous, operation
from ...core.steps import batched
from ...errors import InvalidArgument, LimitExceeded
from ..arguments import count, request, timestamp_ms, window
from ..cursors import checked_id
from ..moments import to_datetime
from ..users import UserKeys
from .base import ChatBase, best_effort, limits
from .values import ChatInfo, Member, Names, Role

#: index writes per pipeline
_PIPELINE_SIZE = 500


class Membership(ChatBase):
    """Joining, leaving, roles, and operations on the chat itself rather than on its messages."""

    @operation
    def join(self, user: str, *, by: str | None = None) -> Steps[bool]:
        """Make a user a member who sees the messages sent from then on; False if they are a member already.

        `by` is the member who adds them; without it the chat must be open.
        Takes three round trips: the user's index of chats, the chat, the index again.

        >>> Chat.create("ann", [], chat_id="club").join("bob", by="ann")
        True

        Raises NotAMember, ChatNotFound, LimitExceeded (CHAT_MAX_MEMBERS, USER_MAX_CHATS).
        """
        name(user, "user")
        if by is not None:
            name(by, "by")
        token = os.urandom(8).hex()
        yield from self._reserve([user], token)
        keys = self._keys
        reply = yield Script(
            "chat_join",
            (keys.newest, keys.members, *keys.requests, keys.roster, keys.seniority, keys.info),
            (user, by or "", token, window(), conf.current().CHAT_MAX_MEMBERS),
        )
        joined, in_force, epoch = yield from self._checked_joining(reply, [user], token, user, by or "")
        yield from best_effort(self._confirm([(user, in_force.decode())], token, int(epoch)))
        return bool(joined)

    ajoin = asynchronous(join)

    @operation
    def leave(self, user: str, *, by: str | None = None) -> Steps[bool]:
        """End a membership; False if the user is not a member. `by` is the owner who removes another member.

        The last member to leave deletes the chat; if the last owner leaves, the longest-standing member
        becomes an owner. Raises NotPermitted or NotAMember for `by`.
        """
        name(user, "user")
        if by is not None:
            name(by, "by")
        reply = yield Script("chat_leave", self._keys.ending, (user, by or "", request(None), window()))
        if reply in (b"no chat", b"no member"):
            return False
        token = self._checked(reply, user, by or "").decode()
        yield from best_effort(self._remove_entries([(user, token)]))
        return True

    aleave = asynchronous(leave)

    @operation
    def members(self, *, limit: int = 500, after: str | None = None) -> Steps[list[Member]]:
        """List members, the longest-standing first; `after` is the last member of the previous page.

        Raises ChatNotFound; NotAMember if `after` is not a member.
        """
        keys = self._keys
        start = "" if after is None else name(after, "after")
        reply = yield Script(
            "chat_members",
            (keys.info, keys.members, keys.roster, keys.seniority),
            (start, count(limit, "limit")),
        )
        return list(_parse_members(self._checked(reply, other=start)))

    amembers = asynchronous(members)

    @operation
    def set_role(self, user: str, member: str, role: Role) -> Steps[bool]:
        """Make a member an "owner" or a plain "member"; False if they already have that role.

        For owners. A chat keeps at least one. Raises NotPermitted, NotAMember, ChatNotFound.
        """
        name(user, "user")
        name(member, "member")
        if role not in get_args(Role):
            raise InvalidArgument(f"role must be one of {', '.join(get_args(Role))}, not {role!r}.")
        keys = self._keys
        reply = yield Script(
            "chat_promote",
            (keys.info, keys.roster, *keys.requests),
            (user, member, role, request(None), window()),
        )
        return bool(self._checked(reply, user, member))

    aset_role = asynchronous(set_role)

    @operation
    def rename(self, user: str, title: str) -> Steps[None]:
        """Change the title. For members. Raises NotAMember, ChatNotFound, LimitExceeded."""
        name(user, "user")
        checked = payloads.text(title, "title", setting="TITLE_MAX_BYTES")
        self._checked(
            (yield Script("chat_rename", (self._keys.info, self._keys.members), (user, checked))), user
        )

    arename = asynchronous(rename)

    @operation
    def mute(self, user: str, until: datetime | None) -> Steps[None]:
        """Mute the chat for a member until a given time; None unmutes it. Its messages still count as unread.

        Raises NotAMember, ChatNotFound.
        """
        name(user, "user")
        keys = self._keys
        arguments = (user, timestamp_ms(until, "until"))
        reply = yield Script("chat_mute", (keys.info, keys.members, keys.mutes), arguments)
        self._checked(reply, user)

    amute = asynchronous(mute)

    @operation
    def delete(self, user: str) -> Steps[bool]:
        """Delete the chat with all its contents; False if it does not exist. For owners.

        Also deletes a chat that has lost some of its keys: any member may delete it if the roster was lost,
        and any user if nobody can read it (`manage.py messaging_repair` might repair it).
        Raises NotPermitted, NotAMember.
        """
        name(user, "user")
        reply = yield Script("chat_delete", self._keys.ending, (user, request(None), window()))
        if reply == b"no chat":
            return False
        tokens = [part.decode() for part in self._checked(reply, user)]
        yield from best_effort(self._remove_entries(zip(tokens[::2], tokens[1::2], strict=True)))
        return True

    adelete = asynchronous(delete)

    @operation
    def seen_by(self, message_id: int, *, limit: int = 500) -> Steps[Names]:
        """List the members who have acked a message; `has_more` of the list: whether there are more than
        `limit`. Raises ChatNotFound."""
        number = checked_id(message_id, "message_id")
        keys = self._keys
        arguments = (number, count(limit, "limit") + 1)
        reply = yield Script("chat_seen", (keys.info, keys.members, keys.roster), arguments)
        members = [member.decode() for member in self._checked(reply)]
        return Names(members[:limit], has_more=len(members) > limit)

    aseen_by = asynchronous(seen_by)

    @operation
    def typing(self, user: str) -> Steps[None]:
        """Record that a member is typing, for TYPING_WINDOW seconds. Raises NotAMember, ChatNotFound."""
        name(user, "user")
        keys, settings = self._keys, conf.current()
        reply = yield Script(
            "chat_type",
            (keys.info, keys.members, keys.typing),
            (user, int(settings.TYPING_WINDOW * 1000), settings.TYPING_MAX_MEMBERS),
        )
        self._checked(reply, user)

    atyping = asynchronous(typing)

    @operation
    def typists(self) -> Steps[list[str]]:
        """List the members who are typing, the latest last. Raises ChatNotFound."""
        reply = yield Script("chat_typists", (self._keys.info, self._keys.typing))
        return [member.decode() for member in self._checked(reply)]

    atypists = asynchronous(typists)

    @operation
    def info(self) -> Steps[ChatInfo]:
        """Describe the chat. Raises ChatNotFound."""
        keys = self._keys
        reply = yield Script("chat_describe", (keys.newest, keys.info, keys.members, keys.log), limits())
        title, is_open, created, edits, active, last, first, keep, members = self._checked(reply)
        return ChatInfo(
            chat_id=self.id,
            title=title.decode(),
            open=is_open == b"1",
            keep_last=keep,
            created_at=to_datetime(created),
            active_at=to_datetime(active),
            last_id=last,
            first_id=first,
            edits=int(edits),
            member_count=members,
        )

    ainfo = asynchronous(info)

    def _index(self, user: str) -> str:
        return UserKeys(self._prefix, user).chats

    def _reserve(self, users: Sequence[str], token: str) -> Steps[None]:
        """Write the chat into the users' indexes before they become members; into none if one is full."""
        limit = conf.current().USER_MAX_CHATS
        reserved: list[str] = []
        for page in batched(users, _PIPELINE_SIZE):
            reserved += page
            replies = yield [
                Script("inbox_reserve", [self._index(user)], (self.id, token, limit)) for user in page
            ]
            if b"full" in replies:
                yield from best_effort(self._release(reserved, token))
                raise LimitExceeded(
                    "chats of a user", limit=limit, actual=limit + 1, setting="USER_MAX_CHATS"
                )

    def _checked_joining(
        self, reply: Any, users: Sequence[str], token: str, user: str, other: str = ""
    ) -> Steps[Any]:
        """Like `_checked`, for a script that adds the users: if it refused, their entries are released first.

        After other errors they stay: the users may be members.
        """
        try:
            return self._checked(reply, user, other)
        except Exception:
            yield from best_effort(self._release(users, token))
            raise

    def _release(self, users: Sequence[str], token: str) -> Steps[None]:
        """Remove what `_reserve` has written."""
        for page in batched(users, _PIPELINE_SIZE):
            yield [Script("inbox_release", [self._index(user)], (self.id, token)) for user in page]

    def _confirm(self, members: Iterable[tuple[str, str]], token: str, epoch: int) -> Steps[None]:
        """Confirm the entries of the (user, token in force) pairs after they have become members."""
        seen = f"0-0-0-{epoch}-0"
        for page in batched(members, _PIPELINE_SIZE):
            yield [
                Script("inbox_confirm", [self._index(user)], (self.id, token, in_force, seen))
                for user, in_force in page
            ]

    def _remove_entries(self, members: Iterable[tuple[str, str]]) -> Steps[None]:
        """Remove the chat from the indexes of former members, given as (user, token) pairs."""
        for page in batched(members, _PIPELINE_SIZE):
            yield [Script("inbox_leave", [self._index(user)], (0, self.id, token)) for user, token in page]


def _parse_members(flat: list[bytes | int]) -> Iterator[Member]:
    for user, read_id, line in batched(flat, 3):
        _, joined_at, role, _ = cast(bytes, line).decode().split(" ")
        yield Member(
            user=cast(bytes, user).decode(),
            read_id=cast(int, read_id),
            joined_at=to_datetime(joined_at.encode()),
            role=cast(Role, role),
        )
