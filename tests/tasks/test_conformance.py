"""The contract of Django's Tasks for our backend, and for Django's own backend as a check of the tests."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging.tasks.compat import BaseTaskBackend

from ..support.workers import burst
from . import jobs
from .conformance import Conformance, Queued, recording_signals

pytestmark = pytest.mark.versions


class TestOurs(Queued):
    work = staticmethod(burst)


class TestDjangos(Conformance):
    alias = "immediate"
    work = staticmethod(lambda: None)

    @pytest.fixture(autouse=True)
    def backends(self, settings: Settings) -> None:
        path = BaseTaskBackend.__module__.replace(".base", ".immediate.ImmediateBackend")
        settings.TASKS = {**settings.TASKS, "immediate": {"BACKEND": path}}

    @pytest.fixture
    def messaging_alias(self) -> str:
        """Django's backend does not use Redis."""
        return "messaging"

    @pytest.mark.parametrize("task", [jobs.interrupt, jobs.async_interrupt])
    def test_interrupt_is_raised_in_the_caller(self, task: Any) -> None:
        with recording_signals() as signals, pytest.raises(KeyboardInterrupt):
            self.of(task).enqueue()
        assert [each.name for each in signals] == ["enqueued", "started"]
