"""Names of what operators look at: queues, tasks, locks and all else that has a name of its own."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from ...core.encoding import printable
from ...errors import InvalidArgument

#: the kinds, each with what `where` means for it; empty: it has none
KINDS = {
    "task": "alias of the backend",
    "job": "delay queue",
    "queue": "alias of the backend; empty for a delay queue",
    "worker": "alias of the backend",
    "periodic": "alias of the backend",
    "timer": "namespace",
    "lock": "key in Redis; empty for the lock's own",
    "rwlock": "",
    "semaphore": "",
    "latch": "",
    "permit": "alias of the backend",
    "rate": "limit",
    "chat": "",
    "mailbox": "",
    "broadcast": "",
    "files": "",
    "directory": "",
    "server": "",
}


@dataclass(frozen=True, slots=True)
class Thing:
    """What a line of a page, an action or an explanation is about.

    >>> str(Thing("lock", "nightly")), str(Thing("timer", "17", "order"))
    ('lock:nightly', 'timer:order/17')
    >>> Thing.parse("timer:order/17")
    Thing(kind='timer', name='17', where='order')
    """

    kind: str
    name: str
    #: in what its name is unique, see KINDS; empty: in the site
    where: str = ""

    def __str__(self) -> str:
        """The thing as text that `parse` reads: percent-encoded, apart from letters, digits and `_.-~@:`."""
        parts = [self.where, self.name] if self.where else [self.name]
        return f"{self.kind}:" + "/".join(quote(part, safe="@:") for part in parts)

    @property
    def label(self) -> str:
        """The name as one line: control characters are escaped."""
        return printable(self.name)

    @classmethod
    def parse(cls, text: str) -> Thing:
        """The thing of a text. Raises InvalidArgument."""
        kind, _, rest = text.partition(":")
        where, slash, name = rest.partition("/")
        if kind not in KINDS or not rest or "/" in name or (slash and not name):
            raise InvalidArgument(
                f"{text[:200]!r} names nothing: write kind:name or kind:where/name, where the kind is one of "
                f"{', '.join(KINDS)}."
            )
        if slash and not KINDS[kind]:
            raise InvalidArgument(f"{text[:200]!r} names nothing: a {kind} has no further name.")
        return cls(kind, unquote(name), unquote(where)) if slash else cls(kind, unquote(where))
