"""One chat, as plain Python. Its log is kept whole; `first` says how much of it Redis still has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from django_redis_messaging import NotAMember, NotPermitted

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
    token: object


@dataclass(frozen=True)
class Place:
    """What a cursor names."""

    epoch: int
    id: int
    number: int


@dataclass(frozen=True)
class Line:
    """How far a chat has come."""

    epoch: int
    last: int
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
    def line(self) -> Line:
        return Line(self.epoch, self.last, self.log[-1].number if self.log else 0)

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

    def join(self, users: Sequence[str], by: str | None, token: object) -> list[str]:
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
            self.members[user] = Membership(self.last, self.last, "member", token)
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
