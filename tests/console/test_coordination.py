"""The pages of locks of all kinds, semaphores, latches and rate limits, and what can be changed there."""

from __future__ import annotations

import dataclasses
import os
from html import escape, unescape
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from django_redis_messaging import (
    Chat,
    FileChannel,
    Latch,
    Leader,
    Lock,
    LockNotOwnedError,
    RateLimit,
    ReadWriteLock,
    Semaphore,
    SemaphoreError,
    conf,
    notify,
    rate_limit,
)
from django_redis_messaging.console import coordination
from django_redis_messaging.console.access import Console
from django_redis_messaging.services.common.things import Thing
from django_redis_messaging.services.files.keys import lease_key
from django_redis_messaging.services.listening.listener import DispatchLock
from django_redis_messaging.services.rates.user_rates import UserRate

from ..explaining.site import Site, build_chain, inside, lock_inside
from ..support.console import (
    HOSTILE,
    SHOWN,
    changes,
    confirm,
    facts,
    fields,
    get,
    names,
    page,
    post,
    rows,
    url,
)
from ..support.console_world import waiting
from ..support.round_trips import round_trips
from ..support.server import change, no_server, server
from .conftest import Sign

KINDS = ("lock", "rwlock", "semaphore", "latch")


class OfShop(Console):
    """Only what is called shop may be changed."""

    def may_act(self, user: Any, action: str, thing: Thing) -> bool:
        return thing.name == "shop"


class Careful(Console):
    """All may look; only resetting is allowed."""

    def may_view(self, user: Any) -> bool:
        return bool(user.is_active)

    def may_act(self, user: Any, action: str, thing: Thing) -> bool:
        return action == "reset" and thing.where == "login"


class TestLimits:
    def test_keys_at_their_limit_are_first_and_marked(self, boss: Client) -> None:
        login = RateLimit("login", "5/m, 1000/d")
        login.take("half", 2)
        login.take("full", 5)
        UserRate.of("7", "invite").take(3)
        RateLimit("elsewhere", "5/m", algorithm="window").take("ann", 4)
        site, own = page(boss, "limits"), page(boss, "limits", kind="own")
        assert [row[1] for row in rows(site)] == ["full", "half", "ann"]
        assert site.count("At limit") == 1 and site.index("At limit") > site.index("<bdi>full</bdi>")
        for shown in ("0 of 5", "3 of 5", "5 in 1 min", "4 counted", "not declared here"):
            assert shown in site
        assert [row[:3] for row in rows(own)] == [["user:invite 300 in 1 h", "7", "297 of 300"]]

    def test_limits_of_views_are_known_before_any_request(self, boss: Client) -> None:
        view = rate_limit("5/m")(lambda request: None)
        name = f"{__name__}.TestLimits.test_limits_of_views_are_known_before_any_request.<locals>.<lambda>"
        RateLimit(name, "5/m").take("ann", 5)
        shown = page(boss, "limits")
        assert "At limit" in shown and "not declared here" not in shown
        assert f'<option value="{escape(name)}">' in shown
        assert view

    def test_filters(self, boss: Client) -> None:
        for name in ("login", "export"):
            for key in ("ann", "bob"):
                RateLimit(name, "5/m").take(key)
        UserRate.of("bob", "invite").take(1)
        assert "Show all" not in page(boss, "limits")
        for query, keys in (
            ({"name": "login"}, ["ann", "bob"]), ({"key": " bob "}, ["bob", "bob"]),
            ({"name": "export", "key": "ann"}, ["ann"]), ({"name": "log", "key": ""}, []),
            ({"name": "user:invite"}, ["bob"]),
        ):  # fmt: skip
            shown = page(boss, "limits", **query)
            assert sorted(row[1] for row in rows(shown)) == keys, query
            assert "Show all" in shown
        assert "No uses are counted." in page(boss, "limits", name="log")
        assert get(boss, "limits", name="x" * 256).status_code == 400

    @pytest.mark.parametrize("algorithm", ["gcra", "window"])
    def test_a_key_is_reset_on_its_page(self, boss: Client, algorithm: Any) -> None:
        login = RateLimit("login", "1/m", algorithm=algorithm)
        login.take("ann")
        login.take("bob")
        thing = Thing("rate", "ann", "login")
        assert facts(page(boss, "rate", thing=thing))["Left"] == "At limit 0 of 1"
        [data] = fields(page(boss, "rate", thing=thing), "reset")
        question = post(boss, "reset", thing)
        assert "Reset this key?" in question.content.decode() and not login.peek("ann")
        answer = confirm(boss, "reset", thing, next=data["next"])
        assert answer["Location"] == data["next"]
        assert login.peek("ann") and not login.peek("bob")
        late = confirm(boss, "reset", thing)
        assert late.status_code == 404 and "Nothing was reset." in late.content.decode()
        assert changes() == [("boss", "reset", "rate:login/ann")]
        assert get(boss, "rate", thing=thing).status_code == 404

    def test_a_limit_that_is_not_declared_here_has_a_page(self, boss: Client) -> None:
        with mock.patch("django_redis_messaging.services.rates.listing.declared_limits", return_value={}):
            RateLimit("elsewhere", "5/m", algorithm="window").take("ann", 4)
            assert facts(page(boss, "rate", thing="rate:elsewhere/ann"))["Left"] == "4 counted"

    def test_names_are_escaped_and_their_buttons_work(self, boss: Client) -> None:
        limit = RateLimit(HOSTILE, "1/m")
        limit.take(HOSTILE)
        shown = page(boss, "limits")
        assert shown.count(f"<bdi>{SHOWN}</bdi>") == 2
        assert "<script>alert" not in shown
        [data] = fields(shown, "reset")
        assert all("\n" not in value for value in data.values())  # browsers would submit another one
        boss.post(url("reset"), {**data, "confirmed": "1"})
        assert limit.peek(HOSTILE)


