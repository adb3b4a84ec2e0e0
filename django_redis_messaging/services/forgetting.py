"""Removes everything that belongs to a user."""

from __future__ import annotations

from ..core.keys import name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from ..core.steps import batched
from .arguments import request, window
from .chats.keys import ChatKeys
from .contacts import forget_contacts
from .directories.directory import forget_member
from .mailboxes.mailbox import forget_mail
from .users import UserKeys

#: chats to leave per pipeline
_PIPELINE_SIZE = 100


def forget(user: str, *, using: str | None = None) -> None:
    """Leave all chats of a user, and delete the user's contacts, directory entries and mail.

    Messages that the user sent stay; chats without other members are deleted. Safe to repeat.
    """
    _UserRemoval(user, using=using).run()


async def aforget(user: str, *, using: str | None = None) -> None:
    """Async version of `forget`."""
    await _UserRemoval(user, using=using).arun()


class _UserRemoval(Service):
    def __init__(self, user: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = name(user, "user")

    @operation
    def run(self) -> Steps[None]:
        """Remove everything. If interrupted, it can be run again."""
        index = UserKeys(self._prefix, self.user).chats
        chats = yield Command("HKEYS", index, reads=True)
        for page in batched(chats, _PIPELINE_SIZE):
            yield [self._leave(chat_id.decode()) for chat_id in page]
            # Removed whatever their tokens: a forgotten user is not joining any chat.
            yield Command("HDEL", index, *page)
        yield from forget_contacts(self._prefix, self.user)
        yield from forget_member(self._prefix, self.user)
        yield from forget_mail(self._prefix, self.user)

    arun = asynchronous(run)

    def _leave(self, chat_id: str) -> Script:
        keys = ChatKeys(self._prefix, chat_id).ending
        return Script("chat_leave", keys, (self.user, "", request(None), window()))
