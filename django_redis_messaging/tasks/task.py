"""Tasks with more than Django's fields: retries, timeouts, results, unique keys, locks, enqueueing on
commit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, Self, overload

from django.db import DEFAULT_DB_ALIAS

from ..core import payloads
from ..core.keys import name as checked
from .compat import Task, TaskResult, task_backends
from .control import Call, Control, control_of
from .names import SEMAPHORE_PREFIX, NameSource, Needs, as_bound, call_name


class Default(Enum):
    """The value of a field that was not given, where None has another meaning."""

    TIMEOUT = "the backend's TIMEOUT"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTask(Task):
    """What `@task` returns for a function whose backend is a RedisBackend."""

    #: maximum number of attempts; None: the backend's MAX_ATTEMPTS, and an exception ends the task: only
    #: attempts whose worker was lost are repeated
    max_attempts: int | None = None
    #: exceptions after which the task is retried; None: any if max_attempts is given, else none
    retry_on: tuple[type[BaseException], ...] | None = None
    #: seconds an attempt may take; None: no timeout; not given: the backend's TIMEOUT
    timeout: float | Default | None = Default.TIMEOUT
    #: seconds that the result is kept after the task succeeded or was cancelled; 0: it is not stored; None:
    #: the backend's RESULT_TTL
    result_ttl: float | None = None
    #: key that only one waiting or running call may have: True: the arguments; a str; or a function of the
    #: arguments that returns the key
    unique: bool | str | Callable[..., str] = False
    #: when the call is sent: False: at once; True: when all open transactions are committed; a database
    #: alias: when the transaction of that database is committed
    on_commit: bool | str | None = None
    #: task that is enqueued when a call succeeds, with the return value as its only argument
    then: Task | None = None
    #: name of the Lock that a call holds while it runs: a str with parameters in braces, or a function of the
    #: arguments
    lock: NameSource | None = None
    #: number of calls with the same `concurrency_key` that may run at a time; None: any number
    concurrency: int | None = None
    #: like `lock`; None: the dotted name of the task
    concurrency_key: NameSource | None = None

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        **more: Any,
    ) -> Self:
        """A copy with other values: Django's fields, and the fields of this class. For the latter None is a
        value, too."""
        changes: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
        }
        return replace(self, **{key: value for key, value in changes.items() if value is not None}, **more)

    def enqueue_on_commit(self, using: str = DEFAULT_DB_ALIAS) -> Self:
        """A copy whose calls are sent when the transaction of that database is committed."""
        return replace(self, on_commit=using)

    def enqueue_many(self, calls: Iterable[Call]) -> list[TaskResult]:
        """Enqueue a call for each `(args, kwargs)`: up to 200 calls or 1 MiB in a round trip."""
        return self._backend.enqueue_many(self, list(calls))

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[TaskResult]:
        """See enqueue_many()."""
        return await self._backend.aenqueue_many(self, list(calls))

    def cancel(self, result_id: str) -> bool:
        """Cancel a call that has not started, in whichever queue it waits: its result is FAILED then."""
        return self._backend.cancel(self, result_id)

    async def acancel(self, result_id: str) -> bool:
        """See cancel()."""
        return await self._backend.acancel(self, result_id)

    def reschedule(self, result_id: str, run_after: datetime) -> bool:
        """Change when a call that has not started runs."""
        return self._backend.reschedule(self, result_id, run_after)

    async def areschedule(self, result_id: str, run_after: datetime) -> bool:
        """See reschedule()."""
        return await self._backend.areschedule(self, result_id, run_after)

    @property
    def retries(self) -> tuple[type[BaseException], ...]:
        """The exceptions after which the task is retried."""
        if self.retry_on is not None:
            return self.retry_on
        return () if self.max_attempts is None else (Exception,)

    def unique_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """The unique key of a call; empty if the task is not unique."""
        if self.unique is False:
            return ""
        if self.unique is True:
            # arguments that the function can't distinguish have one key, however they were passed
            positional, named = as_bound(self.func, self.takes_context, args, kwargs)
            chosen: Any = [list(positional), sorted(named.items())]
        else:
            chosen = self.unique if isinstance(self.unique, str) else self.unique(*args, **kwargs)
        key = payloads.dumps([self.module_path, chosen], "unique key", sort_keys=True)
        return hashlib.sha256(key.encode()).hexdigest()[:32]

    def needs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Needs | None:
        """What a call has to acquire before it runs; None for nothing."""
        if self.lock is None and self.concurrency is None:
            return None
        call = self.func, self.takes_context, args, kwargs
        lock = "" if self.lock is None else call_name(self.lock, "lock", *call)
        if self.concurrency is None:
            return Needs(lock, "")
        key = self.module_path
        if self.concurrency_key is not None:
            key = call_name(self.concurrency_key, "concurrency_key", *call)
        return Needs(lock, checked(SEMAPHORE_PREFIX + key, "concurrency_key"))

    @property
    def _backend(self) -> Control:
        return control_of(self.backend)


@overload
def task(function: Callable[..., Any], /) -> RedisTask: ...


@overload
def task(*, backend: str = "default", **fields: Any) -> Callable[[Callable[..., Any]], RedisTask]: ...


def task(function: Callable[..., Any] | None = None, *, backend: str = "default", **fields: Any) -> Any:
    """Django's `@task`, with the fields of RedisTask on every version of Django.

    Django 6.1's own decorator accepts them too; that of 6.0 raises TypeError.
    """
    if "run_after" in fields:
        raise TypeError("run_after can't be the same for all calls: set it by .using(run_after=...).")

    def wrap(wrapped: Callable[..., Any]) -> Any:
        # the Task of Django 6.0 has no defaults for these
        chosen = {"priority": 0, "queue_name": "default", "run_after": None, **fields}
        return task_backends[backend].task_class(func=wrapped, backend=backend, **chosen)

    return wrap if function is None else wrap(function)
