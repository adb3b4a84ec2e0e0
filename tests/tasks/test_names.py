"""The names of the locks and semaphores of calls."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_redis_messaging import InvalidArgument
from django_redis_messaging.tasks import RedisTask, task
from django_redis_messaging.tasks.compat import InvalidTask
from django_redis_messaging.tasks.task import Needs

from .test_backend import stored_keys

pytestmark = [pytest.mark.one_server, pytest.mark.versions]


def with_parameters(order: Any, *rest: int, site: str = "main", **more: Any) -> None: ...


def with_context(context: Any, order: Any) -> None: ...


def made(**fields: Any) -> RedisTask:
    return task(**fields)(with_parameters)


def lock_of(lock: Any, *args: Any, **kwargs: Any) -> str:
    needs = made(lock=lock).needs(args, kwargs)
    assert needs is not None
    return needs.lock


class TestTemplates:
    @pytest.mark.parametrize(
        ("template", "name"),
        [
            ("order:{order}", "order:7"),
            ("{site}/{order}", "main/7"),
            ("{order:05d}", "00007"),
            ("{site!r}", "'main'"),
            ("{rest[0]} {more[group]}", "3 a"),
            ("all", "all"),
            ("{{{order}}}", "{7}"),
        ],
    )
    def test_parameters_are_filled_in(self, template: str, name: str) -> None:
        assert lock_of(template, 7, 3, group="a") == name

    def test_keywords_and_positional_arguments_give_the_same_name(self) -> None:
        assert lock_of("{order} {site}", 7) == lock_of("{order} {site}", site="main", order=7) == "7 main"

    def test_context_is_no_parameter(self) -> None:
        made = task(lock="order:{order}", takes_context=True)(with_context)
        assert made.needs([7], {}) == Needs("order:7", "")
        with pytest.raises(InvalidTask, match="'context', but the parameters of the task are order"):
            made.using(lock="{context}")

    def test_braces_in_arguments_are_data(self) -> None:
        assert lock_of("order:{order}", "{site}{0}{{") == "order:{site}{0}{{"

    def test_function_gets_the_arguments(self) -> None:
        assert lock_of(lambda order, *rest, site="x", **_: f"{order} {rest} {site}", 7, 8) == "7 (8,) x"
        assert lock_of(lambda order: "{order}", "x") == "{order}"

    def test_semaphores_are_named_after_the_task_or_the_key(self) -> None:
        path = f"task:{__name__}.with_parameters"
        assert made(concurrency=3).needs([7], {}) == Needs("", path)
        keyed = made(concurrency=3, concurrency_key="site:{site}", lock="{order}")
        assert keyed.needs([7], {}) == Needs("7", "task:site:main")
        called = made(concurrency=3, concurrency_key=lambda order, **_: f"o{order}")
        assert called.needs([7], {}) == Needs("", "task:o7")

    def test_tasks_without_options_need_nothing(self) -> None:
        assert made().needs([7], {}) is None
        assert made(lock="x", concurrency=1).using(lock=None, concurrency=None).needs([7], {}) is None


INVALID = [
    ({"lock": ""}, "lock is empty"),
    ({"lock": "x" * 256}, "lock has 256 bytes"),
    ({"lock": "a\0"}, "NUL"),
    ({"lock": 7}, "lock must be a str or a function of the arguments, not int"),
    ({"lock": True}, "not bool"),
    ({"lock": b"order"}, "not bytes"),
    ({"lock": "{oder}"}, "refers to 'oder', but the parameters of the task are order, rest, site, more"),
    ({"lock": "{order:>{rest}}"}, "has a field inside a format specification"),
    ({"lock": "{}"}, "refers to ''"),
    ({"lock": "{0}"}, "refers to '0'"),
    ({"lock": "{order"}, "not a valid template"),
    ({"lock": "order}"}, "not a valid template"),
    ({"concurrency": 0}, "concurrency must be between 1 and 10000, not 0"),
    ({"concurrency": 10_001}, "between 1 and 10000"),
    ({"concurrency": "3"}, "concurrency must be an int, not str"),
    ({"concurrency": True}, "not bool"),
    ({"concurrency": 1.5}, "not float"),
    ({"concurrency_key": "x"}, "concurrency_key needs concurrency"),
    ({"concurrency": 1, "concurrency_key": ""}, "concurrency_key is empty"),
    ({"concurrency": 1, "concurrency_key": "{x}"}, "concurrency_key '{x}' refers to 'x'"),
    ({"concurrency": 1, "concurrency_key": 7}, "concurrency_key must be a str"),
]


class TestErrors:
    @pytest.mark.parametrize(("fields", "problem"), INVALID)
    def test_invalid_options_are_rejected(self, fields: dict[str, Any], problem: str) -> None:
        with pytest.raises(InvalidTask, match=re.escape(problem)):
            made(**fields)
        with pytest.raises(InvalidTask, match=re.escape(problem)):
            made().using(**fields)

    @pytest.mark.parametrize(
        ("fields", "args", "kind", "problem"),
        [
            ({"lock": "{order}"}, [""], InvalidArgument, "lock is empty"),
            ({"lock": "{order}"}, ["x" * 256], InvalidArgument, "lock has 256 bytes"),
            ({"lock": "{order}"}, ["\0"], InvalidArgument, "NUL"),
            ({"lock": "{order}"}, ["\ud800"], InvalidArgument, "surrogate"),
            ({"lock": "{order}"}, [], TypeError, "missing a required argument: 'order'"),
            ({"lock": "{order:d}"}, ["x"], InvalidArgument, "can't be filled in with these arguments"),
            ({"lock": "{order[id]}"}, [{}], InvalidArgument, "can't be filled in"),
            ({"lock": "{order.id}"}, [7], InvalidArgument, "can't be filled in"),
            ({"lock": "{order:9}"}, [None], InvalidArgument, "can't be filled in"),
            ({"lock": "{order:c}"}, [10**10], InvalidArgument, "can't be filled in"),
            ({"lock": lambda order: None}, [7], TypeError, "lock must be a str, not NoneType"),
            ({"lock": lambda order: ""}, [7], InvalidArgument, "lock is empty"),
            ({"concurrency": 1, "concurrency_key": "{order}"}, ["x" * 251], InvalidArgument, "256 bytes"),
            (
                {"concurrency": 1, "concurrency_key": "{order}"},
                [""],
                InvalidArgument,
                "concurrency_key is empty",
            ),
        ],
    )
    async def test_invalid_names_are_rejected_before_anything_is_sent(
        self, fields: dict[str, Any], args: list[Any], kind: type[Exception], problem: str
    ) -> None:
        invalid = task(**fields)(with_parameters)
        with pytest.raises(kind, match=problem):
            await invalid.aenqueue(*args)
        with pytest.raises(kind, match=problem):
            await invalid.aenqueue_many([([7], {}), (args, {})])
        assert stored_keys() == set()
