"""The keys of users: the index of their chats, whom they have blocked, recent contacts, and digests."""

from __future__ import annotations

from ...core.encoding import FORMAT, tag


class UserKeys:
    """The keys of one user, in one slot."""

    __slots__ = ("tag",)

    def __init__(self, prefix: str, user: str) -> None:
        self.tag = tag(prefix, "user", user)

    @property
    def chats(self) -> str:
        """HASH chat id → "join number, what the user has seen of the chat": an index of the user's chats. The
        rosters of the chats are authoritative. The number is not positive while the user becomes a member:
        see _user.lua. What was seen is a value of the chat's newest: see chats/_positions.lua. Leaving, and a
        joining that is refused, remove the entry; a read of the inbox removes it if the user is not a
        member."""
        return self.tag + ":chats"

    @property
    def joining(self) -> str:
        """ZSET "chat id token" → ms at which this joining began: those in progress. Expires three
        COMMAND_DEADLINEs after the last one."""
        return self.tag + ":joining"

    @property
    def blocks(self) -> str:
        """ZSET blocked user → order of blocking. Capped on write; deleted by forget()."""
        return self.tag + ":blocks"

    @property
    def declined(self) -> str:
        """ZSET id of a direct chat → ms at which the user left it and asked not to be added again. The newest
        1000; the user removes a chat by opening it again, and forget() all."""
        return self.tag + ":declined"

    @property
    def streams(self) -> str:
        """ZSET token of a live stream → ms until which it counts. Expires with the last one."""
        return self.tag + ":streams"

    @property
    def online(self) -> str:
        """STRING, empty: the user is online, and others may see it. Expires with the last live stream."""
        return self.tag + ":online"

    @property
    def choices(self) -> str:
        """HASH "online" or "receipts" → "0" if others may not see it, else "1"; "digests" → "0" if the user
        wants none, else "1"; "changes" → how often "receipts" has changed; "applied" → which of these changes
        the user's chats have stored (ChatKeys.hidden). Deleted by forget()."""
        return self.tag + ":choices"

    @property
    def index(self) -> tuple[str, ...]:
        """The first keys, for the index of chats."""
        return (self.chats, self.joining)

    @property
    def joining_keys(self) -> tuple[str, ...]:
        """The keys for joining chats and for direct chats, in the order of user_at() in _user.lua."""
        return (*self.index, self.blocks, self.declined, self.choices)

    @property
    def contacts(self) -> str:
        """ZSET contact → order of its latest use. Capped on write; deleted by forget()."""
        return self.tag + ":contacts"

    @property
    def contact_uses(self) -> str:
        """HASH contact → its number of uses. A contact is removed together with that of `contacts`."""
        return self.tag + ":contact-uses"

    @property
    def contact_touches(self) -> list[str]:
        """HASH token of a use → 1, to recognize a repeat: two keys, used by turns. Each expires before its
        next turn."""
        return [self.tag + ":contact-touches:0", self.tag + ":contact-touches:1"]

    @property
    def digest(self) -> str:
        """STRING ms until which unread messages were mailed to the user. Expires 30 days after the latest
        digest; deleted by forget()."""
        return self.tag + ":digest"


def digest_run_key(prefix: str) -> str:
    """STRING primary key of the last user of a run of send_digests that has not ended. Expires 30 days after
    the latest run."""
    return f"{prefix}:{FORMAT}:{{digests}}:run"
