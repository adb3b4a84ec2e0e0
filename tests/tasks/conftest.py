"""Fixtures of the task tests: what tasks record, settings, servers and commands of the test's own."""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from pytest_django import Settings

from django_redis_messaging import observe, unobserve
from django_redis_messaging.core import clients
from django_redis_messaging.core.testruns import Prefix
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.services.jobs import claims as jobs_claims
from django_redis_messaging.services.jobs import engine as jobs_engine
from django_redis_messaging.services.jobs import poller as jobs_poller
from django_redis_messaging.services.jobs import worker as jobs_worker
from django_redis_messaging.tasks import occurrences
from django_redis_messaging.tasks.compat import task_enqueued

from ..support.processes import Start, commands
from ..support.server import change, until
from ..support.workers import receiving
from . import jobs

#: sets OPTIONS of the backend under test
Configure = Callable[..., None]
#: writes a module that jobs may name, and makes it importable
AddModule = Callable[[str, str], Path]
#: sends signals when a condition is true
SendWhen = Callable[..., "Future[None]"]


@pytest.fixture(autouse=True)
def reset_jobs() -> Iterator[None]:
    """Clear the recorded values before the test and let waiting tasks end after it."""
    jobs.notes.clear()
    jobs.go.clear()
    jobs.meeting.reset()
    yield
    jobs.go.set()


@pytest.fixture(autouse=True)
def new_poller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins as a process that has not polled yet."""
    monkeypatch.setattr(occurrences, "_began", {})
    monkeypatch.setattr(occurrences, "_stored", {})


@pytest.fixture
def sent() -> Iterator[list[Any]]:
    """The results of the calls that the test enqueues, from the signal."""
    results: list[Any] = []
    with receiving(task_enqueued, lambda task_result, **_: results.append(task_result)):
        yield results


@pytest.fixture
def lead_to(messaging_settings: Prefix, settings: Settings) -> Iterator[Callable[[str], None]]:
    """Let the alias lead to another server. It leads back before the keys of the test are removed."""
    before = settings.CACHES

    def lead(url: str) -> None:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
        settings.CACHES = {**before, "messaging": entry}

    yield lead
    clients.close()
    settings.CACHES = before


@pytest.fixture
def own_server(lead_to: Callable[[str], None]) -> Iterator[EmbeddedServer]:
    """A server used only by this test, which may stop it."""
    with EmbeddedServer(append_only=True, options={"appendfsync": "always"}) as started:
        lead_to(started.url)
        yield started


@pytest.fixture
def short_backoff(messaging_alias: str, settings: Settings) -> None:
    """Retry after a short pause."""
    change(settings, JOB_BACKOFF=0.002)


@pytest.fixture
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle workers and pollers look for jobs, and notice a stop, ten times as often."""
    for module in (jobs_engine, jobs_claims, jobs_worker, jobs_poller):
        monkeypatch.setattr(module, "POLL_INTERVAL", 0.1)
    monkeypatch.setattr(jobs_poller, "MAX_RATE", 1000.0)


@pytest.fixture
def configure(settings: Settings) -> Configure:
    def set_options(**options: object) -> None:
        settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": options}}

    return set_options


@pytest.fixture
def any_queue(settings: Settings) -> None:
    """The backend has no list of queues."""
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": []}}


@pytest.fixture
def add_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddModule:
    monkeypatch.syspath_prepend(str(tmp_path))
    options = django_settings.TASKS["default"]["OPTIONS"]

    def add(name: str, text: str) -> Path:
        monkeypatch.setitem(options, "TASK_MODULES", [*options["TASK_MODULES"], name])
        monkeypatch.delitem(sys.modules, name, raising=False)
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return path

    return add


@pytest.fixture
def operations() -> Iterator[Counter[str]]:
    """The number of operations by name."""
    counted: Counter[str] = Counter()
    observer = observe(lambda operation, seconds, outcome: counted.update([operation]))
    yield counted
    unobserve(observer)


@pytest.fixture
def start(own_prefix: str) -> Iterator[Start]:
    """Start commands as `manage.py` does, and kill the processes that the test leaves running."""
    with commands() as start:
        yield start


@pytest.fixture
def send_when() -> Iterator[SendWhen]:
    """Send signals to this process, in which a command runs, once a condition is true."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    main = threading.get_ident()
    with ThreadPoolExecutor() as pool:

        def send(condition: Callable[[], object], *numbers: signal.Signals) -> Future[None]:
            def wait_and_send() -> None:
                until(condition)
                for number in numbers:
                    signal.pthread_kill(main, number)

            return pool.submit(wait_and_send)

        yield send
    for number, handler in before.items():
        signal.signal(number, handler)
