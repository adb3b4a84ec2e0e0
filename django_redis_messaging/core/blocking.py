"""The blocking client.

A call takes a connection that is idle, or makes one, and gives it back: no pool's lock, and no health
check, before each command; a connection that turns out dead is replaced by the retry. As many are open
as calls were ever under way at once.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from .calls import Batch, attempts_at, once, result, spans_slots
from .cluster import ASKING, QUESTION, Address, Topology, asked_instead
from .connections import alive, arrives, converse, exchange, readable, receive, send
from .endpoints import connected, endpoint, look
from .retry import Attempts, NotSent, demoted
from .steps import Command, Script, Step, Wait
from .waiting import Outstanding, Pop


class BlockingClient:
    """Sends steps over blocking connections; one a process and alias, safe to share between threads."""

    def __init__(self, alias: str) -> None:
        self.endpoint = endpoint(alias)
        #: by the server's address. list.pop and list.append are atomic: no lock needed
        self._idle: defaultdict[Address | None, list[Any]] = defaultdict(list)
        self._outstanding = Outstanding()

    def execute(self, step: Step) -> Any:
        """Send `step`, and again where that helps; the reply, or an error of errors.py."""
        if isinstance(step, Wait):
            return self._wait(step)
        began = monotonic()
        batch: Batch | None = None
        attempts: Attempts | None = None
        while True:
            known = self.endpoint.topology
            try:
                if attempts is None and isinstance(step, Command | Script) and not step.once:
                    return self._call(step)
                batch = batch or Batch(step, apart=self.endpoint.apart)
                self._attempt(batch, attempts)
                return result(step, batch.replies)
            except (RedisError, NotSent) as error:
                if batch is not None and not batch.apart and spans_slots(step, error):
                    self.endpoint.apart = True
                    batch = None
                    continue
                batch = batch or Batch(step, apart=self.endpoint.apart)
                attempts = attempts or attempts_at(batch.calls, self.endpoint, began)
                pause = attempts.after(error)
                self._find_out(error, known)
                sleep(pause)

    def close(self) -> None:
        """Close the idle connections, and those on which a wait is outstanding."""
        for connection in self._outstanding.take_all():
            connection.disconnect()
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().disconnect()

    def _find_out(self, error: Exception, known: Topology | None) -> None:
        """Where to go after this error, if nobody has found out since."""
        if demoted(error):
            self.close()
        if self.endpoint.outdated(error) and self.endpoint.topology is known:
            look(self.endpoint, error)
            for address in self.endpoint.gone(self._idle):
                for connection in self._idle.pop(address, []):
                    connection.disconnect()

    def _wait(self, step: Wait) -> Any:
        attempts = attempts_at([step], self.endpoint, monotonic())
        attempts.ends += step.seconds
        ends = monotonic() + step.seconds
        instead: Address | None = None
        while True:
            known = self.endpoint.topology
            try:
                return self._wait_until(ends, step, instead)
            except (RedisError, NotSent) as error:
                pause = attempts.after(error)
                if isinstance(error, ResponseError) and monotonic() + pause >= ends:
                    return None
                instead = asked_instead(error)
                self._find_out(error, known)
                sleep(pause)

    def _wait_until(self, ends: float, step: Wait, instead: Address | None) -> Any:
        pop = self._outstanding.take(step.words)
        if pop is not None and pop.overdue:
            pop.connection.disconnect()
            pop = None
        address = pop.address if pop else instead or self.endpoint.route(step)
        connection = pop.connection if pop else self._take(address, fresh=True)
        try:
            if instead and not pop:
                exchange(connection, ASKING)
            reply, pop = self._reply_until(ends, pop or self._sent(connection, address, step), step)
        except BaseException:
            connection.disconnect()
            raise
        if pop is None:
            self._idle[address].append(connection)
            return result(step, [reply])
        for ended in self._outstanding.keep(pop, readable):
            with suppress(RedisError):  # it is closed then: nobody waits for it
                receive(ended.connection)
                self._idle[ended.address].append(ended.connection)
        return None

    def _reply_until(self, ends: float, pop: Pop, step: Wait) -> tuple[Any, Pop | None]:
        """The reply, or what is outstanding still."""
        while arrives(pop.connection, max(ends - monotonic(), 0)):
            reply = receive(pop.connection)
            if reply is not None or ends <= monotonic():
                return reply, None
            pop = self._sent(pop.connection, pop.address, step)
        return None, pop

    def _sent(self, connection: Any, address: Address | None, step: Wait) -> Pop:
        send(connection, step.sent)
        return Pop(step.words, connection, address, monotonic())

    def _call(self, call: Command | Script) -> Any:
        """The first attempt at one call: what nearly every operation is, so with nothing around it."""
        address = self.endpoint.route(call)
        connection = self._take(address, fresh=False)
        reply = exchange(connection, call.words)
        if isinstance(reply, NoScriptError) and isinstance(call, Script):
            reply = exchange(connection, call.in_full)
        self._idle[address].append(connection)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _attempt(self, batch: Batch, attempts: Attempts | None) -> None:
        """Send what has no reply yet, to whom it concerns."""
        for address, places in batch.routed(self.endpoint).items():
            self._send(address, batch, places, attempts)
            for elsewhere, moving in batch.asked(places).items():
                self._send(elsewhere, batch, moving, attempts, asking=True)

    def _send(
        self,
        address: Address | None,
        batch: Batch,
        places: list[int],
        attempts: Attempts | None,
        *,
        asking: bool = False,
    ) -> None:
        connection = self._take(address, fresh=attempts is not None or once(batch.calls))
        timeout = attempts.reading_time if attempts else None  # None: as the connection says
        batch.answered(places, converse(connection, batch.words(places), timeout, asking=asking))
        unknown, in_full = batch.unknown(places)
        if unknown:
            batch.answered(unknown, converse(connection, in_full, timeout, asking=asking))
        self._idle[address].append(connection)

    def _take(self, address: Address | None, *, fresh: bool) -> Any:
        """An idle connection, or a new one. `fresh`: surely alive, so that what fails was not sent."""
        idle = self._idle[address]
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                break
            if not fresh or alive(connection):
                return connection
            connection.disconnect()
        try:
            connection = connected(self.endpoint, address)
            if not self.endpoint.asked:
                self.endpoint.learn_kind(exchange(connection, QUESTION))
            return connection
        except RedisError as error:
            raise NotSent from error
