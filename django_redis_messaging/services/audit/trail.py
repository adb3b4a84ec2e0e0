"""The audit trail: a capped log of the changes that operators have made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ...core.commands import Argument
from ...core.encoding import tag
from ...core.operations import Command, Script, Service, Steps, asynchronous, operation
from ...errors import InvalidArgument
from ..common.arguments import count, integer, request, to_datetime, window
from ..common.things import Thing

#: entries that are kept; the oldest are removed first
MAX_ENTRIES = 5000
#: characters of a field; longer texts are cut
MAX_FIELD = 500
_ID = re.compile(r"\d{1,15}-\d{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """A change that somebody has made."""

    #: also a cursor: see AuditTrail.entries
    id: str
    #: the user name
    by: str
    #: such as "retry" or "release"
    action: str
    #: what was changed: the text of a Thing, or of several things what they have in common
    thing: str
    #: how many things were changed
    number: int
    #: what else is known, such as a reason
    detail: str

    @property
    def at(self) -> datetime:
        """When it was made."""
        return to_datetime(int(self.id.partition("-")[0]))


class AuditTrail(Service):
    """The log of a site.

    >>> trail = AuditTrail()
    >>> entry_id = trail.record("ann", "release", Thing("lock", "nightly"), detail="held by web1-17")
    >>> [entry] = trail.entries()
    >>> entry.by, entry.action, entry.thing, entry.number
    ('ann', 'release', 'lock:nightly', 1)

    It keeps the latest 5,000 entries.
    """

    @operation
    def record(
        self,
        by: str,
        action: str,
        thing: Thing | str,
        *,
        number: int = 1,
        detail: str = "",
        request_id: str | None = None,
    ) -> Steps[str]:
        """Add an entry; returns its id. Texts are cut after 500 characters. A repeat with the same
        `request_id` adds nothing."""
        values = {
            "by": by,
            "action": action,
            "thing": str(thing),
            "count": str(integer(number, "number", minimum=0, maximum=2**52)),
            "detail": detail,
        }
        words: list[Argument] = [MAX_ENTRIES, request(request_id), window()]
        words += [part for key, value in values.items() for part in (key, value[:MAX_FIELD])]
        keys = [trail_key(self._prefix), *request_keys(self._prefix)]
        reply: bytes = yield Script("audit/record", keys, words)
        return reply.decode()

    arecord = asynchronous(record)

    @operation
    def entries(self, before: str = "", *, limit: int = 50) -> Steps[list[Entry]]:
        """The latest entries (1 to 500), the latest first; those before the entry whose id is given."""
        if before and not _ID.fullmatch(before):
            raise InvalidArgument(f"before must be an id such as 1764170000000-0, not {before[:100]!r}.")
        newest = f"({before}" if before else "+"
        number = count(limit, "limit", maximum=500)
        key = trail_key(self._prefix)
        reply = yield Command("XREVRANGE", key, newest, "-", "COUNT", number, reads=True)
        return [_parse(entry_id, flat) for entry_id, flat in reply]

    aentries = asynchronous(entries)


def _parse(entry_id: bytes, flat: Sequence[bytes]) -> Entry:
    texts = [one.decode(errors="replace") for one in flat]
    found = dict(zip(texts[::2], texts[1::2], strict=True))
    number = int(found["count"])
    return Entry(entry_id.decode(), found["by"], found["action"], found["thing"], number, found["detail"])


def trail_key(prefix: str) -> str:
    """STREAM of changes: who (`by`), `action`, `thing`, `count`, `detail`. Capped at 5,000 entries; stays."""
    return tag(prefix, "audit", "trail") + ":log"


def request_keys(prefix: str) -> list[str]:
    """HASH request id → id of the entry: two keys, used in turn, one window each. Each expires when its next
    turn begins."""
    begin = tag(prefix, "audit", "trail")
    return [f"{begin}:requests:0", f"{begin}:requests:1"]
