"""How many messages a chat keeps: until all have acked, then keep_last; limits of length, bytes, age, size.

And how often a user may do something.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from pytest_django import Settings

from django_redis_messaging import Chat, ChatNotFound, Inbox, LimitExceeded, NotAMember, RateExceeded, conf
from django_redis_messaging.core.operations import Script
from django_redis_messaging.services.rates.user_rates import UserRate, rate_key

from ..support.scripts import server_clock
from ..support.server import bodies, change, create_chat, ids, keys, reply_to, said, server, snapshot, until


def stored(chat: Chat) -> int:
    """The number of stored messages."""
    return int(server().llen(keys(chat).log))


def stored_bytes(chat: Chat) -> int:
    """The bytes of the stored entries, without their offsets and sizes."""
    return sum(len(entry.rsplit(b",", 2)[0]) for entry in server().lrange(keys(chat).log, 0, -1))


LOOKS: dict[str, Callable[[Chat], object]] = {
    "history": lambda chat: chat.history("bob"),
    "pending": lambda chat: Inbox("bob").pending(),
    "unread": lambda chat: Inbox("bob").unread(),
    "chats": lambda chat: Inbox("bob").chats(),
}


class TestKeepLast:
    @pytest.mark.parametrize(("keep_last", "sent", "most"), [(0, 3, 0), (3, 10, 3), (32, 100, 34)])
    def test_a_single_member_keeps_about_so_many(self, keep_last: int, sent: int, most: int) -> None:
        chat = Chat.create("ann", [], keep_last=keep_last)
        assert ids(said(chat, "ann", *"x" * sent)) == list(range(1, sent + 1))
        assert keep_last <= stored(chat) <= most
        assert Inbox("ann").pending() == []

    def test_the_default_is_a_setting(self, settings: Settings) -> None:
        change(settings, CHAT_KEEP_LAST=2)
        chat = Chat.create("ann", ["bob"])
        change(settings, CHAT_KEEP_LAST=100)
        said(chat, "ann", *"12345")
        chat.ack("bob", 5)
        assert bodies(chat.history("bob")) == ["4", "5"]

    def test_former_and_new_members_keep_no_messages(self) -> None:
        chat = Chat.create("ann", ["bob", "cat"], keep_last=1)
        said(chat, "ann", *"12345")
        chat.ack("cat", 5)
        assert stored(chat) == 5
        chat.join("dan", by="ann")
        chat.leave("bob", by="ann")
        assert stored(chat) == 1

    def test_acking_with_pending_also_trims(self) -> None:
        chat = Chat.create("ann", ["bob"], keep_last=0)
        said(chat, "ann", *"123")
        assert [ids(news) for news in Inbox("bob").pending(ack=True, limit=2)] == [[1, 2]]
        assert stored(chat) == 1
        Inbox("bob").pending(ack=True)
        assert stored(chat) == 0

    def test_many_acked_messages_are_removed_in_steps(self) -> None:
        chat = Chat.create("ann", ["bob"], keep_last=1)
        said(chat, "ann", *map(str, range(1, 1203)))
        chat.ack("bob", 1202)
        assert (stored(chat), chat.info().first_id) == (702, 1202)
        assert bodies(chat.history("bob", after=0)) == bodies(chat.history("bob")) == ["1202"]
        assert stored(chat) == 1


class TestLength:
    def test_an_absent_member_does_not_grow_memory_without_bound(self, settings: Settings) -> None:
        change(settings, CHAT_MAX_LENGTH=3)
        chat = Chat.create("ann", ["bob", "cat"])
        for number in range(1, 8):
            assert chat.send("ann", str(number)).id == chat.ack("cat", number) == number
            assert stored(chat) == min(number, 3)
        (news,) = Inbox("bob").pending()
        assert (ids(news), news.gap, news.has_more, news.reset) == ([5, 6, 7], 4, False, False)
        assert (Inbox("bob").unread(), Inbox("bob").chats()[0].unread) == (3, 3)
        assert ids(chat.history("bob")) == [5, 6, 7]

    @pytest.mark.parametrize("look", LOOKS)
    def test_lowered_it_holds_on_reads(self, look: str, settings: Settings) -> None:
        chat = create_chat("x", *"1234567")
        change(settings, CHAT_MAX_LENGTH=3)
        LOOKS[look](chat)
        assert stored(chat) == 3

    @pytest.mark.worlds
    def test_many_messages_are_removed_in_steps(self, settings: Settings) -> None:
        """Freeing thousands of large messages at once would delay other clients."""
        chat = Chat.create("ann", ["bob"], keep_last=0)
        said(chat, "ann", *map(str, range(1, 1203)))
        change(settings, CHAT_MAX_LENGTH=3)
        for left in (702, 202, 3):
            assert bodies(chat.history("bob")) == ["1200", "1201", "1202"]
            assert stored(chat) == left
        change(settings, CHAT_MAX_LENGTH=1)
        (news,) = Inbox("bob").pending()
        assert (bodies(news), news.gap, chat.info().first_id) == (["1202"], 1201, 1202)
        chat.ack("bob", 1202)
        assert stored(chat) == 0

    def test_own_messages_of_who_never_reads_are_forgotten_with_them(self, settings: Settings) -> None:
        change(settings, CHAT_MAX_LENGTH=30)
        chat = Chat.create("ann", ["bob", "cat"], "one")
        for _ in range(150):
            chat.send("bob", "x")
            chat.send("cat", "y")
        assert server().zcard(keys(chat).own) <= 50
        assert (Inbox("ann").unread(), Inbox("bob").unread(), Inbox("cat").unread()) == (30, 15, 15)


class TestBytesOfAChat:
    def test_they_hold_on_writes(self, settings: Settings) -> None:
        change(settings, CHAT_MAX_BYTES=5000)
        chat = Chat.create("ann", ["bob"])
        for number in range(1, 21):
            chat.send("ann", f"{number:01000}")
            assert stored_bytes(chat) <= 5000
            assert stored(chat) == min(number, 4)
        (news,) = Inbox("bob").pending()
        assert (ids(news), news.gap, news.has_more, news.reset) == ([17, 18, 19, 20], 16, False, False)
        assert (chat.info().first_id, Inbox("bob").unread(), Inbox("bob").chats()[0].unread) == (17, 4, 4)
        said(chat, "ann", *"abc")
        assert stored_bytes(chat) <= 5000
        assert (ids(chat.history("bob")), stored(chat)) == ([17, 18, 19, 20, 21, 22, 23], 7)

    @pytest.mark.parametrize("look", ["history", "pending"])
    def test_lowered_they_hold_on_reads(self, look: str, settings: Settings) -> None:
        chat = create_chat("x", *(f"{number:0100}" for number in range(700)))
        change(settings, CHAT_MAX_BYTES=2000)
        LOOKS[look](chat)
        assert stored(chat) == 200
        LOOKS[look](chat)
        assert 1500 < stored_bytes(chat) <= 2000
        assert chat.history("bob", after=0).gap == 700 - stored(chat)
        change(settings, CHAT_MAX_BYTES=1)
        LOOKS[look](chat)
        assert ids(chat.history("bob")) == [700]

    def test_edits_cannot_exceed_them(self, settings: Settings) -> None:
        change(settings, CHAT_MAX_BYTES=5000)
        chat = create_chat("x", *"12345678")
        for number in range(1, 9):
            chat.edit("ann", number, str(number) * 1000)
            assert stored_bytes(chat) <= 5000
        assert chat.history("bob", after=0).gap == 8 - stored(chat)

    def test_repeated_edits_of_a_message_remove_no_others(self, settings: Settings) -> None:
        change(settings, CHAT_MAX_BYTES=5000)
        chat = create_chat("x", *"1234")
        for _ in range(10):
            chat.edit("ann", 3, "x" * 1000)
            chat.edit("ann", 3, "x")
        chat.delete_message("ann", 3)
        assert ids(chat.history("bob")) == [1, 2, 3, 4]
        chat.send("ann", "x" * 3000, data={"a": 1})
        assert chat.edit("ann", 4, "four") is not None
        assert bodies(chat.history("bob", after=1))[1:3] == ["", "four"]
        assert chat.history("bob").messages[-1].data == {"a": 1}


class TestBytesOfAnAnswer:
    def test_pages_and_pending(self) -> None:
        sizes = [20_000 if number % 7 else 65_000 for number in range(1, 41)]
        chat = create_chat("x", *("x" * size for size in sizes))
        everything = list(range(1, 41))

        def checked(page: Any) -> list[int]:
            found = ids(page)
            assert sum(sizes[number - 1] for number in found) <= 256 * 1024
            assert len(found) >= 6 or not page.has_more
            return found

        seen: list[int] = []
        while (page := chat.history("bob", after=seen[-1] if seen else 0, limit=100)).messages:
            seen += checked(page)
        assert seen == everything
        seen = []
        while not seen or page.has_more:
            page = chat.history("bob", before=seen[0] if seen else None, limit=100)
            seen = checked(page) + seen
        assert (seen, page.gap) == (everything, 0)
        seen = []
        while pending := Inbox("bob").pending(ack=True):
            seen += checked(pending[0])
        assert seen == everything

    @pytest.mark.worlds
    def test_gaps_are_reported_if_many_chats_are_read_and_acked(self, settings: Settings) -> None:
        """A chat for which no bytes were left is read again: its gap must not be acked meanwhile."""
        change(settings, CHAT_MAX_LENGTH=3)
        for number in range(30):
            create_chat(f"{number}", *["x" * 65_000] * 5)
        for ack in (False, True):
            pending = Inbox("bob").pending(ack=ack)
            assert sorted(int(news.chat_id) for news in pending) == list(range(30))
            assert {(news.gap, *ids(news), news.has_more) for news in pending} == {(2, 3, 4, 5, False)}
        assert Inbox("bob").pending() == []


class TestAge:
    """The time of the server is set forward."""

    @pytest.fixture
    def chat(self, settings: Settings) -> Chat:
        change(settings, CHAT_MAX_AGE=60)
        return create_chat("x", "1", "2", "3")

    def test_it_holds_on_writes(self, chat: Chat, settings: Settings) -> None:
        with server_clock("NOW + 61000"):
            chat.send("ann", "4")
        assert stored(chat) == 1
        change(settings, CHAT_MAX_AGE=None)
        (news,) = Inbox("bob").pending()
        assert (ids(news), news.gap) == ([4], 3)

    @pytest.mark.parametrize("look", LOOKS)
    def test_it_holds_on_reads(self, look: str, chat: Chat) -> None:
        with server_clock("NOW + 30000"):
            said(chat, "ann", "4", "5")
        with server_clock("NOW + 61000"):
            LOOKS[look](chat)
        assert stored(chat) == 2

    def test_expired_messages_are_gone_for_every_operation(self, chat: Chat) -> None:
        """Without messages, the gap before the end is reported until it is acked."""
        with server_clock("NOW + 61000"):
            assert chat.info().first_id == 4
            assert (chat.edit("ann", 2, "again"), chat.delete_message("ann", 2)) == (None, None)
            assert Inbox("bob").chats()[0].last_message is None
            assert Inbox("bob").unread() == 0
            for _ in range(2):
                (news,) = Inbox("bob").pending()
                assert (news.messages, news.gap, news.has_more, news.reset) == ([], 3, False, False)
            page = chat.history("bob", after=0)
            assert (page.messages, page.gap, page.has_more) == ([], 3, False)
            assert stored(chat) == 0
            assert chat.ack("bob", news.cursor) == 3
            assert Inbox("bob").pending() == []

    def test_pending_with_ack_reports_expired_messages_once(self, chat: Chat) -> None:
        with server_clock("NOW + 61000"):
            assert [news.gap for news in Inbox("bob").pending(ack=True)] == [3]
            assert Inbox("bob").pending(ack=True) == []

    def test_the_messages_of_an_idle_chat_expire(self, settings: Settings) -> None:
        change(settings, CHAT_MAX_AGE=0.1)
        chat = Chat.create("ann", ["bob"], "text")
        until(lambda: not server().exists(keys(chat).log))
        chat.send("ann", "text")
        until(lambda: not server().exists(keys(chat).log))
        page = chat.history("bob", after=0)
        assert (page.messages, page.gap, chat.info().last_id) == ([], 2, 2)
        change(settings, CHAT_MAX_AGE=60)
        chat.send("ann", "3")
        assert 59_000 < server().pttl(keys(chat).log) <= 60_001
        change(settings, CHAT_MAX_AGE=None)
        chat.send("ann", "4")
        assert server().pttl(keys(chat).log) == -1
        assert ids(chat.history("bob")) == [3, 4]


class TestSizes:
    def test_texts_over_the_limit(self, settings: Settings) -> None:
        change(settings, MESSAGE_MAX_BYTES=10, TITLE_MAX_BYTES=5)
        chat = Chat.create("ann", ["bob"], "1234567890", title="12345")
        before = snapshot()
        sized: list[tuple[Callable[[], object], int, int]] = [
            (lambda: chat.send("ann", "12345678901"), 10, 11),
            (lambda: chat.send("ann", "é" * 6), 10, 12),
            (lambda: chat.send("ann", "a", data="b" * 8), 10, 11),
            (lambda: chat.edit("ann", 1, "x" * 99), 10, 99),
            (lambda: Chat.create("ann", [], "x" * 11), 10, 11),
            (lambda: chat.rename("ann", "123456"), 5, 6),
            (lambda: Chat.create("ann", [], title="ééé"), 5, 6),
        ]
        for operation, limit, actual in sized:
            with pytest.raises(LimitExceeded) as caught:
                operation()
            assert (caught.value.limit, caught.value.actual) == (limit, actual)
        assert snapshot() == before
        assert chat.send("ann", "é" * 5).id == 2

    def test_a_message_may_have_its_bytes_whatever_its_characters(self) -> None:
        chat = Chat.create("ann", ["bob"])
        for body in ("'" * 65536, '"' * 65536, "\\" * 65536, "\n" * 65536, "é" * 32768):
            assert chat.send("ann", body).body == chat.history("bob").messages[-1].body == body
        data = "x" * (65536 - 2)
        assert chat.send("ann", "", data=data).data == data
        assert chat.send("ann", "x" * 65536, reply_to=1).reply_to == 1
        for body, added in (("\x01" * 65536, None), ("é" * 32769, None), ("x", data)):
            with pytest.raises(LimitExceeded, match="MESSAGE_MAX_BYTES"):
                chat.send("ann", body, data=added)
        with pytest.raises(LimitExceeded, match="control characters"):
            chat.edit("ann", 1, "\x01" * 65536)


#: seconds: longer than any test
LONG = 36_000
#: ms: when the uses of a rate begin
START = 10**12
numbers = itertools.count()


def take(rate: UserRate, ms: int, times: int = 1) -> float:
    """Use a rate so many ms after START."""
    with server_clock(START + ms):
        return rate.take(times)


class TestRates:
    @pytest.mark.parametrize("limit", [1, 7, 600])
    def test_the_allowance_can_be_used_at_once_but_not_exceeded(self, limit: int) -> None:
        rate = UserRate("ann", "send", limit=limit, period=LONG)
        with server_clock(START):
            assert [rate.take() for _ in range(limit + 2)] == [0.0] * limit + [LONG, LONG]

    @given(st.integers(1, 4), st.lists(st.integers(0, 12), max_size=16))
    @profile(
        max_examples=25,
        deadline=None,
        # the latter: each world has its own instance of this class
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    def test_no_period_has_more_uses_than_the_limit(self, limit: int, pauses: list[int]) -> None:
        """Whenever the period begins; and no use is refused needlessly."""
        rate = UserRate(f"user-{next(numbers)}", "send", limit=limit, period=LONG)
        now, uses, period = 0, list[int](), LONG * 1000
        for pause in pauses:
            now += pause * period // 12
            wait = round(take(rate, now) * 1000)
            counted = [use for use in uses if use > now - period]
            assert len(counted) <= limit
            assert wait == (counted[0] + period - now if len(counted) == limit else 0)
            if not wait:
                uses.append(now)

    def test_a_clock_that_was_set_back_locks_nobody_out_for_longer_than_a_period(self) -> None:
        rate, period = UserRate("ann", "send", limit=2, period=LONG), LONG * 1000
        assert [take(rate, ms) for ms in range(3)] == [0, 0, LONG - 0.002]
        # then both uses count from the new time on
        assert [take(rate, ms) for ms in (0, -5 * period)] == [LONG, LONG]
        assert [take(rate, ms - 4 * period) for ms in (-1, 0, 0, 0)] == [0.001, 0, 0, LONG]

    def test_uses_after_the_clock_was_set_back_count(self) -> None:
        rate = UserRate("ann", "send", limit=3, period=LONG)
        assert [take(rate, ms) for ms in (5, 0, 0, 0)] == [0, 0, 0, LONG]

    def test_a_lowered_limit_counts_earlier_uses(self) -> None:
        many, few = (UserRate("ann", "send", limit=limit, period=LONG) for limit in (5, 2))
        assert [take(many, ms) for ms in range(5)] == [0] * 5
        assert take(few, 5) == LONG - 0.002
        assert take(few, 3 + LONG * 1000) == 0
        assert server().llen(rate_key(conf.prefix(), "ann", "send")) == 2 * 2  # time and token

    def test_several_uses_are_taken_together_or_not_at_all(self) -> None:
        rate = UserRate("ann", "invite", limit=5, period=LONG)
        assert (take(rate, 0, 3), take(rate, 10, 2), take(rate, 20)) == (0, 0, LONG - 0.02)
        # the first three are over, the other two not yet
        later = LONG * 1000
        assert (take(rate, later, 4), take(rate, later, 3), take(rate, later)) == (0.01, 0, 0.01)

    def test_more_uses_than_the_limit_are_no_question_of_waiting(self) -> None:
        with pytest.raises(LimitExceeded, match="5 is over the limit of 4") as refused:
            UserRate("ann", "invite", limit=4, period=60).take(5)
        assert not isinstance(refused.value, RateExceeded)
        large = UserRate("ann", "invite", limit=2500, period=60)
        assert (large.take(2500), large.take() > 0) == (0.0, True)
        with pytest.raises(ValueError, match="times"):
            large.take(0)
        for limit, period in ((0, 60), (1, 0), (1, -1)):
            with pytest.raises(ValueError, match="rate"):
                UserRate("ann", "send", limit=limit, period=period)

    def test_uses_can_be_taken_back_until_the_rate_is_used_again(self) -> None:
        rate = UserRate("ann", "send", limit=3, period=60)

        def execute(step: Script) -> int:
            return int((reply_to(step) or [0])[0])

        first, second = rate.use(), rate.use(2)
        assert (execute(first), execute(second)) == (1, 1)
        execute(rate.undo(first))
        assert rate.take() > 0
        for _ in range(2):  # as after a lost reply
            execute(rate.undo(second))
        assert (rate.take(2), rate.take() > 0) == (0.0, True)

    async def test_users_and_actions_are_independent_and_their_keys_expire(self) -> None:
        assert UserRate("ann", "send", limit=1, period=60).take() == 0.0
        assert UserRate("bob", "send", limit=1, period=60).take() == 0.0
        assert await UserRate("ann", "create", limit=1, period=60).atake() == 0.0
        assert UserRate("ann", "send", limit=1, period=60).take() > 0
        assert await UserRate("ann", "create", limit=1, period=60).atake() > 0
        assert 0 < server().pttl(rate_key(conf.prefix(), "ann", "send")) <= 60_000

    @pytest.mark.timing
    def test_use_is_allowed_again_after_the_wait(self) -> None:
        rate = UserRate("ann", "send", limit=10, period=0.3)
        assert not any(rate.take() for _ in range(10))
        wait = rate.take()
        assert 0 < wait <= 0.3
        ends = time.monotonic() + 30
        while wait and time.monotonic() < ends:
            time.sleep(wait)
            wait = rate.take()
        assert wait == 0.0

    @pytest.mark.timing
    def test_concurrent_takes_do_not_exceed_the_limit(self) -> None:
        rate = UserRate("ann", "send", limit=20, period=60)
        with ThreadPoolExecutor(8) as pool:
            waits = list(pool.map(lambda _: rate.take(), range(60)))
        assert waits.count(0.0) == 20

    def test_services_count_uses_if_configured(self, settings: Settings) -> None:
        chat = Chat.create("ann", ["bob"], "One")
        rates = ("SEND_RATE", "EDIT_RATE", "CREATE_RATE", "RENAME_RATE")
        change(settings, RATES_IN_SERVICES=True, INVITE_RATE=3, **dict.fromkeys(rates, 1))
        # neither invalid arguments nor calls by others use anything up
        with pytest.raises(NotAMember):
            chat.send("mallory", "x")
        with pytest.raises(ChatNotFound):
            Chat("there-is-none").send("ann", "x")
        with pytest.raises(NotAMember):  # though they are more than the rate
            chat.add(["a", "b", "c", "d"], by="mallory")
        with pytest.raises(LimitExceeded):
            chat.send("ann", "x" * 10**6)
        chat.send("ann", "Two")
        for refused in (
            lambda: chat.send("ann", "Three"),
            lambda: [chat.edit("ann", 1, "x"), chat.delete_message("ann", 1)],
            lambda: [chat.rename("ann", "x"), chat.rename("ann", "y")],
            lambda: [chat.add(["cat"], by="ann"), chat.join("dan", by="ann"), chat.add(["e", "f"], by="ann")],
            lambda: [Chat.create("ann", ["gil"]), Chat.create("ann", [])],
        ):
            with pytest.raises(RateExceeded) as error:
                refused()
            assert 0 < error.value.retry_after <= 3600
            assert error.value.setting.endswith("_RATE")
        assert [member.user for member in chat.members()] == ["ann", "bob", "cat", "dan"]
        assert (chat.info().title, chat.info().last_id) == ("x", 2)