class TestLocks:
    def test_each_list_is_empty_at_first(self, boss: Client) -> None:
        empty = ("No locks are held.", "No read-write locks are held.", "There are no semaphores.")
        for kind, shown in zip(KINDS, (*empty, "There are no latches."), strict=True):
            assert shown in page(boss, "locks", kind=kind)
        assert get(boss, "locks", kind="chat").status_code == 400

    def test_what_coordinates_processes_is_listed(self, boss: Client) -> None:
        lock = Lock("nightly", timeout=3700)
        own = Lock(HOSTILE, timeout=None, key=f"{conf.prefix()}:{{shop}}{HOSTILE.replace('}', '')}")
        catalogue, latch = ReadWriteLock("catalogue", timeout=7300), Latch("parts of the import", 12)
        latch.count_down(5)
        with lock, own, Semaphore("exports", 1), catalogue.write:
            shown = {kind: page(boss, "locks", kind=kind) for kind in KINDS}
            info, writer = lock.info(), catalogue.info().writer
        for part in (f"<bdi>{info.holder}</bdi>", str(lock.fence), "1 h 1 min", "no lease", "process "):
            assert part in shown["lock"]
        assert f"<bdi>{writer}</bdi>" in shown["rwlock"] and "2 h 1 min" in shown["rwlock"]
        assert rows(shown["semaphore"]) == [["exports", "1", "All held 1", "0"]]
        assert rows(shown["latch"]) == [["parts of the import", "12", "7"]]
        assert "<script>alert" not in "".join(shown.values())

    def test_a_lock_that_a_task_holds_shows_its_process(self, boss: Client) -> None:
        lock_inside("0abc", "nightly")
        [row] = rows(page(boss, "locks"))
        assert ":task:default/0abc" in row[1] and f"process {os.getpid()} on " in row[1]

    def test_filters_by_a_text_in_the_name(self, boss: Client) -> None:
        for name in ("nightly report", "nightly*", "lock", HOSTILE):
            Lock(name).acquire()
            Semaphore(name, 1).acquire()
        Lock("x", key=f"{conf.prefix()}:shop:stock").acquire()
        for wanted, found in (
            ("nightly", ["nightly report", "nightly*"]), ("y*", ["nightly*"]), ("lock", ["lock"]),
            ("Nightly", []), ("{x}", [HOSTILE]),
        ):  # fmt: skip
            expected = sorted(" ".join(name.split()) for name in found if name != HOSTILE)
            for kind in ("lock", "semaphore"):
                shown = names(page(boss, "locks", kind=kind, name=wanted))
                assert len(shown) == len(found)
                assert HOSTILE in found or shown == expected
        assert len(rows(page(boss, "locks", name="shop:sto"))) == 1
        assert get(boss, "locks", name="x" * 256).status_code == 400

    def test_locks_of_the_app_are_named_by_their_purpose(self, boss: Client) -> None:
        channel = FileChannel("access logs")
        held = [
            channel._lease("traffic", 60, print), channel._lease("", 60, print),
            Leader("cleanup")._lock, DispatchLock("9f1c"),
        ]  # fmt: skip
        for lock in held:
            lock.acquire()
        shown = page(boss, "locks")
        for lock in held:
            lock.release()
        for purpose in (
            "consumer traffic of the file channel access logs", "publisher of the file channel access logs",
            "leader cleanup", "listener for the server 9f1c",
        ):  # fmt: skip
            assert f"<bdi>{purpose}</bdi>" in shown

    def test_long_names_of_consumers_have_no_purpose(self, boss: Client) -> None:
        key = lease_key(conf.prefix(), "x" * 255, "consumer")
        with Lock("x", key=key):
            shown = page(boss, "locks")
        assert "of the file channel" not in shown and key in shown

    def test_the_page_of_a_lock_shows_who_waits(self, boss: Client) -> None:
        lock, thing = Lock("nightly", timeout=60), Thing("lock", "nightly")
        assert get(boss, "lock", thing=thing).status_code == 404
        lock.acquire()
        next_one = Lock("nightly", thread_local=False)
        with waiting(next_one.acquire, lambda: lock.info().waiting):
            info = lock.info()
            shown = page(boss, "lock", thing=thing)
            assert facts(shown)["Holder"].startswith(str(info.holder))
            assert [row[1].split()[0] for row in rows(shown)] == list(info.waiters)
            lock.release()
        next_one.release()
        assert facts(page(boss, "lock", thing=thing))["Holder"] == "free"

    @pytest.mark.parametrize("key", [None, "{shop}:stock"])
    def test_a_lock_is_released_after_a_question(self, boss: Client, key: str | None) -> None:
        key = None if key is None else f"{conf.prefix()}:{key}"
        lock = Lock(key or f"nightly {'x' * 240}", key=key)
        lock.acquire()
        [data] = fields(page(boss, "locks"), "release")
        assert data["thing"] == str(Thing("lock", lock.name, key or ""))
        question = boss.post(url("release"), data).content.decode()
        assert lock.owned() and str(lock.info().holder) in question
        [again] = fields(question, "release")
        assert len(again.pop("request")) == 32
        assert again == {**data, "confirmed": "1"}
        assert boss.post(url("release"), again)["Location"] == data["next"]
        with pytest.raises(LockNotOwnedError):
            lock.release()
        assert [entry[1] for entry in changes()] == ["release"]
        for late in (data, again):
            assert boss.post(url("release"), late).status_code == 404
        assert len(changes()) == 1

    def test_fields_of_locks_are_submitted_unchanged(self, boss: Client) -> None:
        name, key = HOSTILE.replace("}", ""), f"{conf.prefix()}:{{shop}}{HOSTILE.replace('}', '')}"
        lock = Lock(name, key=key)
        lock.acquire(token="50%\n")
        [data] = fields(page(boss, "locks"), "release")
        [data] = fields(boss.post(url("release"), data).content.decode(), "release")
        assert all("\n" not in value for value in data.values())
        assert boss.post(url("release"), data).status_code == 302
        assert not lock.owned()

    def test_another_holder_keeps_the_lock(self, boss: Client) -> None:
        thing = Thing("lock", "nightly")
        with Lock("nightly") as lock:
            answer = confirm(boss, "release", thing, holder="another")
            assert answer.status_code == 409 and "another holder" in answer.content.decode()
            assert confirm(boss, "release", thing).status_code == 400
            assert confirm(boss, "release", Thing("latch", "nightly"), holder="x").status_code == 400
            assert lock.owned()
        assert changes() == []

    def test_other_keys_are_no_locks(self, boss: Client) -> None:
        """Nothing that a lock has not written can be read or deleted."""
        key = f"{conf.prefix()}:x"
        server().set(key, "a session")
        thing = Thing("lock", key, key)
        answer = get(boss, "lock", thing=thing)
        assert answer.status_code == 404 and "a session" not in answer.content.decode()
        assert confirm(boss, "release", thing, holder="a session").status_code == 404
        assert server().get(key) == b"a session"
        assert confirm(boss, "release", Thing("lock", "x", "a}b"), holder="value").status_code == 400
        assert boss.post(url("release")).status_code == 400

    def test_a_lock_has_no_other_name(self, boss: Client, settings: Settings) -> None:
        """CONSOLE decides by the name, so that must be the one of the lock that is released."""
        change(settings, CONSOLE=f"{__name__}.OfShop")
        with Lock("nightly") as lock, Lock("x", key=f"{conf.prefix()}:stock") as own:
            for one in (lock, own):
                thing = Thing("lock", "shop", one.key)
                answer = confirm(boss, "release", thing, holder=str(one.info().holder))
                assert answer.status_code == 400 and one.owned()
                assert get(boss, "lock", thing=thing).status_code == 400
            same = Thing("lock", lock.key, lock.key)
            assert get(boss, "lock", thing=same).status_code == 400

    def test_a_lock_that_was_handed_over_has_no_time(self, boss: Client) -> None:
        """Its new holder has not confirmed it yet."""
        Lock("nightly").acquire()
        handed = dataclasses.replace(Lock("nightly").info(), acquired_at=None)
        with mock.patch.object(Lock, "info", return_value=handed):
            assert "Held since" not in facts(page(boss, "lock", thing="lock:nightly"))

    def test_one_reader_is_evicted(self, boss: Client) -> None:
        """Another one stays, and a waiting writer goes on waiting for it."""
        one, other, third = (ReadWriteLock("catalogue", timeout=60) for _ in range(3))
        thing = Thing("rwlock", "catalogue")
        assert get(boss, "rwlock", thing=thing).status_code == 404
        one.read.acquire()
        evicted = one.info().holders[0].token
        other.read.acquire()
        with waiting(third.write.acquire, lambda: len(third.waiting())):
            shown = page(boss, "rwlock", thing=thing)
            assert facts(shown)["Readers"] == "2" and "writing" in rows(shown)[-1]
            [data] = [one for one in fields(shown, "release") if one["holder"] == quote(evicted)]
            assert boss.post(url("release"), {**data, "confirmed": "1"}).status_code == 302
            assert not one.read.owned() and other.read.owned() and third.info().waiting == 1
            late = boss.post(url("release"), {**data, "confirmed": "1"})
            assert late.status_code == 409 and other.read.owned()
            with pytest.raises(LockNotOwnedError):
                one.read.release()
            [data] = fields(page(boss, "rwlock", thing=thing), "release")
            assert boss.post(url("release"), {**data, "confirmed": "1"}).status_code == 302
        assert third.info().writer is not None
        assert len(changes()) == 2

    def test_a_permit_is_taken_away(self, boss: Client) -> None:
        """The next client gets it, and the holder learns that it is lost."""
        thing, semaphore, other = (
            Thing("semaphore", "exports"),
            Semaphore("exports", 1),
            Semaphore("exports", 1),
        )
        assert get(boss, "semaphore", thing=thing).status_code == 404
        semaphore.acquire()
        granted = []

        def acquire() -> None:
            granted.append(other.acquire(blocking=True))

        with waiting(acquire, lambda: semaphore.info().waiting):
            shown = page(boss, "semaphore", thing=thing)
            assert len(rows(shown)) == 2
            [data] = fields(shown, "release")
            assert "Release this permit?" in boss.post(url("release"), data).content.decode()
            assert boss.post(url("release"), {**data, "confirmed": "1"}).status_code == 302
        assert granted == [True] and semaphore.info().held == 1
        assert boss.post(url("release"), {**data, "confirmed": "1"}).status_code == 409
        with pytest.raises(SemaphoreError):
            semaphore.release()
        assert semaphore.info().held == 1

    def test_a_limit_is_set(self, boss: Client) -> None:
        semaphore, thing = Semaphore("exports", 1), Thing("semaphore", "exports")
        assert confirm(boss, "set_limit", thing, limit="3").status_code == 404
        semaphore.acquire()
        shown = page(boss, "semaphore", thing=thing)
        assert 'name="limit" value="1"' in shown
        question = post(boss, "set_limit", thing, limit="3")
        assert facts(question.content.decode())["New limit"] == "3" and semaphore.info().limit == 1
        assert confirm(boss, "set_limit", thing, limit="3").status_code == 302
        assert semaphore.info().limit == 3
        for wrong in ("", "-1", "x", "3.5", "10001", "9" * 30, "٣"):
            assert confirm(boss, "set_limit", thing, limit=wrong).status_code == 400
        with mock.patch.object(coordination, "_", "translated: {}".format):
            refused = confirm(boss, "set_limit", thing, limit="x").content.decode()
        assert "translated: The limit must be a whole number from 0 to 10000." in refused
        assert semaphore.info().limit == 3 and len(changes()) == 1

    def test_the_page_of_a_latch(self, boss: Client) -> None:
        assert get(boss, "latch", thing="latch:import").status_code == 404
        latch = Latch("import", 2)
        latch.count_down()
        assert facts(page(boss, "latch", thing="latch:import"))["State"] == "closed"
        latch.count_down()
        assert facts(page(boss, "latch", thing="latch:import"))["State"] == "open"


