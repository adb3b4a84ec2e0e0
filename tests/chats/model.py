"""What Chat and Inbox promise, as plain Python: one thread, no scripts, nothing lost unless a test
loses it.

A method of `Model` does what the operation of its name does, and raises the same kind of error. The log of a
`Conversation` is kept whole; `first` says how much of it Redis still has.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django_redis_messaging import ChatExists, ChatNotFound, InvalidArgument, NotAMember, NotPermitted

numbers = itertools.count(1)


@dataclass
class Said:
    """A message."""

    sender: str
    body: str
    data: object = None
    reply_to: int | None = None
    edited: bool = False
    deleted: bool = False
    #: the number of its latest edit in the chat
    edit_number: int = 0
    #: names it whatever its id: after a loss, another message has that
    number: int = field(default_factory=lambda: next(numbers))
    #: what the app said of it; None while it has not
    cursor: str | None = None


@dataclass
class Membership:
    joined_after: int
    position: int
    role: str
    #: only grows
    join_number: int = field(default_factory=lambda: next(numbers))


@dataclass(frozen=True)
class Place:
    """What a cursor names, or how far a chat has come."""

    epoch: int
    id: int
    number: int


@dataclass(frozen=True)
class Reported:
    """Where a loss of data was reported to a user."""

    epoch: int
    position: int


@dataclass
class Read:
    """A page, or what is pending: ids of one chat."""

    ids: Sequence[int]
    gap: int
    has_more: bool
    reset: bool


@dataclass
class Conversation:
    """One chat, from its creation to its end."""

    title: str
    open: bool
    keep_last: int
    max_length: int
    epoch: int = field(default_factory=lambda: next(numbers))
    log: list[Said] = field(default_factory=list)
    first: int = 1
    edits: int = 0
    #: in order of joining
    members: dict[str, Membership] = field(default_factory=dict)
    #: former members whom an owner removed, and those who don't want to be added again
    removed: set[str] = field(default_factory=set)
    opted_out: set[str] = field(default_factory=set)

    @property
    def last(self) -> int:
        return len(self.log)

    @property
    def end(self) -> Place:
        return Place(self.epoch, self.last, self.log[-1].number if self.log else 0)

    def said(self, number: int) -> Said:
        return self.log[number - 1]

    def kept(self, after: int) -> list[int]:
        """The ids that are still there, above one."""
        return list(range(max(after + 1, self.first), self.last + 1))

    def member(self, user: str) -> Membership:
        if user not in self.members:
            raise NotAMember
        return self.members[user]

    def owned_by(self, user: str) -> Membership:
        if self.member(user).role != "owner":
            raise NotPermitted
        return self.members[user]

    def join(self, users: Sequence[str], by: str | None) -> list[str]:
        """Make those users members who are not; returns them."""
        is_owner = by is not None and self.member(by).role == "owner"
        others = [user for user in users if user not in self.members]
        if others and by is None and not self.open:
            raise NotAMember
        if self.removed.intersection(others) and not is_owner:
            raise NotPermitted
        if self.opted_out.intersection(others) and by is not None:
            raise NotPermitted
        for user in others:
            self.members[user] = Membership(self.last, self.last, "member")
        self.removed.difference_update(others)
        self.opted_out.difference_update(others)
        return others

    def append(self, said: Said) -> None:
        self.log.append(said)
        self.first = max(self.first, self.last - self.max_length + 1)
        self.release()

    def release(self) -> None:
        """What all have acked may go, but for the last."""
        if self.members:
            read_by_all = min(member.position for member in self.members.values())
            self.first = max(self.first, min(read_by_all, self.last - self.keep_last) + 1)

    def move(self, user: str, to: int) -> None:
        self.members[user].position = to
        self.release()

    def has(self, place: int | Place) -> bool:
        """Whether a cursor refers to a message of this chat. One that was removed must be older than those
        that were not."""
        if isinstance(place, int):
            return True
        if place.epoch != self.epoch or place.id > self.last:
            return False
        if self.first <= place.id or 0 < place.id == self.last:
            return self.said(place.id).number == place.number
        return place.number <= self.said(min(self.first, self.last)).number if place.id else True

    def place(self, number: int) -> Place:
        """What a cursor refers to that was made for this id without its message."""
        is_known = number > 0 and (number >= self.first or number == self.last)
        return Place(self.epoch, number, self.said(number).number if is_known else 0)

    def unread(self, user: str) -> int:
        """By counting."""
        ids = self.kept(self.member(user).position)
        return sum(self.said(number).sender != user for number in ids)

    def visible(self, user: str, number: int) -> Said | None:
        member = self.member(user)
        seen = number > member.joined_after and self.first <= number <= self.last
        return self.said(number) if seen else None


@dataclass
class Listed:
    """What a user's list of chats says of one: the latest membership, and what was seen."""

    join_number: int
    seen: Place | Reported

    def lost(self, chat: Conversation, position: int) -> bool:
        if isinstance(self.seen, Reported):
            return self.seen.epoch != chat.epoch or position <= self.seen.position
        return position < self.seen.id or not chat.has(self.seen)


