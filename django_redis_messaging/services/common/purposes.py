"""Which locks the app itself holds, and what for."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import unquote

from ...core.encoding import tag
from ..files.keys import lease_key
from ..listening.listener import dispatch_key
from ..locks.leader import LEADER

_DIGEST = re.compile(r"files:[0-9a-f]{64}")


class Purpose(NamedTuple):
    """What a lock of the app is for."""

    kind: Literal["consumer", "publisher", "listener", "leader", "digests"]
    #: of the consumer, the primary or the leader
    name: str = ""
    #: the file channel
    channel: str = ""


def purpose_of(prefix: str, name: str, key: str | None) -> Purpose | None:
    """What a lock is for; None for a lock of the site. `key`: as in Lock(key=...).

    >>> purpose_of("site", "", "site:2:{lease:files%3Aaccess%2520logs%3Atraffic}")
    Purpose(kind='consumer', name='traffic', channel='access logs')
    >>> purpose_of("site", "leader:cleanup", None)
    Purpose(kind='leader', name='cleanup', channel='')
    >>> purpose_of("site", "nightly", None)
    """
    if key is None:
        if name == "send_digests":
            return Purpose("digests")
        return Purpose("leader", name.removeprefix(LEADER)) if name.startswith(LEADER) else None
    nodes = dispatch_key(prefix, "")
    if key.startswith(nodes):
        return Purpose("listener", unquote(key.removeprefix(nodes)))
    return _of_files(prefix, key)


def _of_files(prefix: str, key: str) -> Purpose | None:
    """The consumer or the publisher of a file channel. Of very long names, the key has a digest only."""
    begin = tag(prefix, "lease", "")[:-1]
    what = unquote(key.removeprefix(begin).removesuffix("}"))
    kind, _, rest = what.partition(":")
    if not key.startswith(begin) or kind != "files" or not rest or _DIGEST.fullmatch(what):
        return None
    channel, _, consumer = rest.partition(":")
    found = Purpose("consumer" if consumer else "publisher", unquote(consumer), unquote(channel))
    return found if lease_key(prefix, found.channel, found.name) == key else None
