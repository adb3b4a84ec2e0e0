"""Mailbox behaves like a plain model; and the state machine that checks this finds planted bugs."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from django_redis_messaging import Mailbox, MailPage, MessagingError, conf, forget
from django_redis_messaging.services.mailboxes.mailbox import MailboxKeys

from ..support.server import server_ms, until
from ..support.state_machines import Machine, MachineTests, Plants, one

#: seconds, longer than any run: only the rule for old mail makes mail expire
MAX_AGE = 3600.0


@dataclasses.dataclass
class Ideal:
    """A mail in the model."""

    id: int
    payload: Any
    group: str | None
    count: int
    read: bool = False
    cursor: str = ""
    #: whether it has another time now, and with it another cursor
    is_backdated: bool = False


class Model:
    """A model of a mailbox: mails in order, a position, and the ids that limits removed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.mails: list[Ideal] = []
        #: all payloads ever sent, in order; the epoch is taken from the first cursor
        self.sent: list[Any] = []
        self.epoch = ""
        self.acked = 0
        self.lost: set[int] = set()
        self.requests: dict[str, Ideal] = {}
        self.fetched = False

    @property
    def last(self) -> int:
        return len(self.sent)

    def send(self, payload: Any, group: str | None, request: str | None) -> Ideal:
        if request in self.requests:
            return self.requests[request]
        self.sent.append(payload)
        made = Ideal(self.last, payload, group, 1)
        for mail in self.mails:
            if group is not None and mail.group == group and not mail.read:
                made.count += mail.count
                self.mails.remove(mail)
                break
        self.mails.append(made)
        self.lose(len(self.mails) - self.most)
        if request is not None:
            self.requests[request] = dataclasses.replace(made)
        return made

    def lose(self, count: int) -> None:
        for mail in self.mails[: max(count, 0)]:
            self.mails.remove(mail)
            self.lost.add(mail.id)

    def fetch(
        self, after: int | None, limit: int, unread: bool | None, newest_first: bool
    ) -> tuple[list[Ideal], int, bool]:
        fitting = [mail for mail in self.mails if unread is None or mail.read is not unread]
        if newest_first:
            fitting = [mail for mail in reversed(fitting) if after is None or mail.id < after]
        else:
            fitting = [mail for mail in fitting if after is None or mail.id > after]
        more = len(fitting) > limit
        begin = self.acked if after is None or newest_first else after
        gap = 0 if newest_first and more else sum(lost > begin for lost in self.lost)
        return fitting[:limit], gap, more

    def ack(self, up_to: int) -> None:
        self.acked = max(self.acked, min(up_to, self.last))
        for mail in self.mails:
            mail.read = mail.read or mail.id <= self.acked

    def mark(self, ids: Iterable[int]) -> int:
        marked = [mail for mail in self.mails if mail.id in set(ids) and not mail.read]
        for mail in marked:
            mail.read = True
        return len(marked)

    def discard(self, number: int) -> bool:
        count = len(self.mails)
        self.mails = [mail for mail in self.mails if mail.id != number]
        return len(self.mails) < count

    def clear(self) -> int:
        count = len(self.mails)
        self.mails, self.lost, self.acked = [], set(), self.last
        return count


numbers = st.integers(0, 9)


