"""`manage.py messaging_rates`: what keys have used of rate limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from pytest_django import Settings

from django_redis_messaging import RateLimit, conf
from django_redis_messaging.core import topology
from django_redis_messaging.core.encoding import FORMAT
from django_redis_messaging.services.common.scanning import scan_budget
from django_redis_messaging.services.rates.listing import list_rates
from django_redis_messaging.services.rates.user_rates import UserRate

from ..support.server import change, no_server, server
from ..support.terminal import output_of as output_and_errors


def output_of(*arguments: str) -> str:
    return output_and_errors("messaging_rates", *arguments)[0]


def rows(*arguments: str) -> list[Any]:
    found: list[Any] = json.loads(output_of("--json", *arguments))["rates"]
    return found


def keys(*arguments: str) -> list[tuple[str, str]]:
    return [(row["name"], row["key"]) for row in rows(*arguments)]


def test_nothing_is_used() -> None:
    login = RateLimit("login", "5/m")
    login.peek("ann")
    login.take("ann")
    login.refund("ann")
    begin = f"{conf.prefix()}:{FORMAT}:{{"
    others = ("rate:login:ann}:other", "rate:login}:level", "rate:login:a%62}:level", "rate:login:}:level")
    for key in (*others, f"rate:login:{'a' * 256}}}:level", "user:}:rate:send", "user:ann}:rate:"):
        server().hset(begin + key, "requests", 1)  # of something else
    assert output_of() == "No uses are counted.\n"
    assert rows() == []


@pytest.mark.worlds
def test_the_most_urgent_keys_are_first(settings: Settings) -> None:
    """With both algorithms, several limits, a burst, and the app's own rates."""
    change(settings, SEND_RATE=4)
    login, api = RateLimit("login", "5/m"), RateLimit("api", "1/m, 100/d", algorithm="window")
    bulk = RateLimit("bulk", 1, per=60, burst=10)
    login.take("full", 5)
    login.take("half", 3)
    api.take("full")
    bulk.take("most", 8)
    UserRate.of("ann", "send").take()
    RateLimit("elsewhere", "9/m").take("twice")
    RateLimit("elsewhere", "9/m").take("twice")
    RateLimit("elsewhere window", "9/m", algorithm="window").take("thrice", 3)
    found = rows()
    assert [(row["name"], row["key"], row["used"], row["remaining"]) for row in found] == [
        ("api", "full", 1, 0), ("login", "full", 5, 0), ("bulk", "most", 8, 2), ("login", "half", 3, 2),
        ("user:send", "ann", 1, 3), ("elsewhere window", "thrice", 3, None), ("elsewhere", "twice", 2, None),
    ]  # fmt: skip
    assert 30 < found[0]["retry_after"] <= 60 and 0 < found[1]["retry_after"] <= 12
    assert found[0]["rate"] == {"limit": 1, "period": 60.0} and found[0]["reset_after"] > 80_000
    assert [row["retry_after"] for row in found[2:]] == [0] * 5
    assert found[-1]["rate"] is None and found[-1]["reset_after"] is None
    assert keys("--at-limit") == [("api", "full"), ("login", "full")]
    assert keys("login") == [("login", "full"), ("login", "half")]
    assert keys("user:send") == keys("--key", "ann") == [("user:send", "ann")]
    assert keys("--key", "full", "login") == [("login", "full")]


def test_a_declaration_that_does_not_match_is_not_used(settings: Settings) -> None:
    """It has another algorithm, or another prefix."""
    RateLimit("login", "5/m").take("ann", 5)
    for options in ({"algorithm": "window"}, {}):
        prefix = conf.prefix()
        if not options:
            change(settings, PREFIX="other")
        other = RateLimit("login", "5/m", **options)
        change(settings, PREFIX=prefix)
        [row] = rows()
        assert (row["used"], row["remaining"]) == (1, None), other


def test_a_table_is_printed() -> None:
    login = RateLimit("login", "5/m")
    login.take("ann", 5)
    RateLimit("elsewhere", "9/m").take("a\x1b[31m\nb")
    head, first, second = output_of().splitlines()
    assert head.split() == ["limit", "key", "rate", "used", "left", "free_in", "reset_in"]
    assert first.split()[:5] == ["login", "ann", "5/60s", "5", "0"] and first.count(" s") == 2
    assert second.split() == ["elsewhere", "a\\x1b[31m\\nb", "unknown", "1", "-", "-", "-"]
    shown, blank, rest = output_of("--top", "1").splitlines()[1:]
    assert (shown.split()[0], blank, rest) == ("login", "", "1 more key: raise --top.")
    with pytest.raises(CommandError, match="--top must be at least 1"):
        output_of("--top", "0")