class Model:
    """All chats, and what their users know of them."""

    def __init__(self, users: Iterable[str], *, max_length: int) -> None:
        self.max_length = max_length
        self.chats: dict[str, Conversation] = {}
        self.lists: dict[str, dict[str, Listed]] = {user: {} for user in users}
        #: what requests were answered: outlives the chat
        self.answers: dict[str, dict[str, Any]] = {}

    def chat(self, chat_id: str) -> Conversation:
        if chat_id not in self.chats:
            raise ChatNotFound
        return self.chats[chat_id]

    def create(
        self, chat_id: str, members: Sequence[str], body: str, title: str, *,
        open: bool, keep_last: int, request_id: str | None,
    ) -> None:  # fmt: skip
        request = f"create {members[0]} {request_id}" if request_id else f"new {next(numbers)}"
        answers = self.answers.setdefault(chat_id, {})
        if request not in answers:
            if chat_id in self.chats:
                raise ChatExists
            chat = Conversation(title=title, open=open, keep_last=keep_last, max_length=self.max_length)
            self.chats[chat_id] = chat
            for member in members:
                chat.members[member] = Membership(0, 0, "member")
            chat.members[members[0]].role = "owner"
            if body:
                chat.append(Said(members[0], body))
                chat.move(members[0], 1)
            answers[request] = Place(chat.epoch, 0, 0)
        for member in members:
            self._confirm(member, chat_id)

    def join(self, chat_id: str, user: str, by: str | None) -> bool:
        return bool(self.add(chat_id, [user], by, None))

    def add(self, chat_id: str, users: Sequence[str], by: str | None, request_id: str | None) -> list[str]:
        request = f"join {by} {request_id}" if request_id else f"join {next(numbers)}"
        added = self._added(chat_id, users, by, request)
        for user in users:
            self._confirm(user, chat_id)
        if by is not None:  # a repeat
            self.chat(chat_id).member(by)
        return added

    def _added(self, chat_id: str, users: Sequence[str], by: str | None, request: str) -> list[str]:
        chat, answers = self.chat(chat_id), self.answers.setdefault(chat_id, {})
        if request not in answers:
            answers[request] = chat.join(users, by)
        added: list[str] = answers[request]
        return added

    def leave(self, chat_id: str, user: str, by: str | None, *, again: bool = True) -> bool:
        if chat_id not in self.chats:
            return False
        chat = self.chats[chat_id]
        if by is not None and by != user:
            chat.owned_by(by)
        if user not in chat.members:
            return False
        ended = chat.members.pop(user)
        if by not in (None, user):
            chat.removed.add(user)
        elif not again:
            chat.opted_out.add(user)
        self._forget(user, chat_id, ended.join_number)
        if not chat.members:
            del self.chats[chat_id]
            return True
        if not any(member.role == "owner" for member in chat.members.values()):
            next(iter(chat.members.values())).role = "owner"
        chat.release()
        return True

    def delete(self, chat_id: str, user: str) -> bool:
        if chat_id not in self.chats:
            return False
        self.chats[chat_id].owned_by(user)
        for member, ended in self.chats.pop(chat_id).members.items():
            self._forget(member, chat_id, ended.join_number)
        return True

    def send(self, chat_id: str, said: Said, request_id: str | None) -> Place:
        answers = self.answers.setdefault(chat_id, {})
        request = f"send {said.sender} {request_id}" if request_id else f"send {next(numbers)}"
        chat = self.chat(chat_id)
        member = chat.member(said.sender)
        if request in answers:
            return answers[request]
        if (said.reply_to or 0) > chat.last:
            raise InvalidArgument
        had_read_all = member.position == chat.last
        chat.append(said)
        if had_read_all:
            chat.move(said.sender, chat.last)
        answers[request] = Place(chat.epoch, chat.last, said.number)
        return answers[request]

    def ack(self, chat_id: str, user: str, place: int | Place) -> int:
        chat = self.chat(chat_id)
        member = chat.member(user)
        wanted = min(place if isinstance(place, int) else place.id, chat.last)
        if chat.has(place) and wanted > member.position:
            chat.move(user, wanted)
        return member.position

    def history(self, chat_id: str, user: str, *, limit: int, after: Any = None, before: Any = None) -> Read:
        if after is not None:
            return self.after(chat_id, user, after, limit)
        return self.before(chat_id, user, before, limit)

    def after(self, chat_id: str, user: str, place: int | Place, limit: int) -> Read:
        chat = self.chat(chat_id)
        member = chat.member(user)
        reset = not chat.has(place)
        wanted = member.position if reset else place if isinstance(place, int) else place.id
        begin = max(min(wanted, chat.last), member.joined_after)
        ids = chat.kept(begin)
        return Read(ids[:limit], max(chat.first - begin - 1, 0), len(ids) > limit, reset)

    def before(self, chat_id: str, user: str, place: int | Place | None, limit: int) -> Read:
        chat = self.chat(chat_id)
        joined_after = chat.member(user).joined_after
        if place is not None and not chat.has(place):
            return self.after(chat_id, user, place, limit)
        end = chat.last + 1 if place is None else place if isinstance(place, int) else place.id
        ids = [number for number in chat.kept(joined_after) if number < end]
        more = len(ids) > limit
        # what is gone of what the page would begin with
        gap = 0 if more else max(min(chat.first, end) - joined_after - 1, 0)
        return Read(ids[-limit:], gap, more, reset=False)

    def changes(
        self, chat_id: str, user: str, *, after: int | Place, limit: int, edits: int
    ) -> tuple[Read, list[int]]:
        """The new messages, and those read before whose edit has a number above `edits`."""
        chat, read = self.chat(chat_id), self.after(chat_id, user, after, limit)
        if read.reset:
            return read, []
        end = read.ids[0] if read.ids else chat.last + 1
        ids = [number for number in chat.kept(chat.members[user].joined_after) if number < end]
        edited = [number for number in ids if chat.said(number).edit_number > edits]
        return read, sorted(edited, key=lambda number: chat.said(number).edit_number)

    def edit(self, chat_id: str, user: str, number: int, body: str) -> Said | None:
        chat = self.chat(chat_id)
        said = chat.visible(user, number)
        if said is not None and said.sender != user:
            raise NotPermitted
        if said is None or said.deleted:
            return None
        said.body, said.edited = body, True
        said.edit_number = chat.edits = chat.edits + 1
        return said

    def delete_message(self, chat_id: str, user: str, number: int) -> Said | None:
        chat = self.chat(chat_id)
        is_owner = chat.member(user).role == "owner"
        said = chat.said(number) if is_owner and number in chat.kept(0) else chat.visible(user, number)
        if said is None:
            return None
        if said.sender != user:
            chat.owned_by(user)
        if not said.deleted:
            said.body, said.data, said.reply_to, said.edited, said.deleted = "", None, None, True, True
            said.edit_number = chat.edits = chat.edits + 1
        return said

    def changed_chats(self, user: str, *, include_unchanged: bool = False) -> dict[str, Conversation]:
        """The chats that a read of the user's inbox reads: those that have changed since all was acked."""
        found = {}
        for chat_id, listed in list(self.lists[user].items()):
            chat = self.chats.get(chat_id)
            if chat is not None and chat.end == listed.seen and not include_unchanged:
                continue
            if chat is not None and user in chat.members:
                found[chat_id] = chat
            else:
                del self.lists[user][chat_id]
        return found

    def pending(
        self, user: str, order: Sequence[str], limit: int, total: int, *, ack: bool
    ) -> dict[str, Read]:
        """`order`: that in which the chats share the total."""
        found: dict[str, Read] = {}
        changed = self.changed_chats(user)
        for chat_id in sorted(changed, key=lambda chat_id: order.index(chat_id) if chat_id in order else -1):
            chat, listed = changed[chat_id], self.lists[user][chat_id]
            position = chat.members[user].position
            reset = listed.lost(chat, position)
            if position == chat.last:
                listed.seen = chat.end
                if reset:
                    found[chat_id] = Read([], 0, has_more=False, reset=True)
                continue
            ids = chat.kept(position)
            read = Read(ids[: min(limit, total)], max(chat.first - position - 1, 0), False, reset)
            read.has_more = len(ids) > len(read.ids)
            total -= len(read.ids)
            if reset:
                listed.seen = Reported(chat.epoch, position) if ids else chat.end
            found[chat_id] = read
            # without messages, the gap before them is reported again
            if ack and (read.ids or not read.has_more) and read.gap + len(read.ids) > 0:
                chat.move(user, position + read.gap + len(read.ids))
        return found

    def unread(self, user: str) -> int:
        found = 0
        for chat_id, chat in self.changed_chats(user).items():
            listed, position = self.lists[user][chat_id], chat.members[user].position
            if position < chat.last:
                found += chat.unread(user)
            elif not listed.lost(chat, position):
                listed.seen = chat.end
        return found

    def copy(self, chat_id: str) -> Copy:
        return copy.deepcopy((self.chats.get(chat_id), self.answers.get(chat_id, {})))

    def restore(self, chat_id: str, copied: Copy) -> None:
        """The chat, and what it remembers, as it was; its members' lists stay."""
        chat, self.answers[chat_id] = copy.deepcopy(copied)
        self.chats.pop(chat_id, None)
        if chat is not None:
            self.chats[chat_id] = chat

    def _confirm(self, user: str, chat_id: str) -> None:
        chat = self.chats.get(chat_id)
        if chat is None or user not in chat.members:
            return
        number, listed = chat.members[user].join_number, self.lists[user].get(chat_id)
        if listed is None or listed.join_number < number:
            seen = listed.seen if listed and listed.seen.epoch == chat.epoch else Place(chat.epoch, 0, -1)
            self.lists[user][chat_id] = Listed(number, seen)

    def _forget(self, user: str, chat_id: str, join_number: int) -> None:
        listed = self.lists[user].get(chat_id)
        if listed is not None and listed.join_number <= join_number:
            del self.lists[user][chat_id]


#: a chat and what it remembers
Copy = tuple[Conversation | None, dict[str, Any]]
