"""The loops that call what jobs name: what is called, tried again, buried, kept, and survived."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging.core import clients
from django_redis_messaging.core.embedded import EmbeddedServer
from django_redis_messaging.errors import ConfigurationError, MessagingError
from django_redis_messaging.services.jobs import DelayQueue, consuming
from django_redis_messaging.testing import close_connections

from .asking import DEADLINE, change, server

pytestmark = pytest.mark.usefixtures("closing")

Works = Callable[..., Any]


@pytest.fixture(autouse=True)
def soon(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes long."""
    change(settings, JOB_BACKOFF=0.01)
    monkeypatch.setattr(consuming, "STOP_INTERVAL", 0.05)


@pytest.fixture
def queue() -> DelayQueue:
    return DelayQueue("calls")


@pytest.fixture(params=["work", "awork"])
def working(request: pytest.FixtureRequest) -> Works:
    """A loop that runs beside the test, and is told to stop at its end."""

    @asynccontextmanager
    async def run(queue: DelayQueue, callables: dict[str, Any], **options: Any) -> AsyncIterator[None]:
        stop = threading.Event()

        def loop() -> None:
            queue.work(callables, stop=stop, **options)
            clients.close()

        if request.param == "awork":
            running: Awaitable[None] = asyncio.ensure_future(queue.awork(callables, stop=stop, **options))
        else:
            running = asyncio.ensure_future(asyncio.to_thread(loop))
        try:
            yield
        finally:
            stop.set()
            async with asyncio.timeout(DEADLINE):
                await running

    return run


async def aware(holds: Callable[[], Any]) -> None:
    """Wait until something holds, while other tasks go on."""
    async with asyncio.timeout(DEADLINE):
        while not (await found if inspect.isawaitable(found := holds()) else found):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def is_empty(queue: DelayQueue) -> bool:
    stats = await queue.astats()
    return stats.ready == stats.delayed == stats.leased == 0


async def test_callables_get_their_args(working: Works, queue: DelayQueue) -> None:
    calls: list[Any] = []
    async with working(queue, {"none": lambda: calls.append(()), "two": lambda *args: calls.append(args)}):
        queue.execute_later("none")
        await queue.aexecute_later("two", [2**53 + 1, {"a": [[], {}]}])
        queue.execute_later("two", ("😀", None))
        await aware(lambda: is_empty(queue))
    assert calls == [(), (2**53 + 1, {"a": [[], {}]}), ("😀", None)]
    assert (await queue.astats()).dead == 0


async def test_coroutines_are_awaited(queue: DelayQueue) -> None:
    called, stop = [], asyncio.Event()

    async def say(word: str) -> None:
        await asyncio.sleep(0)
        called.append(word)
        stop.set()

    queue.execute_later("say", ["hi"])
    async with asyncio.timeout(DEADLINE):
        await queue.awork({"say": say}, stop=stop)
    assert called == ["hi"]
    assert await is_empty(queue)


async def say_nothing() -> None: ...


class SaysNothing:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize("function", [say_nothing, functools.partial(say_nothing), SaysNothing()])
def test_where_nothing_awaits_them_they_are_refused_at_once(function: Any, queue: DelayQueue) -> None:
    queue.execute_later("say")
    with pytest.raises(TypeError, match="'say' is a coroutine function: use awork"):
        queue.work({"plain": lambda: None, "say": function})
    assert queue.stats().ready == 1


async def test_a_function_that_returns_one_fails_unless_it_is_awaited(working: Works) -> None:
    queue, called = DelayQueue("calls", max_attempts=1), []

    async def say() -> None:
        called.append("hi")

    queue.execute_later("say")
    async with working(queue, {"say": lambda: say()}):
        await aware(lambda: queue.stats().dead or called)
    assert queue.stats().dead == 1 - len(called)
    assert await is_empty(queue)


async def test_callable_objects_are_awaited_too(queue: DelayQueue) -> None:
    stop = asyncio.Event()

    class Stops:
        async def __call__(self) -> None:
            await asyncio.sleep(0)
            stop.set()

    queue.execute_later("stop")
    async with asyncio.timeout(DEADLINE):
        await queue.awork({"stop": Stops()}, stop=stop)
    assert await is_empty(queue)


