"""Operations in both forms, their steps and observers; scripts that the server doesn't have; scripts for many
resources."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from django_redis_messaging import ConfigurationError, MessagingError, OutcomeUnknown, Unavailable, conf
from django_redis_messaging.core import clients, commands, operations
from django_redis_messaging.core.clients import Batch, Pipeline
from django_redis_messaging.core.commands import Gather
from django_redis_messaging.core.connection import run_blocking
from django_redis_messaging.core.operations import (
    Command,
    Fan,
    InOrder,
    Script,
    Service,
    Steps,
    asynchronous,
    operation,
)
from django_redis_messaging.core.outcome import Attempts, no_retries_when
from django_redis_messaging.devserver.server import EmbeddedServer as Server
from tests.conftest import Call
from tests.core.conftest import Connect, at_once, count
from tests.support.example_service import SCRIPTS, Things
from tests.support.proxy import LossyProxy

pytestmark = [pytest.mark.versions, pytest.mark.usefixtures("closing")]

NOWHERE = "unix:///nowhere/at-all.sock?db=0"


class TestForms:
    async def test_both_return_the_result_of_the_body(self, things: Things) -> None:
        assert [things.add("a"), things.add("a", 4)] == [1, 5]
        assert await things.aadd("b", 2) == things.add("c", 2) == 2
        assert await things.aget("b") == things.get("b") == b"2"
        assert await things.aget("nothing") is things.get("nothing") is None

    def test_the_async_one_has_its_own_name_and_the_same_parameters(self) -> None:
        assert Things.aadd.__name__ == "aadd"
        assert Things.aadd.__qualname__ == "Things.aadd"
        assert Things.aadd.__doc__ == Things.add.__doc__
        assert inspect.signature(Things.aadd) == inspect.signature(Things.add)

    def test_arguments_are_checked_before_anything_is_sent(self, connect: Connect) -> None:
        with pytest.raises(TypeError, match="unexpected"):
            connect(NOWHERE).add("a", nonsense=1)  # type: ignore[call-arg]

    async def test_a_body_without_steps_needs_no_server(self, connect: Connect) -> None:
        class Idle(Service):
            @operation
            def nothing(self) -> Steps[int]:
                """Yield no steps."""
                yield from ()
                return 3

        nowhere = connect(NOWHERE, COMMAND_DEADLINE=0.2)
        assert Idle().nothing() == 3
        assert nowhere.add_each([]) == await nowhere.aadd_each([]) == []
        assert nowhere.add_all([]) == await nowhere.aadd_all([]) == []

    async def test_a_body_can_catch_the_error_of_a_step(self, things: Things) -> None:
        class Careful(Service):
            @operation
            def look(self) -> Steps[str]:
                try:
                    yield Command("NOSUCHCOMMAND")
                except MessagingError:
                    reply = yield Command("PING")
                    return f"caught, {reply.decode()}"
                return "nothing raised"

            alook = asynchronous(look)

        assert Careful().look() == await Careful().alook() == "caught, PONG"

    async def test_a_pipeline(self, call: Call, things: Things) -> None:
        """Its replies are in order; it raises its first error and applies the rest."""
        things.add("b", 10)
        assert await call(things, "add_each", ["a", "b", "c"]) == [1, 11, 1]
        things.do("ZADD", things.key("d"), 0, "x")
        with pytest.raises(ConfigurationError, match="another type"):
            await call(things, "add_each", ["a", "d", "c"])
        assert things.get("a") == things.get("c") == b"2"

    def test_an_invalid_prefix_is_rejected(self) -> None:
        """For each object: the setting may be a function. The cases are in test_keys.py."""
        prefix = override_settings(REDIS_MESSAGING={"PREFIX": lambda: "a b"})
        with prefix, pytest.raises(ValueError, match="PREFIX"):
            Things()

    async def test_steps_can_be_performed_without_a_service(self, things: Things) -> None:
        def body() -> Steps[int]:
            reply = yield Command("INCR", things.key("a"))
            return int(reply)

        assert clients.perform("messaging", body()) == 1
        assert await clients.aperform("messaging", body()) == 2
        assert clients.execute("messaging", Command("INCR", things.key("a"))) == 3

    def test_code_of_the_blocking_style_is_never_suspended(self) -> None:
        async def suspended(seconds: float) -> None:
            await asyncio.sleep(seconds)

        with pytest.raises(RuntimeError, match="suspended"):
            run_blocking(suspended, 0)


noted: list[tuple[str, float, str]] = []


def note(operation: str, seconds: float, outcome: str) -> None:
    noted.append((operation, seconds, outcome))


class TestObservers:
    @pytest.fixture
    def seen(self) -> Iterator[list[tuple[str, float, str]]]:
        noted.clear()
        operations.observe(note)
        yield noted
        operations.unobserve(note)

    async def test_they_get_operation_seconds_and_outcome(self, things: Things, seen: list[Any]) -> None:
        things.add("a")
        await things.aadd("a")
        things.do("ZADD", things.key("b"), 0, "x")
        with pytest.raises(ConfigurationError):
            things.add("b")
        waiting = asyncio.ensure_future(things.await_("nothing", 30))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [(name, outcome) for name, _, outcome in seen] == [
            ("Things.add", "ok"),
            ("Things.add", "ok"),
            ("Things.do", "ok"),
            ("Things.add", "ConfigurationError"),
            ("Things.wait", "CancelledError"),
        ]
        assert all(0 < seconds < 10 for _, seconds, _ in seen)

    def test_a_failing_one_does_not_change_the_result(
        self, things: Things, caplog: pytest.LogCaptureFixture
    ) -> None:
        @operations.observe
        def broken(operation: str, seconds: float, outcome: str) -> None:
            raise RuntimeError("metrics are down")

        try:
            with caplog.at_level(logging.ERROR):
                assert things.add("a") == 1
        finally:
            operations.unobserve(broken)
        assert "observer" in caplog.text

    def test_one_can_be_named_in_the_settings(self, things: Things) -> None:
        noted.clear()
        given = {**conf.configured(), "OBSERVE": "tests.core.test_operations.note"}
        with override_settings(REDIS_MESSAGING=given):
            things.add("a")
        things.add("a")
        assert [name for name, _, _ in noted] == ["Things.add"]
        assert not operations.are_observed()  # nothing is timed

    async def test_an_async_one_is_rejected(self, things: Things) -> None:
        async def late(operation: str, seconds: float, outcome: str) -> None: ...

        class Late:
            async def __call__(self, operation: str, seconds: float, outcome: str) -> None: ...

        for observer in (late, Late()):
            with pytest.raises(TypeError, match="async"):
                operations.observe(observer)
        with override_settings(REDIS_MESSAGING={**settings.REDIS_MESSAGING, "OBSERVE": "asyncio.sleep"}):
            with pytest.raises(ConfigurationError, match="OBSERVE"):
                things.add("a")
            with pytest.raises(ConfigurationError, match="OBSERVE"):
                await things.aadd("a")

    async def test_its_own_operations_are_not_observed(self, things: Things) -> None:
        seen: list[str] = []

        @operations.observe
        def counting(operation: str, seconds: float, outcome: str) -> None:
            seen.append(operation)
            things.add("calls")

        try:
            things.add("a")
            await things.aadd("a")
        finally:
            operations.unobserve(counting)
        assert seen == ["Things.add", "Things.add"]
        assert things.get("calls") == b"2"


#: a piece of scripts, in which `recover` is rare
LIBRARY = """-- Numbers.
local LIMIT = 9

