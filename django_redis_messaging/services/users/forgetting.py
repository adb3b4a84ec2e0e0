"""Removes everything that belongs to a user."""

from __future__ import annotations

from ...core.commands import batched
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ..chats.digests import forget_digest
from ..chats.joining import NO_MEMBERSHIP, grace
from ..chats.keys import ChatKeys
from ..common.arguments import UserOrId, member_id, request, window
from ..directories.directory import forget_member
from ..directories.recent import forget_contacts
from ..mailboxes.mailbox import forget_mail
from .keys import UserKeys
from .privacy import forget_blocks, forget_choices

#: chats to leave per pipeline
_PIPELINE_SIZE = 100


def forget(user: UserOrId, *, using: str | None = None) -> None:
    """Leave all chats of a user, and delete the user's contacts, directory entries, mail and blocks.

    Messages that the user sent stay; chats without other members are deleted. Safe to repeat. A chat that
    the user joins at the same time is not left, and its entry in the user's list of chats stays, as that of a
    join that was interrupted less than three times COMMAND_DEADLINE ago: then call it again.
    """
    _UserRemoval(user, using=using).run()


async def aforget(user: UserOrId, *, using: str | None = None) -> None:
    """Async version of `forget`."""
    await _UserRemoval(user, using=using).arun()


class _UserRemoval(Service):
    def __init__(self, user: UserOrId, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = member_id(user, "user")
        self._keys = UserKeys(self._prefix, self.user)

    @operation
    def run(self) -> Steps[None]:
        """Remove everything. If interrupted, it can be run again."""
        entries = yield Command("HGETALL", self._keys.chats, reads=True)
        for page in batched(batched(entries, 2), _PIPELINE_SIZE):
            yield from self._leave_chats([(chat.decode(), entry.split(b" ")[0]) for chat, entry in page])
        yield from forget_contacts(self._prefix, self.user)
        yield from forget_member(self._prefix, self.user)
        yield from forget_mail(self._prefix, self.user)
        yield from forget_blocks(self._prefix, self.user)
        yield from forget_choices(self._prefix, self.user)
        yield from forget_digest(self._prefix, self.user)

    arun = asynchronous(run)

    def _leave_chats(self, entries: list[tuple[str, bytes]]) -> Steps[None]:
        """End the memberships, and remove the entries, given with their numbers; not those of joinings in
        progress, because the user may become a member after the first step."""
        replies = yield [self._leave(chat) for chat, _ in entries]
        ended: list[str | bytes] = []
        others: list[str | bytes] = []
        for (chat, number), reply in zip(entries, replies, strict=True):
            if reply and reply not in NO_MEMBERSHIP:
                ended += [chat, reply]
            else:
                others += [chat, number]
        yield [
            Script("chats/inbox_leave", self._keys.index, ended),
            Script("chats/inbox_prune", self._keys.index, [grace(), *others]),
        ]

    def _leave(self, chat_id: str) -> Script:
        keys = ChatKeys(self._prefix, chat_id).all_keys
        return Script("chats/leave", keys, (self.user, "", request(None), window(), 1))
