"""Directories of names, found by a prefix of any of their words.

A directory is one sorted set. Each member has an entry for each word start of its label and aliases: the
folded text from there to the end (a suffix), its id and its label, separated by NUL. All entries that match
a prefix are adjacent and in the order in which they are returned, so a search is one command that reads a
range. Only if members with several matching words fill that range, a script reads on. Suffixes are never
truncated: prefixes are compared in full.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from ... import conf
from ...core import encoding
from ...core.commands import batched
from ...core.encoding import FORMAT, name, tag
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...errors import InvalidArgument, LimitExceeded, MessagingError
from ..common.arguments import UserOrId, count, member_id, member_ids
from .folding import MAX_SUFFIX_BYTES, MAX_WORD_STARTS, all_suffixes, byte_size, fold

#: entries per script call with several members, where replacing members moves twice as many; members that one
#: command marks or lists
PAGE_SIZE = 250
#: characters of a prefix; folding makes at most 18 of each
MAX_PREFIX = 1000
#: COMMAND_DEADLINEs for which an empty directory stays registered: longer than an add can take
_GRACE = 3
#: ms after which an interrupted run is replaced instead of resumed: its results are too old
MAX_RUN_AGE = 86_400_000


class DirectoryKeys:
    """The keys of one directory, in one slot. They are deleted with the last member."""

    __slots__ = ("tag",)

    def __init__(self, prefix: str, guild: str) -> None:
        self.tag = tag(prefix, "directory", guild)

    @property
    def entries(self) -> str:
        """ZSET of "suffix NUL id NUL label", all with score 0: one entry for each word start of a member's
        label and aliases, and for each of their spellings in pinyin. Capped on write."""
        return self.tag + ":entries"

    @property
    def records(self) -> str:
        """HASH id → "label NUL suffix NUL suffix …": the source of a member's entries, for removing them."""
        return self.tag + ":records"

    @property
    def indexed(self) -> str:
        """ZSET id → number of the latest run of sync_directory that added it. An id is removed together with
        its record."""
        return self.tag + ":indexed"

    @property
    def all_keys(self) -> tuple[str, ...]:
        """All keys of the directory, in the order of directory_at() in _directory.lua."""
        return (self.entries, self.records, self.indexed)


def directories_key(prefix: str) -> str:
    """ZSET guild → ms of its latest add: the registry of directories, for forget(). A guild is removed if its
    directory is found empty when no add can be in progress. If that is too soon after the latest add, the ms
    become negative, and a later removal that empties a directory checks this one again."""
    return f"{prefix}:{FORMAT}:{{directories}}"


def indexing_key(prefix: str) -> str:
    """HASH of the progress of sync_directory: "run" (its number), and during a run "only" (the requested
    directories), "after" ("=" plus the last primary key that is done), "done" (users), "at" (ms). Never
    expires; of constant size between runs."""
    return f"{directories_key(prefix)}:indexing"


@dataclass(frozen=True, slots=True)
class Contact:
    """A member of a directory."""

    id: str
    """The member's id, as added."""
    label: str
    """The member's label, as added."""