class MailboxMachine(Machine):
    """The mailbox of one user: senders, reading devices, passing time and lost data."""

    @initialize(most=st.sampled_from([1, 3, 5, 1000]))
    def begin(self, most: int) -> None:
        self.change_settings(MAILBOX_MAX_LENGTH=most, MAILBOX_MAX_AGE=MAX_AGE)
        self.model = Model(most)
        self.box = Mailbox(self.name)
        self.keys = MailboxKeys(conf.prefix(), self.name)
        self.payloads = itertools.count()
        #: every cursor returned so far, including those of lost mail → id of its mail, payloads up to it
        self.places: dict[str, tuple[int, list[Any]]] = {}
        self.latest_ms = 0.0
        self.saved: tuple[dict[str, bytes], Model] | None = None

    @rule(
        group=st.sampled_from([None, None, "a", "b:{c}"]),
        request=st.sampled_from([None] * 4 + ["r1", "r2"]),
    )
    def send(self, group: str | None, request: str | None) -> None:
        payload = next(self.payloads)
        expected = self.model.send(payload, group, request)
        found = self.box.send(payload, group=group, request_id=request)
        assert (found.id, found.count, found.read) == (expected.id, expected.count, False)
        self.latest_ms = max(self.latest_ms, found.sent_at.timestamp() * 1000)
        if found.payload == expected.payload and not expected.is_backdated:
            expected.cursor = expected.cursor or found.cursor
            assert found.cursor == expected.cursor
            self.model.epoch = found.cursor.partition("-")[0]
            self.places[found.cursor] = found.id, self.model.sent[: found.id]

    @rule(count=st.integers(2, 6), group=st.sampled_from([None, "a"]))
    def send_some(self, count: int, group: str | None) -> None:
        for at in range(count):
            self.send(group if at == count // 2 else None, None)

    @rule(
        at=st.none() | numbers,
        by_cursor=st.booleans(),
        limit=st.sampled_from([1, 2, 100]),
        unread=st.sampled_from([None, True, False]),
        newest_first=st.booleans(),
    )
    def fetch(
        self, at: int | None, by_cursor: bool, limit: int, unread: bool | None, newest_first: bool
    ) -> None:
        after, number = self.place(at, by_cursor=by_cursor)
        page = self.box.fetch(after=after, limit=limit, unread=unread, newest_first=newest_first)
        self.model.fetched = True
        expected = self.model.fetch(number, limit, unread, newest_first)
        self.compare(page, expected)
        assert page.reset is (after is not None and number is None)
        again = self.box.fetch(after=page.cursor, limit=limit, unread=unread, newest_first=newest_first)
        end = expected[0][-1].id if expected[0] else number
        if end is None:
            end = self.model.last if newest_first else 0
        self.compare(again, self.model.fetch(end, limit, unread, newest_first))
        assert not again.reset

    @rule(at=numbers, by_cursor=st.booleans())
    def ack(self, at: int, by_cursor: bool) -> None:
        up_to, number = self.place(at, by_cursor=by_cursor)
        assert up_to is not None
        self.model.ack(number or 0)
        assert self.box.ack(up_to) == self.model.acked

    @rule(some=st.lists(numbers, max_size=3))
    def mark_read(self, some: list[int]) -> None:
        ids = [self.any_id(at) for at in some]
        assert self.box.mark_read(ids) == self.model.mark(ids)

    @rule(at=numbers)
    def discard(self, at: int) -> None:
        assert self.box.discard(self.any_id(at)) is self.model.discard(self.any_id(at))

    @rule(sure=st.integers(0, 3))
    def clear(self, sure: int) -> None:
        if sure == 0:
            assert self.box.clear() == self.model.clear()

    @rule(sure=st.integers(0, 5))
    def forget(self, sure: int) -> None:
        if sure == 0:
            forget(self.name)
            self.model = Model(self.model.most)

    @rule()
    def save(self) -> None:
        dumps = {key: self.client.dump(key) for key in self.keys.all_keys if self.client.exists(key)}
        self.saved = dumps, copy.deepcopy(self.model)

    @precondition(lambda self: self.saved)
    @rule()
    def roll_back(self) -> None:
        """Restore an earlier copy, like a server that restarts from a snapshot; takes at least 1 ms."""
        assert self.saved is not None
        dumps, model = self.saved
        self.client.delete(*self.keys.all_keys)
        for key, dump in dumps.items():
            self.client.restore(key, 0, dump)
        self.model = copy.deepcopy(model)
        until(lambda: server_ms() > self.latest_ms)

    @rule(lost=st.integers(2, 3), others=st.integers(2, 4), discarded=st.integers(0, 4))
    def lose(self, lost: int, others: int, discarded: int) -> None:
        """Lose the latest mails, reuse their ids for others, and discard some of these."""
        self.save()
        self.send_some(lost, None)
        cursor = list(self.places)[-1]
        self.roll_back()
        self.send_some(others, None)
        for _ in range(discarded):
            self.discard(6)
        number = self.number_of(cursor)
        page = self.box.fetch(after=cursor)
        self.model.fetched = True
        assert page.reset is (number is None)
        self.compare(page, self.model.fetch(number, 100, None, False))
        self.model.ack(number or 0)
        assert self.box.ack(cursor) == self.model.acked

    @precondition(lambda self: self.model.mails)
    @rule(count=st.integers(1, 3))
    def grow_old(self, count: int) -> None:
        """Backdate the oldest mails. No cursor has that time, so none refers to them."""
        old = {mail.id for mail in self.model.mails[:count]}
        self.places = {cursor: place for cursor, place in self.places.items() if place[0] not in old}
        for mail in self.model.mails[:count]:
            raw = self.client.hget(self.keys.mail, mail.id)
            self.client.hset(self.keys.mail, mail.id, b"[1," + raw.partition(b",")[2])
            mail.is_backdated = True
        self.model.lose(count)

    # Invariants

    @invariant()
    def all_is_as_in_the_model(self) -> None:
        status, model = self.box.status(), self.model
        unread = sum(not mail.read for mail in model.mails)
        assert (status.unread, status.acked_id, status.full) == (
            unread, model.acked, len(model.mails) >= model.most,
        )  # fmt: skip
        assert (status.last_fetched_at is not None) is model.fetched
        assert self.box.unread() == unread
        self.compare(self.box.fetch(), model.fetch(None, 100, None, False))
        model.fetched = True

    @invariant()
    def nothing_is_left_over(self) -> None:
        ids = self.client.lrange(self.keys.ids, 0, -1)
        assert sorted(map(int, self.client.hkeys(self.keys.mail))) == list(map(int, ids))
        marked = set(self.client.zrange(self.keys.marked, 0, -1))
        groups = self.client.zrange(self.keys.groups, 0, -1, withscores=True)
        assert marked <= set(ids)
        assert {b"%d" % score for _, score in groups} <= set(ids) - marked

    def compare(self, page: MailPage, expected: tuple[list[Ideal], int, bool]) -> None:
        mails, gap, more = expected
        found = [
            Ideal(mail.id, mail.payload, mail.group, mail.count, mail.read, mail.cursor)
            for mail in page.messages
        ]
        assert (found, page.gap, page.has_more) == (mails, gap, more)

    def any_id(self, at: int) -> int:
        known = [mail.id for mail in self.model.mails]
        return one(known, at) if known and at < 7 else at * 5 % (self.model.last + 1) + 1

    def place(self, at: int | None, *, by_cursor: bool) -> tuple[str | int | None, int | None]:
        """A cursor or id to read on after, and its id; None if it refers to lost mail."""
        if at is None:
            return None, None
        if by_cursor and self.places:
            cursor = list(self.places)[-1 - at % len(self.places)]
            return cursor, self.number_of(cursor)
        number = max(self.model.last - at, 0) if at < 9 else self.model.last + 5
        return number, number

    def number_of(self, cursor: str) -> int | None:
        """The id up to which the cursor's history equals the mailbox; None if they differ."""
        (number, sent), model = self.places[cursor], self.model
        known = cursor.startswith(f"{model.epoch}-") and number <= model.last
        others = (mail for mail in model.mails if mail.id <= number and mail.payload not in sent)
        return number if known and not any(others) else None


#: a script, a piece of its text, and a faulty replacement
PLANTS: Plants = {
    "mailboxes/send": {
        "replaced mail stays": ("remove(mailbox_at(KEYS), replaced)", ""),
        "the count restarts": ("'^%[%d+,(%d+)') + 1", "'^%[%d+,(%d+)') * 0 + 2"),
        "replacing frees no space": ("(replaced and 0 or 1)", "1"),
        "one mail too many is removed": ("(replaced and 0 or 1) - max", "(replaced and 1 or 2) - max"),
        "request ids are ignored": ("if recorded then", "if false then"),
    },
    "mailboxes/fetch": {
        "a page is too long": ("#entries == page_size or ", ""),
        "read mail is unread": ("unread and 1 or 0", "1"),
        "older pages repeat the last mail": ("(box, id or math.huge)", "(box, id and id + 1 or math.huge)"),
        "the gap is reported too early": ("(newer or not more)", "true"),
    },
    "mailboxes/mark": {
        "marking keeps the group": ("'', unpack(groups_of(marks, from, to))", "''"),
        "expired mail can be marked": ("math.max(first, (acked or 0) + 1)", "(acked or 0) + 1"),
    },
    "mailboxes/clear": {
        "clearing keeps groups": ("box.groups, box.lost)\nredis.call('SET'", "box.lost)\nredis.call('SET'"),
        "clearing acks nothing": ("epoch, last))", "epoch, 0))"),
    },
    "mailboxes/ack": {
        "read mail of a group is counted": ("redis.call('ZREMRANGEBYSCORE', box.groups, '-inf', id)", ""),
        "the position moves back": ("if id <= (acked or 0) then", "if id == 0 then"),
        "the position moves above the newest": ("math.min(cursor.id, last or 0)", "cursor.id"),
    },
    "mailboxes/_mailbox": {
        "no limit of age": ("limits.age > 0 and now - limits.age or 0", "0"),
        "lost mail is not recorded": ("    record_lost(box, ids)\n", ""),
        "runs are merged": ("if tonumber(id) ~= (to or -1) + 1 then", "if not from then"),
        "a gap includes ids before the cursor": ("math.max(runs[at] - 1, id)", "(runs[at] - 1)"),
        "every cursor is valid": ("if cursor.epoch ~= epoch or cursor.id > last then", "if false then"),
        "reused ids are not detected": ("sent_ms == ms then", "sent_ms ~= -1 then"),
        "times around discarded mail are not compared": ("mail_ms(box, id_at(box, rank - 1)) <= ms", "true"),
        "cursors of discarded mail are invalid": ("sent_ms == -1 and (rank", "false and (rank"),
        "ranks are those of a mailbox without gaps": (
            "search_rank(low, high, function(rank)\n    return tonumber",
            "search_rank(low, low, function(rank)\n    return tonumber",
        ),
        "discarding keeps the group": ("  unmark(box, id, id)\n", "  redis.call('ZREM', box.marked, id)\n"),
    },
}


class TestMachine(MachineTests):
    machine = MailboxMachine
    plants = PLANTS
    quick = ("reused ids are not detected", "replaced mail stays")
    errors = (MessagingError,)  # a failing script also counts as found
