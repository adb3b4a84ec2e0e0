"""Mailboxes: sending, groups, reading, limits and gaps, lost data."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pytest_django import Settings

from django_redis_messaging import (
    LimitExceeded,
    Mail,
    Mailbox,
    MailboxStatus,
    MailPage,
    aforget,
    conf,
    forget,
)
from django_redis_messaging.services.mailboxes.mailbox import MailboxKeys

from ..support.scripts import server_clock
from ..support.server import all_keys, change, check_types, server, server_ms, snapshot, until


@pytest.fixture
def box() -> Mailbox:
    return Mailbox("ann")


def keys(user: str = "ann") -> MailboxKeys:
    return MailboxKeys(conf.prefix(), user)


def sent(box: Mailbox, *items: Any, **options: Any) -> list[Mail]:
    return [box.send(item, **options) for item in items]


def items(page: MailPage) -> list[Any]:
    return [mail.payload for mail in page.messages]


def ids(page: MailPage) -> list[int]:
    return [mail.id for mail in page.messages]


class TestSending:
    def test_mail_waits_until_it_is_read(self, box: Mailbox) -> None:
        before = server_ms()
        mail = box.send({"n": 2**60, "empty": []}, sender="bob")
        assert (mail.id, mail.payload, mail.sender) == (1, {"n": 2**60, "empty": []}, "bob")
        assert (mail.group, mail.count, mail.read) == (None, 1, False)
        assert before <= mail.sent_at.timestamp() * 1000 <= server_ms()
        page = MailPage(messages=[mail], cursor=mail.cursor, gap=0, has_more=False, reset=False)
        assert box.fetch() == page
        assert Mailbox("bob").fetch().messages == []

    def test_ids_and_times_never_decrease(self, box: Mailbox) -> None:
        mails = sent(box, *range(18))
        with server_clock("NOW - 60000"):  # the clock was set back
            mails += sent(box, 18, 19)
        assert [mail.id for mail in mails] == list(range(1, 21))
        moments = [mail.sent_at for mail in mails]
        assert moments == sorted(moments)
        assert box.fetch().messages == mails

    @pytest.mark.parametrize(
        "payload",
        [
            *(None, True, 1.5, "", 'a"]\\n😀', [1, [2]], {"sender": "x"}, "\x00", {"": {}}),
            *((1, 2), {"a": (1,)}, [{"b": ()}]),  # tuples are read as lists
        ],
    )
    def test_payload_is_any_json_value(self, payload: Any, box: Mailbox) -> None:
        mail = box.send(payload, sender='a"],', group="g]é")
        assert (mail.payload, mail.sender, mail.group) == (json.loads(json.dumps(payload)), 'a"],', "g]é")
        assert mail.payload is not payload or not isinstance(payload, list | dict)
        assert box.fetch().messages == [mail]

    def test_a_repeat_gets_the_stored_mail(self, box: Mailbox) -> None:
        """Whatever it wants to send, and even if the mail was removed; until the mailbox has other ids."""
        first = box.send({"n": 1}, sender="bob", group="g", request_id="r")
        assert box.send([2], sender="bob", request_id="r") == first
        assert items(box.fetch()) == [{"n": 1}]
        box.discard(first.id)
        assert box.send([2], sender="bob", request_id="r").id == first.id
        box.clear()
        assert box.send({"n": 1}, sender="bob", group="g", request_id="r") == first
        assert box.fetch().messages == []
        server().delete(keys().newest, keys().ids, keys().mail)
        box.send("of another epoch", sender="bob")
        assert box.send([2], sender="bob", request_id="r").payload == [2]

    def test_request_ids_are_scoped_to_the_sender(self, box: Mailbox) -> None:
        for sender in ("bob", "cat", None):
            mails = [box.send(sender, sender=sender, request_id="r") for _ in range(2)]
            assert mails[0] == mails[1]
        assert items(box.fetch()) == ["bob", "cat", None]

    def test_mailboxes_of_unusual_names_are_separate(self) -> None:
        names = ("a:b", "a", "{a}", "a b", "é")
        for user in names:
            Mailbox(user).send(user)
        assert [items(Mailbox(user).fetch()) for user in names] == [[user] for user in names]
        assert repr(Mailbox("a:b")) == "Mailbox('a:b')"

    async def test_async_versions(self, box: Mailbox) -> None:
        mail = await box.asend("a", group="g")
        await box.asend("hi")
        assert (await box.afetch(limit=1)).messages == [mail]
        assert (await box.aack(mail.cursor), await box.aunread(), await box.amark_read([2])) == (1, 1, 1)
        assert (await box.astatus()).unread == 0
        assert (await box.adiscard(1), await box.aclear()) == (True, 1)
        await box.asend("b")
        await aforget("ann")
        assert (await box.afetch()).messages == []


class TestGroups:
    def test_expired_mail_is_not_replaced(self, box: Mailbox, settings: Settings) -> None:
        change(settings, MAILBOX_MAX_AGE=3600)
        now = server_ms() // 1000 * 1000
        with server_clock(now):
            sent(box, "one", group="g")
        with server_clock(now + 3_600_000):
            sent(box, "x")
        # in the same second, in which the ages of other mails are not checked again
        with server_clock(now + 3_600_500):
            assert box.send("two", group="g").count == 1
            assert items(box.fetch()) == ["x", "two"]

    def test_counting_is_atomic(self, box: Mailbox) -> None:
        barrier = threading.Barrier(8)

        def send(number: int) -> list[int]:
            barrier.wait()
            return [Mailbox("ann").send(number, group="g").count for _ in range(25)]

        with ThreadPoolExecutor(8) as pool:
            counts = [count for found in pool.map(send, range(8)) for count in found]
        assert sorted(counts) == list(range(1, 201))
        [mail] = box.fetch().messages
        assert (mail.count, box.unread()) == (200, 1)


class TestFetching:
    def test_page_ends_at_the_size_limit(self, box: Mailbox) -> None:
        sent(box, *("x" * 50_000 for _ in range(12)), "y" * 64_000)
        mails: list[int] = []
        page = box.fetch()
        while page.messages:
            assert sum(len(mail.payload) for mail in page.messages) <= 256 * 1024
            assert page.has_more is (page.messages[-1].id < 13)
            mails += ids(page)
            page = box.fetch(after=page.cursor)
        assert mails == list(range(1, 14))
        older = box.fetch(newest_first=True, unread=True)
        assert (ids(older), older.has_more) == ([13, 12, 11, 10], True)

    def test_large_mail_is_returned_alone(self, box: Mailbox, settings: Settings) -> None:
        change(settings, MAIL_MAX_BYTES=10**6)
        sent(box, "a", "x" * 600_000, "b")
        pages = [box.fetch(after=after) for after in range(3)]
        assert [(ids(page), page.has_more) for page in pages] == [([1], True), ([2], True), ([3], False)]

    def test_filters(self, box: Mailbox, settings: Settings) -> None:
        """Beyond the mails that one look finds."""
        change(settings, MAILBOX_MAX_LENGTH=2000)
        sent(box, *range(1500))
        box.mark_read(range(2, 1002))
        assert items(box.fetch(unread=True, limit=3)) == [0, 1001, 1002]
        assert items(box.fetch(unread=True, limit=2, newest_first=True, after=1003)) == [1001, 0]
        page = box.fetch(unread=False, limit=2, newest_first=True)
        assert (items(page), page.has_more) == ([1000, 999], True)
        page = box.fetch(unread=False, limit=999, newest_first=True, after=page.cursor)
        assert (items(page), page.has_more) == (list(range(998, 0, -1)), False)
        assert [mail.read for mail in box.fetch(limit=3).messages] == [False, True, True]

    def test_fetch_marks_nothing_as_read(self, box: Mailbox) -> None:
        sent(box, 1, 2)
        before = snapshot(but=[keys().fetched])
        for options in ({}, {"unread": True}, {"unread": False}, {"newest_first": True}, {"after": 1}):
            box.fetch(**options)
        box.unread()
        box.status()
        assert snapshot(but=[keys().fetched]) == before


class TestReading:
    def test_position_never_moves_back(self, box: Mailbox) -> None:
        sent(box, *"abc")
        assert (box.ack(2), box.unread()) == (2, 1)
        assert (box.ack(1), box.ack(box.fetch(limit=1).cursor), box.ack(0)) == (2, 2, 2)
        box.mark_read([3])
        assert (box.ack(10**12), box.unread()) == (3, 0)
        assert not server().exists(keys().marked)  # marks up to the position are removed
        assert Mailbox("nobody").ack(7) == 0

    def test_status(self, box: Mailbox, settings: Settings) -> None:
        change(settings, MAILBOX_MAX_LENGTH=2)
        assert box.status() == MailboxStatus(unread=0, acked_id=0, last_fetched_at=None, full=False)
        sent(box, *"ab")
        assert box.status() == MailboxStatus(unread=2, acked_id=0, last_fetched_at=None, full=True)
        before = server_ms()
        box.ack(box.fetch().messages[0].cursor)
        status = box.status()
        assert (status.unread, status.acked_id, status.full) == (1, 1, True)
        assert status.last_fetched_at is not None
        assert before <= status.last_fetched_at.timestamp() * 1000 <= server_ms()


class TestLimits:
    def test_the_oldest_mails_are_removed_and_the_gap_is_reported(
        self, box: Mailbox, settings: Settings
    ) -> None:
        change(settings, MAILBOX_MAX_LENGTH=3)
        sent(box, *"ab")
        box.discard(1)
        sent(box, *"ccc", group="g")
        sent(box, *"defg")
        assert (items(box.fetch()), box.fetch().gap, box.unread()) == (["e", "f", "g"], 3, 3)
        # neither discards nor groups leave a gap
        assert [box.fetch(after=at).gap for at in range(7)] == [3, 3, 2, 2, 2, 1, 0]

    def test_a_burst_exceeds_the_length_by_a_sixteenth_at_most(
        self, box: Mailbox, settings: Settings
    ) -> None:
        change(settings, MAILBOX_MAX_LENGTH=32)
        with server_clock(server_ms()):
            for number in range(100):
                box.send(number)
                assert server().llen(keys().ids) <= 34
                assert items(box.fetch()) == list(range(number + 1))[-32:]
        assert server().llen(keys().ids) > 32
        assert box.fetch().gap == 68
        sent(box, "a second later")
        assert server().llen(keys().ids) == 32

    def test_lowered_limit_applies_to_reads_at_once(self, box: Mailbox, settings: Settings) -> None:
        sent(box, *range(6))
        sent(box, "g", group="g")
        change(settings, MAILBOX_MAX_LENGTH=2)
        assert (items(box.fetch()), box.fetch().gap, box.unread()) == ([5, "g"], 5, 2)
        assert (box.discard(1), box.mark_read([1, 2, 6])) == (False, 1)
        assert (box.status().full, box.clear()) == (True, 2)

    def test_limit_of_age(self, box: Mailbox, settings: Settings) -> None:
        sent(box, *"abc")
        change(settings, MAILBOX_MAX_AGE=20)
        with server_clock("NOW + 21000"):
            page = box.fetch()
            assert (page.messages, page.gap, box.unread()) == ([], 3, 0)
        assert items(box.fetch()) == ["a", "b", "c"]

    @pytest.mark.timing
    def test_expired_mail_is_deleted_by_redis(self, box: Mailbox, settings: Settings) -> None:
        change(settings, MAILBOX_MAX_AGE=0.02)
        sent(box, *"abc")
        until(lambda: not server().exists(keys().mail))
        change(settings, MAILBOX_MAX_AGE=None)
        assert (box.fetch().messages, box.fetch().gap, box.unread()) == ([], 3, 0)
        box.send("d")
        assert server().ttl(keys().mail) == -1
        assert (items(box.fetch()), box.fetch().gap) == (["d"], 3)
        assert server().llen(keys().ids) == 1

    def test_limit_of_age_that_was_removed_deletes_no_mail(self, box: Mailbox, settings: Settings) -> None:
        for limit, clock in [(3600, "NOW"), (None, "NOW + 2000")]:  # the expiry changes once per second
            change(settings, MAILBOX_MAX_AGE=limit)
            with server_clock(clock):
                box.send("a")
            assert (server().ttl(keys().mail) > 0) is bool(limit)

    def test_removal_is_limited_to_500_at_a_time(self, box: Mailbox, settings: Settings) -> None:
        sent(box, *range(700))
        change(settings, MAILBOX_MAX_LENGTH=10)
        for left in (201, 10):
            box.send("x")
            assert server().llen(keys().ids) == left
            assert len(box.fetch().messages) == 10
        assert (box.fetch().gap, box.unread()) == (692, 10)

    def test_number_of_recorded_runs_is_limited(self, box: Mailbox, settings: Settings) -> None:
        change(settings, MAILBOX_MAX_LENGTH=1)
        runs = 1005
        server().set(keys().newest, f"{2 * runs}-1-1-0")
        server().zadd(keys().lost, {str(2 * at + 1): 2 * at + 1 for at in range(runs - 1)})
        sent(box, "a", "b")
        assert server().zcard(keys().lost) == 1000
        assert box.fetch().gap == 1000

    def test_limit_of_size(self, box: Mailbox, settings: Settings) -> None:
        change(settings, MAIL_MAX_BYTES=10)
        assert box.send("é" * 4)
        with pytest.raises(LimitExceeded, match="MAIL_MAX_BYTES") as caught:
            box.send("é" * 4 + "x")
        assert (caught.value.limit, caught.value.actual) == (10, 11)
        assert box.unread() == 1


class TestLostData:
    """Cursors of another mailbox, or of an earlier state of this one: see also test_machine.py."""

    @pytest.mark.parametrize("other", ["ann", "bob"])
    def test_cursor_of_another_mailbox_resets_the_reader(self, other: str, box: Mailbox) -> None:
        """That of another user, or an earlier one of this user."""
        sent(Mailbox(other), *"ab")
        cursor = Mailbox(other).fetch().cursor
        forget("ann")
        page = box.fetch(after=cursor)
        assert (page.messages, page.reset) == ([], True)
        assert box.fetch(after=page.cursor).reset is False
        sent(box, *"cde")
        assert (items(box.fetch(after=cursor)), box.fetch(after=cursor).reset) == (["c", "d", "e"], True)
        assert (box.ack(cursor), box.unread()) == (0, 3)

    def test_empty_page_newest_first_does_not_ack_later_mail(self, box: Mailbox) -> None:
        box.discard(box.send("a").id)
        cursor = box.fetch(newest_first=True).cursor
        box.send("b")
        assert (box.ack(cursor), box.unread()) == (1, 1)
        assert not box.fetch(after=cursor, newest_first=True).reset

    def test_reused_ids_with_the_last_mail_discarded(self, box: Mailbox) -> None:
        box.send("a")
        kept = snapshot()
        lost = sent(box, "lost", "lost too")[-1]
        server().delete(*all_keys())
        for key, dump in kept.items():
            server().restore(key, 0, dump)
        until(lambda: server_ms() > lost.sent_at.timestamp() * 1000 + 1)
        sent(box, "another", "and another")
        box.discard(lost.id)
        assert (box.ack(lost.cursor), box.unread()) == (0, 2)
        page = box.fetch(after=lost.cursor)
        assert (items(page), page.reset) == (["a", "another"], True)

    def test_nothing_is_left_of_a_mailbox_that_lost_its_ids(self, box: Mailbox) -> None:
        """Else the new ids would stand behind higher ones."""
        for number in range(3):
            box.send(number, group=f"g{number}")
        server().delete(keys().newest)
        assert [box.send(word, group="g0").id for word in ("a", "b")] == [1, 2]
        assert (items(box.fetch()), box.status().unread) == (["b"], 1)

    def test_forget_deletes_the_mail(self, box: Mailbox, settings: Settings) -> None:
        change(settings, MAILBOX_MAX_LENGTH=2)
        for user in ("ann", "bob"):
            sent(Mailbox(user), *"ab")
            sent(Mailbox(user), *"cd", group="g")
            Mailbox(user).fetch()
            assert Mailbox(user).mark_read([2]) == 1
        assert set(all_keys()) >= set(keys("ann").all_keys) - {*keys().requests}
        forget("ann")
        assert not [key for key in all_keys() if key.startswith(keys("ann").tag)]
        assert items(Mailbox("bob").fetch()) == ["b", "d"]


BAD: dict[str, tuple[Callable[[Mailbox], Any], type[Exception], str]] = {
    "user": (lambda box: Mailbox(""), ValueError, "user is empty"),
    "user type": (lambda box: Mailbox(7), TypeError, "user must be a str"),  # type: ignore[arg-type]
    "sender": (lambda box: box.send(1, sender="a\0"), ValueError, "sender has a NUL"),
    "group": (lambda box: box.send(1, group=""), ValueError, "group is empty"),
    "group size": (lambda box: box.send(1, group="x" * 256), ValueError, "group has 256 bytes"),
    "payload": (lambda box: box.send(object()), TypeError, "payload must be made of"),
    "lone surrogate": (lambda box: box.send({"a": ["\udc80"]}), ValueError, "surrogate"),
    "lone surrogate in a key": (lambda box: box.send({"\udc80": 1}), ValueError, "surrogate"),
    "NaN": (lambda box: box.send(float("nan")), ValueError, "payload can't be written"),
    "request id": (lambda box: box.send(1, request_id=""), ValueError, "request_id is empty"),
    "limit": (lambda box: box.fetch(limit=0), ValueError, "limit must be between 1 and 1000, not 0"),
    "limit much": (lambda box: box.fetch(limit=1001), ValueError, "limit must be between .*, not 1001"),
    "after": (lambda box: box.fetch(after="x"), ValueError, "after is not a cursor"),
    "after below": (lambda box: box.fetch(after=-1), ValueError, "after must be between 0 and .*, not -1"),
    "unread": (lambda box: box.fetch(unread=1), TypeError, "unread must be True"),  # type: ignore[arg-type]
    "direction": (lambda box: box.fetch(newest_first=0), TypeError, "newest_first"),  # type: ignore[arg-type]
    "ack": (lambda box: box.ack("1-2"), ValueError, "up_to is not a cursor"),
    "ack float": (lambda box: box.ack(1.5), TypeError, "up_to must be"),  # type: ignore[arg-type]
    "one id": (lambda box: box.mark_read(1), TypeError, "wrap it in a list"),  # type: ignore[arg-type]
    "ids": (lambda box: box.mark_read(["1"]), TypeError, "ids must be"),  # type: ignore[list-item]
    "str of ids": (lambda box: box.mark_read("12"), TypeError, "wrap it"),  # type: ignore[arg-type]
    "id below": (lambda box: box.mark_read([1, 0]), ValueError, "ids must be between 1 and .*, not 0"),
    "many ids": (lambda box: box.mark_read(range(1, 1002)), ValueError, "at most 1000 items, not 1001"),
    "discard": (lambda box: box.discard(0), ValueError, "id must be between 1 and .*, not 0"),
    "discard type": (lambda box: box.discard(True), TypeError, "id must be"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_and_changes_nothing(case: str, box: Mailbox) -> None:
    act, kind, words = BAD[case]
    box.send("there")
    before = snapshot()
    with pytest.raises(kind, match=words):
        act(box)
    assert snapshot() == before


#: the operations, and the keys whose type each must check
TAKES: dict[str, tuple[Callable[[Mailbox], Any], str]] = {
    "send": (lambda box: box.send("x"), "newest ids mail requests:0 requests:1"),
    "group": (
        lambda box: box.send("x", group="g"),
        "newest ids mail marked groups lost requests:0 requests:1",
    ),
    "fetch": (lambda box: box.fetch(), "newest ids mail marked lost"),
    "ack": (lambda box: box.ack(2), "newest marked groups"),
    "mark_read": (lambda box: box.mark_read([1]), "newest ids mail marked groups requests:0 requests:1"),
    "unread": (lambda box: box.unread(), "newest ids mail marked fetched"),
    "discard": (lambda box: box.discard(1), "ids mail marked groups"),
    "clear": (lambda box: box.clear(), "newest ids mail marked groups lost requests:0 requests:1"),
}


@pytest.mark.parametrize("operation", TAKES)
def test_key_of_another_type_raises_an_error_and_changes_nothing(operation: str, box: Mailbox) -> None:
    act, takes = TAKES[operation]
    parts = {key.removeprefix(keys().tag + ":"): key for key in keys().all_keys}
    if "fetched" not in takes:  # the reads write it
        del parts["fetched"]

    def prepare() -> None:
        sent(box, "a")
        sent(box, "b", "c", group="g")

    check_types(lambda: act(box), parts, takes, prepare)
