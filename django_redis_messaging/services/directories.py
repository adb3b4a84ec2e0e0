"""Who there is: names found by the beginning of any of their words.

A directory is one sorted set. Each member has an entry for each word start of its label and aliases: the
folded rest of the text from there on, then its id and its label, with a NUL between. All members that
match a prefix lie side by side, in the order in which they are returned: a look-up is one command that
reads a range. Nothing is cut off the rests: however long a prefix is, what is found is what comparing
would find.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from .. import conf
from ..core import payloads
from ..core.batches import batched
from ..core.keys import DirectoryKeys, directories, name
from ..core.operations import Command, Script, Service, Steps, asynchronous, operation
from ..errors import LimitExceeded
from .arguments import count
from .folding import every_rest, fold

#: entries of a member: one call of a script writes them
MAX_ENTRIES = 500
#: entries that are stored by one call where there are more members; to replace them moves twice as many
PAGE = 250
#: a registered directory that is empty is kept for this many deadlines: longer than an add can take
_GRACE = 3


@dataclass(frozen=True, slots=True)
class Contact:
    """Somebody in a directory."""

    id: str
    """The member, as it was added."""
    label: str
    """Its label, as it was added."""


class Directory(Service):
    """The names of one guild: whoever may find each other.

    >>> staff = Directory("directory-example")
    >>> staff.add("u1", "John Smith Jones", aliases=["jsj@example.org"])
    >>> staff.add_many([("u2", "Ann Smythe"), ("u3", "Élodie-Smilla Æther")])
    2
    >>> [contact.label for contact in staff.suggest("SMI")]
    ['Élodie-Smilla Æther', 'John Smith Jones']
    >>> staff.suggest("smith j")
    [Contact(id='u1', label='John Smith Jones')]

    Texts are compared by NFKC(casefold(NFKC(·))); a prefix is compared with the rest of the label, or of
    an alias, from each word start on. A word starts at the beginning, after white space and after one of
    `-_.@` of the folded text. See services/folding.py.
    """

    def __init__(self, guild: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.guild = name(guild, "guild")
        keys = DirectoryKeys(self._prefix, guild)
        self._keys = (keys.entries, keys.records)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.guild!r})"

    @operation
    def add(self, member: str, label: str, *, aliases: Iterable[str] = ()) -> Steps[None]:
        """Add `member`, to be found under its label and aliases; whatever it had before is replaced.

        Label and aliases have at most LABEL_MAX_BYTES of UTF-8 each and together at most 500 word starts:
        LimitExceeded, as where the directory would get more than DIRECTORY_MAX_ENTRIES entries. One round
        trip; who looks meanwhile sees all of the old or all of the new.
        """
        yield from self._store([_record(member, label, _several(aliases, "aliases"))])

    aadd = asynchronous(add)

    @operation
    def add_many(self, pairs: Iterable[tuple[str, str]]) -> Steps[int]:
        """Add (member, label) pairs, in any number; returns how many were stored.

        Pairs are taken, checked and stored some hundreds at a time. An error, of a pair or of a limit,
        leaves those of earlier pages stored and nothing of its own page or later; adding all of them
        again is safe.
        """
        stored = 0
        for page in _pages(_record(*_pair(item), ()) for item in pairs):
            yield from self._store(page)
            stored += len(page)
        return stored

    aadd_many = asynchronous(add_many)

    @operation
    def remove(self, member: str) -> Steps[None]:
        """Remove `member`; nothing happens where it isn't there."""
        yield from _remove(self._prefix, [(self.guild, name(member, "member"))])

    aremove = asynchronous(remove)

    @operation
    def remove_many(self, members: Iterable[str]) -> Steps[None]:
        """Remove members, in any number, some hundreds at a time; those that aren't there don't matter."""
        for page in batched((name(member, "member") for member in _several(members, "members")), PAGE):
            yield from _remove(self._prefix, [(self.guild, member) for member in page])

    aremove_many = asynchronous(remove_many)

    @operation
    def suggest(self, prefix: str, limit: int = 10) -> Steps[list[Contact]]:
        """The first `limit` members with a word from which on label or alias begins with `prefix`.

        In the order of the folded rest from that word on (by code point), then of the id; a member that
        matches several times comes once, at its first place. White space counts: "smith " doesn't find
        "Smithers". An empty prefix lists from the start. One round trip, or one for 500 matching words.
        """
        count(limit, "limit")
        folded = fold(_without_nul(payloads.text(prefix, "prefix"), "prefix")).encode()
        # UTF-8 has no byte 255: it is behind everything that begins with the prefix
        start, end = b"[" + folded, b"(" + folded + b"\xff"
        # a few more than wanted, for members that match several times
        size = min(limit + limit // 16 + 1, MAX_ENTRIES)
        found: dict[str, str] = {}
        while True:
            words = ("ZRANGE", self._keys[0], start, end, "BYLEX", "LIMIT", 0, size)
            entries: list[bytes] = yield Command(*words, reads=True)
            parts = b"\0".join(entries).decode().split("\0")  # at once: one by one takes twice as long
            found.update(zip(parts[1::3], parts[2::3], strict=True))
            if len(found) >= limit or len(entries) < size:
                return _contacts(islice(found.items(), limit))
            start = b"(" + entries[-1]

    asuggest = asynchronous(suggest)

    @operation
    def labels(self, members: Iterable[str]) -> Steps[dict[str, str]]:
        """The labels of those of `members` who are in this directory, by member; at most 1000 of them.

        >>> staff = Directory("labels-example")
        >>> staff.add("u1", "John")
        >>> staff.labels(["u1", "nobody"])
        {'u1': 'John'}
        """
        wanted = [name(member, "member") for member in members]
        if not wanted:
            return {}
        count(len(wanted), "how many members")
        records = yield Command("HMGET", self._keys[1], *wanted, reads=True)
        return {
            member: record.partition(b"\0")[0].decode()
            for member, record in zip(wanted, records, strict=True)
            if record is not None
        }

    alabels = asynchronous(labels)

    @operation
    def size(self) -> Steps[int]:
        """How many members there are."""
        members: int = yield Command("HLEN", self._keys[1], reads=True)
        return members

    asize = asynchronous(size)

    def _store(self, page: Sequence[_Record]) -> Steps[None]:
        limit = conf.current().DIRECTORY_MAX_ENTRIES
        latest = {record.id: record.packed for record in page}
        words = [word for pair in latest.items() for word in pair]
        # Registered first: at no moment is there a member in a directory that forget() doesn't know.
        _, total = yield [
            Script("directory_register", [directories(self._prefix)], [self.guild]),
            Script("directory_add", self._keys, [limit, *words]),
        ]
        if total:
            raise LimitExceeded(f"entries in directory {self.guild!r}", limit=limit, actual=total)


@dataclass(frozen=True, slots=True)
class _Record:
    """A member as the scripts know it: see DirectoryKeys.records."""

    id: str
    packed: str
    entries: int


def _record(member: str, label: str, aliases: Sequence[str]) -> _Record:
    name(member, "member")
    texts = [_label(label, "label"), *(_label(alias, "alias") for alias in aliases)]
    found = every_rest(texts)
    if len(found) > MAX_ENTRIES:
        raise LimitExceeded("word starts of label and aliases", limit=MAX_ENTRIES, actual=len(found))
    return _Record(member, "\0".join([label, *found]), len(found))


def _label(value: str, what: str) -> str:
    payloads.text(value, what, limit=conf.current().LABEL_MAX_BYTES)
    if not value:
        raise ValueError(f"{what} is empty: give it some text to be found by.")
    return _without_nul(value, what)


def _without_nul(value: str, what: str) -> str:
    if "\0" in value:
        raise ValueError(f"{what} has a NUL character: remove it.")
    return value


def _several(values: Iterable[str], what: str) -> list[str]:
    if isinstance(values, str | bytes):
        raise TypeError(f"{what} must be several, such as a list: this is one.")
    return list(values)


def _pair(item: object) -> tuple[str, str]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"pairs must be of (member, label), not {type(item).__name__}.")
    return item[0], item[1]


