"""Everything a user left behind, removed."""

from __future__ import annotations

from ..core.batches import batched
from ..core.keys import ChatKeys, UserKeys, name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from .contacts import forget_contacts
from .directories import forget_member
from .mailboxes import forget_mail
from .requests import request, window

#: chats left in one pipeline
_PAGE = 100


def forget(user: str, *, using: str | None = None) -> None:
    """Leave all chats of a user, and delete the user's contacts, directory entries and mail.

    What the user said stays with the others; chats without other members are deleted. May be repeated.
    """
    _Departure(user, using=using).complete()


async def aforget(user: str, *, using: str | None = None) -> None:
    """`forget`, awaiting."""
    await _Departure(user, using=using).acomplete()


class _Departure(Service):
    def __init__(self, user: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.user = name(user, "user")

    @operation
    def complete(self) -> Steps[None]:
        """Do it all; stopped half-way, it can be done again."""
        index = UserKeys(self._prefix, self.user).chats
        chats = yield Command("HKEYS", index, reads=True)
        for page in batched(chats, _PAGE):
            yield [self._leave(chat_id.decode()) for chat_id in page]
            # Tokens don't matter: who is forgotten is joining nothing.
            yield Command("HDEL", index, *page)
        yield from forget_contacts(self._prefix, self.user)
        yield from forget_member(self._prefix, self.user)
        yield from forget_mail(self._prefix, self.user)

    acomplete = asynchronous(complete)

    def _leave(self, chat_id: str) -> Script:
        keys = ChatKeys(self._prefix, chat_id).ending
        return Script("chat_leave", keys, (self.user, "", window(), request(None)))
