"""Directories and recent contacts during concurrent changes, after repeated calls, and with full memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from django_redis_messaging import ConfigurationError, Directory, RecentContacts, Unavailable, conf
from django_redis_messaging.core import clients
from django_redis_messaging.services.directories.directory import forget_member

from ..support.directories import contact_keys, found, keys_of, touched, uses_of
from ..support.server import finish, reply_to, server, steps


def run_together(*targets: Callable[[], object]) -> None:
    failures: list[BaseException] = []

    def guarded(target: Callable[[], object]) -> None:
        try:
            target()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=[target], daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clients.close()
    assert not failures


@contextmanager
def full_memory() -> Iterator[None]:
    server().config_set("maxmemory", 1)
    try:
        yield
    finally:
        server().config_set("maxmemory", 0)


class TestConcurrentChanges:
    def test_reader_gets_the_old_label_or_the_new_one(self) -> None:
        staff = Directory("staff")
        staff.add("u1", "alpha one two")
        done = threading.Event()

        def change() -> None:
            for _ in range(200):
                staff.add("u1", "beta three", aliases=["gamma"])
                staff.add("u1", "alpha one two")
            done.set()

        def look() -> None:
            while not done.is_set():
                assert found(staff, "") == ["u1"]
                assert all(contact.label == "beta three" for contact in staff.suggest("gam"))
                assert all(contact.label == "alpha one two" for contact in staff.suggest("one"))

        run_together(change, look, look)

    def test_they_leave_no_stale_entries(self) -> None:
        staff = Directory("staff")

        def change(seed: int) -> None:
            for turn in range(60):
                member = f"u{turn % 3}"
                staff.add(member, f"name {seed} {turn}", aliases=[f"alias {seed}"])
                if turn % 5 == seed:
                    staff.remove(member)
                staff.add_many([(member, f"other {seed}"), (f"own-{seed}", "x")])

        run_together(*(lambda seed=seed: change(seed) for seed in range(4)))
        entries, records = keys_of("staff")
        expected = set()
        for member, record in server().hgetall(records).items():
            label, *rests = record.split(b"\0")
            expected |= {b"\0".join([rest, member, label]) for rest in rests}
        assert set(server().zrange(entries, 0, -1)) == expected
        assert staff.size() == 7

    @pytest.mark.parametrize(
        ("change", "left"),
        [
            (lambda staff: staff.add("u2", "a"), ["u2", "u1"]),
            (lambda staff: staff.remove_many(["u1", "u2"]), []),
        ],
        ids=["label changed", "all removed"],
    )
    def test_changes_between_two_reads(self, change: Callable[[Directory], None], left: list[str]) -> None:
        staff = Directory("staff")
        staff.add("u1", "aa ab ac")
        staff.add("u2", "az")
        reading = steps(staff.suggest, "a", 2)
        reply = reply_to(next(reading))
        change(staff)
        assert [contact.id for contact in finish(reading, reading.send(reply))] == left

    def test_all_touches_are_counted(self) -> None:
        def use(contact: str) -> None:
            for _ in range(50):
                RecentContacts("ann").touch(contact)
                RecentContacts("ann").touch("all")

        run_together(*(lambda contact=contact: use(contact) for contact in "abcd"))
        assert uses_of("ann") == {b"a": 50, b"b": 50, b"c": 50, b"d": 50, b"all": 200}


class TestRepeatedTouch:
    """The step of a touch is sent again, as after a lost reply."""

    def test_it_counts_once(self) -> None:
        recent = touched("bob", "cleo")
        step = next(steps(recent.touch, "bob"))
        reply_to(step)
        recent.touch("bob")  # another use, before the repeat
        recent.touch("dan")
        reply_to(step)
        assert uses_of("ann") == {b"bob": 3, b"cleo": 1, b"dan": 1}
        assert recent.list() == ["dan", "bob", "cleo"]

    def test_it_does_not_restore_a_removed_contact(self) -> None:
        recent = touched("cleo")
        step = next(steps(recent.touch, "bob"))
        reply_to(step)
        recent.remove("bob")
        reply_to(step)
        assert recent.list() == ["cleo"]


class TestFullMemory:
    def test_directories_refuse_adding_and_nothing_else(self) -> None:
        staff = Directory("staff")
        staff.add_many([("u1", "Ann"), ("u2", "Bob")])
        with full_memory():
            for add in (lambda: staff.add("u1", "Cleo"), lambda: staff.add_many([("u3", "Dan")])):
                with pytest.raises(Unavailable):
                    add()
            assert (found(staff, ""), staff.size()) == (["u1", "u2"], 2)
            clients.perform(conf.alias(), forget_member(conf.prefix(), "u1"))
            assert found(staff, "") == ["u2"]
            staff.remove("u2")
            assert staff.size() == 0

    def test_contacts_refuse_touching_but_not_removing(self) -> None:
        recent = touched("bob", "cleo", order="frequency")
        repeated = next(steps(recent.touch, "cleo"))
        reply_to(repeated)
        recent.touch("bob")
        with full_memory():
            with pytest.raises(Unavailable):
                recent.touch("cleo")
            reply_to(repeated)  # it has been applied: no error
            assert recent.list() == ["bob", "cleo"]
            recent.remove("bob")
            assert recent.list() == ["cleo"]


class TestKeysOfAnotherType:
    """They raise an error, and nothing changes."""

    @pytest.mark.parametrize("which", [0, 1])
    def test_directories(self, which: int) -> None:
        staff = Directory("staff")
        staff.add("u1", "Ann")
        foreign, other = keys_of("staff")[which], keys_of("staff")[1 - which]
        server().set(foreign, "not ours")
        before = server().dump(other)
        read = staff.size if which else lambda: staff.suggest("a")
        for call in (lambda: staff.add("u1", "Bob"), lambda: staff.remove("u1"), read):
            with pytest.raises(ConfigurationError, match="another type"):
                call()
        assert server().dump(other) == before

    @pytest.mark.parametrize("foreign", ["contacts", "contact_uses", "contact_touches"])
    def test_contacts(self, foreign: str) -> None:
        touched("bob", "cleo")
        own = contact_keys("ann")
        keys = {"contacts": [own.contacts], "contact_uses": [own.contact_uses]}
        keys["contact_touches"] = [*own.contact_touches]
        for key in keys[foreign]:
            server().set(key, "not ours")
        every = [key for several in keys.values() for key in several]
        before = [server().dump(key) for key in every]
        with pytest.raises(ConfigurationError, match="another type"):
            RecentContacts("ann").touch("dan")
        assert [server().dump(key) for key in every] == before


def test_flushed_scripts_are_loaded_again() -> None:
    staff = Directory("staff")
    staff.add("u1", "Ann")
    server().script_flush()
    assert found(staff, "a") == ["u1"]
    server().script_flush()
    staff.add("u2", "Abe")
    assert found(staff, "a") == ["u2", "u1"]
