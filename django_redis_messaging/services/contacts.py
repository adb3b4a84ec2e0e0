"""Whom a user dealt with lately, or most often."""

from __future__ import annotations

import secrets
from typing import Literal

from ..core import payloads
from ..core.keys import UserKeys, name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from .arguments import count
from .folding import fold, matches

#: contacts that can be kept for a user
MAX_SIZE = 1000

Order = Literal["recent", "frequency"]
_ORDERS = ("recent", "frequency")
#: `list` is a method's name below
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

    Contacts are opaque strings, as users are. Both orders are kept up by every touch: how often somebody
    was used is known too where so far only "recent" was asked for. `order` says who goes first when there
    are more than `size`: the one used longest ago, or the least used one, which is never the newcomer.
    """

    def __init__(
        self, user: str, *, size: int = 100, order: Order = "recent", using: str | None = None
    ) -> None:
        super().__init__(using=using)
        if order not in _ORDERS:
            raise ValueError(f"order is {order!r}: it can be 'recent' or 'frequency'.")
        self.user = name(user, "user")
        self.size = count(size, "size", most=MAX_SIZE)
        self.order = order
        self._keys = UserKeys(self._prefix, user)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r}, size={self.size}, order={self.order!r})"

    @operation
    def touch(self, contact: str) -> Steps[None]:
        """Put `contact` in front and count one use; a contact over the size goes. One round trip."""
        args = (name(contact, "contact"), secrets.token_hex(8), self.size, self.order)
        yield Script("contacts_touch", [self._keys.contacts, self._keys.contact_uses], args)

    atouch = asynchronous(touch)

    @operation
    def remove(self, contact: str) -> Steps[None]:
        """Forget `contact`, and how often it was used; nothing happens where it isn't there."""
        keys = [self._keys.contacts, self._keys.contact_uses]
        yield Script("contacts_remove", keys, [name(contact, "contact")])

    aremove = asynchronous(remove)

    @operation
    def list(self) -> Steps[_Names]:
        """All contacts, at most `size`. "frequency": most used first, equals by their latest use."""
        return (yield from self._ordered())

    alist = asynchronous(list)

    @operation
    def suggest(self, prefix: str, limit: int = 10) -> Steps[_Names]:
        """The first `limit` contacts, in their order, that have a word beginning with `prefix`.

        Compared as Directory.suggest compares: "smith j" finds "john.smith jones", in any case.
        """
        count(limit, "limit")
        folded = fold(payloads.text(prefix, "prefix"))
        contacts = yield from self._ordered()
        return [contact for contact in contacts if matches(folded, contact)][:limit]

    asuggest = asynchronous(suggest)

    def _ordered(self) -> Steps[_Names]:
        if self.order == "recent":
            latest = yield Command("ZRANGE", self._keys.contacts, 0, self.size - 1, "REV", reads=True)
            return [contact.decode() for contact in latest]
        latest, uses = yield Script("contacts_rank", [self._keys.contacts, self._keys.contact_uses])
        # sorted() keeps equals as they come: the latest first
        ranked = sorted(zip(latest, uses, strict=True), key=lambda pair: -_times(pair[1]))
        return [contact.decode() for contact, _ in ranked[: self.size]]


def _times(uses: bytes | None) -> int:
    return int(uses.split(b" ")[0]) if uses else 0


def forget_contacts(prefix: str, user: str) -> Steps[None]:
    """Delete whom `user` dealt with."""
    keys = UserKeys(prefix, user)
    yield Command("DEL", keys.contacts, keys.contact_uses)
