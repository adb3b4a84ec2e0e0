"""Files: publishing and processing, compared with bare commands and the original algorithm.

uv run python -m benchmarks.files
uv run python -m benchmarks.files --rounds 5 --megabytes 8
uv run python -m benchmarks.files --parts scaling       # 4 consumers compared with one

With MESSAGING_DATA=<folder>, the lines are those of access.log.gz in that folder; otherwise they are
generated.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .harness import Contest, driver, processes, server, table
from .original_files import OriginalFiles

ORIGINAL, WRITE, READ = "original algorithm", "bare HSET", "bare HGET"
#: values of FILES_CHECKSUM; the first is the default
CHECKSUMS = ("crc32", "sha256", None)
MIB = 1024 * 1024
BLOCK = os.urandom(MIB)
#: files in each set
FILES = 2
#: lines in each batch
BATCH = 1000
#: consumers, each in a process of its own, that are compared with one
CONSUMERS = 4
#: how often each of them processes all files
REPEATS = 5
#: seconds in which these processes start
WARM_UP = 0.3


class Counter:
    """A callback that counts lines and bytes."""

    def __init__(self) -> None:
        self.lines = self.bytes = 0

    def add(self, line: bytes | None) -> None:
        if line:
            self.lines += 1
            self.bytes += len(line)

    def add_all(self, batch: Sequence[bytes]) -> None:
        self.lines += len(batch)
        self.bytes += sum(map(len, batch))


class Files:
    """The files of a folder, and what they contain."""

    def __init__(self, parent: str, kind: str, megabytes: float) -> None:
        """`kind`: plain or gz; `megabytes`: together, not compressed."""
        self.kind, self.folder = kind, Path(parent, kind)
        self.folder.mkdir()
        sample = b"".join(itertools.islice(log_lines(), 10_000))
        content = sample * max(round(megabytes * MIB / FILES / len(sample)), 1)
        self.lines, self.content_bytes = FILES * content.count(b"\n"), FILES * len(content)
        for number in range(FILES):
            path = self.folder / f"access-{number}.log"
            if kind == "gz":
                path.with_suffix(".log.gz").write_bytes(gzip.compress(content, mtime=0))
            else:
                path.write_bytes(content)
        self.paths = sorted(self.folder.iterdir())
        self.bytes = sum(path.stat().st_size for path in self.paths)

    @property
    def sizes(self) -> str:
        content = f" of {self.content_bytes / MIB:.1f} MiB" if self.kind == "gz" else ""
        return f"{self.kind}, {self.bytes / MIB:.1f} MiB{content}"

    def verify(self, counter: Counter) -> None:
        """Raise RuntimeError if lines are missing. The original's lines have their endings."""
        if counter.lines != self.lines or counter.bytes not in (
            self.content_bytes, self.content_bytes - self.lines
        ):  # fmt: skip
            raise RuntimeError(f"{counter.lines} lines of {counter.bytes} bytes, not {self.lines} lines.")


def log_lines() -> Iterator[bytes]:
    """Lines of an access log."""
    folder = os.environ.get("MESSAGING_DATA")
    if folder:
        with gzip.open(Path(folder, "access.log.gz")) as file:
            yield from file
        return
    choose = random.Random(6)
    while True:
        address = ".".join(str(choose.randrange(256)) for _ in range(4))
        moment = f"{choose.randrange(24):02}:{choose.randrange(60):02}:{choose.randrange(60):02}"
        path = "/".join(choose.choices(("blog", "images", "style", "articles", "about", "projects"), k=3))
        status, size = choose.choice((200, 200, 200, 304, 404)), choose.randrange(100_000)
        agent = f"Mozilla/5.0 (X11; Linux x86_64; rv:{choose.randrange(90, 140)}.0) Gecko/20100101 Firefox"
        yield (
            f'{address} - - [17/May/2015:{moment} +0000] "GET /{path}?id={choose.randrange(1000)} HTTP/1.1" '
            f'{status} {size} "https://example.com/{path}" "{agent}"\n'
        ).encode()


def use_checksum(kind: str | None) -> None:
    """Change the setting FILES_CHECKSUM. (override_settings would also close the connections.)"""
    from django.conf import settings

    from django_redis_messaging import conf

    settings.REDIS_MESSAGING = {"FILES_CHECKSUM": kind}
    conf.current.cache_clear()


def clear() -> None:
    """Delete everything from the private server."""
    client = driver()
    for key in list(client.scan_iter(count=1000)):
        client.delete(key)


def write_bare(files: Files) -> list[str]:
    """Store as many bytes as the files have by bare commands. Returns the fields of the hash "bare"."""
    client, starts = driver(), range(0, files.bytes, MIB)
    for start in starts:
        client.hset("bare", str(start), BLOCK[: files.bytes - start])
    return [str(start) for start in starts]


def publishing(rounds: int, files: Files) -> list[list[str]]:
    """Publish files. Returns rows of the summary."""
    from django_redis_messaging import FileChannel

    channel = FileChannel("publishing")
    contest = Contest(f"publish, {files.sizes}", rounds)
    contest.add(WRITE, lambda: write_bare(files), prepare=clear)
    contest.add(ORIGINAL, lambda: OriginalFiles("original:", ["reader"]).copy(files.folder), prepare=clear)
    for kind in CHECKSUMS:
        contest.add(
            f"publish, {kind}",
            lambda: channel.publish(files.folder, consumers=["reader"]),
            prepare=lambda kind=kind: (clear(), use_checksum(kind)),
        )
    return run(contest, f"publish {files.kind}", files)


