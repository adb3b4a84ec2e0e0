"""Direct chats: their ids, and what a block does to them.

A direct chat is suspended for a member who has blocked the other one.

Blocks are in the slot of the user, memberships in that of the chat. So whoever changes one of them afterwards
applies the block to the membership, and reads the block once more: whatever runs at the same time, the last
one leaves both as they should be.
"""

from __future__ import annotations

import hashlib

from ...core.operations import Command, Script, Steps
from ..users import UserKeys
from .keys import ChatKeys

#: the beginning of the ids of direct chats: see Chat.direct
DIRECT = "direct:"
#: by how much the score of a suspended member is above their position: see lua/_members.lua
HALF = 0.5
#: the beginning of a suspended member's line in the roster
SUSPENDED = b"suspended "


def digest(*parts: str) -> str:
    """A name made of names, which contain no NUL."""
    return hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=12).hexdigest()


def direct_id(user: str, other: str) -> str:
    """The id of the direct chat of two users, whoever begins."""
    return DIRECT + digest(*sorted((user, other)))


def is_direct(chat_id: str) -> bool:
    """Whether a chat is the direct chat of two users, and no group."""
    return chat_id.startswith(DIRECT)


def read_block(prefix: str, user: str, other: str) -> Command:
    """The step that reads a block: None if `user` has not blocked `other`."""
    return Command("ZSCORE", UserKeys(prefix, user).blocks, other, reads=True)


def apply_block(prefix: str, user: str, other: str, *, is_blocked: bool) -> Steps[None]:
    """Suspend or resume the membership of `user` in the direct chat with `other`; safe to repeat."""
    keys, own = ChatKeys(prefix, direct_id(user, other)), UserKeys(prefix, user)
    applied = None
    while is_blocked is not applied:
        if is_blocked:
            yield Script("chat_suspend", [keys.members, keys.roster, keys.typing], [user])
        else:
            resuming = [keys.newest, keys.members, keys.roster, keys.own, keys.info]
            yield Script("chat_resume", resuming, [user])
        applied = is_blocked
        is_blocked = bool((yield Script("blocks_check", [own.blocks, own.chats], [other])))
