"""A user's recent or most frequent contacts."""

from __future__ import annotations

import secrets
from typing import Literal

from ... import conf
from ...core.commands import batched
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...errors import InvalidArgument
from ..common.arguments import UserOrId, count, member_id
from ..users.keys import UserKeys
from .directory import checked_prefix
from .folding import fold, matches

#: contacts per user
MAX_SIZE = 1000

Order = Literal["recent", "frequency"]
_ORDERS = ("recent", "frequency")
#: the built-in, because `list` is a method below
_Names = list[str]


class RecentContacts(Service):
    """The last `size` contacts of a user, in order of their latest use or of how often they were used.

    >>> recent = RecentContacts("contacts-example")
    >>> for contact in ["bob", "cleo", "bob.smith"]:
    ...     recent.touch(contact)
    >>> recent.list()
    ['bob.smith', 'cleo', 'bob']
    >>> recent.suggest("B")
    ['bob.smith', 'bob']

    Contacts are opaque strings, like users. Every touch updates both orders, so "frequency" also counts uses
    from before it was first requested. If there are more than `size` contacts, `order` decides which one is
    removed: the one used longest ago, or the least used one, but never the one just touched.
    """

    def __init__(
        self, user: UserOrId, *, size: int = 100, order: Order = "recent", using: str | None = None
    ) -> None:
        super().__init__(using=using)
        if order not in _ORDERS:
            raise InvalidArgument(f"order must be 'recent' or 'frequency', not {order!r}.")
        self.user = member_id(user, "user")
        self.size = count(size, "size", maximum=MAX_SIZE)
        self.order = order
        self._keys = UserKeys(self._prefix, self.user)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r}, size={self.size}, order={self.order!r})"

    @operation
    def touch(self, contact: UserOrId) -> Steps[None]:
        """Move `contact` to the front, count one use, and remove contacts beyond `size`. One round trip."""
        # a call is repeated for one COMMAND_DEADLINE; the other one is for an attempt that arrives late
        window = round(2 * conf.current().COMMAND_DEADLINE * 1000)
        args = (member_id(contact, "contact"), secrets.token_hex(8), window, self.size, self.order)
        keys = [self._keys.contacts, self._keys.contact_uses, *self._keys.contact_touches]
        yield Script("directories/contacts_touch", keys, args)

    atouch = asynchronous(touch)

    @operation
    def remove(self, contact: UserOrId) -> Steps[None]:
        """Remove `contact` and its number of uses; does nothing if it is absent."""
        keys = [self._keys.contacts, self._keys.contact_uses]
        yield Script("directories/contacts_remove", keys, [member_id(contact, "contact")])

    aremove = asynchronous(remove)

    @operation
    def list(self) -> Steps[_Names]:
        """List at most `size` contacts. "frequency" sorts by number of uses, then by latest use."""
        return (yield from self._ordered())

    alist = asynchronous(list)

    @operation
    def suggest(self, prefix: str, limit: int = 10) -> Steps[_Names]:
        """List the first `limit` contacts, in their order, with a word that begins with `prefix`.

        Matches like Directory.suggest: "smith j" finds "john.smith jones", ignoring case. At most 1000
        characters.
        """
        count(limit, "limit")
        folded = fold(checked_prefix(prefix))
        contacts = yield from self._ordered()
        return [contact for contact in contacts if matches(folded, contact)][:limit]

    asuggest = asynchronous(suggest)

    def _ordered(self) -> Steps[_Names]:
        if self.order == "recent":
            latest = yield Command("ZRANGE", self._keys.contacts, 0, self.size - 1, "REV", reads=True)
            return [contact.decode() for contact in latest]
        latest, flat = yield [
            Command("ZRANGE", self._keys.contacts, 0, -1, "REV", reads=True),
            Command("HGETALL", self._keys.contact_uses, reads=True),
        ]
        uses = dict(batched(flat, 2))
        # sorted() is stable: equal counts stay sorted by latest use
        ranked = sorted(latest, key=lambda contact: -int(uses.get(contact, 0)))
        return [contact.decode() for contact in ranked[: self.size]]


def forget_contacts(prefix: str, user: str) -> Steps[None]:
    """Delete the recent contacts of `user`."""
    keys = UserKeys(prefix, user)
    yield Command("UNLINK", keys.contacts, keys.contact_uses, *keys.contact_touches)
