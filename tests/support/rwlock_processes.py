"""Functions that other processes run with a read-write lock, and what it guards."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

import redis

from django_redis_messaging import LockNotOwnedError, ReadWriteLock, conf

from .child_processes import Stage, enter

#: seconds: longer than a process may stall on a busy machine
LEASE = 2.0


class Shelf:
    """A locked file: the kernel lets several processes read or one write, and unlocks it when a process is
    killed."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)

    @contextmanager
    def used(self, *, writes: bool) -> Iterator[bool]:
        """Use it for the block; whether no other use conflicts."""
        free = True
        try:
            fcntl.flock(self._file, (fcntl.LOCK_EX if writes else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        yield free
        if free:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def work(stage: Stage, path: str, seed: int) -> None:
    """Read and write under the lock until killed. Count the uses, the conflicts, and the writers whose fence
    is not greater than all before."""
    enter(stage)
    shelf, chance, client = Shelf(path), random.Random(seed), redis.Redis.from_url(stage.url)
    lock, prefix = ReadWriteLock("shelf", timeout=LEASE), conf.prefix()
    while True:
        writes = chance.random() < 0.3
        side = lock.write if writes else lock.read
        with suppress(LockNotOwnedError), side, shelf.used(writes=writes) as free:
            client.incr(f"{prefix}:{'conflicts' if not free else 'writes' if writes else 'reads'}")
            if writes and float(client.zscore(f"{prefix}:fences", "latest") or 0) >= side.fence:
                client.incr(f"{prefix}:stale")
            client.zadd(f"{prefix}:fences", {"latest": side.fence}, gt=True)
            time.sleep(chance.uniform(0, 0.003))
            if lock.info().readers > 1:
                client.incr(f"{prefix}:shared")


def hold(stage: Stage, side: str, lease: float, connection: Connection) -> None:
    """Acquire the lock and keep it."""
    enter(stage)
    connection.send(getattr(ReadWriteLock("shelf", timeout=lease), side).acquire())
    connection.recv()


def wait(stage: Stage, side: str) -> None:
    """Wait for the lock."""
    enter(stage)
    getattr(ReadWriteLock("shelf"), side).acquire()
