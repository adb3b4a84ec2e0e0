"""Candidates for a leadership, in threads and in other processes."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import redis

from django_redis_messaging import Leader, Term, conf
from django_redis_messaging.core import clients

from .child_processes import Stage, enter
from .server import DEADLINE, until

#: seconds between two steps of a leader's work
STEP = 0.005
#: seconds: the lease of leaders in other processes
LEASE = 1.5


class Candidate:
    """A thread that runs for the leadership, in the blocking or the async style. As the leader, it works
    until its term is set, or the test ends it."""

    def __init__(self, pool: ThreadPoolExecutor, call_style: str, leader: Leader) -> None:
        self.leader = leader
        self.stop, self.end = threading.Event(), threading.Event()
        self.terms: list[Term] = []
        self.result: Future[Any] = pool.submit(self._run if call_style == "blocking" else self._run_loop)

    def _run(self) -> Any:
        return self.leader.run(self._lead, stop=self.stop)

    def _run_loop(self) -> Any:
        return asyncio.run(self._arun())

    async def _arun(self) -> Any:
        try:
            return await self.leader.arun(self._alead, stop=self.stop)
        finally:
            await clients.aclose()

    def _lead(self, term: Term) -> str:
        self.terms.append(term)
        while not term.is_set() and not self.end.is_set():
            time.sleep(STEP)
        return "done"

    async def _alead(self, term: Term) -> str:
        self.terms.append(term)
        while not term.is_set() and not self.end.is_set():  # noqa: ASYNC110 (a Term can't be awaited)
            await asyncio.sleep(STEP)
        return "done"

    def leads(self, terms: int = 1) -> Term:
        """Wait until it has so many terms; returns the latest."""
        until(lambda: len(self.terms) >= terms)
        return self.terms[-1]

    def waits(self, place: int = 1) -> None:
        """Wait until so many candidates are in the queue."""
        until(lambda: self.leader.info().waiting >= place)

    def ends(self) -> Any:
        """Let it end its term; returns the result of its call."""
        self.end.set()
        return self.result.result(DEADLINE)


def work(stage: Stage) -> None:
    """Lead, and write the fence to a list until the term is set, then to another one; until killed."""
    enter(stage)
    client, prefix = redis.Redis.from_url(stage.url), conf.prefix()

    def lead(term: Term) -> None:
        while not term.is_set():
            client.rpush(f"{prefix}:written", term.fence)
            time.sleep(STEP)
        client.rpush(f"{prefix}:over", term.fence)

    Leader("importer", timeout=LEASE).run(lead, stop=threading.Event())