@pytest.mark.timing
async def test_with_a_delay_and_a_priority(working: Works, queue: DelayQueue) -> None:
    calls: list[str] = []
    began = time.monotonic()
    queue.execute_later("call", ["late"], delay=0.1, priority=100)
    queue.execute_later("call", ["low"], priority=-1)
    queue.execute_later("call", ["high"], priority=1)
    async with working(queue, {"call": calls.append}):
        await aware(lambda: len(calls) == 3)
    assert calls == ["high", "low", "late"]
    assert time.monotonic() - began >= 0.1


async def test_any_payload_of_this_form_is_called(working: Works, queue: DelayQueue) -> None:
    calls: list[str] = []
    queue.push(["call", ["x"]])
    async with working(queue, {"call": calls.append}):
        await aware(lambda: calls == ["x"])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (["unknown", []], "No callable is registered as 'unknown'."),
        (["__import__", ["os"]], "No callable is registered as '__import__'."),
        (["call"], "The payload is not [name, args]."),
        (["call", {"x": 1}], "The payload is not [name, args]."),
        ([["call"], []], "The payload is not [name, args]."),
        ("call", "The payload is not [name, args]."),
        (None, "The payload is not [name, args]."),
    ],
)
async def test_what_names_nothing_is_buried_and_the_loop_goes_on(
    payload: Any, reason: str, working: Works, queue: DelayQueue, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    job_id = queue.push(payload)
    queue.execute_later("call", ["next"])
    async with working(queue, {"call": calls.append}):
        await aware(lambda: calls == ["next"])
    [dead] = queue.dead()
    assert (dead.id, dead.data, dead.attempts, dead.reason) == (job_id, payload, 1, reason)
    [record] = [record for record in caplog.records if record.name == consuming.__name__]
    assert record.levelno == logging.ERROR
    assert job_id in record.getMessage()


async def test_a_log_line_is_one_line(
    working: Works, queue: DelayQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push("nothing", job_id="a\nCRITICAL forged")
    async with working(queue, {}):
        await aware(lambda: queue.stats().dead == 1)
    assert ["\n" in record.getMessage() for record in caplog.records] == [False]


@pytest.mark.timing
async def test_what_raises_is_tried_again_later_each_time(
    working: Works, queue: DelayQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    delay = consuming.retry_delay
    monkeypatch.setattr(
        consuming, "retry_delay", lambda attempts: pauses.append(delay(attempts)) or pauses[-1]
    )
    began: list[float] = []

    def fail_twice() -> None:
        began.append(time.monotonic())
        if len(began) < 3:
            raise RuntimeError("not yet")

    queue.execute_later("call")
    async with working(queue, {"call": fail_twice}):
        await aware(lambda: is_empty(queue))
    assert len(began) == 3
    assert 0.005 <= pauses[0] <= 0.01
    assert 0.01 <= pauses[1] <= 0.02
    assert [began[at + 1] - began[at] >= pauses[at] for at in range(2)] == [True, True]
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert queue.stats().dead == 0


def test_pauses_double_up_to_the_longest(settings: Settings) -> None:
    change(settings, JOB_BACKOFF=1, JOB_BACKOFF_MAX=60)
    for attempts, longest in ((1, 1), (2, 2), (5, 16), (7, 60), (10_000, 60)):
        pauses = [consuming.retry_delay(attempts) for _ in range(50)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


async def test_what_always_raises_is_dead_in_the_end(working: Works) -> None:
    queue = DelayQueue("calls", max_attempts=3)
    queue.execute_later("divide", [1, 0])
    async with working(queue, {"divide": lambda a, b: a / b}):
        await aware(lambda: queue.stats().dead == 1)
    assert queue.dead()[0].attempts == 3


async def test_wrong_args_are_a_failure(working: Works) -> None:
    queue = DelayQueue("calls", max_attempts=1)
    queue.execute_later("none", ["too", "many"])
    async with working(queue, {"none": lambda: None}):
        await aware(lambda: queue.stats().dead == 1)


@pytest.mark.timing
class TestLease:
    async def test_kept_while_a_callable_runs(self, queue: DelayQueue) -> None:
        """Longer than the lease, while somebody else asks for jobs."""
        calls: list[str] = []
        going, stop = threading.Event(), threading.Event()

        def slow() -> None:
            calls.append("slow")
            assert going.wait(DEADLINE)

        def loop() -> None:
            queue.work({"slow": slow}, stop=stop, lease=1.0)
            clients.close()

        queue.execute_later("slow")
        with ThreadPoolExecutor() as pool:
            running = pool.submit(loop)
            try:
                await aware(lambda: calls)
                assert queue.pop(wait=1.5) == []
            finally:
                stop.set()
                going.set()
            running.result(DEADLINE)
        assert calls == ["slow"]
        assert await is_empty(queue)

    async def test_kept_while_a_coroutine_runs(self, queue: DelayQueue) -> None:
        calls: list[str] = []
        going, stop = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            calls.append("slow")
            await going.wait()
            stop.set()

        queue.execute_later("slow")
        running = asyncio.ensure_future(queue.awork({"slow": slow}, stop=stop, lease=1.0))
        await aware(lambda: calls)
        assert await queue.apop(wait=1.5) == []
        going.set()
        async with asyncio.timeout(DEADLINE):
            await running
        assert calls == ["slow"]
        assert await is_empty(queue)

    async def test_kept_while_a_function_blocks_beside_an_event_loop(self, queue: DelayQueue) -> None:
        calls: list[str] = []
        going, stop = threading.Event(), threading.Event()

        def slow() -> None:
            calls.append("slow")
            assert going.wait(DEADLINE)

        queue.execute_later("slow")
        running = asyncio.ensure_future(queue.awork({"slow": slow}, stop=stop, lease=1.0))
        try:
            await aware(lambda: calls)
            assert await queue.apop(wait=1.5) == []
        finally:
            stop.set()
            going.set()
        async with asyncio.timeout(DEADLINE):
            await running
        assert calls == ["slow"]
        assert await is_empty(queue)

    async def test_a_lost_one_is_told(
        self, working: Works, queue: DelayQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue.execute_later("purge")
        async with working(queue, {"purge": lambda: queue.purge()}):
            await aware(lambda: "its lease was lost" in caplog.text)

    async def test_no_keeper_is_left(self, working: Works) -> None:
        queue = DelayQueue("calls", max_attempts=1)
        queue.execute_later("fine")
        queue.execute_later("raises")
        async with working(queue, {"fine": lambda: None, "raises": lambda: 1 // 0}):
            await aware(lambda: queue.stats().dead == 1)
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("lease of")] == []


class TestStop:
    async def test_at_once_where_it_is_set(self, queue: DelayQueue) -> None:
        queue.execute_later("call")
        stop = threading.Event()
        stop.set()
        queue.work({"call": pytest.fail}, stop=stop)
        await queue.awork({"call": pytest.fail}, stop=stop)
        assert queue.stats().ready == 1

    @pytest.mark.parametrize("form", ["work", "awork"])
    async def test_what_runs_is_finished_and_nothing_else_begun(self, form: str, queue: DelayQueue) -> None:
        stop = threading.Event()
        for _ in range(2):
            queue.execute_later("stop")
        ended = getattr(queue, form)({"stop": stop.set}, stop=stop)
        if form == "awork":
            await ended
        assert (queue.stats().ready, queue.stats().leased) == (1, 0)

    async def test_a_cancelled_loop_gives_its_job_back_by_the_lease(self, queue: DelayQueue) -> None:
        begun = asyncio.Event()

        async def hang() -> None:
            begun.set()
            await asyncio.Event().wait()

        queue.execute_later("hang")
        running = asyncio.ensure_future(queue.awork({"hang": hang}, lease=0.05))
        async with asyncio.timeout(DEADLINE):
            await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        [job] = await queue.apop(wait=DEADLINE)
        assert (job.data, job.attempts) == (["hang", []], 2)


async def test_nothing_that_redis_refuses_ends_it(
    working: Works, queue: DelayQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals, execute = iter([MessagingError("Redis refused: ERR something new")]), clients.Client.execute

    async def refused(client: clients.Client, step: Any) -> Any:
        for refusal in refusals:
            raise refusal
        return await execute(client, step)

    monkeypatch.setattr(clients.Client, "execute", refused)
    calls: list[Any] = []
    async with working(queue, {"call": calls.append}):
        await aware(lambda: "something new" in caplog.text)
        await queue.aexecute_later("call", ["after"])
        await aware(lambda: calls == ["after"])


@pytest.mark.parametrize("form", ["work", "awork"])
async def test_a_mistake_of_the_settings_ends_it(form: str, queue: DelayQueue) -> None:
    server().set(queue._engine.keys.queue("jobs").ready, "of another type")
    with pytest.raises(ConfigurationError, match="another type"):
        if form == "work":
            await asyncio.to_thread(queue.work, {"call": print})
        else:
            await queue.awork({"call": print})


@pytest.mark.timing
class TestOutage:
    """The server goes away, and comes back with all it had."""

    @pytest.fixture
    def messaging_alias(self, settings: Settings, messaging_settings: object) -> Iterator[str]:
        """A server that may be killed."""
        with EmbeddedServer(append_only=True, options={"appendfsync": "always"}) as fragile:
            self.fragile = fragile
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": fragile.url}
            settings.CACHES = {**settings.CACHES, "fragile": entry}
            change(settings, ALIAS="fragile", COMMAND_DEADLINE=1.0)
            yield "fragile"
            close_connections("fragile")

    async def test_while_it_waits(self, working: Works, caplog: pytest.LogCaptureFixture) -> None:
        queue, calls = DelayQueue("calls"), []
        async with working(queue, {"call": calls.append}):
            queue.execute_later("call", ["before"])
            await aware(lambda: calls == ["before"])
            self.fragile.kill()
            await aware(lambda: "was not available" in caplog.text)
            self.fragile.start()
            queue.execute_later("call", ["after"])
            await aware(lambda: calls == ["before", "after"])

    @pytest.mark.parametrize("when", ["while it tries", "in the pause after it"])
    async def test_to_stop_takes_no_longer_than_usual(
        self,
        when: str,
        working: Works,
        settings: Settings,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        tries = when == "while it tries"
        change(settings, COMMAND_DEADLINE=60 if tries else 1)
        monkeypatch.setattr(consuming, "backoff", lambda failures: 60)
        queue, calls = DelayQueue("calls"), []
        async with working(queue, {"call": calls.append}):
            queue.execute_later("call", ["before"])
            await aware(lambda: calls and is_empty(queue))
            self.fragile.kill()
            await asyncio.sleep(0.3) if tries else await aware(lambda: "was not available" in caplog.text)
            began = time.monotonic()
        assert time.monotonic() - began < 10
        self.fragile.start()

    @pytest.mark.parametrize("how", ["returns", "raises"])
    async def test_while_a_callable_runs(
        self, how: str, working: Works, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What became of it can't be said, so it is called again."""
        queue, calls = DelayQueue("calls"), []

        def kill_once() -> None:
            calls.append("x")
            if len(calls) == 1:
                self.fragile.kill()
                if how == "raises":
                    raise RuntimeError("killed")

        queue.execute_later("kill")
        async with working(queue, {"kill": kill_once}, lease=0.3):
            await aware(lambda: "was not available" in caplog.text)
            self.fragile.start()
            await aware(lambda: len(calls) == 2)
            await aware(lambda: is_empty(queue))

    async def test_while_nothing_known_is_buried(
        self, working: Works, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = DelayQueue("calls")

        class Killing(dict[str, Any]):
            def __contains__(_, name: object) -> bool:
                if "was not available" not in caplog.text:
                    self.fragile.kill()
                return False

        queue.execute_later("unknown")
        async with working(queue, Killing(), lease=0.3):
            await aware(lambda: "was not available" in caplog.text)
            self.fragile.start()
            await aware(lambda: queue.stats().dead == 1)