class Directory(Service):
    """The names of one guild, whose members can find each other.

    >>> staff = Directory("directory-example")
    >>> staff.add("u1", "John Smith Jones", aliases=["jsj@example.org"])
    >>> staff.add_many([("u2", "Ann Smythe"), ("u3", "Élodie-Smilla Æther")])
    2
    >>> [contact.label for contact in staff.suggest("SMI")]
    ['Élodie-Smilla Æther', 'John Smith Jones']
    >>> staff.suggest("smith j")
    [Contact(id='u1', label='John Smith Jones')]

    Texts are compared by NFKC(casefold(NFKC(·))). A prefix is compared with the label and with each alias,
    from the start of each word. A word of the folded text starts at its beginning, after white space, and
    after one of `-_.@`. With the extra `pinyin`, Chinese labels also match by pinyin and by initials:
    "wangxiaoming" and "wxm" find "王小明". See folding.py.
    """

    def __init__(self, guild: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.guild = name(guild, "guild")
        self._keys = DirectoryKeys(self._prefix, guild)
        #: built once: each letter that a user types calls `suggest`
        self._entries = self._keys.entries

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.guild!r})"

    @operation
    def add(self, member: UserOrId, label: str, *, aliases: Iterable[str] = ()) -> Steps[None]:
        """Add `member` under its label and aliases, replacing its previous ones.

        Label and aliases may have LABEL_MAX_BYTES of UTF-8 each, and together 128 word starts, from which
        the folded texts may have 64 KiB. Raises LimitExceeded above that, or if the directory would exceed
        DIRECTORY_MAX_ENTRIES. Spellings in pinyin that would exceed the first two limits are left out. One
        round trip; concurrent readers get either all of the old entries or all of the new ones.
        """
        yield from self._store([pack(member, label, checked_list(aliases, "aliases"))])

    aadd = asynchronous(add)

    @operation
    def add_many(self, pairs: Iterable[tuple[UserOrId, str]]) -> Steps[int]:
        """Add any number of (member, label) pairs; returns how many were stored.

        Pairs are read, checked and stored in pages of some hundreds. If a pair or a limit raises an error,
        earlier pages stay stored, and nothing of the same page or later is. Adding all of them again is safe.
        """
        stored = 0
        for page in pages(pack(*checked_pair(item), ()) for item in pairs):
            yield from self._store(page)
            stored += len(page)
        return stored

    aadd_many = asynchronous(add_many)

    @operation
    def remove(self, member: UserOrId) -> Steps[None]:
        """Remove `member`; does nothing if it is absent."""
        yield from _remove(self._prefix, [(self.guild, member_id(member, "member"))])

    aremove = asynchronous(remove)

    @operation
    def remove_many(self, members: Iterable[UserOrId]) -> Steps[None]:
        """Remove any number of members, some hundreds at a time; absent ones are ignored."""
        for page in batched(member_ids(members, "members"), PAGE_SIZE):
            yield from _remove(self._prefix, [(self.guild, member) for member in page])

    aremove_many = asynchronous(remove_many)

    @operation
    def suggest(self, prefix: str, limit: int = 10) -> Steps[list[Contact]]:
        """List the first `limit` members with a word, of label or alias, from which `prefix` matches.

        Sorted by the folded suffix that begins with that word (by code point), then by id. A member that
        matches several times is returned once, at its first position. White space counts: "smith " does not
        match "Smithers". An empty prefix lists all members from the first. At most 1000 characters.

        One round trip; a second one if members with several matching words leave too few others among the
        first matches. Each reads the directory as of one moment. A `limit` above 16, or a raised
        LABEL_MAX_BYTES, may take more than two, each for about 2000 matching words or 2 MiB; then a member
        whose label is changed meanwhile may be missing.
        """
        count(limit, "limit")
        folded = fold(without_nul(checked_prefix(prefix), "prefix")).encode()
        # UTF-8 never contains byte 255: it sorts after everything that begins with the prefix
        start, end = b"[" + folded, b"(" + folded + b"\xff"
        # a few more than `limit`: some members match several times
        size = limit + limit // 16 + 1
        args = ("ZRANGE", self._entries, start, end, "BYLEX", "LIMIT", 0, size)
        entries: list[bytes] = yield Command(*args, reads=True)
        parts = b"\0".join(entries).decode().split("\0")  # splitting one by one takes twice as long
        found = dict(zip(parts[1::3], parts[2::3], strict=True))
        if len(found) < limit and len(entries) == size:
            # from the beginning: the labels of these members may have changed meanwhile
            found = yield from self._read_range(start, end, limit)
        return _contacts(islice(found.items(), limit))

    asuggest = asynchronous(suggest)

    @operation
    def labels(self, members: Iterable[UserOrId]) -> Steps[dict[str, str]]:
        """Map those of `members` (at most 1000) that are in this directory to their labels.

        >>> staff = Directory("labels-example")
        >>> staff.add("u1", "John")
        >>> staff.labels(["u1", "nobody"])
        {'u1': 'John'}
        """
        ids = member_ids(members, "members")
        if not ids:
            return {}
        count(len(ids), "the number of members")
        records = yield Command("HMGET", self._keys.records, *ids, reads=True)
        return {
            member: record.partition(b"\0")[0].decode()
            for member, record in zip(ids, records, strict=True)
            if record is not None
        }

    alabels = asynchronous(labels)

    @operation
    def size(self) -> Steps[int]:
        """Count the members."""
        return (yield from self._count())

    asize = asynchronous(size)

    def _count(self) -> Steps[int]:
        members: int = yield Command("HLEN", self._keys.records, reads=True)
        return members

    def _read_range(self, start: bytes, end: bytes, limit: int) -> Steps[dict[str, str]]:
        """Map the first `limit` members, or a few more, of a range of entries to their labels."""
        found: dict[str, str] = {}
        while start and len(found) < limit:
            members, last = yield Script("directories/suggest", [self._entries], [start, end, limit])
            parts = b"\0".join([b"", *members]).decode().split("\0")
            found.update(zip(parts[1::2], parts[2::2], strict=True))
            start = last and b"(" + last
        return found

    def _store(self, page: Sequence[Record]) -> Steps[None]:
        limit = conf.current().DIRECTORY_MAX_ENTRIES
        latest = {record.id: record.packed for record in page}
        pairs = [part for pair in latest.items() for part in pair]
        # Registering first ensures that forget() finds every directory with members.
        _, total = yield [
            _registration(self._prefix, self.guild),
            Script("directories/add", self._keys.all_keys, [limit, *pairs]),
        ]
        if total:
            if not (yield from self._count()):
                yield from _unregister(self._prefix, {self.guild})
            raise LimitExceeded(
                f"entries in directory {self.guild!r}",
                limit=limit,
                actual=total,
                setting="DIRECTORY_MAX_ENTRIES",
            )


