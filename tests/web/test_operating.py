"""The pages for operators: rate limits, and locks of all kinds. test_access.py has who may use them."""

from __future__ import annotations

import dataclasses
import logging
import re
from html import escape, unescape
from typing import Any
from unittest import mock

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import (
    Latch,
    Lock,
    LockNotOwnedError,
    RateLimit,
    ReadWriteLock,
    Semaphore,
    conf,
    rate_limit,
)
from django_redis_messaging.core import topology
from django_redis_messaging.services.rates.user_rates import UserRate
from django_redis_messaging.web.identity import Identity
from django_redis_messaging.web.views import operating

from ..support.server import change, server
from .conftest import Person, client_of, code, get, page, post

#: a name that is markup, with characters that change the order or the screen
HOSTILE = '<script>alert(1)</script>" \u202e{x}%0A\n\x1b[31m'
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;&quot; \\u202e{x}%0A\\n\\x1b[31m"


class Shift(Identity):
    """A site that has operators of its own."""

    def may_operate(self, user: Any) -> bool:
        return user.username == "operator"


def hidden_fields(text: str) -> dict[str, str]:
    """Those of the app's forms."""
    found = re.findall(r'<input type="hidden" name="(name|key|holder)" value="([^"]*)">', text)
    return {name: unescape(value) for name, value in found}


@pytest.fixture
def boss(person: Person) -> Client:
    return client_of(person("boss", is_superuser=True))


def test_operators_are_active_superusers_or_those_of_the_identity(person: Person, settings: Settings) -> None:
    """An inactive superuser is none."""
    users = {name: person(name) for name in ("staff", "operator")}
    boss, gone = person("boss", is_superuser=True), person("gone", is_superuser=True, is_active=False)
    assert [Identity().may_operate(user) for user in (boss, gone, users["staff"])] == [True, False, False]
    change(settings, IDENTITY=f"{__name__}.Shift")
    assert get(client_of(users["operator"]), "limits").status_code == 200
    assert get(client_of(boss), "limits").status_code == 403


class TestLimits:
    def test_keys_at_their_limit_are_first_and_marked(self, boss: Client) -> None:
        login = RateLimit("login", "5/m, 1000/d")
        login.take("half", 2)
        login.take("full", 5)
        UserRate.of("7", "invite").take(3)
        RateLimit("elsewhere", "5/m", algorithm="window").take("ann", 4)
        text = page(boss, "limits")
        order = [text.index(f"<bdi>{key}</bdi>") for key in ("full", "half", "7", "ann")]
        assert order == sorted(order)
        assert text.count("At limit") == 1 and text.index("At limit") < order[1]
        for shown in ("0 of 5", "3 of 5", "5 in 1 min", "297 of 300", "4 counted", "not declared here"):
            assert shown in text

    def test_limits_of_views_are_known_before_any_request(self, boss: Client) -> None:
        view = rate_limit("5/m")(lambda request: None)
        name = f"{__name__}.TestLimits.test_limits_of_views_are_known_before_any_request.<locals>.<lambda>"
        RateLimit(name, "5/m").take("ann", 5)
        text = page(boss, "limits")
        assert "At limit" in text and "not declared here" not in text
        assert f'<option value="{escape(name)}">' in text
        assert view

    def test_filters(self, boss: Client) -> None:
        for name in ("login", "export"):
            for key in ("ann", "bob"):
                RateLimit(name, "5/m").take(key)
        assert "Show all" not in page(boss, "limits")
        for query, names, keys in (
            ({"name": "login"}, 2, ("ann", "bob")), ({"key": " bob "}, 2, ("bob",)),
            ({"name": "export", "key": "ann"}, 1, ("ann",)), ({"name": "log", "key": ""}, 0, ()),
        ):  # fmt: skip
            text = page(boss, "limits", **query)
            assert text.count('<th scope="row">') == names
            assert [key for key in ("ann", "bob") if f"<bdi>{key}</bdi>" in text] == list(keys)
            assert "Show all" in text
        assert "No uses are counted." in text
        assert get(boss, "limits", name="x" * 256).status_code == 400

    def test_a_key_is_reset(self, boss: Client, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, operating.__name__)
        login = RateLimit("login", "1/m")
        login.take("ann")
        login.take("bob")
        url = reverse("messaging:reset_limit") + "?name=login&other=1"
        answer = boss.post(url, {"name": "login", "key": "ann"})
        assert answer["Location"] == reverse("messaging:limits") + "?name=login"
        assert login.peek("ann") and not login.peek("bob")
        assert "reset 'ann' in the rate limit 'login'" in caplog.text
        answer = boss.post(url, {"name": "login", "key": "ann"}, headers={"Accept": "application/json"})
        assert answer.json() == {"reset": False}
        answer = boss.post(url, {"name": "login", "key": "ann"})
        assert answer.status_code == 404 and "Nothing was reset." in answer.content.decode()
        assert caplog.text.count("reset 'ann'") == 1
        assert post(boss, "reset_limit", name="login").status_code == 400

    def test_names_are_escaped_and_their_buttons_work(self, boss: Client) -> None:
        limit = RateLimit(HOSTILE, "1/m")
        limit.take(HOSTILE)
        text = page(boss, "limits")
        assert text.count(f"<bdi>{SHOWN}</bdi>") == 2
        assert "<script>alert" not in text
        fields = hidden_fields(text)
        assert all("\n" not in value for value in fields.values())  # browsers would submit another one
        post(boss, "reset_limit", **fields)
        assert limit.peek(HOSTILE)

    def test_a_long_list_says_that_it_is_not_complete(
        self, boss: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        login = RateLimit("login", "5/m")
        for number in range(60):
            login.take(str(number))
        monkeypatch.setattr(operating, "MAX_ROWS", 50)
        text = page(boss, "limits")
        assert text.count('<th scope="row">') == 50
        assert "10 more are not shown." in text and "This list is not complete" not in text
        monkeypatch.setattr(operating, "MAX_KEYS", 20)
        monkeypatch.setattr(topology, "SCAN_COUNT", 10)
        assert "This list is not complete" in page(boss, "limits")

    def test_the_search_ends_in_time(self, boss: Client, settings: Settings) -> None:
        RateLimit("login", "5/m").take("ann")
        with mock.patch.object(operating, "scan_budget", wraps=operating.scan_budget) as budget:
            page(boss, "locks")
        share = conf.current().WEB_DEADLINE / 8
        assert [call.args for call in budget.call_args_list] == [(operating.MAX_KEYS, share)] * 4


class TestLocks:
    def test_what_coordinates_processes_is_listed(self, boss: Client) -> None:
        assert "No locks are held." in (text := page(boss, "locks"))
        assert "No semaphores are in use." in text
        assert "There are no latches." in text
        lock = Lock("nightly", timeout=3700)
        own = Lock(HOSTILE, timeout=None, key=f"{conf.prefix()}:{{shop}}{HOSTILE.replace('}', '')}")
        catalogue, latch = ReadWriteLock("catalogue", timeout=7300), Latch("parts of the import", 12)
        latch.count_down(5)
        with lock, own, Semaphore("exports", 3), catalogue.write:
            info = lock.info()
            writer = catalogue.info().writer
            text = page(boss, "locks")
        for shown in (f"<bdi>{info.holder}</bdi>", str(lock.fence), "1 h 1 min", "no lease", "exports"):
            assert shown in text
        for shown in (
            f"<bdi>{writer}</bdi>",
            "2 h 1 min",
            "parts of the import",
            "<bdi>12</bdi>",
            "<bdi>7</bdi>",
        ):
            assert shown in text
        assert "<script>alert" not in text

    @pytest.mark.parametrize("key", [None, "{shop}:stock"])
    def test_a_lock_is_released_after_a_question(
        self, boss: Client, caplog: pytest.LogCaptureFixture, key: str | None
    ) -> None:
        key = None if key is None else f"{conf.prefix()}:{key}"
        lock = Lock(key or f"nightly {'x' * 240}", key=key)
        lock.acquire()
        link = {"name": lock.name, **({"key": key} if key else {})}
        shown = page(boss, "locks")
        assert all(f'name="{name}" value="{value}"' in shown for name, value in link.items())
        text = page(boss, "release_lock", **link)
        data = {**link, "holder": lock.info().holder}
        assert all(f'name="{name}" value="{value}"' in text for name, value in data.items())
        assert lock.owned()
        assert post(boss, "release_lock", **data)["Location"] == reverse("messaging:locks")
        with pytest.raises(LockNotOwnedError):
            lock.release()
        assert "released the lock" in caplog.text
        assert get(boss, "release_lock", **link).status_code == 404
        assert post(boss, "release_lock", **data).status_code == 404

    def test_fields_of_locks_are_submitted_unchanged(self, boss: Client) -> None:
        name, key = HOSTILE.replace("}", ""), f"{conf.prefix()}:{{shop}}{HOSTILE.replace('}', '')}"
        lock = Lock(name, key=key)
        lock.acquire(token="50%\n")
        question = page(boss, "release_lock", **hidden_fields(page(boss, "locks")))
        fields = hidden_fields(question)
        assert all("\n" not in value for value in fields.values())
        assert post(boss, "release_lock", **fields).status_code == 302
        assert not lock.owned()

    def test_another_holder_keeps_the_lock(self, boss: Client) -> None:
        with Lock("nightly") as lock:
            answer = post(boss, "release_lock", name="nightly", holder="another")
            assert answer.status_code == 409 and "another holder" in answer.content.decode()
            assert post(boss, "release_lock", name="nightly").status_code == 400
            assert lock.owned()

    def test_other_keys_are_no_locks(self, boss: Client) -> None:
        """Nothing that a lock has not written can be deleted."""
        key = f"{conf.prefix()}:x"
        server().set(key, "value")
        data = {"name": "x", "key": key, "holder": "value"}
        assert post(boss, "release_lock", **data).status_code == 404
        assert server().get(key) == b"value"
        assert get(boss, "release_lock", name="x", key="a}b").status_code == 400
        assert get(boss, "release_lock").status_code == 400

    def test_a_lock_that_was_handed_over_has_no_time(self, boss: Client) -> None:
        """Its new holder has not confirmed it yet."""
        Lock("nightly").acquire()
        handed = dataclasses.replace(Lock("nightly").info(), acquired_at=None)
        with mock.patch.object(Lock, "info", return_value=handed):
            assert "Held since" not in page(boss, "release_lock", name="nightly")


def test_redis_is_not_available(boss: Client, away: None) -> None:
    for name in ("limits", "locks"):
        assert get(boss, name).status_code == 503
        assert code(boss.get(reverse(f"messaging:{name}"), headers={"Accept": "application/json"}))[0] == 503