def test_names_are_no_patterns() -> None:
    limits = [RateLimit(name, "5/m") for name in ("a*", "ab", "a[b]", "a: {b}%")]
    for limit in limits:
        limit.take("k?")
        limit.take("kk")
    for limit in limits:
        assert keys(limit.name, "--key", "k?") == [(limit.name, "k?")]
    with pytest.raises(CommandError, match="name is empty"):
        output_of("")


def test_limits_of_views_are_known(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command imports the URLconf. Without one, it works, too."""
    monkeypatch.syspath_prepend(tmp_path)
    text = "from django_redis_messaging import RateLimit\nlimit, urlpatterns = RateLimit('view', '5/m'), []"
    (tmp_path / "urls_with_limits.py").write_text(text)
    RateLimit("view", "5/m").take("ann")
    del settings.ROOT_URLCONF
    assert rows()[0]["remaining"] is None
    settings.ROOT_URLCONF = "urls_with_limits"
    assert rows()[0]["remaining"] == 4


def test_limits_of_requests_are_known_before_any_is_counted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the names of views, and of paths in RATE_LIMITS; even if another tenant's limit is older."""
    prefix = conf.prefix()
    change(settings, PREFIX="other")
    other = RateLimit("/api/", "2/h")
    change(settings, PREFIX=prefix)
    monkeypatch.syspath_prepend(tmp_path)
    text = (
        "from django_redis_messaging import rate_limit\nurlpatterns = []\n"
        "@rate_limit('1/h')\ndef page(request): ..."
    )
    (tmp_path / "urls_with_views.py").write_text(text)
    settings.ROOT_URLCONF = "urls_with_views"
    change(settings, RATE_LIMITS=[{"rate": "2/h", "path": "/api/"}])
    for name, rate in (("urls_with_views.page", "1/h"), ("/api/", "2/h")):
        RateLimit(name, rate).take("ip:1.1.1.1", int(rate[0]))
    assert sorted(keys("--at-limit")) == [
        ("/api/", "ip:1.1.1.1"), ("urls_with_views.page", "ip:1.1.1.1")
    ], other  # fmt: skip


class TestReset:
    def test_known_or_not(self) -> None:
        login = RateLimit("login", "1/m")
        for name, algorithm in (("login", "gcra"), ("elsewhere", "gcra"), ("window", "window")):
            RateLimit(name, "1/m", algorithm=algorithm).take("ann {b}")  # type: ignore[arg-type]
            assert output_of("--reset", name, "ann {b}") == f"Reset ann {{b}} in the rate limit {name}.\n"
        assert rows() == []
        assert login.take("ann {b}")

    def test_one_of_the_apps_own(self, settings: Settings) -> None:
        change(settings, SEND_RATE=1)
        for user in ("ann", "bob"):
            UserRate.of(user, "send").require()
        output_of("--reset", "user:send", "ann")
        assert keys() == [("user:send", "bob")]
        UserRate.of("ann", "send").require()

    def test_nothing_was_used(self) -> None:
        with pytest.raises(CommandError, match="ann has used nothing of the rate limit login"):
            output_of("--reset", "login", "ann")
        with pytest.raises(CommandError, match="key is empty"):
            output_of("--reset", "login", "")


def test_another_alias_and_unreachable_server() -> None:
    login = RateLimit("login", "5/m")
    login.take("ann")
    with pytest.raises(CommandError, match="CACHES has no django-redis entry 'unknown'"):
        output_of("--using", "unknown")
    for arguments in ([], ["--reset", "login", "ann"]):
        with no_server(), pytest.raises(CommandError, match="Redis was not available"):
            output_of(*arguments)


def test_a_scan_ends_when_its_budget_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "SCAN_COUNT", 10)
    login = RateLimit("login", "5/m")
    for number in range(60):
        login.take(f"user {number}")
    with scan_budget(20, 30) as budget:
        assert 20 <= len(list(list_rates(conf.alias(), conf.prefix()))) < 60
    assert budget.is_spent
    with scan_budget(20, 1e-9) as budget:
        assert list(list_rates(conf.alias(), conf.prefix())) == []
    assert budget.is_spent
    with scan_budget(61, 30) as budget:
        assert len(list(list_rates(conf.alias(), conf.prefix()))) == 60
    assert not budget.is_spent
    assert len(rows()) == 60
