"""`manage.py messaging_locks`: the locks, semaphores and read-write locks of a site."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError
from django.test import override_settings

from django_redis_messaging import Latch, Lock, LockNotOwnedError, ReadWriteLock, Semaphore, conf
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.devserver.server import EmbeddedServer

from ..support.leases import waiters, write_lock
from ..support.server import DEADLINE, no_server, server, until
from ..support.terminal import output_of as output_and_errors

#: host and process id, as the tokens of this process begin
HERE = f"{socket.gethostname()[:40]}:{os.getpid()}:"


def output_of(*arguments: str) -> str:
    return output_and_errors("messaging_locks", *arguments)[0]


def rows(*arguments: str) -> Any:
    return json.loads(output_of("--json", *arguments))


def test_nothing_is_held() -> None:
    with Lock("nightly"):
        pass
    server().set(f"{conf.prefix()}:{FORMAT}:{{chat:7}}:fence", "1 - x")  # of something else
    assert output_of() == "No locks are held, and no semaphores are in use.\n"
    assert rows() == {"locks": [], "semaphores": [], "read_write_locks": [], "latches": []}


@pytest.mark.worlds
def test_locks_and_semaphores_are_listed() -> None:
    with Lock("b", timeout=None, key="{shop}:stock"), Lock("a: {x}", timeout=60) as lock:
        with Semaphore("exports", 3):
            until(lambda: rows("a: {x}")["locks"][0]["held_for"] > 0.01)
            first, other = (found := rows())["locks"]
        fence = lock.fence
    assert (first["lock"], first["fence"], first["waiting"], first["next"]) == ("a: {x}", fence, 0, None)
    assert first["holder"].startswith(HERE)
    assert 0.01 < first["held_for"] < DEADLINE
    assert first["lease_left"] == pytest.approx(60 - first["held_for"], abs=0.002)
    assert (other["lock"], other["lease_left"]) == ("{shop}:stock", None)
    assert found["semaphores"] == [{"semaphore": "exports", "limit": 3, "held": 1, "waiting": 0}]


@pytest.mark.worlds
def test_latches_are_listed() -> None:
    Latch("b: {x}", 5).count_down(2)
    Latch("a", 1).count_down()
    assert rows()["latches"] == [
        {"latch": "a", "count": 1, "remaining": 0},
        {"latch": "b: {x}", "count": 5, "remaining": 3},
    ]
    assert [line.split() for line in output_of().splitlines()][:2] == [
        ["latch", "count", "remaining"],
        ["a", "1", "0"],
    ]


def test_waiting_clients_are_counted() -> None:
    lock = Lock("nightly")
    lock.acquire()
    with waiters(lock) as [thread]:
        [row] = rows()["locks"]
        assert row["waiting"] == 1
        assert row["next"].startswith(HERE)
        assert row["waiters"] == [row["next"]]
        lock.release()
        thread.leave()


@pytest.mark.worlds
def test_read_write_locks_are_listed() -> None:
    read, written = ReadWriteLock("b: {x}", timeout=60), write_lock("a", timeout=60)
    with read.read, ReadWriteLock("b: {x}").read, written as lock, waiters(written) as [thread]:
        first, other = rows()["read_write_locks"]
        head, line, _ = output_of().splitlines()
        fence, info = lock.fence, read.info()
        lock.release()
        thread.leave()
        lock.acquire()
    assert first["holders"] == [first["writer"]]
    assert first["writer"].startswith(HERE)
    assert (first["read_write_lock"], first["readers"], first["waiting"], first["fence"]) == (
        "a",
        0,
        1,
        fence,
    )
    assert (other["read_write_lock"], other["writer"], other["readers"]) == ("b: {x}", None, 2)
    assert other["holders"] == [one.token for one in info.holders]
    assert first["lease_left"] == pytest.approx(60, abs=DEADLINE)
    assert other["lease_left"] == pytest.approx(60, abs=DEADLINE)
    assert head.split() == ["read_write_lock", "writer", "readers", "lease_left", "fence", "waiting"]
    assert line.startswith(f"a                {HERE}")


def test_a_table_is_printed() -> None:
    with Lock("nightly"), Semaphore("exports", 3):
        head, lock, blank, other_head, semaphore = output_of().splitlines()
    assert head.split() == ["lock", "holder", "next", "held_for", "lease_left", "fence", "waiting"]
    assert lock.startswith(f"nightly  {HERE}")
    assert blank == ""
    assert other_head.split() == ["semaphore", "limit", "held", "waiting"]
    assert semaphore.split() == ["exports", "3", "1", "0"]


def test_named_locks_are_shown_even_if_they_are_free() -> None:
    with Lock("one"), Lock("two"), Lock("three", key="{k}:three"):
        assert [row["lock"] for row in rows("two", "free")["locks"]] == ["two", "free"]
        assert rows("two", "free")["locks"][1]["holder"] is None
        [row] = rows("--key", "{k}:three")["locks"]
        assert row["holder"].startswith(HERE)


def test_names_are_escaped_for_the_terminal() -> None:
    with Lock("a\x1b[31m\nb"):
        assert "a\\x1b[31m\\nb" in output_of()
        assert rows()["locks"][0]["lock"] == "a\x1b[31m\nb"


def test_a_semaphore_with_waiting_clients_only() -> None:
    semaphore = Semaphore("exports", 3)
    semaphore.set_limit(0)
    Semaphore("unused", 1).set_limit(1)
    with waiters(semaphore) as [thread]:
        assert rows()["semaphores"] == [{"semaphore": "exports", "limit": 0, "held": 0, "waiting": 1}]
        semaphore.set_limit(1)
        thread.leave()


def test_locks_of_another_alias() -> None:
    with EmbeddedServer() as other:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": other.url}
        with override_settings(CACHES={**settings.CACHES, "tasks": entry}), Lock("nightly", using="tasks"):
            assert rows()["locks"] == []
            assert [row["lock"] for row in rows("--using", "tasks")["locks"]] == ["nightly"]
            [named] = rows("--using", "tasks", "nightly")["locks"]
            assert named["holder"].startswith(HERE)
    with pytest.raises(CommandError, match="CACHES has no django-redis entry 'unknown'"):
        output_of("--using", "unknown")


class TestRelease:
    def test_a_lock_of_another_client_is_released(self) -> None:
        lock = Lock("nightly", timeout=None)
        lock.acquire()
        with waiters(lock) as [thread]:
            holder = lock.info().holder
            assert output_of("--release", "nightly") == f"Released the lock nightly, which {holder} held.\n"
            thread.leave()
        with pytest.raises(LockNotOwnedError):
            lock.release()

    def test_releases_of_other_clients_are_still_remembered(self) -> None:
        lock = Lock("nightly")
        lock.acquire(token="before")
        lock.release()
        lock.acquire()
        output_of("--release", "nightly")
        assert lock._leave(b"before")  # a repeat after a lost reply

    def test_a_lock_with_a_key_of_its_own(self) -> None:
        lock = Lock("stock", key="{shop}:stock")
        lock.acquire()
        assert output_of("--key", "--release", "{shop}:stock").startswith("Released the lock {shop}:stock")
        assert not lock.locked()

    def test_what_is_not_held(self) -> None:
        with pytest.raises(CommandError, match="name is empty"):
            output_of("")
        with pytest.raises(CommandError, match="nightly is not held"):
            output_of("--release", "nightly")

    def test_a_lock_that_changed_hands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Lock("nightly").acquire()
        outdated = Lock("nightly").info()
        server().delete(Lock("nightly").key)
        monkeypatch.setattr(Lock, "info", lambda _: outdated)
        with Lock("nightly") as lock:
            with pytest.raises(CommandError, match="another holder by now"):
                output_of("--release", "nightly")
            assert lock.owned()


def test_an_unreachable_server() -> None:
    for arguments in ([], ["nightly"], ["--release", "nightly"]):
        with no_server(), pytest.raises(CommandError, match="Redis was not available"):
            output_of(*arguments)