-- Adds one.
local function increment(number)
  return number + 1
end

local function add_two(number)
  return increment(increment(number)) -- not subtract(number)
end

local function subtract(number)
  return number - 1
end

-- Recovers.
-- rare
local function recover(number)
  return add_two(subtract(number))
end
"""


def names(text: str) -> list[str]:
    """What a text declares, in order: functions within others with their indentation of 0."""
    return re.findall(r"^local (?:function )?(\w+)", text, re.MULTILINE)


class TestLoading:
    def test_used_files_come_before_the_script(self) -> None:
        source = commands.load("thing_add")
        assert source.text == SCRIPTS["_thing"] + "\n" + SCRIPTS["thing_add"]
        assert source.sha == hashlib.sha1(source.text.encode(), usedforsecurity=False).hexdigest()
        assert commands.load("thing_add") is source

    def test_reads_only_is_detected(self) -> None:
        assert commands.load("thing_get").reads_only
        assert not commands.load("thing_add").reads_only

    def test_a_missing_script_is_an_error(self) -> None:
        with pytest.raises(FileNotFoundError):
            commands.load("no_such_script")

    def test_the_words_of_a_call(self) -> None:
        call, source = Script("thing_add", ["k"], [1, b"x"]), commands.load("thing_add")
        assert call.words == ("EVALSHA", source.sha, "1", "k", "1", b"x")
        assert call.in_full == ("EVAL", source.text, "1", "k", "1", b"x")

    def test_a_function_is_kept_with_those_that_it_calls(self) -> None:
        kept = commands.with_needed(LIBRARY, "return add_two(LIMIT)")
        assert names(kept) == ["LIMIT", "increment", "add_two"]
        assert commands.with_needed(LIBRARY, "return LIMIT").count("function") == 0

    def test_what_only_a_rare_function_needs_is_inside_of_it(self, things: Things) -> None:
        kept = commands.with_needed(LIBRARY, "return increment(recover(LIMIT))")
        assert names(kept) == ["LIMIT", "increment", "recover", "add_two", "subtract"]
        recover = kept.partition("local function recover(number)\n")[2]
        inside = recover.rpartition("  return add_two(subtract(number))\nend\n")[0]
        assert names(inside) == ["add_two", "subtract"]
        text = commands.with_needed(LIBRARY, "return recover(increment(LIMIT))")
        assert things.do("EVAL", text, 0) == 11

    @pytest.mark.parametrize("path", sorted(Path(commands.__file__).parents[1].rglob("_*.lua")))
    def test_every_function_of_a_piece_is_found(self, path: Path) -> None:
        """A function that is not found would always be kept, or swallow the next one."""
        text, constants = path.read_text(encoding="utf-8"), re.compile(r"^local [A-Z]\w+", re.MULTILINE)
        kept = commands.with_needed(text, "")
        assert "local function" not in kept
        assert constants.findall(kept) == constants.findall(text)


class TestUnknownScripts:
    @pytest.fixture
    def things(self, connect: Connect, private: Server) -> Things:
        """The service, on a server that the test may break."""
        return connect(private)

    async def test_calls_and_fans(self, things: Things, admin: Any) -> None:
        for n in (1, 3):
            admin.script_flush()
            assert things.add("a") == n
            admin.script_flush()
            assert await things.aadd("a") == n + 1
        assert things.add_all(["b", "c"]) == [1, 2]
        admin.script_flush()
        assert await things.aadd_all(["b", "c"]) == [2, 4]

    async def test_some_calls_of_a_pipeline(self, things: Things, admin: Any) -> None:
        class Mixed(Service):
            @operation
            def both(self, key: str) -> Steps[list[object]]:
                known, unknown = Script("thing_get", [key]), Script("thing_add", [key], [1])
                replies: list[object] = yield [known, unknown, Command("STRLEN", key), known]
                return replies

        things.do("PING")  # the first call detects the kind of server
        assert things.get("a") is None
        assert Mixed().both(things.key("a")) == [None, 1, 0, None]
        assert Mixed().both(things.key("a")) == [b"1", 2, 1, b"2"]
        admin.script_flush()
        assert await things.aadd_each(["a", "b"]) == [3, 1]


class TestManyResources:
    async def test_a_single_server_gets_one_call(self, connect: Connect, private: Server, admin: Any) -> None:
        things = connect(private)
        names = [f"{at}" for at in range(Fan.SIZE * 2 + 1)]
        wanted = [at + 1 for at in range(len(names))]
        assert things.add_all(names) == wanted
        assert not clients.blocking_client("messaging").endpoint.router.splits
        assert await things.aadd_all(names) == [2 * n for n in wanted]
        # three calls each; the scripts of the first were not loaded yet
        assert count(admin, "commandstats", "evalsha") == 6

    def test_a_single_server_gets_those_in_order_in_one_call(self, things: Things) -> None:
        """However many: the server can't keep an order between two calls."""
        resources = [([things.key(str(at))], []) for at in range(Fan.SIZE + 1)]
        step = InOrder("thing_add_all", resources, [1], number=1)
        assert (len(step.calls(split=False)), len(step.calls(split=True))) == (1, 1)

    async def test_a_cluster_gets_one_call_for_each(self, connect: Connect, cluster_server: Server) -> None:
        things = connect(cluster_server)
        assert things.add_all(["a", "b", "c"]) == [1, 2, 3]
        assert await things.aadd_all(["a", "b", "c"]) == [2, 4, 6]
        assert clients.blocking_client("messaging").endpoint.router.splits
        with cluster_server.client() as admin:
            before = count(admin, "commandstats", "evalsha")
            things.add_all(["a", "b", "c"])
            assert count(admin, "commandstats", "evalsha") == before + 3

    @pytest.mark.parametrize("kind", ["server", "cluster_server"])
    async def test_gathering_strings(
        self, connect: Connect, kind: str, request: pytest.FixtureRequest
    ) -> None:
        class Gatherer(Service):
            @operation
            def all(self, keys: list[str]) -> Steps[list[bytes | None]]:
                replies: list[bytes | None] = yield Gather(keys)
                return replies

        things = connect(request.getfixturevalue(kind))
        things.add("a", 5)
        things.add("c", 7)
        assert Gatherer().all([things.key(name) for name in "abc"]) == [b"5", None, b"7"]
        assert Gatherer().all([]) == []

    async def test_a_script_with_keys_of_two_slots_is_a_clear_error(
        self, connect: Connect, cluster_server: Server
    ) -> None:
        class Careless(Service):
            @operation
            def add(self, keys: list[str]) -> Steps[object]:
                return (yield Script("thing_add_all", keys, [1, 1, 1]))

        things = connect(cluster_server)
        with pytest.raises(ConfigurationError, match="Cluster"):
            Careless().add([things.key("a"), things.key("b")])
        assert things.get("a") is None


