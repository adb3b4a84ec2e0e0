"""Defects of the original design of the lock that this implementation avoids."""

from __future__ import annotations

import uuid
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest

from django_redis_messaging import Lock, LockNotOwnedError, conf

from ..support.server import reply_to, server, steps

#: seconds
TIMEOUT = 10


class Original:
    """SETNX with the holder's token, then EXPIRE; a waiting client tries again after a pause, and gives a
    TTL to a lock that has none. The release compares the token in a transaction that watches the key."""

    def __init__(self) -> None:
        self.key = f"{conf.prefix()}:lock:original"
        self.token = uuid.uuid4().hex.encode()

    def acquire(self) -> Generator[None, None, None]:
        """Yields between SETNX and EXPIRE, and where it pauses."""
        while not server().setnx(self.key, self.token):
            if server().ttl(self.key) == -1:
                server().expire(self.key, TIMEOUT)
            yield
        yield
        server().expire(self.key, TIMEOUT)

    def release(self) -> bool:
        with server().pipeline() as transaction:
            transaction.watch(self.key)
            if transaction.get(self.key) != self.token:
                return False
            transaction.multi()
            transaction.delete(self.key)
            return bool(transaction.execute()[0])

    @property
    def owned(self) -> bool:
        return bool(server().get(self.key) == self.token)


class Resource:
    """What the lock protects. It rejects a smaller fence than it has seen, if its clients have fences."""

    def __init__(self) -> None:
        self.writers: list[str] = []
        self._newest = 0

    def write(self, writer: str, *, fence: int = 0) -> bool:
        accepted = fence >= self._newest
        if accepted:
            self._newest = fence
            self.writers.append(writer)
        return accepted


def finish(acquiring: Generator[None, None, None]) -> None:
    for _ in acquiring:
        pass


def begin(lock: Lock, token: str, *, blocking: bool = True) -> tuple[Any, Any]:
    """An acquire, and the reply to its first step."""
    body = steps(lock._acquire, lock._attempt(blocking, None, token))
    return body, reply_to(next(body))


class TestDeathWhileAcquiring:
    """A client dies while it acquires the lock."""

    def test_the_original_is_held_for_ever(self) -> None:
        """Until another client comes, which makes it wait for a whole lease."""
        dead, other = Original(), Original()
        next(dead.acquire())
        assert server().ttl(dead.key) == -1
        next(other.acquire())
        assert TIMEOUT - 2 < server().ttl(dead.key) <= TIMEOUT

    def test_ours_has_its_lease_from_the_beginning(self) -> None:
        """Each acquire is one script."""
        lock = Lock("door", timeout=TIMEOUT)
        body, fence = begin(lock, "dead")
        body.close()
        assert fence > 0
        assert 1000 * (TIMEOUT - 2) < server().pttl(lock.key) <= 1000 * TIMEOUT

    def test_ours_is_handed_over_for_a_moment_only(self) -> None:
        """A waiting client dies before it learns that it has the lock."""
        lock = Lock("door", timeout=1000)
        assert lock.acquire()
        body, _ = begin(Lock("door", timeout=1000), "dead")
        body.close()
        lock.release()
        assert server().get(lock.key) == b"dead"
        assert 0 < server().pttl(lock.key) <= 1000


class TestSlowAcquire:
    """A client is suspended while it acquires the lock, until another client has acquired it."""

    def test_the_original_changes_the_lease_of_another_client(self) -> None:
        slow, other = Original(), Original()
        acquiring = slow.acquire()
        next(acquiring)
        trying = other.acquire()
        next(trying)  # it gives the lock a TTL
        server().delete(slow.key)  # which ends
        finish(trying)
        server().pexpire(other.key, 100 * 1000 * TIMEOUT)  # it needs more time
        finish(acquiring)
        assert not slow.owned, "it has acquired it, according to its own view"
        assert server().ttl(other.key) <= TIMEOUT

    def test_ours_changes_nothing_of_another_client(self) -> None:
        slow, other = Lock("door", timeout=TIMEOUT), Lock("door", timeout=1000)
        assert other.acquire()
        body = steps(slow._acquire, slow._attempt(False, None, "slow"))
        step = next(body)
        for _ in range(2):  # also if the reply is lost
            assert reply_to(step) == 0
        assert server().pttl(slow.key) > 900_000
        assert other.owned()


class TestLateHolder:
    """The lease of a holder ends while it works, and another client acquires the lock."""

    def test_the_original_cannot_reject_a_late_write(self) -> None:
        """The late holder is noticed when it releases the lock: after its write."""
        late, other = Original(), Original()
        finish(late.acquire())
        server().delete(late.key)  # its lease ends
        finish(other.acquire())
        resource = Resource()
        assert resource.write("other")
        assert resource.write("late")
        assert not late.release()
        assert other.owned

    def test_our_fence_rejects_a_late_write(self) -> None:
        late, other, resource = Lock("door"), Lock("door"), Resource()
        assert late.acquire()
        server().delete(late.key)
        assert other.acquire()
        assert resource.write("other", fence=other.fence)
        assert not resource.write("late", fence=late.fence)
        assert resource.writers == ["other"]
        with suppress(LockNotOwnedError):
            late.release()
        assert other.owned()

    @pytest.mark.parametrize("verb", ["release", "extend", "reacquire"])
    def test_ours_rejects_a_late_holder(self, verb: str) -> None:
        late, other = Lock("door"), Lock("door", timeout=1000)
        assert late.acquire()
        server().delete(late.key)
        assert other.acquire()
        with pytest.raises(LockNotOwnedError):
            getattr(late, verb)(*([TIMEOUT] if verb == "extend" else []))
        assert other.owned()
        assert server().pttl(other.key) > 900_000


class TestOrder:
    """A client waits for the lock, and a newcomer comes when it is released."""

    def test_in_the_original_a_newcomer_overtakes(self) -> None:
        holder, waiting, newcomer = Original(), Original(), Original()
        finish(holder.acquire())
        trying = waiting.acquire()
        for _ in range(3):
            next(trying)
        holder.release()
        finish(newcomer.acquire())
        next(trying)
        assert newcomer.owned, "the other one may wait for ever"

    @pytest.mark.parametrize("ended_by", ["release", "expiry"])
    def test_in_ours_it_does_not(self, ended_by: str) -> None:
        holder, newcomer = Lock("door"), Lock("door")
        assert holder.acquire()
        waiting = Lock("door")
        body, reply = begin(waiting, "first")
        listen = body.send(reply)
        if ended_by == "release":
            holder.release()
        else:
            server().delete(holder.key)
        assert not newcomer.acquire(blocking=False)
        woken = server().execute_command(*listen.words)
        assert woken, "it is woken: it doesn't poll"
        with pytest.raises(StopIteration) as ended:
            body.send(reply_to(body.send(woken)))
        assert ended.value.value > holder.fence


def test_a_release_is_repeated_after_releases_of_other_clients() -> None:
    """Its first reply was lost. Only the latest release was remembered once."""
    lock, other = Lock("door"), Lock("door")
    assert lock.acquire()
    body = steps(lock.release)
    step = next(body)
    assert reply_to(step) == 1
    for _ in range(5):
        with other:
            pass
    with pytest.raises(StopIteration):
        body.send(reply_to(step))
