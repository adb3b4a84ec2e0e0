"""What to write for names that tasks and results have in Celery, RQ, dramatiq or huey: the AttributeError of
such a name says it."""

from __future__ import annotations

from typing import Any, NoReturn

_LATER = "using(run_after=timedelta(minutes=5)).enqueue(...)"
_IN_CHAIN = "with_args(...) for a step of chain(), or add(task, ...) of a TaskBatch"
_WAITED = "wait_for_result(result, timeout=5).return_value"
_STATUS = "refresh(), then status"

#: names of tasks
TASK_NAMES = {
    "delay": "enqueue(...)",
    "send": "enqueue(...)",
    "apply_async": "using(run_after=timedelta(minutes=5), queue_name=..., priority=...).enqueue(...)",
    "send_with_options": "using(run_after=timedelta(minutes=5), queue_name=..., priority=...).enqueue(...)",
    "schedule": _LATER,
    "enqueue_in": _LATER,
    "enqueue_at": "using(run_after=moment).enqueue(...)",
    "apply": "call(...), which runs it here",
    "call_local": "call(...), which runs it here",
    "s": _IN_CHAIN,
    "si": _IN_CHAIN,
    "signature": _IN_CHAIN,
    "subtask": _IN_CHAIN,
    "message": _IN_CHAIN,
    "message_with_options": _IN_CHAIN,
    "map": "enqueue_many([((1,), {}), ((2,), {})])",
    "starmap": "enqueue_many([((1, 2), {}), ((3, 4), {})])",
    "chunks": "enqueue_many([((1,), {}), ((2,), {})])",
    "retry": "retry(delay=60) of django_redis_messaging.tasks",
    "revoke": "cancel(result_id)",
    "AsyncResult": "get_result(result_id)",
}
#: names of results
RESULT_NAMES = {
    "get": _WAITED,
    "get_result": _WAITED,
    "latest_result": _WAITED,
    "wait": "wait_for_result(result, timeout=5)",
    "result": "refresh(), then return_value",
    "ready": "refresh(), then is_finished",
    "state": _STATUS,
    "get_status": _STATUS,
    "successful": "refresh(), then status == TaskResultStatus.SUCCESSFUL",
    "is_successful": "refresh(), then status == TaskResultStatus.SUCCESSFUL",
    "failed": "refresh(), then status == TaskResultStatus.FAILED",
    "is_failed": "refresh(), then status == TaskResultStatus.FAILED",
    "traceback": "refresh(), then errors[-1].traceback",
    "exc_info": "refresh(), then errors[-1].traceback",
    "revoke": "cancel()",
    "forget": "result_ttl of the task: how long its results are kept",
    "task_id": "id",
    "message_id": "id",
}


def error_of(kind: str, name: str, instead: str) -> AttributeError:
    """The error for a name of another task queue."""
    return AttributeError(f"A {kind} of Django's Tasks framework has no {name}: write {instead}.")


class NotDelayed:
    """The `delay` of a task that has none. It is false and equal to None, but not None itself; Celery's
    `task.delay(...)` calls it."""

    __slots__ = ()
    #: Django's templates show it, and don't call it
    do_not_call_in_templates = True

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise error_of("task", "delay()", TASK_NAMES["delay"])

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, NotDelayed)

    def __hash__(self) -> int:
        return hash(None)

    def __repr__(self) -> str:
        return "None"

    def __reduce__(self) -> str:
        return "NOT_DELAYED"  # copies are the same object


NOT_DELAYED = NotDelayed()