def _contacts(pairs: Iterable[tuple[str, str]]) -> list[Contact]:
    """Make contacts of (id, label) pairs, without __init__: ten calls of it cost a tenth of a round trip."""
    contacts, new, set_field = [], object.__new__, object.__setattr__
    for member, label in pairs:
        contact = new(Contact)
        set_field(contact, "id", member)
        set_field(contact, "label", label)
        contacts.append(contact)
    return contacts


@dataclass(frozen=True, slots=True)
class Record:
    """A member as the scripts store it: see DirectoryKeys.records."""

    id: str
    packed: str
    entries: int


def pack(member: UserOrId, label: str, aliases: Sequence[str]) -> Record:
    """Make the record of a member; raises LimitExceeded if it would have too many or too long suffixes."""
    id = member_id(member, "member")
    texts = [_checked_label(label, "label"), *(_checked_label(alias, "alias") for alias in aliases)]
    suffixes = all_suffixes(texts)
    if len(suffixes) > MAX_WORD_STARTS:
        raise LimitExceeded("word starts of label and aliases", limit=MAX_WORD_STARTS, actual=len(suffixes))
    size = byte_size(suffixes)
    if size > MAX_SUFFIX_BYTES:
        raise LimitExceeded(
            "folded text from each word start of label and aliases (bytes)",
            limit=MAX_SUFFIX_BYTES,
            actual=size,
        )
    return Record(id, "\0".join([label, *suffixes]), len(suffixes))


def _checked_label(value: str, what: str) -> str:
    encoding.text(value, what, setting="LABEL_MAX_BYTES")
    if not value:
        raise InvalidArgument(f"{what} is empty: members are found by its text.")
    return without_nul(value, what)


def without_nul(value: str, what: str) -> str:
    """Return `value` if it contains no NUL, which separates the parts of entries and records."""
    if "\0" in value:
        raise InvalidArgument(f"{what} must not contain a NUL character.")
    return value


def checked_prefix(value: str) -> str:
    """Return `value` if it is a text that is short enough to be searched for."""
    if len(encoding.text(value, "prefix")) > MAX_PREFIX:
        raise InvalidArgument(f"prefix must have at most {MAX_PREFIX} characters, not {len(value)}.")
    return value


