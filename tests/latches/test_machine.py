"""Compares Latch with a model; and checks that the machine finds planted bugs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import Latch, LatchError, LatchInfo, MessagingError, conf
from django_redis_messaging.services.latches.latch import LatchKeys

from ..support.server import reply_to, steps
from ..support.state_machines import Machine, MachineTests, Plants, one

some = st.integers(0, 7)
counts = st.integers(1, 4)
times = st.integers(1, 2)


class LatchMachine(Machine):
    """Objects with any count, clients that wait, rounds, and a latch that is deleted or expires."""

    @initialize()
    def begin(self) -> None:
        self.keys = LatchKeys(conf.prefix(), self.name)
        self.count = self.remaining = self.round = 0  # of the stored round; 0: none is stored
        #: the round with which the stored latch was created
        self.created = 0
        #: the latest round that has opened
        self.opened = 0
        #: request id → remaining count, in this round
        self.counted: dict[str, int] = {}
        #: whether request ids may be left of a state that was evicted
        self.evicted = False
        #: the numbers of all rounds
        self.rounds: list[int] = []
        #: calls that were sent, and their replies
        self.sent: list[tuple[Any, Any]] = []
        #: clients that wait: the steps of their calls, and the rounds in which they began
        self.waiting: list[tuple[Any, Any, int]] = []
        #: the rounds of waiting clients whose latch was deleted
        self.deleted: set[int] = set()

    def latch(self, count: int = 1) -> Latch:
        return Latch(self.name, count)

    # Calls

    @rule(count=counts, n=counts, request=st.sampled_from([None, "a", "b"]), times=times)
    def count_down(self, count: int, n: int, request: str | None, times: int) -> None:
        found = self.send(self.latch(count).count_down, n, request_id=request, times=times)
        self.store_if_new(count)
        if request in self.counted:
            assert found == self.counted[request]
            return
        if self.remaining:
            self.remaining = max(self.remaining - n, 0)
            self.opened = self.opened if self.remaining else self.round
            if request:
                self.counted[request] = self.remaining
        assert found == self.remaining

    @precondition(lambda self: self.rounds)
    @rule(at=some)
    def count_for_a_round(self, at: int) -> None:
        number = one(self.rounds, at)
        if number == self.round:
            self.remaining = max(self.remaining - 1, 0)
            self.opened = self.opened if self.remaining else self.round
            assert self.send(self.latch().count_down, round=number) == self.remaining
        else:
            assert isinstance(self.send(self.latch().count_down, round=number), LatchError)

    @rule(own=counts, count=st.one_of(st.none(), counts), times=times)
    def reset(self, own: int, count: int | None, times: int) -> None:
        number = self.send(self.latch(own).reset, count, times=times)
        self.created = self.created if self.round else number
        self.count = count or self.count or own
        self.begin_round(number)

    @rule(times=times)
    def delete(self, times: int) -> None:
        assert self.send(self.latch().delete, times=times) is (self.round > 0)
        if self.round:
            self.deleted |= {number for *_, number in self.waiting}
        self.count = self.remaining = self.round = 0
        self.counted = {}

    @precondition(lambda self: self.sent)
    @rule(at=some)
    def repeat_a_call_late(self, at: int) -> None:
        """Its first reply was lost. It changes nothing, also in a later round."""
        step, reply = one(self.sent[-8:], at)
        assert reply_to(step) == reply

    # Waiting clients

    @rule(count=counts)
    def wait(self, count: int) -> None:
        body = steps(self.latch(count).wait_until_open)
        step = next(body)
        replies = [reply_to(step) for _ in range(2)]  # the first one was lost
        self.store_if_new(count)
        assert self.proceed(body, replies[1]) == (self.remaining == 0), "it must pass if it is open"
        if self.remaining:
            self.waiting.append((body, self.listen, self.round))

    @precondition(lambda self: self.waiting)
    @rule(at=some)
    def poll(self, at: int) -> None:
        """A client was woken, or its pause is over."""
        body, listen, number = client = one(self.waiting, at)
        self.waiting.remove(client)
        gone = not self.round or number < self.created
        try:
            passed = self.proceed(body, reply_to(body.send(None)))
        except LatchError:
            assert gone and self.opened < number
        else:
            assert passed == (self.opened >= number)
            assert passed or not gone, "it would wait for ever"
            if not passed:
                assert self.listen.last == listen.last
                self.waiting.append((body, self.listen, number))

    def proceed(self, body: Any, reply: Any) -> bool:
        """Whether a client passes; else `listen` is what it waits for."""
        try:
            self.listen = body.send(reply)
        except StopIteration as stop:
            assert stop.value is True
            return True
        return False

    # Events

    @rule(also=st.booleans())
    def expire(self, also: bool) -> None:
        """Or Redis evicts the state only."""
        self.client.delete(self.keys.state, *([self.keys.counted] if also else []))
        self.evicted = self.evicted or not also
        self.count = self.remaining = self.round = 0
        self.counted = {}

    # Invariants

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        count, remaining = (self.count, self.remaining) if self.round else (7, 7)
        info = self.latch(7).info()
        assert info == LatchInfo(count=count, remaining=remaining, round=self.round)
        assert self.evicted or self.client.hlen(self.keys.counted) == len(self.counted)

    @invariant()
    def clients_are_woken_if_they_may_go_on(self) -> None:
        entries = self.client.xrange(self.keys.opening)
        for _, listen, number in self.waiting:
            is_woken = listen.finds(entries)
            assert is_woken == (self.opened >= number or number in self.deleted)

    # Helpers

    def send(self, operation: Any, *args: Any, times: int = 1, **options: Any) -> Any:
        """Call an operation, as often as if replies were lost; an error is its result."""
        body = steps(operation, *args, **options)
        step = next(body)
        reply = [reply_to(step) for _ in range(times)][-1]
        if operation.__name__ != "delete" or reply:  # else it may delete a later latch
            self.sent.append((step, reply))
        try:
            body.send(reply)
        except StopIteration as stop:
            return stop.value
        except LatchError as error:
            return error
        raise AssertionError("it takes another step")

    def store_if_new(self, count: int) -> None:
        if not self.round:
            self.count = count
            self.created = self.latch().info().round
            self.begin_round(self.created)

    def begin_round(self, number: int) -> None:
        assert number > max(self.rounds, default=0)
        self.evicted = False
        self.rounds.append(number)
        self.round, self.remaining, self.counted = number, self.count, {}


#: a script, a part of it, and a mistake to replace it with
PLANTS: Plants = {
    "latches/count_down": {
        "a repeat counts": ("if answer then", "if false then"),
        "a request id counts twice": ("local remaining = counted or", "local remaining = false or"),
        "a request id writes twice": ("if not counted and state", "if state"),
        "ids of a lost round count": (
            "state, counted = begin_round(latch, nil, default_count), false",
            "state = begin_round(latch, nil, default_count)",
        ),
        "events for another round count": ("state.round == round)", "state.round)"),
        "events without a round are refused": ("if round ~= 0 and not", "if not"),
        "the count falls below 0": ("math.max(state.remaining - events, 0)", "state.remaining - events"),
        "each event counts once": ("state.remaining - events,", "state.remaining - 1,"),
        "it opens early": ("if remaining == 0 then", "if remaining <= 1 then"),
        "the opening is not stored": ("'opened', digits(state.round)", "'opened', 0"),
        "the opening wakes nobody": ("wake_clients(latch.opening, state.round, state.round)", ""),
        "the opening names no round": (
            "latch.opening, state.round, state.round)",
            "latch.opening, state.round, 0)",
        ),
        "an open latch stores ids": ("if not counted and state.remaining > 0 then", "if not counted then"),
        "the present count is the answer to a request id": (
            "latch.counted, request, remaining)",
            "latch.counted, request, 1)",
        ),
    },
    "latches/wait": {
        "a closed latch lets pass": ("return state.remaining == 0 and 0 or state.round", "return 0"),
        "an open latch stops": ("return state.remaining == 0 and 0 or state.round", "return state.round"),
        "only an opening now counts": (">= round then", "> round then"),
        "the opening of a deleted latch is forgotten": (
            "math.max(opened, state and",
            "math.max(0, state and",
        ),
        "a client waits for a latch that was created anew": ("state.created <= round and ", ""),
        "a client waits for an expired latch": (
            "return state and state.created <= round and state.round >= round and",
            "return",
        ),
    },
    "latches/reset": {
        "a repeated reset begins a round": ("if answer then", "if false then"),
        "the former count is forgotten": ("state and state.count or default_count", "default_count"),
        "a new count is ignored": ("if count == 0 then", "if true then"),
    },
    "latches/delete": {
        "a repeated deletion finds nothing": ("if answer then", "if false then"),
        "request ids outlive the latch": ("redis.call('UNLINK', latch.counted)", ""),
        "a deletion wakes nobody": ("wake_clients(", "local _ = ("),
        "a deletion forgets the opening": ("state.round + 1), state.opened)", "state.round + 1), 0)"),
        "a deletion looks like an opening": ("state.round + 1), state.opened)", "state.round + 1), now)"),
    },
    "latches/_latches": {
        "a round forgets the opening before": ("previous.round), previous.opened", "previous.round), 0"),
        "a round of a new latch forgets the opening before": (
            "local number, opened = latest_opening(latch.opening)",
            "local number, opened = latest_opening(latch.opening), 0",
        ),
        "a reset creates the latch anew": ("previous and previous.created or round", "round"),
        "request ids outlive their round": ("redis.call('UNLINK', latch.counted)", ""),
    },
}


class TestMachine(MachineTests):
    machine = LatchMachine
    plants = PLANTS
    quick = ("a repeat counts", "it opens early")
    errors = (MessagingError,)  # an error of a script is a find, too
