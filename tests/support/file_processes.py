"""Functions that other processes run with file channels."""

from __future__ import annotations

import gzip
import hashlib
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from django_redis_messaging import Aggregator, FileChannel, FileCorrupt, LeaseLost

from . import child_processes


def publish(
    stage: child_processes.Stage,
    channel: str,
    lease: float,
    folder: str,
    consumers: Sequence[str] | int,
    limit: int,
) -> None:
    """Publish all files of a folder, and wait until the consumers have acked them."""
    child_processes.enter(stage)
    FileChannel(channel).publish(folder, consumers=consumers, max_bytes=limit, final=True, lease=lease)


def consume(
    stage: child_processes.Stage, channel: str, lease: float, name: str, log: str, work: float, count: bool
) -> None:
    """Append id, name and SHA-256 of each file to a log, before the ack; then 'end'. `work`: seconds that a
    block takes; `count`: also count the requests by day and address."""
    child_processes.enter(stage)
    counter = Aggregator(channel)
    with open(log, "a", buffering=1) as lines:
        try:
            for file in FileChannel(channel).consume(name, lease=lease):
                digest = hashlib.sha256()
                for block in file.blocks():
                    digest.update(block)
                    time.sleep(work)
                if count:
                    counter.add_file(file, parse)
                lines.write(f"{file.id} {file.name} {digest.hexdigest()}\n")
                file.ack()
            lines.write("end\n")
        except LeaseLost:
            lines.write("late\n")
            sys.exit(1)
        except FileCorrupt:
            lines.write("corrupt\n")
            raise


def parse(line: bytes) -> tuple[str, str]:
    """Day and address of a request."""
    address, _, _, moment, _ = line.split(b" ", 4)
    return moment[1:].decode(), address.decode()


def generate_logs(folder: Path, total: int, size: int) -> Counter[tuple[str, str]]:
    """Write log files of about `size` bytes or less, every third of them compressed, `total` bytes together;
    the number of their requests by day and address. The first line of each file is not a request."""
    chance, number, written = random.Random(1), 0, 0
    lines = [
        b'192.0.2.%d - - [2026-11-%02d 12:00] "GET /page/%d HTTP/1.1" 200 %d "-" "Mozilla/5.0 (X11; Linux)"\n'
        % (chance.randrange(250), 1 + chance.randrange(30), chance.randrange(10**9), chance.randrange(10**5))
        for _ in range(size // 90)
    ]
    packed = gzip.compress(b"".join(lines), 1)
    #: number of lines → number of files with so many of them
    lengths: Counter[int] = Counter()
    while written < total:
        head = b"%d.%s\n" % (number, chance.randbytes(8).hex().encode())
        used = len(lines) if number % 3 == 0 else chance.randrange(len(lines) // 2, len(lines))
        content = head + b"".join(lines[:used])
        if number % 3 == 0:  # two members
            content = gzip.compress(head) + packed
        (folder / f"{number:05d}.log{'' if number % 3 else '.gz'}").write_bytes(content)
        lengths[used] += 1
        number, written = number + 1, written + len(content)
    found: Counter[tuple[str, str]] = Counter()
    files = number
    for at, line in enumerate(lines):
        files -= lengths[at]
        found[parse(line)] += files
    return found
