"""Reports of exceptions that can't be formatted."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

import pytest

from django_redis_messaging.core.operations import (
    LoopGuard,
    describe,
    format_traceback,
    log_exception,
    name_of,
)
from tests.support.unusual_errors import UNUSUAL

logger = logging.getLogger("tests.failures")


@pytest.fixture(autouse=True)
def handler():
    """A real handler: pytest's formats no record while it is captured elsewhere."""
    one = logging.StreamHandler()
    logger.addHandler(one)
    yield one
    logger.removeHandler(one)


def raised(make: Callable[[], BaseException]) -> BaseException:
    try:
        raise make()
    except BaseException as error:
        return error


@pytest.mark.parametrize("make", UNUSUAL)
def test_an_unusual_error_is_described_and_logged_and_ends_at_a_guard(make, caplog):
    error = raised(make)
    assert describe(error).startswith(name_of(type(error)))
    assert name_of(type(error)) in format_traceback(error)
    log_exception(logger, error, "Polling %s failed.", "a")
    assert any("Polling a failed." in record.getMessage() for record in caplog.records)
    failed = []
    with LoopGuard(logger, "The %s failed.", "poller", on_failure=lambda: failed.append(True)):
        raise make()
    assert failed == [True]
    assert "The poller failed." in caplog.text


def test_a_usual_traceback_is_that_of_python():
    error = raised(lambda: ValueError("x"))
    assert format_traceback(error) == "".join(traceback.format_exception(error))
    assert describe(error) == "ValueError: x"
    assert describe(ValueError()) == "ValueError"


def test_the_traceback_of_what_cannot_be_formatted_names_the_lines():
    text = format_traceback(raised(UNUSUAL[0]))
    assert "test_failures.py" in text
    assert "can't be formatted" in text


def test_a_failing_reaction_is_logged_too(caplog):
    def react() -> None:
        raise ValueError("again")

    with LoopGuard(logger, "The poller failed.", on_failure=react):
        raise KeyError("first")
    assert [record.getMessage() for record in caplog.records] == [
        "Reacting to a failure failed.",
        "The poller failed.",
    ]


def test_a_guard_lets_nothing_else_happen():
    with LoopGuard(logger, "Unused.") as guard:
        done = guard
    assert done is guard
