"""The members of a chat, their roles, and operations on the chat itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import cast, get_args

from ... import conf
from ...core import payloads
from ...core.keys import name
from ...core.operations import Command, Script, Steps, asynchronous, operation
from ...core.steps import batched
from ...errors import InvalidArgument
from ..arguments import count, request, timestamp_ms, window
from ..cursors import checked_id
from ..moments import to_datetime
from ..users import UserKeys
from .base import best_effort, limits, typing_window
from .events import MAX_TITLE
from .joining import Joining
from .values import ChatInfo, Member, Names, Role


class Membership(Joining):
    """Members, roles, and operations on the chat itself rather than on its messages."""

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
            (keys.info, keys.roster, *keys.requests, keys.newest),
            (user, member, role, request(None), window()),
        )
        return bool(self._checked(reply, user, member))

    aset_role = asynchronous(set_role)

    @operation
    def role(self, user: str) -> Steps[Role]:
        """Return a member's role: "owner" or "member". Takes one round trip.

        >>> Chat.create("ann", ["bob"], chat_id="roles").role("bob")
        'member'

        Raises NotAMember, ChatNotFound.
        """
        return cast(Role, (yield from self._read_role(name(user, "user"))))

    arole = asynchronous(role)

    @operation
    def rename(self, user: str, title: str) -> Steps[None]:
        """Change the title. For members. Raises NotAMember, ChatNotFound, LimitExceeded."""
        name(user, "user")
        checked = payloads.text(title, "title", setting="TITLE_MAX_BYTES")
        yield from self._count_use(user, "rename")
        excerpt = checked.replace("\0", "")[:MAX_TITLE]
        keys = (self._keys.info, self._keys.members, self._keys.newest)
        self._checked((yield Script("chat_rename", keys, (user, checked, excerpt))), user)

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
        """List the members who have acked a message and let others see it (Choices), by name; `has_more` of
        the list: whether there are more than `limit`. Takes a round trip for each 1000 members. Raises
        ChatNotFound."""
        number = checked_id(message_id, "message_id")
        keys = self._keys
        arguments = (number, count(limit, "limit") + 1)
        found: dict[str, None] = {}
        position = member = b""
        while len(found) <= limit:
            place = (*arguments, position, member)
            reply = yield Script("chat_seen", (keys.info, keys.members, keys.roster, keys.hidden), place)
            position, member, *page = self._checked(reply)
            found |= dict.fromkeys(one.decode() for one in page)
            if not member:
                break
        members = list(found)
        return Names(sorted(members[:limit]), has_more=len(members) > limit)

    aseen_by = asynchronous(seen_by)

    @operation
    def typing(self, user: str) -> Steps[None]:
        """Record that a member is typing, for TYPING_WINDOW seconds; not of a user who has chosen not to be
        seen online. Takes two round trips. Raises NotAMember, ChatNotFound."""
        name(user, "user")
        keys = self._keys
        choices = UserKeys(self._prefix, user).choices
        is_shown = (yield Command("HGET", choices, "online", reads=True)) != b"0"
        reply = yield Script(
            "chat_type",
            (keys.info, keys.members, keys.typing),
            (user, typing_window(), conf.current().TYPING_MAX_MEMBERS if is_shown else 0),
        )
        self._checked(reply, user)

    atyping = asynchronous(typing)

    @operation
    def typists(self) -> Steps[list[str]]:
        """List the members who are typing, the latest last. Raises ChatNotFound."""
        reply = yield Script("chat_typists", (self._keys.info, self._keys.typing), (typing_window(),))
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


def _parse_members(flat: list[bytes | int]) -> Iterator[Member]:
    for user, read_id, joined_at, role, is_suspended in batched(flat, 5):
        yield Member(
            user=cast(bytes, user).decode(),
            read_id=cast(int, read_id),
            joined_at=to_datetime(cast(bytes, joined_at)),
            role=cast(Role, cast(bytes, role).decode()),
            suspended=bool(is_suspended),
        )
