"""Which things a site has: counted by kind, and found by their name. There is no registry of them; each has a
key that exists as long as it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.commands import Argument
from ...core.encoding import FORMAT, name, tag
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...core.topology import Cluster, endpoint
from ..jobs.keys import queues_key
from .operators import probe_key
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
#: keys that a count searches: about 3 ms
MAX_SEARCHED = 2000


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
        """How many things of each kind there are, among the first 2,000 keys of a server: of a Cluster, of
        one primary. Locks count for a day after their last use."""
        words: list[Argument] = [f"{self._prefix}:{FORMAT}:", MAX_SEARCHED]
        for kind, ending in MARKERS.items():
            words += (kind, ending)
        searched_all, *numbers = yield Script("common/count_things", [probe_key(self._prefix, 0)], words)
        is_complete = bool(searched_all) and not isinstance(endpoint(self._using).router, Cluster)
        return Counts(dict(zip(MARKERS, numbers, strict=True)), is_complete)

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
