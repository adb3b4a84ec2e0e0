"""The work loops: which callables are called, retries, dead letters, leases, stopping and outages."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import ConfigurationError, DelayQueue, MessagingError
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.common import consuming, leases
from django_redis_messaging.services.jobs import queue as jobs
from django_redis_messaging.testing import close_connections

from ..support.server import DEADLINE, change, server

pytestmark = pytest.mark.usefixtures("closing")

Works = Callable[..., Any]


@pytest.fixture(autouse=True)
def short_intervals(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a short backoff, and check often whether to stop."""
    change(settings, JOB_BACKOFF=0.01)
    monkeypatch.setattr(jobs, "FETCH_WAIT", 0.05)


@pytest.fixture
def queue() -> DelayQueue:
    return DelayQueue("calls")


@pytest.fixture
def once() -> DelayQueue:
    """Its jobs have one attempt."""
    return DelayQueue("calls", max_attempts=1)


@pytest.fixture(params=["work", "awork"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def consume(form: str, queue: DelayQueue, callables: dict[str, Any], **options: Any) -> None:
    """Run a loop in one of its forms, beside other tasks."""

    def loop() -> None:
        queue.work(callables, **options)
        clients.close()

    await (asyncio.to_thread(loop) if form == "work" else queue.awork(callables, **options))


@pytest.fixture
def working(form: str) -> Works:
    """Run a loop beside the test and stop it at the end."""

    @asynccontextmanager
    async def run(queue: DelayQueue, callables: dict[str, Any], **options: Any) -> AsyncIterator[None]:
        stop = threading.Event()
        running = asyncio.ensure_future(consume(form, queue, callables, stop=stop, **options))
        try:
            yield
        finally:
            stop.set()
            async with asyncio.timeout(DEADLINE):
                await running

    return run


async def until_async(condition: Callable[[], Any]) -> None:
    """Wait until the condition is true while other tasks run."""
    async with asyncio.timeout(DEADLINE):
        while not (await found if inspect.isawaitable(found := condition()) else found):  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def is_empty(queue: DelayQueue) -> bool:
    stats = await queue.astats()
    return stats.ready == stats.delayed == stats.leased == 0


class TestCalls:
    async def test_callables_receive_their_args(self, working: Works, queue: DelayQueue) -> None:
        calls: list[Any] = []
        callables = {"none": lambda: calls.append(()), "two": lambda *args: calls.append(args)}
        async with working(queue, callables):
            queue.execute_later("none")
            await queue.aexecute_later("two", [2**53 + 1, {"a": [[], {}]}])
            queue.execute_later("two", ("😀", None))
            queue.push(["two", ["any payload of this form"]])
            await until_async(lambda: is_empty(queue))
        assert calls == [(), (2**53 + 1, {"a": [[], {}]}), ("😀", None), ("any payload of this form",)]
        assert (await queue.astats()).dead == 0

    async def test_coroutine_functions_and_async_callable_objects_are_awaited(
        self, queue: DelayQueue
    ) -> None:
        called, stop = [], asyncio.Event()

        async def greet(word: str) -> None:
            await asyncio.sleep(0)
            called.append(word)

        class SetStop:
            async def __call__(self) -> None:
                await asyncio.sleep(0)
                stop.set()

        queue.execute_later("greet", ["hi"])
        queue.execute_later("stop")
        async with asyncio.timeout(DEADLINE):
            await queue.awork({"greet": greet, "stop": SetStop()}, stop=stop)
        assert called == ["hi"]
        assert await is_empty(queue)

    def test_work_rejects_coroutine_functions(self, queue: DelayQueue) -> None:
        async def noop() -> None: ...

        class AsyncNoop:
            async def __call__(self) -> None: ...

        queue.execute_later("greet")
        for function in (noop, functools.partial(noop), AsyncNoop()):
            with pytest.raises(TypeError, match="'greet' is a coroutine function: use awork"):
                queue.work({"plain": lambda: None, "greet": function})
        assert queue.stats().ready == 1

    async def test_function_that_returns_a_coroutine_fails_unless_awaited(
        self, form: str, working: Works, once: DelayQueue
    ) -> None:
        called = []

        async def greet() -> None:
            called.append("hi")

        once.execute_later("greet")
        async with working(once, {"greet": lambda: greet()}):
            await until_async(lambda: once.stats().dead or called)
        assert (once.stats().dead, called) == ((1, []) if form == "work" else (0, ["hi"]))
        assert await is_empty(once)


#: payloads that can't be called, and the reason with which they are dead
UNKNOWN = [
    (["unknown", []], "No callable is registered as 'unknown'."),
    (["__import__", ["os"]], "No callable is registered as '__import__'."),
    (["call"], "The payload is not [name, args]."),
    (["call", {"x": 1}], "The payload is not [name, args]."),
    ([["call"], []], "The payload is not [name, args]."),
    ("call", "The payload is not [name, args]."),
    (None, "The payload is not [name, args]."),
]


class TestFailures:
    async def test_unknown_names_and_payloads_are_dead_lettered_and_the_loop_continues(
        self, working: Works, queue: DelayQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls: list[str] = []
        ids = [queue.push(payload) for payload, _ in UNKNOWN]
        queue.push("nothing", job_id="a\nCRITICAL forged")
        queue.execute_later("call", ["next"])
        async with working(queue, {"call": calls.append}):
            await until_async(lambda: calls == ["next"])
        dead = {job.id: (job.data, job.attempts, job.reason) for job in queue.dead()}
        for job_id, (payload, reason) in zip(ids, UNKNOWN, strict=True):
            assert dead[job_id] == (payload, 1, reason)
        logged = [record for record in caplog.records if record.name == jobs.__name__]
        assert {record.levelno for record in logged} == {logging.ERROR}
        for job_id, record in zip([*ids, "CRITICAL forged"], logged, strict=True):
            assert job_id in record.getMessage()
            assert "\n" not in record.getMessage()

    @pytest.mark.timing
    async def test_failed_call_is_retried_after_growing_pauses(
        self,
        working: Works,
        queue: DelayQueue,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        pauses: list[float] = []
        delay = jobs.retry_delay
        monkeypatch.setattr(
            jobs, "retry_delay", lambda attempts: pauses.append(delay(attempts)) or pauses[-1]
        )
        began: list[float] = []

        def fail_twice() -> None:
            began.append(time.monotonic())
            if len(began) < 3:
                raise RuntimeError("not yet")

        queue.execute_later("call")
        async with working(queue, {"call": fail_twice}):
            await until_async(lambda: is_empty(queue))
        assert len(began) == 3
        assert 0.005 <= pauses[0] <= 0.01
        assert 0.01 <= pauses[1] <= 0.02
        assert [began[at + 1] - began[at] >= pauses[at] for at in range(2)] == [True, True]
        assert [record.exc_info is not None for record in caplog.records] == [True, True]
        assert queue.stats().dead == 0

    def test_pauses_double_up_to_the_maximum(self, settings: Settings) -> None:
        change(settings, JOB_BACKOFF=1, JOB_BACKOFF_MAX=60)
        for attempts, maximum in ((1, 1), (2, 2), (5, 16), (7, 60), (10_000, 60)):
            pauses = [jobs.retry_delay(attempts) for _ in range(50)]
            assert maximum / 2 <= min(pauses) < max(pauses) <= maximum

    async def test_call_that_always_fails_is_dead_lettered(self, working: Works) -> None:
        """With wrong arguments too."""
        queue = DelayQueue("calls", max_attempts=3)
        queue.execute_later("divide", [1, 0])
        queue.execute_later("divide", ["too few"])
        async with working(queue, {"divide": lambda a, b: a / b}):
            await until_async(lambda: queue.stats().dead == 2)
        assert [job.attempts for job in queue.dead()] == [3, 3]

    async def test_error_of_redis_does_not_end_the_loop(
        self,
        working: Works,
        queue: DelayQueue,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        refusals, execute = iter([MessagingError("Redis refused: ERR something new")]), clients.Client.execute

        async def refused(client: clients.Client, step: Any) -> Any:
            for refusal in refusals:
                raise refusal
            return await execute(client, step)

        monkeypatch.setattr(clients.Client, "execute", refused)
        calls: list[Any] = []
        async with working(queue, {"call": calls.append}):
            await until_async(lambda: "something new" in caplog.text)
            await queue.aexecute_later("call", ["after"])
            await until_async(lambda: calls == ["after"])

    async def test_configuration_error_ends_the_loop(self, form: str, queue: DelayQueue) -> None:
        server().set(queue._engine.keys.queue("jobs").ready, "of another type")
        with pytest.raises(ConfigurationError, match="another type"):
            await consume(form, queue, {"call": print})


class TestLease:
    @pytest.mark.timing
    @pytest.mark.parametrize(("form", "is_coroutine"), [("work", False), ("awork", False), ("awork", True)])
    async def test_lease_is_kept_while_a_callable_runs(
        self, is_coroutine: bool, working: Works, queue: DelayQueue
    ) -> None:
        """It runs longer than the lease while another client pops."""
        calls: list[str] = []
        proceed = threading.Event()

        def slow() -> None:
            calls.append("slow")
            assert proceed.wait(DEADLINE)

        async def slow_coroutine() -> None:
            calls.append("slow")
            await until_async(proceed.is_set)

        queue.execute_later("slow")
        async with working(queue, {"slow": slow_coroutine if is_coroutine else slow}, lease=0.6):
            await until_async(lambda: calls)
            try:
                assert await queue.apop(wait=0.9) == []
            finally:
                proceed.set()
        assert calls == ["slow"]
        assert await is_empty(queue)

    async def test_lost_lease_is_logged(
        self, working: Works, queue: DelayQueue, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue.execute_later("purge")
        async with working(queue, {"purge": lambda: queue.purge()}):
            await until_async(lambda: "its lease was lost" in caplog.text)

    async def test_no_lease_is_renewed_any_more(self, working: Works, once: DelayQueue) -> None:
        once.execute_later("fine")
        once.execute_later("raises")
        async with working(once, {"fine": lambda: None, "raises": lambda: 1 // 0}):
            await until_async(lambda: once.stats().dead == 1)
        assert not [one for renewer in leases._renewers.values() for one in list(renewer._leases)]


class TestStop:
    async def test_running_call_is_the_last_one(self, form: str, queue: DelayQueue) -> None:
        stop = threading.Event()
        for _ in range(2):
            queue.execute_later("stop")
        await consume(form, queue, {"stop": stop.set}, stop=stop)
        assert (queue.stats().ready, queue.stats().leased) == (1, 0)
        await consume(form, queue, {"stop": pytest.fail}, stop=stop)
        assert queue.stats().ready == 1

    async def test_job_of_a_cancelled_loop_returns_after_its_lease(self, queue: DelayQueue) -> None:
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


@pytest.mark.timing
class TestOutage:
    """The server stops and returns with all its data."""

    @pytest.fixture
    def messaging_alias(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch, messaging_settings: object
    ) -> Iterator[str]:
        """A server that may be killed."""
        monkeypatch.setattr(consuming, "FIRST_PAUSE", 0.05)
        with EmbeddedServer(append_only=True, options={"appendfsync": "always"}) as fragile:
            self.fragile = fragile
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": fragile.url}
            settings.CACHES = {**settings.CACHES, "fragile": entry}
            change(settings, ALIAS="fragile", COMMAND_DEADLINE=0.3)
            yield "fragile"
            close_connections("fragile")

    async def test_outage_while_waiting(self, working: Works, caplog: pytest.LogCaptureFixture) -> None:
        queue, calls = DelayQueue("calls"), []
        async with working(queue, {"call": calls.append}):
            queue.execute_later("call", ["before"])
            await until_async(lambda: calls == ["before"])
            self.fragile.kill()
            await until_async(lambda: "was not available" in caplog.text)
            self.fragile.start()
            queue.execute_later("call", ["after"])
            await until_async(lambda: calls == ["before", "after"])

    @pytest.mark.parametrize("when", ["during an attempt", "during the pause"])
    async def test_outage_does_not_delay_the_stop(
        self,
        when: str,
        working: Works,
        settings: Settings,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        is_trying = when == "during an attempt"
        change(settings, COMMAND_DEADLINE=60 if is_trying else 0.3)
        monkeypatch.setattr(consuming, "pause_after", lambda failures: 60)
        queue, calls = DelayQueue("calls"), []
        async with working(queue, {"call": calls.append}):
            queue.execute_later("call", ["before"])
            await until_async(lambda: calls and is_empty(queue))
            self.fragile.kill()
            await asyncio.sleep(0.3) if is_trying else await until_async(lambda: "retrying in" in caplog.text)
            began = time.monotonic()
        assert time.monotonic() - began < 10
        self.fragile.start()

    @pytest.mark.parametrize("how", ["returns", "raises", "has an unknown name"])
    async def test_outage_while_a_job_is_handled(
        self, how: str, working: Works, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The result cannot be stored, so the job is handled again."""
        queue, handled = DelayQueue("calls"), []

        def kill_once() -> None:
            handled.append("x")
            if len(handled) == 1:
                self.fragile.kill()
                if how == "raises":
                    raise RuntimeError("killed")

        class NoCallables(dict[str, Any]):
            def __contains__(_, name: object) -> bool:
                kill_once()
                return False

        queue.execute_later("kill")
        callables = NoCallables() if how == "has an unknown name" else {"kill": kill_once}
        async with working(queue, callables, lease=0.3):
            await until_async(lambda: "was not available" in caplog.text)
            self.fragile.start()
            await until_async(lambda: len(handled) == 2)
            await until_async(lambda: is_empty(queue))
        assert queue.stats().dead == (how == "has an unknown name")