class Readers:
    """Consumers of files that were published with a kind of checksum. They can read them repeatedly, because
    another consumer acks nothing."""

    def __init__(self, files: Files, kind: str | None = CHECKSUMS[0]) -> None:
        from django_redis_messaging import FileChannel

        use_checksum(kind)
        self.files, self.names = files, [f"reader-{number}" for number in range(CONSUMERS)]
        self.channel = FileChannel(f"{files.kind}-{kind}")
        self.channel.publish(files.folder, consumers=[*self.names, "idle"])

    def rewind(self, number: int = 0) -> None:
        """Forget the acks of a consumer."""
        driver().zadd(self.channel._keys.positions, {self.names[number]: 0})

    def read_lines(self, number: int = 0) -> None:
        """Pass each line to a callback."""
        counter = Counter()
        for file in self._files(number):
            for line in file.lines():
                counter.add(line)
            counter.add(None)
        self.files.verify(counter)

    def read_batches(self, number: int = 0) -> None:
        """Pass lists of lines to a callback."""
        counter = Counter()
        for file in self._files(number):
            for batch in file.batches(BATCH):
                counter.add_all(batch)
        self.files.verify(counter)

    def _files(self, number: int) -> Iterator[Any]:
        incoming = self.channel.consume(self.names[number])
        for file in itertools.islice(incoming, len(self.files.paths)):
            yield file
            file.ack()
        incoming.close()


def processing(rounds: int, files: Files) -> list[list[str]]:
    """Process files by one consumer. Returns rows of the summary."""
    client, original = driver(), OriginalFiles("original:", ["reader"])
    fields = write_bare(files)
    original.copy(files.folder)
    original.chat.fetch("reader")  # `announce` sends the names again

    def announce() -> None:
        for path in files.paths:
            original.chat.send(original.channel, "source", path.name)
        original.chat.send(original.channel, "source", ":done")

    def process() -> None:
        counter = Counter()
        original.process("reader", counter.add)
        files.verify(counter)

    contest = Contest(f"process, {files.sizes}", rounds)
    contest.add(READ, lambda: [client.hget("bare", field) for field in fields])
    contest.add(ORIGINAL, process, prepare=announce)
    for kind in CHECKSUMS:
        readers = Readers(files, kind)
        contest.add(f"lines, {kind}", readers.read_lines, prepare=readers.rewind)
        contest.add(f"batches, {kind}", readers.read_batches, prepare=readers.rewind)
    return run(contest, f"process {files.kind}", files)


def run(contest: Contest, title: str, files: Files) -> list[list[str]]:
    """Run a contest, print it, and return rows of the summary."""
    results = contest.run()
    print(results)
    clear()
    rows = []
    for row in results.rows:
        rate = statistics.median(row.rates) * files.content_bytes / MIB
        rows.append([f"{title}: {row.name}", f"{rate:,.0f}", f"{results.speedup(row.name, ORIGINAL):.2f}"])
    return rows


def scaling(rounds: int, files: Files) -> list[list[str]]:
    """Compare consumers in a process each with one. Returns rows of the summary."""
    readers, rows = Readers(files), []
    for name, read in ("lines", readers.read_lines), ("batches", readers.read_batches):
        pairs = [
            (_throughput(readers, read, 1), _throughput(readers, read, CONSUMERS)) for _ in range(rounds)
        ]
        one, all_of_them = (statistics.median(rates) / MIB for rates in zip(*pairs, strict=True))
        ratio = statistics.median(many / one for one, many in pairs)
        rows.append([f"{name}, {files.kind}", f"{one:,.0f}", f"{all_of_them:,.0f}", f"{ratio:.2f}"])
    clear()
    return rows


def _throughput(readers: Readers, read: Callable[[int], None], consumers: int) -> float:
    """Bytes of content per second that consumers process together."""
    begins = time.monotonic() + WARM_UP

    def work(number: int) -> float:
        time.sleep(begins - time.monotonic())
        for _ in range(REPEATS):
            readers.rewind(number)
            read(number)
        return time.monotonic()

    ends = max(processes(consumers, work))
    return consumers * REPEATS * readers.files.content_bytes / (ends - begins)


def main(rounds: int, megabytes: float, parts: Sequence[str]) -> None:
    rows = [["", "MiB/s", "times the original"]]
    consumers = [["", "1 consumer, MiB/s", f"{CONSUMERS} consumers, MiB/s", "ratio"]]
    with tempfile.TemporaryDirectory() as folder, server():
        for kind in ("plain", "gz"):
            files = Files(folder, kind, megabytes)
            rows += publishing(rounds, files) if "publishing" in parts else []
            rows += processing(rounds, files) if "processing" in parts else []
            consumers += scaling(rounds, files) if "scaling" in parts else []
        print(*(f"\n{table(summary)}" for summary in (rows, consumers) if len(summary) > 1), sep="\n")


if __name__ == "__main__":
    all_parts = ("publishing", "processing", "scaling")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=float, default=64, help="size of the files, not compressed")
    parser.add_argument("--parts", nargs="*", choices=all_parts, default=all_parts)
    options = parser.parse_args()
    main(options.rounds, options.megabytes, options.parts)