def _pages(records: Iterable[_Record]) -> Iterator[list[_Record]]:
    """Lists of records that have at most PAGE entries together; one with more comes alone."""
    page: list[_Record] = []
    room = PAGE
    for record in records:
        if page and record.entries > room:
            yield page
            page, room = [], PAGE
        page.append(record)
        room -= record.entries
    if page:
        yield page


def _contacts(pairs: Iterable[tuple[str, str]]) -> list[Contact]:
    """Contacts of (id, label). Without their __init__: ten calls of it cost a tenth of a round trip."""
    made, new, put = [], object.__new__, object.__setattr__
    for member, label in pairs:
        contact = new(Contact)
        put(contact, "id", member)
        put(contact, "label", label)
        made.append(contact)
    return made


def _remove(prefix: str, pairs: Sequence[tuple[str, str]]) -> Steps[None]:
    """Remove (guild, member) pairs."""
    every = [(DirectoryKeys(prefix, guild), member) for guild, member in pairs]
    left = yield [
        Script("directory_remove", [keys.entries, keys.records, keys.indexed], [member])
        for keys, member in every
    ]
    empty = {guild for (guild, _), members in zip(pairs, left, strict=True) if not members}
    if empty:
        grace = int(conf.current().COMMAND_DEADLINE * _GRACE * 1000)
        yield Script("directory_prune", [directories(prefix)], [grace, *empty])


def forget_member(prefix: str, member: str) -> Steps[None]:
    """Remove `member` from every directory, some at a time; not from one it is being added to now."""
    cursor = b"0"
    while True:
        # A scan finds all that stay, whatever is added or pruned meanwhile; pages by score would not.
        cursor, flat = yield Command("ZSCAN", directories(prefix), cursor, "COUNT", 100, reads=True)
        guilds = [guild.decode() for guild in flat[::2]]
        if guilds:
            yield from _remove(prefix, [(guild, member) for guild in guilds])
        if cursor == b"0":
            return
