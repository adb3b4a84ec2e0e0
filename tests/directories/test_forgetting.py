"""Forgetting a member, and the registry of directories, from which empty ones are removed later."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_redis_messaging import Directory, LimitExceeded, RecentContacts, conf
from django_redis_messaging.core import clients
from django_redis_messaging.core.commands import Script
from django_redis_messaging.services.directories.directory import (
    DirectoryKeys,
    directories_key,
    forget_member,
)
from django_redis_messaging.services.directories.recent import forget_contacts

from ..support.directories import contact_keys, found, touched
from ..support.scripts import server_clock
from ..support.server import change, reply_to, server, steps
from .test_behaviour import round_trips

LATER = "NOW + 3600000"


def forget(member: str) -> None:
    clients.perform(conf.alias(), forget_member(conf.prefix(), member))


def registered() -> dict[bytes, float]:
    """Directory → when it was added, negative while it is empty."""
    return dict(server().zrange(directories_key(conf.prefix()), 0, -1, withscores=True))


def grow_old(*guilds: str) -> None:
    server().zadd(directories_key(conf.prefix()), dict.fromkeys(guilds, 1))


def empty_at_once(*guilds: str) -> None:
    for guild in guilds:
        Directory(guild).add("u1", "Ann")
        Directory(guild).remove("u1")


def test_a_member_is_removed_from_every_directory() -> None:
    guilds = [f"guild {number}" for number in range(150)]
    for guild in guilds:
        Directory(guild).add_many([("u1", "Ann"), ("u2", "Ann")])
    forget("u1")
    assert all(found(Directory(guild), "a") == ["u2"] for guild in guilds)


def test_all_contacts_of_a_user_are_deleted() -> None:
    touched("bob")
    touched("bob", user="ann2")
    clients.perform(conf.alias(), forget_contacts(conf.prefix(), "ann"))
    assert not list(server().scan_iter(match=f"{contact_keys('ann').tag}:*"))
    assert RecentContacts("ann2").list() == ["bob"]


class TestGracePeriod:
    def test_empty_directory_is_unregistered_after_it(self) -> None:
        for guild in ("empty", "full", "new"):
            Directory(guild).add("u1", "Ann")
        Directory("full").add("u2", "Ann")
        grow_old("empty", "full")
        for _ in range(2):
            forget("u1")
            assert set(registered()) == {b"full", b"new"}
        Directory("full").remove("u2")
        assert set(registered()) == {b"new"}

    def test_clock_that_was_set_back_does_not_end_it(self) -> None:
        with server_clock("NOW - 3600000"):
            Directory("staff").add("u1", "Ann")
        Directory("staff").add("u2", "Bob")
        latest = registered()
        with server_clock("NOW - 3600000"):
            Directory("staff").add("u3", "Cleo")
        assert registered() == latest

    def test_add_before_the_pruning_keeps_the_directory(self) -> None:
        staff = Directory("staff")
        staff.add("u1", "Ann")
        grow_old("staff")
        removing = steps(staff.remove, "u1")
        prune = removing.send(reply_to(next(removing)))
        staff.add("u2", "Bob")
        reply_to(prune)
        forget("u2")
        assert staff.size() == 0


class TestEmptiedAtOnce:
    def test_they_are_unregistered_later(self) -> None:
        empty_at_once(*(f"guild {number}" for number in range(5)), "refilled")
        Directory("refilled").add("u2", "Bob")
        Directory("full").add("u1", "Ann")
        assert round_trips(Directory("guild 0").remove, "u1") == 2  # none is checked again yet
        with server_clock(LATER):
            empty_at_once("other")
            assert set(registered()) == {b"refilled", b"full", b"other"}
        Directory("refilled").remove("u2")
        with server_clock("NOW + 7200000"):
            empty_at_once("another")
            assert set(registered()) == {b"full", b"another"}

    def test_so_is_one_whose_only_add_was_refused(self, settings: Settings) -> None:
        change(settings, DIRECTORY_MAX_ENTRIES=1)
        with pytest.raises(LimitExceeded):
            Directory("refused").add("u1", "Ann Lee")
        assert registered()[b"refused"] < 0
        Directory("full").add("u1", "Ann")
        with pytest.raises(LimitExceeded):
            Directory("full").add("u2", "Bob")
        assert registered()[b"full"] > 0

    def test_one_that_was_filled_meanwhile_stays_registered(self) -> None:
        empty_at_once("filled", "marked")
        # an add that had registered the directory before it was emptied; one that has only marked its member
        filled, marked = (DirectoryKeys(conf.prefix(), guild) for guild in ("filled", "marked"))
        reply_to(Script("directories/add", filled.all_keys, [1000, "u2", "Bob\0bob"]))
        server().zadd(marked.indexed, {"u2": 1})
        with server_clock(LATER):
            empty_at_once("other", "other")
            assert set(registered()) == {b"filled", b"marked", b"other"}
            # these two are not checked again
            assert [guild for guild, added in registered().items() if added < 0] == [b"other"]
        forget("u2")
        assert Directory("filled").size() == 0
        assert not server().exists(marked.indexed)

    def test_one_that_is_registered_again_during_the_check_stays_registered(self) -> None:
        empty_at_once("staff")
        with server_clock(LATER):
            Directory("other").add("u1", "Ann")
            removing = steps(Directory("other").remove, "u1")
            step = next(removing)
            for _ in range(2):
                step = removing.send(reply_to(step))
            found_empty = reply_to(step)
            Directory("staff").add("u2", "Bob")
            reply_to(removing.send(found_empty))
            assert set(registered()) == {b"staff", b"other"}

    def test_one_with_marks_stays_registered(self) -> None:
        staff = Directory("staff")
        staff.add("u1", "Ann")
        server().zadd(DirectoryKeys(conf.prefix(), "staff").indexed, {"u2": 1})
        with server_clock(LATER):
            staff.remove("u1")
        assert set(registered()) == {b"staff"}