def why(client: Client, thing: Thing) -> str:
    """What the page of a thing says about why one waits for it."""
    found = page(client, thing.kind, thing=thing).partition('id="drm-why"')[2].partition("</section>")[0]
    return " ".join(unescape(found).split())


class TestWhy:
    def test_pages_say_what_one_waits_for(self, boss: Client) -> None:
        lock_inside("0abc", "nightly")
        ReadWriteLock("catalogue", timeout=60).write.acquire()
        Latch("import", 3).count_down()
        limit = RateLimit("login", "1/h")
        limit.take("ann")
        nightly = why(boss, Thing("lock", "nightly"))
        assert "has been held by" in nightly and "Nothing is stored of task 0abc" in nightly
        assert f"{url('task')}?thing=task%3Adefault%2F0abc" in nightly
        assert "Read-write lock catalogue is held by" in why(boss, Thing("rwlock", "catalogue"))
        assert "Latch import is closed; events that are missing: 2 of 3" in why(
            boss, Thing("latch", "import")
        )
        login = why(boss, Thing("rate", "ann", "login"))
        bob = User.objects.create(username="bob", first_name="bob", last_name="Lee")
        chat = Chat.create("ann", [str(bob.pk)])
        chat.send("ann", "hello")
        unread = why(boss, Thing("chat", chat.id))
        assert "bob Lee has not read 1 message of chat" in unread and "hello" not in unread
        notify("bob", "hello")
        assert "unread" in why(boss, Thing("mailbox", "bob"))
        assert (
            "Rate limit login/ann is used up: 1 per 60 min" in login
            and "Until the next use is allowed at" in login
        )

    def test_a_long_chain_takes_few_round_trips(self, boss: Client) -> None:
        inside("t0", Semaphore("printer", 1, timeout=3600).acquire)
        build_chain(Site())
        thing = Thing("semaphore", "printer")
        assert "The chain goes on with task" in why(boss, thing)
        assert round_trips(lambda: get(boss, "semaphore", thing=thing)) <= 12


