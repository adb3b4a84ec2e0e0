"""Mistakes in calls of tasks, which raise where the call is written: arguments that don't fit, and names that
other task queues have."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import pickle
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.template import Context, Engine
from django.utils import timezone

from django_redis_messaging.errors import InvalidArgument
from django_redis_messaging.tasks import RedisTask, Schedules, TaskBatch, chain, task
from django_redis_messaging.tasks.call_arguments import check_call
from django_redis_messaging.tasks.compat import InvalidTask
from django_redis_messaging.tasks.other_queues import RESULT_NAMES, TASK_NAMES
from tests.conftest import Call

from ..support.workers import burst, counts, state, stored_keys
from . import jobs

HERE = __name__
#: ms; between two clocks, on a busy machine
PATIENCE = 60_000


def nothing() -> None: ...
def two(a: Any, b: Any) -> None: ...
def optional(a: Any, b: Any = 1, c: Any = 2) -> None: ...
def named(a: Any, *, b: Any, c: Any = 2) -> None: ...
def by_position(a: Any, b: Any = 1, /, c: Any = 2) -> None: ...
def more(a: Any, *rest: Any, b: Any = 1) -> None: ...
def more_and_named(a: Any, *rest: Any, b: Any) -> None: ...
def any_and_named(*rest: Any, b: Any, **named: Any) -> None: ...
def anything(a: Any, b: Any = 1, **rest: Any) -> None: ...
def rest_only(*rest: Any, **named: Any) -> None: ...
def with_context(context: Any, a: Any, b: Any = 1) -> None: ...
def annotated(a: Unknown, b: Unknown = 1) -> Unknown: ...  # noqa: F821


FUNCTIONS = [
    nothing, two, optional, named, by_position, more, more_and_named, any_and_named, anything, rest_only,
    with_context, annotated,
]  # fmt: skip


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that passes another argument to the function."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function("connection", *args, **kwargs)

    return wrapper


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 (its own)


@task
@connected
def decorated(connection: str, a: Any) -> list[Any]:
    return [connection, a]


def calls() -> Iterator[tuple[list[int], dict[str, int]]]:
    """All calls with up to four arguments by position, and any of four by name."""
    for given, number in itertools.product(range(5), range(5)):
        for names in itertools.combinations("abcd", number):
            yield list(range(given)), dict.fromkeys(names, 0)


class TestArguments:
    @pytest.mark.versions
    @pytest.mark.parametrize("function", FUNCTIONS)
    def test_the_check_decides_as_python_does(self, function: Callable[..., Any]) -> None:
        takes_context = function is with_context
        checked, context, fitting = task(function, takes_context=takes_context), [None] * takes_context, 0
        for args, kwargs in calls():
            try:
                function(*context, *args, **kwargs)
            except TypeError:
                with pytest.raises(TypeError, match=f"{HERE}.{function.__name__} can't be called with these"):
                    checked.enqueue(*args, **kwargs)
            else:
                check_call(checked, args, kwargs)
                checked.enqueue(*args, **kwargs)
                fitting += 1
        assert counts() == [fitting, 0, 0, 0]

    @pytest.mark.parametrize(
        ("function", "args", "kwargs", "problem"),
        [
            (two, [1], {}, "missing a required argument: 'b'"),
            (two, [1, 2, 3], {}, "too many positional arguments"),
            (two, [1, 2], {"colour": 3}, "got an unexpected keyword argument 'colour'"),
            (two, [1, 2], {"a": 3}, "multiple values for argument 'a'"),
            (with_context, [], {}, "missing a required argument: 'a'"),
        ],
    )
    async def test_every_way_to_enqueue(
        self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], problem: str, call: Call
    ) -> None:
        called: Any = task(function, takes_context=function is with_context)
        message = f"^{HERE}.{function.__name__} can't be called with these arguments: {problem}.$"
        with pytest.raises(TypeError, match=message):
            await call(called, "enqueue", *args, **kwargs)
        with pytest.raises(TypeError, match=message):
            await call(called, "enqueue_many", [(args, kwargs)])
        with pytest.raises(TypeError, match=message):
            await call(called.using(unique=True, priority=7), "enqueue", *args, **kwargs)
        with pytest.raises(TypeError, match=message):
            TaskBatch().add(called, *args, **kwargs)
        assert stored_keys() == set()

    def test_schedules(self) -> None:
        message = r"jobs\.note can't be called with these arguments: missing a required argument: 'value'\.$"
        with pytest.raises(InvalidArgument, match=message):
            Schedules().add("night", jobs.note, every=60)

    @pytest.mark.parametrize(
        ("args", "kwargs", "problem"),
        [
            ([1, 2], {}, "too many positional arguments"),
            ([], {"order_id": 1}, "multiple values for argument 'order_id'"),
            ([], {}, "missing a required argument: 'number'"),
        ],
    )
    def test_follow_ups(self, args: list[Any], kwargs: dict[str, Any], problem: str) -> None:
        message = rf"jobs\.enter must take the return value as its first argument.*: {problem}\.$"
        with pytest.raises(TypeError, match=message):
            chain(jobs.echo, jobs.enter.with_args(*args, **kwargs))

    def test_a_decorator_may_pass_other_arguments(self) -> None:
        chained = chain(jobs.noop, decorated, decorated.with_args()).enqueue()
        Schedules().add("night", decorated, args=[7], every=60)
        TaskBatch(on_done=decorated)
        results = [decorated.enqueue(7), decorated.enqueue(a=7)]
        burst()
        for result in results:
            result.refresh()
            assert result.return_value == ["connection", 7]
        middle = decorated.get_result(chained.then_id)
        assert decorated.get_result(middle.then_id).return_value == ["connection", ["connection", None]]

    def test_a_template_of_a_decorated_function(self) -> None:
        """It has the parameters of that function."""
        locked = decorated.using(lock="x-{a}")
        locked.enqueue("connection", 7)
        message = rf"^lock 'x-{{a}}' of {HERE}\.decorated can't be filled in .*: missing .* argument: 'a'\.$"
        with pytest.raises(TypeError, match=message):
            locked.enqueue(7)

    @pytest.mark.parametrize("calls", [[7], [(7,)], ["ab"], [("ab", {})], [([7], None)], [([7], {}, 1)]])
    async def test_enqueue_many_takes_pairs(self, calls: list[Any], call: Call) -> None:
        with pytest.raises(TypeError, match="calls must be pairs of args and kwargs, such as"):
            await call(jobs.echo, "enqueue_many", calls)
        assert stored_keys() == set()


class TestDueTimes:
    async def test_a_timedelta_counts_from_each_enqueue(self, call: Call) -> None:
        later = jobs.noop.using(run_after=timezone.now()).using(run_after=timedelta(hours=1))
        for _ in range(2):
            found = state(await call(later, "enqueue"))
            assert found.moment - found.pushed in (3_600_000, 3_600_001)  # it is never early
        assert counts() == [0, 2, 0, 0]

    def test_one_of_the_past_is_due_at_once(self) -> None:
        jobs.noop.using(run_after=timedelta(seconds=-5)).enqueue()
        assert counts() == [1, 0, 0, 0]

    def test_the_error_names_what_was_passed(self) -> None:
        with pytest.raises(InvalidTask, match=r"Pass a timedelta to using\(run_after=\.\.\.\)\.$"):
            dataclasses.replace(jobs.noop, run_after=timedelta(hours=1))
        with pytest.raises(InvalidTask, match=r"^run_after must be between 0 s and 100 years"):
            jobs.noop.using(run_after=timedelta.max)

    async def test_reschedule(self, call: Call) -> None:
        first, second = (jobs.noop.using(run_after=timedelta(hours=1)).enqueue() for _ in range(2))
        assert await call(jobs.noop, "reschedule", first.id, timedelta(hours=2))
        assert await call(second, "reschedule", timedelta(hours=2))
        for result in (first, second):
            found = state(result)
            assert abs(found.moment - found.pushed - 7_200_000) < PATIENCE
        second.refresh()
        assert second.task.run_after is not None
        with pytest.raises(InvalidArgument, match="run_after is too long"):
            second.reschedule(timedelta.max)


#: names that are not here: of tasks, and of results
NOT_HERE = [
    *((jobs.noop, "task", name, instead) for name, instead in TASK_NAMES.items() if name != "delay"),
    *((None, "result", name, instead) for name, instead in RESULT_NAMES.items()),
]


class TestNamesOfOtherQueues:
    @pytest.mark.parametrize(("subject", "kind", "name", "instead"), NOT_HERE, ids=lambda one: str(one)[:20])
    def test_the_error_says_what_to_write(self, subject: Any, kind: str, name: str, instead: str) -> None:
        subject = subject or jobs.noop.enqueue()
        with pytest.raises(AttributeError) as error:
            getattr(subject, name)
        assert str(error.value) == f"A {kind} of Django's Tasks framework has no {name}: write {instead}."
        assert not hasattr(subject, name)

    def test_delay(self) -> None:
        """It is also a field."""
        with pytest.raises(AttributeError, match=r"has no delay\(\): write enqueue\(\.\.\.\)\.$"):
            jobs.noop.delay(7)
        assert jobs.noop.delay == None and not jobs.noop.delay  # noqa: E711
        assert jobs.noop.using(delay=None) == jobs.noop
        assert repr(jobs.noop.using(delay=None)) == repr(jobs.noop)
        template = Engine().from_string("{{ task.delay }}{% if task.delay %}, delayed{% endif %}")
        assert template.render(Context({"task": jobs.noop})) == "None"

    def test_other_names_are_what_they_were(self) -> None:
        result = jobs.noop.enqueue()
        for subject in (jobs.noop, result):
            with pytest.raises(
                AttributeError, match=f"{type(subject).__name__}' object has no attribute 'x'"
            ):
                subject.x  # noqa: B018

    def test_errors_inside_of_properties_are_not_hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RedisTask, "retries", property(lambda self: self.priority.none))
        with pytest.raises(AttributeError, match="'int' object has no attribute 'none'"):
            jobs.noop.retries  # noqa: B018

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
    def test_copies(self, copied: Callable[[Any], Any]) -> None:
        result = jobs.noop.enqueue()
        assert copied(jobs.noop) == jobs.noop
        assert copied(jobs.noop).delay is jobs.noop.delay
        assert copied(result) == result
