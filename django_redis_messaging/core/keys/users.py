"""The keys of users."""

from __future__ import annotations

from .names import encoded, tag


class UserKeys:
    """The keys of one user, in one slot."""

    __slots__ = ("tag",)

    def __init__(self, prefix: str, user: str) -> None:
        self.tag = tag(prefix, "user", user)

    @property
    def chats(self) -> str:
        """HASH chat id → "token, written at (ms), seen": an index of the chats the user is a member of; the
        chats hold the truth. The token is that of the membership; "?" and that of a joining which is under
        way; "?" alone where several are. `seen` is the chat's newest when all of it was acked, or 0. An
        entry is removed by leave, or by healing when its chat doesn't know the user."""
        return self.tag + ":chats"

    @property
    def contacts(self) -> str:
        """ZSET contact → order of its latest use. Capped on write; deleted by forget()."""
        return self.tag + ":contacts"

    @property
    def contact_uses(self) -> str:
        """HASH contact → "count token": how often it was used, and by which call at last. Its fields are
        the members of `contacts`."""
        return self.tag + ":contact-uses"

    def rate(self, action: str) -> str:
        """STRING: ms of server time at which the user's allowance for an action is whole again. Expires
        at that time."""
        return f"{self.tag}:rate:{encoded(action)}"