def test_pages_of_one_thing_refuse_other_kinds(boss: Client) -> None:
    for name in (*KINDS, "rate"):
        for wrong in ("", "x", "chat:7", f"{name}:", "queue:a/b"):
            assert get(boss, name, thing=wrong).status_code == 400, (name, wrong)


def test_cursors_of_other_lists_are_refused(boss: Client) -> None:
    for number in range(400):
        Semaphore(f"s{number}", 1).acquire()
    shown = get(boss, "locks", kind="semaphore")
    cursor = shown.context["tables"][0].next_url.partition("cursor=")[2]
    assert cursor
    for wrong in (cursor[:-1] if len(cursor) > 10 else "x", "x", "0", "9" * 40, cursor + ".host:1"):
        assert get(boss, "locks", kind="lock", cursor=wrong).status_code == 400
    assert get(boss, "locks", kind="latch", cursor=cursor).status_code == 400


class TestAccess:
    def things(self) -> dict[str, tuple[Thing, dict[str, str]]]:
        """What each action can change, with its parameters."""
        Lock("nightly").acquire(blocking=False)
        RateLimit("login", "1/m").take("ann")
        Semaphore("exports", 1).acquire()
        return {
            "release": (Thing("lock", "nightly"), {"holder": quote(str(Lock("nightly").info().holder))}),
            "reset": (Thing("rate", "ann", "login"), {}),
            "set_limit": (Thing("semaphore", "exports"), {"limit": "7"}),
        }

    def test_only_superusers_may(self, sign_in: Sign) -> None:
        wanted = {
            "anonymous": (Client(), 302), "user": (sign_in("user"), 302),
            "staff": (sign_in("staff", is_staff=True), 403),
            "superuser": (sign_in("boss", is_staff=True, is_superuser=True), 302),
        }  # fmt: skip
        for role, (client, status) in wanted.items():
            for action, (thing, data) in self.things().items():
                assert confirm(client, action, thing, **data).status_code == status, (role, action)
            assert (len(changes()) == 3) is (role == "superuser"), role
            assert (get(client, "locks").status_code == 200) is (role == "superuser"), role

    def test_each_action_needs_permission(self, sign_in: Sign, settings: Settings) -> None:
        change(settings, CONSOLE=f"{__name__}.Careful")
        client = sign_in("staff", is_staff=True)
        for action, (thing, data) in self.things().items():
            allowed = action == "reset"
            for answer in (post(client, action, thing, **data), confirm(client, action, thing, **data)):
                assert (answer.status_code == 403) is not allowed, action
        assert changes() == [("staff", "reset", "rate:login/ann")]
        shown = page(client, "locks") + page(client, "semaphore", thing="semaphore:exports")
        assert "nightly" in shown and "exports" in shown
        assert fields(shown, "release") == [] and 'name="limit"' not in shown


def test_redis_is_not_available(boss: Client) -> None:
    """Sessions are in the database."""
    with no_server():
        for name in ("limits", "locks"):
            assert get(boss, name).status_code == 503