def checked_list(values: Iterable[str], what: str) -> list[str]:
    """Return `values` as a list unless they are a single text."""
    if isinstance(values, str | bytes):
        raise TypeError(f"{what} must be a list, not a {type(values).__name__}: wrap it in a list.")
    return list(values)


def checked_pair(item: object) -> tuple[UserOrId, str]:
    """Return `item` if it is a pair."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"pairs must contain (member, label) tuples, not {type(item).__name__}.")
    return item[0], item[1]


def pages(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Group records into lists of at most PAGE_SIZE entries."""
    page: list[Record] = []
    room = PAGE_SIZE
    for record in records:
        if record.entries > room:
            yield page
            page, room = [], PAGE_SIZE
        page.append(record)
        room -= record.entries
    if page:
        yield page


def _remove(prefix: str, pairs: Sequence[tuple[str, str]]) -> Steps[None]:
    """Remove (guild, member) pairs."""
    targets = [(DirectoryKeys(prefix, guild), member) for guild, member in pairs]
    remaining = yield [Script("directories/remove", keys.all_keys, [member]) for keys, member in targets]
    empty = {guild for (guild, _), existing in zip(pairs, remaining, strict=True) if not existing}
    if empty:
        yield from _unregister(prefix, empty)


def _registration(prefix: str, guild: str) -> Script:
    """The step that registers a directory, before it is written to."""
    return Script("common/register", [directories_key(prefix)], [guild, 0])


def _unregister(prefix: str, empty: Collection[str]) -> Steps[None]:
    """Remove empty directories from the registry, except those to which an add may be in progress. Remove
    those that were excepted earlier, too, if they are still empty."""
    registry = directories_key(prefix)
    grace = int(conf.current().COMMAND_DEADLINE * _GRACE * 1000)
    due = [guild.decode() for guild in (yield Script("directories/prune", [registry], [grace, *empty]))]
    if not due:
        return
    keys = [DirectoryKeys(prefix, guild) for guild in due]
    remaining = yield [Command("EXISTS", each.records, each.indexed, reads=True) for each in keys]
    still_empty = [guild for guild, existing in zip(due, remaining, strict=True) if not existing]
    filled = [guild for guild, existing in zip(due, remaining, strict=True) if existing]
    # registering a directory removes its mark
    yield [
        Script("directories/prune", [registry], [grace, *still_empty]),
        *(_registration(prefix, guild) for guild in filled),
    ]


def forget_member(prefix: str, member: str) -> Steps[None]:
    """Remove `member` from every directory, except those that it is being added to at the same time."""
    cursor = b"0"
    while True:
        # A scan returns every guild that stays, even if others are added or pruned meanwhile; paging by score
        # would not.
        cursor, flat = yield Command("ZSCAN", directories_key(prefix), cursor, "COUNT", 100, reads=True)
        guilds = [guild.decode() for guild in flat[::2]]
        if guilds:
            yield from _remove(prefix, [(guild, member) for guild in guilds])
        if cursor == b"0":
            return


class Run(NamedTuple):
    """A run and its progress."""

    number: int
    #: the last primary key that is done, as text; None at first
    after: str | None
    #: number of users that are done
    done: int


