"""Functions that other processes run with locks."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import redis

from django_redis_messaging import Lock, LockNotOwnedError, MultiLock, conf
from django_redis_messaging.core.encoding import FORMAT

from . import child_processes

if TYPE_CHECKING:  # it takes long to import
    from tests.support.scripts import Plant

#: seconds: the lease of holders that are stopped
LEASE = 0.15

#: the protected resource: it refuses a fence smaller than the largest one seen, or an equal one of another
#: process, and records every caller
WRITE = """
redis.call('RPUSH', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
local fence, who = string.match(redis.call('GET', KEYS[1]) or '0 -', '(%d+) (%S+)')
if tonumber(ARGV[1]) < tonumber(fence) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
redis.call('RPUSH', KEYS[3], ARGV[1] .. ' ' .. ARGV[2])
return 1
"""


def count_up(url: str, name: str, times: int) -> list[int]:
    """Read a number and write the next one, which no other process may do in between; the fences."""
    fences, key = [], f"{conf.prefix()}:{FORMAT}:number"
    with redis.Redis.from_url(url) as client:
        for _ in range(times):
            with Lock(name) as lock:
                before = int(client.get(key) or 0)
                client.set(key, before + 1)
                fences.append(lock.fence)
    return fences


def write_late(url: str, prefix: str) -> int:
    """Acquire the lock and write to the resource, possibly after the lease has ended; the number of accepted
    writes."""
    taken, lock = 0, Lock("resource", timeout=LEASE)
    names = [f"{prefix}:{FORMAT}:{part}" for part in ("newest", "came", "taken")]
    with redis.Redis.from_url(url) as client:
        write, who = client.register_script(WRITE), os.getpid()
        client.sadd(f"{prefix}:{FORMAT}:pids", who)
        while not client.exists(f"{prefix}:{FORMAT}:over"):
            lock.acquire()
            client.set(f"{prefix}:{FORMAT}:holder", who)
            time.sleep(0.002)  # the work: the process is stopped here
            taken += write(names, [lock.fence, who])
            with suppress(LockNotOwnedError):
                lock.release()
    return taken


def wait_for(stage: child_processes.Stage, name: str) -> None:
    """Join the waiting list, then hold the lock until killed."""
    child_processes.enter(stage)
    Lock(name, timeout=1000).acquire()
    signal.pause()


#: seconds: the lease of holders that are killed at random
SHORT_LEASE = 0.5


def work_until_killed(stage: child_processes.Stage, renew: bool, mistake: Plant | None) -> None:
    """Acquire, hold and release a lock again and again, and list the fence of each acquire."""
    child_processes.enter(stage)
    if mistake:
        from pytest import MonkeyPatch  # not at the top: it takes long to import

        from .scripts import planted

        planted(mistake, MonkeyPatch())
    lock, chance = Lock("door", timeout=SHORT_LEASE, renew=renew), random.Random(os.getpid())
    fences = f"{conf.prefix()}:{FORMAT}:fences"
    with redis.Redis.from_url(stage.url) as client:
        for number in itertools.count():
            lock.acquire(token=f"{os.getpid()} {number}")
            client.rpush(fences, lock.fence)
            # some work takes longer than the lease, if it is renewed
            time.sleep(chance.choice([0.001] * 6 + [1.5 * SHORT_LEASE if renew else 0.1]))
            with suppress(LockNotOwnedError):  # on a busy machine
                lock.release()


def count_up_several(url: str, names: list[str], times: int, seed: int) -> list[tuple[str, int]]:
    """As `count_up`, for random ones of several numbers at a time; each name with its fences."""
    chance, found, prefix = random.Random(seed), list[tuple[str, int]](), f"{conf.prefix()}:{FORMAT}"
    with redis.Redis.from_url(url) as client:
        for _ in range(times):
            with MultiLock(chance.sample(names, chance.randint(1, 3))) as held:
                before = {name: int(client.get(f"{prefix}:{name}") or 0) for name in held.names}
                for name, number in before.items():
                    client.set(f"{prefix}:{name}", number + 1)
                found += held.fences.items()
    return found


def hold_several_until_killed(stage: child_processes.Stage, names: list[str]) -> None:
    """Acquire, hold and release some of the locks again and again, and list the fence of each acquire."""
    child_processes.enter(stage)
    chance, prefix = random.Random(os.getpid()), f"{conf.prefix()}:{FORMAT}"
    with redis.Redis.from_url(stage.url) as client:
        while True:
            several = MultiLock(chance.sample(names, chance.randint(1, 3)), timeout=SHORT_LEASE)
            several.acquire()
            for name, fence in several.fences.items():
                client.rpush(f"{prefix}:fences:{name}", fence)
            time.sleep(chance.choice([0.001, 0.05]))
            with suppress(LockNotOwnedError):  # on a busy machine
                several.release()


def wait_for_several(stage: child_processes.Stage, names: list[str]) -> None:
    """Hold several locks until killed, or wait for them."""
    child_processes.enter(stage)
    MultiLock(names, timeout=SHORT_LEASE).acquire()
    signal.pause()
