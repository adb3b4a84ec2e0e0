"""Functions that other processes run with a semaphore, and the room that it guards."""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import redis

from django_redis_messaging import Semaphore, conf

from .child_processes import Stage, enter

#: number of permits, and of places in the room
LIMIT = 3
#: seconds: longer than a process may stall on a busy machine
LEASE = 3.0


class Room:
    """A room with `LIMIT` places, each a locked file: the kernel unlocks the file of a killed process."""

    def __init__(self, directory: str) -> None:
        self._files = [os.open(f"{directory}/{number}", os.O_RDWR | os.O_CREAT) for number in range(LIMIT)]

    @contextmanager
    def inside(self) -> Iterator[bool]:
        """Take a place for the block; whether one was free."""
        place = next((file for file in self._files if self._lock(file)), None)
        yield place is not None
        if place is not None:
            fcntl.flock(place, fcntl.LOCK_UN)

    def _lock(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def work(stage: Stage, directory: str, seed: int) -> None:
    """Enter and leave the room under the semaphore until killed."""
    enter(stage)
    room, chance, client = Room(directory), random.Random(seed), redis.Redis.from_url(stage.url)
    semaphore, prefix = Semaphore("room", LIMIT, timeout=LEASE, blocking=True), conf.prefix()
    while True:
        with semaphore, room.inside() as found:
            client.incr(f"{prefix}:{'passed' if found else 'crowded'}")
            time.sleep(chance.uniform(0, 0.003))


def hold(stage: Stage, lease: float, connection: Connection) -> None:
    """Acquire a permit and keep it."""
    enter(stage)
    connection.send(Semaphore("room", 1, timeout=lease).acquire())
    connection.recv()


def wait(stage: Stage) -> None:
    """Wait for a permit."""
    enter(stage)
    Semaphore("room", 1).acquire(blocking=True)
