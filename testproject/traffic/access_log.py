"""The access log, in the combined format of web servers: found on this machine, or generated."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from django.conf import settings

from .origins import SAMPLE_NETWORKS, sample_address

#: the address and the day of a request, as in `192.0.2.7 - - [17/May/2026:10:05:03 +0000] …`
LINE = re.compile(rb"(\S+) \S+ \S+ \[(\d\d)/(\w{3})/(\d{4}):")
MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

#: the days of the generated log
FIRST_DAY, DAYS = datetime(2026, 5, 17, tzinfo=UTC), 5
#: lines of the generated log, and how many of them are malformed
LINES, MALFORMED_LINES = 6000, 7
PATHS = ("/", "/about", "/blog/", "/blog/redis-streams", "/static/site.css", "/images/logo.png")


def parse_line(line: bytes) -> tuple[str, str]:
    """The day (2026-05-17) and the address of a request. Raises ValueError for a malformed line."""
    found = LINE.match(line)
    if found is None:
        raise ValueError("The line is not in the combined log format.")
    address, day, month, year = found.groups()
    requested_on = date(int(year), MONTHS.index(month) + 1, int(day))  # each of them may raise a ValueError
    return requested_on.isoformat(), address.decode("ascii")


def find_log() -> Path:
    """The log of the setting ACCESS_LOG, if it exists, else a generated one in the directory of the demo."""
    given = settings.ACCESS_LOG
    if given and Path(given).is_file():
        return Path(given)
    path: Path = settings.DATA_DIR / "access.log"
    if not path.exists():  # complete when it has its name: a demo that was killed leaves only the other one
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text("".join(f"{line}\n" for line in generate_lines()), encoding="ascii")
        unfinished.replace(path)
    return path


def generate_lines() -> Iterator[str]:
    """The lines of the generated log: always the same."""
    source = random.Random(7)  # noqa: S311 (not a secret)
    networks = list(SAMPLE_NETWORKS)
    malformed = set(source.sample(range(LINES), MALFORMED_LINES))
    seconds = sorted(source.triangular(0, DAYS * 86_400, 3 * 86_400) for _ in range(LINES))
    for number, second in enumerate(seconds):
        [network] = source.choices(networks, weights=range(len(networks), 0, -1))
        address = sample_address(network, source.randrange(2**16))
        moment = (FIRST_DAY + timedelta(seconds=int(second))).strftime("%d/%b/%Y:%H:%M:%S +0000")
        line = f'{address} - - [{moment}] "GET {source.choice(PATHS)} HTTP/1.1" 200 {source.randrange(9000)}'
        yield line[: len(address) + 9] if number in malformed else f'{line} "-" "Mozilla/5.0"'
