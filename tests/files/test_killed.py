"""A file channel whose consumers and publisher are killed and stopped: each file arrives at each consumer."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import redis

from django_redis_messaging import Aggregator, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.files.keys import FileChannelKeys, FileKeys
from tests.support.pytest_hooks import LONG

from ..support import child_processes, file_processes
from ..support.faults import Connect, processes

logger = logging.getLogger(__name__)
pytestmark = [pytest.mark.one_server, pytest.mark.promise]

CONSUMERS = ("c0", "c1", "c2", "c3")
CHANNEL = "killed"
#: seconds that a file may take to arrive, also on a busy machine
PATIENCE = 900.0 if LONG else 120.0
#: how often a process may fail, on a busy machine by losing its lease
MAX_FAILURES = 10

#: the bytes that are stored, those that are reserved, and the limit: at one moment
MEASURE = """
local stored, cursor = 0, '0'
repeat
  local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    for _, field in ipairs(redis.call('HKEYS', key)) do
      stored = stored + redis.call('HSTRLEN', key, field)
    end
  end
until cursor == '0'
return {stored, redis.call('HGET', KEYS[1], 'used') or '0'}
"""


@dataclass(frozen=True)
class Form:
    """How large the test is. Sizes are in bytes."""

    total: int
    file: int
    block: int
    limit: int
    #: how often a consumer and the publisher are killed
    kills: int
    publisher_kills: int
    #: seconds: the longest time between the first file of a process and its end
    pause: float
    #: seconds
    lease: float
    #: whether the publisher knows the names of the consumers, or only their number
    is_named: bool
    #: seconds that a consumer works on a block
    work: float


SMALL = Form(
    total=3 * 2**20, file=2**17, block=2**15, limit=2**19, kills=3, publisher_kills=1, pause=0.1, lease=0.5,
    is_named=False, work=0.004,
)  # fmt: skip
LARGE = Form(
    total=2 * 2**30, file=2**24, block=2**20, limit=2**26, kills=20, publisher_kills=5, pause=1.0, lease=1.0,
    is_named=True, work=0.0,
)  # fmt: skip


@contextmanager
def sampled(raw: redis.Redis, limit: int) -> Iterator[None]:
    """Measures the stored bytes all the time: they are reserved, and up to the limit."""
    keys, ended, samples = FileChannelKeys(conf.prefix(), CHANNEL), threading.Event(), list[list[int]]()
    measure = raw.register_script(MEASURE)

    def run() -> None:
        while not ended.wait(0.005):
            found = measure([keys.state], [f"{FileKeys(conf.prefix(), CHANNEL).tag[:-1]}/*"])
            samples.append([int(number) for number in found])

    with ThreadPoolExecutor(1) as pool:
        measuring = pool.submit(run)
        try:
            yield
        finally:
            ended.set()
        measuring.result()
    assert [(stored, used) for stored, used in samples if not stored <= used <= limit] == []
    largest = max(stored for stored, _ in samples)
    logger.info("at most %d of %d bytes in %d samples", largest, limit, len(samples))
    assert largest > limit / 2, "the limit was not reached: the test is inconclusive"


class Site:
    """The processes of a channel. Whatever ends with an error is started again, as a supervisor does."""

    def __init__(self, stage: child_processes.Stage, form: Form, folder: Path) -> None:
        self._stage, self._form, self._folder = stage, form, folder
        self.processes: dict[str, BaseProcess] = {}
        self.failures: Counter[str] = Counter()
        #: those that were stopped, and continue beside their successors
        self.late: list[BaseProcess] = []
        for name in ("publisher", *CONSUMERS):
            self.start(name)

    def start(self, name: str) -> BaseProcess:
        if name == "publisher":
            target: Callable[..., None] = file_processes.publish
            consumers = CONSUMERS if self._form.is_named else len(CONSUMERS)
            arguments: tuple[Any, ...] = (str(self._folder / "logs"), consumers, self._form.limit)
        else:
            target = file_processes.consume
            arguments = name, str(self._folder / name), self._form.work, name == "c0"
        arguments = self._stage, CHANNEL, self._form.lease, *arguments
        process = processes.Process(target=target, args=arguments, daemon=True)
        process.start()
        self.processes[name] = process
        return process

    def lines(self, name: str) -> list[str]:
        """What a consumer has logged."""
        log = self._folder / name
        return log.read_text().splitlines() if log.exists() else []

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.kill()
        process.join(PATIENCE)
        self.start(name)

    def supervise(self) -> None:
        for name, process in list(self.processes.items()):
            if process.exitcode:
                self.failures[name] += 1
                assert self.failures[name] < MAX_FAILURES, f"{name} fails again and again"
                self.start(name)

    def wait_for(self, condition: Callable[[], object]) -> None:
        ends = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < ends, "it did not happen in time"
            self.supervise()
            time.sleep(0.005)

    def has_ended(self) -> bool:
        return all(process.exitcode == 0 for process in self.processes.values())

    def stop_and_replace(self, name: str) -> None:
        """Stop a process for longer than its lease, until another one has taken over, and continue it."""
        process = self.processes[name]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        before = len(self.lines(name))
        self.start(name)
        self.wait_for(lambda: len(self.lines(name)) > before)
        os.kill(process.pid, signal.SIGCONT)
        self.late.append(process)

    def close(self) -> None:
        for process in (*self.processes.values(), *self.late):
            process.kill()
            process.join(PATIENCE)


@pytest.fixture
def raw(lasting: EmbeddedServer) -> Iterator[redis.Redis]:
    with lasting.client() as raw:
        yield raw


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.parametrize("form", [SMALL, pytest.param(LARGE, marks=pytest.mark.long)], ids=["small", "large"])
def test_each_file_arrives_at_each_consumer(
    form: Form, tmp_path: Path, lasting: EmbeddedServer, connect: Connect, raw: redis.Redis
) -> None:
    stage = connect(lasting, FILES_BLOCK_BYTES=form.block)
    logs = tmp_path / "logs"
    logs.mkdir()
    requests = file_processes.generate_logs(logs, form.total, form.file)
    expected = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in logs.iterdir()}
    site = None
    try:
        with sampled(raw, form.limit):
            site = Site(stage, form, tmp_path)
            disturb(site, form)
            site.wait_for(site.has_ended)
        logger.info(
            "%d files, %d failures of processes that were not killed", len(expected), site.failures.total()
        )
        check_logs(site, form, expected)
        check_counts(requests, len(expected))
        [late] = site.late
        late.join(PATIENCE)
        assert late.exitcode == 1, "it did not notice that its lease was lost"
    finally:
        if site is not None:
            site.close()
        shutil.rmtree(logs)
    for tag in (FileChannelKeys(conf.prefix(), CHANNEL).tag, FileKeys(conf.prefix(), CHANNEL).tag[:-1] + "/"):
        assert list(raw.scan_iter(match=f"{tag}*", count=1000)) == []


def disturb(site: Site, form: Form) -> None:
    """Kill a consumer at random moments, and sometimes the publisher; stop another consumer once."""
    chance = random.Random(2)
    victims = ["c0"] * form.kills + ["publisher"] * form.publisher_kills + ["c1"]
    chance.shuffle(victims)
    for victim in victims:
        before = len(site.lines("c0"))
        # sometimes it is killed while it waits for the lease of its predecessor
        if chance.random() < 0.7:
            site.wait_for(lambda before=before: len(site.lines("c0")) > before)  # type: ignore[misc]
        time.sleep(chance.uniform(0, form.pause))
        assert not site.has_ended(), "too few were killed: the test is inconclusive"
        if victim == "c1":
            site.stop_and_replace(victim)
        else:
            site.kill(victim)


def check_logs(site: Site, form: Form, expected: dict[str, str]) -> None:
    ids: dict[str, set[str]] = {}
    for name in CONSUMERS:
        lines = site.lines(name)
        assert "corrupt" not in lines
        assert lines.count("end") == 1
        files = [line.split() for line in lines if " " in line]
        assert {file: digest for _, file, digest in files} == expected
        for file_id, file, digest in files:
            assert digest == expected[file]
            ids.setdefault(file, set()).add(file_id)
        order = [int(file_id) for file_id, *_ in files]
        repeated = sum(after <= before for before, after in itertools.pairwise(order))
        assert repeated <= form.kills + site.failures[name] + 1
        if name not in ("c0", "c1") and not site.failures[name]:
            assert repeated == 0
    assert all(len(found) == 1 for found in ids.values()), "a file was announced twice"


def check_counts(requests: Counter[tuple[str, str]], files: int) -> None:
    """Each line is counted once, though the process that counted was killed."""
    counter, found = Aggregator(CHANNEL), Counter[tuple[str, str]]()
    for day in counter.periods():
        for row in counter.top(day, 1000):
            found[day, row.key] = row.count
    assert found == requests
    assert counter.malformed() == files