#: the resources of three calls
NAMES = [f"{at}" for at in range(2 * Fan.SIZE + 50)]
FIRST, SECOND, THIRD = NAMES[: Fan.SIZE], NAMES[Fan.SIZE : 2 * Fan.SIZE], NAMES[2 * Fan.SIZE :]
#: a resource of the second call, with half of the others before it
HALFWAY = SECOND[50]
Refuse = Callable[..., None]


def three_attempts() -> AbstractContextManager[None]:
    """In its block, a step is attempted up to three times, however long a reply takes."""
    failures = itertools.count(1)
    return no_retries_when(lambda: next(failures) >= 3)


@pytest.mark.timing
class TestFans:
    """Scripts for many resources that are sent once: replies and errors, call by call."""

    @pytest.fixture
    def refuse(self, server: Server) -> Refuse:
        """Let `add_some` refuse a name with this text; for `ms`, else until the end of the test."""

        def store(things: Things, name: str, text: str, ms: int | None = None) -> None:
            with server.client() as admin:
                admin.set(things.refusal(name), text, px=ms)

        return store

    def values(self, things: Things, names: list[str]) -> list[bytes | None]:
        found: list[bytes | None] = things.do("MGET", *map(things.key, names), reads=True)
        return found

    def second(self, found: list[Any]) -> list[Any]:
        """The items of the second call; the others succeeded."""
        assert found[: Fan.SIZE] == [1] * Fan.SIZE and found[2 * Fan.SIZE :] == [1] * len(THIRD)
        return found[Fan.SIZE : 2 * Fan.SIZE]

    async def test_calls_that_are_refused_for_now_are_repeated(
        self, call: Call, things: Things, refuse: Refuse
    ) -> None:
        refuse(things, SECOND[0], "TRYAGAIN for now", 200)
        assert await call(things, "add_some", NAMES) == [1] * len(NAMES)
        assert self.values(things, NAMES) == [b"1"] * len(NAMES)

    @pytest.mark.parametrize(
        ("refused", "text", "error", "said", "added"),
        [
            (SECOND[0], "NOREPLICAS for ever", Unavailable, ("for ever", "was not applied"), 0),
            (
                HALFWAY,
                "WRONGTYPE of this one",
                OutcomeUnknown,
                ("refused a part (WRONGTYPE of this one)",),
                50,
            ),
            (SECOND[0], "OOM command not allowed", Unavailable, ("memory",), 0),  # before the first write
        ],
    )
    async def test_calls_that_are_refused(
        self,
        call: Call,
        connect: Connect,
        server: Server,
        refuse: Refuse,
        refused: str,
        text: str,
        error: type[MessagingError],
        said: tuple[str, ...],
        added: int,
    ) -> None:
        things = connect(server)
        refuse(things, refused, text)
        with three_attempts():
            errors = self.second(await call(things, "add_some", NAMES))
        assert {type(one) for one in errors} == {error}
        assert all(part in str(errors[0]) for part in said)
        assert self.values(things, SECOND) == [b"1"] * added + [None] * (Fan.SIZE - added)
        assert self.values(things, FIRST + THIRD) == [b"1"] * (Fan.SIZE + len(THIRD))

    async def test_a_call_for_one_resource_was_not_applied(
        self, call: Call, connect: Connect, cluster_server: Server
    ) -> None:
        things = connect(cluster_server)
        things.do("SET", things.refusal("b"), "WRONGTYPE of this one")
        first, second, third = await call(things, "add_some", ["a", "b", "c"])
        assert (first, third, type(second)) == (1, 1, ConfigurationError)

    async def test_a_lost_reply_leaves_the_others(
        self, call: Call, connect: Connect, proxy: LossyProxy, refuse: Refuse
    ) -> None:
        things = connect(proxy)
        for _ in range(2):  # with the missing key, then, once the kind of server is detected, without it
            await call(things, "add_some", ["known"])
        refuse(things, SECOND[0], "TRYAGAIN for now", 200)
        proxy.lose_one_after(1)  # that to the repeat of the second call
        with at_once():
            errors = self.second(await call(things, "add_some", NAMES))
        assert proxy.lost == 1
        assert {type(error) for error in errors} == {OutcomeUnknown}
        assert self.values(things, FIRST + THIRD) == [b"1"] * (Fan.SIZE + len(THIRD))

    def test_calls_that_were_not_sent_were_not_applied(self, things: Things) -> None:
        resources = [([things.key(name)], []) for name in "abc"]
        batch = Batch(Fan("thing_add_all", resources, [1], once=True), split=True)
        attempts = Attempts(0.6, began=time.monotonic(), reply_timeout=0.6, writes=True, once=True)
        assert batch.partial_result(attempts.error_of) is None
        batch.record(Pipeline(None, [0]), [[1]])
        batch.mark_sent(Pipeline(None, [1]))
        first, second, third = batch.partial_result(attempts.error_of) or []
        assert (first, type(second), type(third)) == (1, OutcomeUnknown, Unavailable)
        assert "did not reply" in str(second) and "was not applied" in str(third)

    async def test_a_script_that_may_be_repeated_raises(
        self, call: Call, things: Things, refuse: Refuse
    ) -> None:
        refuse(things, SECOND[0], "OOM command not allowed")
        with pytest.raises(OutcomeUnknown, match="refused a part"):
            await call(things, "add_some", NAMES, once=False)
        assert self.values(things, FIRST) == [b"1"] * Fan.SIZE

    @pytest.mark.parametrize("text", ["NOREPLICAS for ever", "WRONGTYPE of this one"])
    async def test_an_error_of_all_calls_is_raised(
        self, text: str, call: Call, connect: Connect, server: Server, refuse: Refuse
    ) -> None:
        things = connect(server)
        for page in (FIRST, SECOND, THIRD):
            refuse(things, page[0], text)
        with three_attempts(), pytest.raises((Unavailable, ConfigurationError)):
            await call(things, "add_some", NAMES)
        assert self.values(things, NAMES) == [None] * len(NAMES)

    async def test_the_split_for_a_cluster_repeats_no_answered_call(
        self, call: Call, connect: Connect, cluster_server: Server
    ) -> None:
        """The last page has one resource, so the server answers it before the first page shows the kind."""
        names = NAMES[: Fan.SIZE + 1]
        assert await call(connect(cluster_server), "add_some", names) == [1] * len(names)
