"""Which things a site has: counted by kind, and found by their name. There is no registry of them; each has a
key that exists as long as it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ...core.encoding import FORMAT, name, tag
from ...core.operations import Command, Service, Steps, asynchronous, operation
from ...core.topology import Cluster, endpoint, literal_pattern
from ..jobs.keys import queues_key
from .operators import probe_key
from .scanning import Scan
from .things import Thing

#: by kind, the end of the name of that key
MARKERS = {
    "lock": ":fence",
    "rwlock": ":grants",
    "semaphore": ":limit",
    "latch": ":state",
    "chat": ":newest",
    "mailbox": ":newest",
    "broadcast": ":head",
    "files": ":state",
    "directory": ":records",
}
#: calls of SCAN that a count makes, and keys that each of them searches
SCANS, SCAN_KEYS = 2, 1000


@dataclass(frozen=True, slots=True)
class Counts:
    """How many things there are."""

    by_kind: Mapping[str, int]
    #: whether all keys were searched; else there may be more of each kind
    is_complete: bool


class Catalogue(Service):
    """The things of a site.

    >>> from django_redis_messaging import Semaphore
    >>> permit = Semaphore("printer", 2).acquire()
    >>> Catalogue().find("printer")
    [Thing(kind='semaphore', name='printer', where='')]
    >>> Catalogue().count().by_kind["semaphore"]
    1
    """

    @operation
    def count(self) -> Steps[Counts]:
        """How many things of each kind there are, among the first 2,000 keys of the database: of a Cluster,
        of one primary. Locks count for a day after their last use."""
        return (yield from count_things(self._using, self._prefix))

    acount = asynchronous(count)

    @operation
    def find(self, text: str) -> Steps[list[Thing]]:
        """The things with this name, of all kinds in MARKERS, and the delay queue. Raises InvalidArgument for
        what can't be a name."""
        checked = name(text, "text")
        keys = [tag(self._prefix, kind, checked) + ending for kind, ending in MARKERS.items()]
        calls = [Command("EXISTS", key, reads=True) for key in keys]
        *found, score = yield [*calls, Command("ZSCORE", queues_key(self._prefix), checked, reads=True)]
        things = [Thing(kind, checked) for kind, exists in zip(MARKERS, found, strict=True) if exists]
        return things if score is None else [*things, Thing("queue", checked)]

    afind = asynchronous(find)


def count_things(using: str, prefix: str) -> Steps[Counts]:
    """See Catalogue.count."""
    begin, found, cursor = f"{prefix}:{FORMAT}:", set[bytes](), 0
    for _ in range(SCANS):
        reply, keys = yield Scan(probe_key(prefix, 0), cursor, literal_pattern(begin) + "{*", SCAN_KEYS)
        found.update(keys)
        cursor = int(reply)
        if not cursor:
            break
    is_complete = not cursor and not isinstance(endpoint(using).router, Cluster)
    numbers = Counter(_kind_of(one.decode(errors="replace").removeprefix(begin)) for one in found)
    return Counts({kind: numbers[kind] for kind in MARKERS}, is_complete)


def _kind_of(key: str) -> str:
    """The kind of thing that has a key, without the prefix, as its only one of this name; else ""."""
    kind, _, rest = key.removeprefix("{").partition(":")
    return kind if MARKERS.get(kind) == rest.partition("}")[2] else ""
