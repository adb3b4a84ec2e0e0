"""Direct chats, of two users each, and what a block does to them.

The id of a direct chat is computed from its two users, so that they have one, whichever of them opens it. A
membership in it is suspended while the member has blocked the other one (_members.lua).

Blocks are in the slot of the user, memberships in that of the chat. A call that changes one of them applies
the block to the membership afterwards, and then reads the block once more. So if several calls run at the
same time, the last one leaves both consistent.
"""

from __future__ import annotations

import hashlib
from typing import NoReturn

from ...core.operations import Command, Script, Steps
from ...errors import NotPermitted
from ..users.keys import UserKeys
from .keys import ChatKeys

#: the beginning of the ids of direct chats
DIRECT = "direct:"
#: by how much the score of a suspended member is above their position: see _members.lua
HALF = 0.5
#: the beginning of a suspended member's line in the roster
SUSPENDED = b"suspended "


def digest(*parts: str) -> str:
    """A name made of names, which contain no NUL."""
    return hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=12).hexdigest()


def direct_id(user: str, other: str) -> str:
    """The id of the direct chat of two users, in either order."""
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
            yield Script("chats/suspend", keys.following, [user])
        else:
            yield Script("chats/resume", keys.listing, [user])
        applied = is_blocked
        is_blocked = bool((yield Script("users/blocks_check", own.joining, [other])))


def refuse_blocked() -> NoReturn:
    """Raise the error for users who have blocked the asker, without their names."""
    raise NotPermitted("One of these people can't be added.")


def refuse_to_blocker(user: str, other: str) -> NoReturn:
    """Raise the error for a user who has blocked the other one of a direct chat."""
    raise NotPermitted(f"{user!r} has blocked {other!r}: unblock them first (Blocks.unblock).")
