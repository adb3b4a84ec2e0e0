"""The keys of users: the index of their chats, and their recent contacts."""

from __future__ import annotations

from ..core.keys import tag


class UserKeys:
    """The keys of one user, in one slot."""

    __slots__ = ("tag",)

    def __init__(self, prefix: str, user: str) -> None:
        self.tag = tag(prefix, "user", user)

    @property
    def chats(self) -> str:
        """HASH chat id → "token, written at (ms), seen": an index of the user's chats. The rosters of the
        chats are authoritative. The token is that of the membership; "?" plus the token of a joining in
        progress; "?" alone if several are in progress. `seen` is the value of the chat's newest when the
        user had acked everything, or 0. Leaving removes the entry; a read of the inbox removes it if the
        user is not a member."""
        return self.tag + ":chats"

    @property
    def contacts(self) -> str:
        """ZSET contact → order of its latest use. Capped on write; deleted by forget()."""
        return self.tag + ":contacts"

    @property
    def contact_uses(self) -> str:
        """HASH contact → "count token": its number of uses, and the token of the latest. Has the same
        contacts as `contacts`."""
        return self.tag + ":contact-uses"
