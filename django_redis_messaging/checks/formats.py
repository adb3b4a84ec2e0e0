"""Check for keys that other versions of this app have stored in another format, under the same prefix."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from django.core.checks import CheckMessage, Warning
from redis.connection import SSLConnection
from redis.exceptions import RedisError

from ..core.connection import BlockingConnection
from ..core.encoding import FORMAT, current_prefix
from ..core.topology import Endpoint, endpoint, location, scan
from ..errors import MessagingError, Unavailable
from .settings import usable_alias

#: replies to SCAN that a check reads from each primary. SCAN lists keys in the order of their hashes, so
#: these are a random sample of some 20,000 keys, or all keys of a server that has fewer
SAMPLE_PAGES = 20
#: deletes the keys that match {1}, one by one, because they are in many slots; {0}: arguments of redis-cli
DELETION = (
    "redis-cli {0}--scan --pattern {1} | "
    r"""sed 's/["\\]/\\&/g; s/.*/UNLINK "&"/' | redis-cli {0}| uniq -c"""
)


@dataclass
class OtherFormat:
    """Keys of another format."""

    #: one of them
    example: str
    #: the servers that have some, as arguments of redis-cli
    servers: list[str] = field(default_factory=list)


def check_formats(**_: object) -> list[CheckMessage]:
    """Check a sample of the keys for other formats. Nothing is reported if the user may not call SCAN."""
    alias = usable_alias()
    if alias is None:
        return []
    try:
        return list(report_formats(alias, pages=SAMPLE_PAGES))
    except MessagingError:
        return []  # another check reports that the server can't be queried


def report_formats(
    alias: str, *, pages: int | None = None, on_page: Callable[[], object] = lambda: None
) -> Iterator[CheckMessage]:
    """A warning for each format that this version doesn't read, in `pages` replies of each primary, or in all
    of them. Raises Unavailable. `on_page` is called after each reply."""
    prefix = current_prefix()
    for number, found in sorted(_find(endpoint(alias), prefix, pages, on_page).items()):
        pattern = shlex.quote(f"{prefix}:{number}:{{*")
        commands = "".join(f"\n    {DELETION.format(server, pattern)}" for server in found.servers)
        yield Warning(
            f"The Redis of CACHES[{alias!r}] has keys of format {number} under the prefix {prefix!r}, such "
            f"as {found.example}. This version reads format {FORMAT} only.",
            hint="If processes of another version use them, set another PREFIX. Otherwise nothing reads or "
            f"removes them any more. This deletes them:{commands}",
            id="messaging.W023",
        )


def _find(
    searched: Endpoint, prefix: str, pages: int | None, on_page: Callable[[], object]
) -> dict[int, OtherFormat]:
    other = re.compile(rf"{re.escape(prefix)}:(\d+):{{")
    formats: dict[int, OtherFormat] = {}
    try:
        for connection, keys in scan(searched, f"{prefix}:[0-9]*:{{*", pages=pages):
            for key in (raw.decode(errors="replace") for raw in keys):
                match = other.match(key)
                if match and int(match[1]) != FORMAT:
                    found = formats.setdefault(int(match[1]), OtherFormat(key))
                    server = _arguments(searched, connection)
                    found.servers += [server] if server not in found.servers else []
            on_page()
    except RedisError as error:
        raise Unavailable(f"The keys could not be listed: {error}") from error
    return formats


def _arguments(searched: Endpoint, connection: BlockingConnection) -> str:
    """The arguments with which redis-cli connects to the same server and database."""
    address = location(connection)
    target = searched.target(address)
    path, database = target.parameters.get("path"), target.parameters.get("db")
    words = ["-s", str(path)] if address is None else ["-h", address[0], "-p", str(address[1])]
    words += ["-n", str(database)] if database else []
    words += ["--tls"] if issubclass(target.kind, SSLConnection) else []
    return "".join(f"{shlex.quote(word)} " for word in words)