class SyncProgress(Service):
    """The state of `sync_directory`."""

    @operation
    def begin(self, only: Iterable[str] = (), *, fresh: bool = False) -> Steps[Run]:
        """Resume the interrupted run for these directories (none: all), or begin a new one."""
        requested = "\0".join(sorted(only))
        args = (requested, int(fresh), MAX_RUN_AGE)
        number, after, done = yield Script("directories/indexing_begin", [indexing_key(self._prefix)], args)
        return Run(number, after[1:].decode() if after else None, done)

    abegin = asynchronous(begin)

    @operation
    def latest(self) -> Steps[Run]:
        """The latest run, whether or not it has ended; number 0 before the first one."""
        number = yield Command("HGET", indexing_key(self._prefix), "run", reads=True)
        return Run(int(number or 0), None, 0)

    alatest = asynchronous(latest)

    @operation
    def save(self, run: Run) -> Steps[None]:
        """Save the progress of a run."""
        if not (yield self._saving(run)):
            raise MessagingError(
                "Another sync_directory has ended or replaced this run: do not run two at the same time."
            )

    asave = asynchronous(save)

    @operation
    def end(self, run: Run) -> Steps[None]:
        """End a run."""
        yield self._saving(run, ends=True)

    aend = asynchronous(end)

    def _saving(self, run: Run, *, ends: bool = False) -> Script:
        after = "" if run.after is None else f"={run.after}"
        args = (run.number, after, run.done, int(ends))
        return Script("directories/indexing_save", [indexing_key(self._prefix)], args)

    @operation
    def mark(self, run: Run, guild: str, members: Iterable[str]) -> Steps[None]:
        """Mark members before the run adds them to a directory. A mark of a later run stays."""
        # Registering first ensures that forget() finds every directory with marks.
        register = _registration(self._prefix, name(guild, "guild"))
        for page in batched([name(member, "member") for member in members], PAGE_SIZE):
            scores = [part for member in page for part in (run.number, member)]
            yield [register, Command("ZADD", DirectoryKeys(self._prefix, guild).indexed, "GT", *scores)]

    amark = asynchronous(mark)

    @operation
    def guilds(self) -> Steps[list[str]]:
        """List all directories."""
        found: dict[str, None] = {}
        cursor = b"0"
        while True:
            args = (directories_key(self._prefix), cursor, "COUNT", 100)
            cursor, flat = yield Command("ZSCAN", *args, reads=True)
            found.update((guild.decode(), None) for guild in flat[::2])
            if cursor == b"0":
                return list(found)

    aguilds = asynchronous(guilds)

    @operation
    def guilds_with(self, member: str) -> Steps[list[str]]:
        """List the directories that contain `member` and are filled from the user model."""
        found: list[str] = []
        cursor = b"0"
        while True:
            args = (directories_key(self._prefix), cursor, "COUNT", 100)
            cursor, flat = yield Command("ZSCAN", *args, reads=True)
            guilds = [guild.decode() for guild in flat[::2]]
            keys = [DirectoryKeys(self._prefix, guild) for guild in guilds]
            replies = yield [Command("HEXISTS", each.records, member, reads=True) for each in keys] + [
                Command("EXISTS", each.indexed, reads=True) for each in keys
            ]
            contains, filled = replies[: len(keys)], replies[len(keys) :]
            found += [guild for guild, *both in zip(guilds, contains, filled, strict=True) if all(both)]
            if cursor == b"0":
                return list(dict.fromkeys(found))

    aguilds_with = asynchronous(guilds_with)

    @operation
    def stale_members(self, run: Run, guild: str) -> Steps[list[str]]:
        """List some members that an earlier run has added and this run has not; empty if there are no
        more."""
        marks = DirectoryKeys(self._prefix, guild).indexed
        args = ("ZRANGE", marks, "-inf", f"({run.number}", "BYSCORE", "LIMIT", 0, PAGE_SIZE)
        return [member.decode() for member in (yield Command(*args, reads=True))]

    astale_members = asynchronous(stale_members)

    @operation
    def other_members(self, run: Run, guild: str, cursor: str = "0") -> Steps[tuple[str, list[str]]]:
        """Scan a directory for members that this run has not added, whether or not any run has.

        Returns the cursor to continue with ("0" at the end) and the members found. Finds none if this run has
        not added anyone to the directory.
        """
        keys = DirectoryKeys(self._prefix, guild)
        scan = Command("HSCAN", keys.records, cursor, "COUNT", PAGE_SIZE, reads=True)
        (following, flat), added = yield [
            scan,
            Command("ZCOUNT", keys.indexed, run.number, run.number, reads=True),
        ]
        members = flat[::2]
        if not added or not members:
            return following.decode() if added else "0", []
        marks = yield Command("ZMSCORE", keys.indexed, *members, reads=True)
        others = [
            member.decode()
            for member, mark in zip(members, marks, strict=True)
            if mark is None or float(mark) != run.number
        ]
        return following.decode(), others

    aother_members = asynchronous(other_members)
