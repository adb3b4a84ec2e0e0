"""redis-py's own tests of its Lock, sync and async, run with our lock.

They exist only in redis-py's source distribution: see sources.py. The import of their Lock is replaced by
ours; nothing else is changed.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio
import redis
import redis.asyncio

from django_redis_messaging.core import clients

from . import locks
from .sources import find_source, missing_source

HERE = "tests.conformance.locks"
#: replacements in the text of the tests
REPLACEMENTS = {
    "from redis.lock import Lock\n": f"from {HERE} import Lock\n",
    "from redis.asyncio.lock import Lock\n": f"from {HERE} import AsyncLock as Lock\n",
    "from .conftest import _get_client\n": f"from {HERE} import _get_client\n",
    # a marker of redis-py's own
    "@pytest.mark.onlynoncluster\n": "",
}
#: why tests that replace the clock and the sleep of redis-py's module are skipped
SLEEPS = "it tests how redis-py's lock sleeps between two polls; our lock does not poll"

REASON = missing_source("redis")


def cases(path: str, name: str) -> dict[str, type]:
    """The test classes of one module, with our lock, under names of their own."""
    source = (find_source("redis") or Path()) / "tests" / path
    text = source.read_text(encoding="utf-8")
    for old, new in REPLACEMENTS.items():
        text = text.replace(old, new)
    sys.modules[name] = module = ModuleType(name)
    exec(compile(text, source, "exec"), module.__dict__)  # noqa: S102
    return {key: value for key, value in vars(module).items() if key.startswith("Test")}


class WithoutFlush(redis.asyncio.Redis):
    """The server is not theirs alone."""

    async def flushall(self, *_: Any, **__: Any) -> bool:
        return bool(await self.delete("foo"))


@pytest.fixture(autouse=True)
def tidy(own_prefix: str) -> Iterator[None]:
    """Nothing is left of the key that all of them use."""
    with redis.Redis.from_url(locks.server_url()) as client:
        client.delete("foo")
        yield
        client.delete("foo")


if REASON is None:
    # pytest collects them from here

    class TestBlocking(cases("test_lock.py", "redis_lock_tests")["TestLock"]):  # type: ignore[misc]
        @pytest.fixture
        def r(self) -> Iterator[redis.Redis]:
            with redis.Redis.from_url(locks.server_url()) as client:
                yield client

        @pytest.fixture
        def fake_lock_time(self) -> None:
            pytest.skip(SLEEPS)

    class TestAsync(cases("test_asyncio/test_lock.py", "redis_asyncio_lock_tests")["TestLock"]):  # type: ignore[misc]
        @pytest_asyncio.fixture
        async def create_redis(self) -> AsyncIterator[Callable[..., Awaitable[WithoutFlush]]]:
            made = []

            async def create(**options: Any) -> WithoutFlush:
                made.append(WithoutFlush.from_url(locks.server_url(), **options))
                return made[-1]

            yield create
            for client in made:
                await client.aclose()
            await clients.aclose()

        @pytest_asyncio.fixture
        async def r(self, create_redis: Callable[..., Awaitable[WithoutFlush]]) -> WithoutFlush:
            return await create_redis()

        @pytest.fixture
        def fake_lock_time(self) -> None:
            pytest.skip(SLEEPS)


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
def test_both_forms_are_here() -> None:
    for name, minimum in {"TestBlocking": 30, "TestAsync": 25}.items():
        assert sum(test.startswith("test_") for test in dir(globals()[name])) >= minimum
