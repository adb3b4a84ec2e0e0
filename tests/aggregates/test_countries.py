"""Countries of IP addresses: the GeoIP2 databases of Django."""

from __future__ import annotations

import builtins
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.gis import geoip2

from django_redis_messaging import Aggregator, ConfigurationError, Countries, InvalidArgument

from ..support.memory_file import Lines

#: a small database of MaxMind for tests, beside the repository
DATABASE = Path(__file__).parents[3] / "shared/data/GeoLite2-Country-Test.mmdb"


@pytest.fixture
def countries(monkeypatch: pytest.MonkeyPatch) -> Countries:
    if not DATABASE.exists():
        pytest.skip(f"needs the test database {DATABASE.name} in {DATABASE.parent}")

    def refuse(*args: object) -> None:
        raise AssertionError("a name was looked up")

    monkeypatch.setattr(socket, "gethostbyname", refuse)
    return Countries(DATABASE)


class FakeGeoIP2:
    """A database without addresses, which counts its queries."""

    HAS_GEOIP2 = True
    queries = 0

    def __init__(self, path: object = None) -> None:
        self.path = path

    def country(self, query: object) -> dict[str, str | None]:
        type(self).queries += 1
        return {"country_code": "DE" if str(query) == "1.2.3.4" else None}


@pytest.mark.parametrize(("ip", "code"), [
    ("2.125.160.216", "GB"), ("89.160.20.112", "SE"), (b"89.160.20.112", "SE"),
    ("::ffff:89.160.20.112", "SE"), ("2001:218::1", "JP"), (b"2001:218::1", "JP"), ("192.168.0.1", ""),
    ("127.0.0.1", ""), ("::1", ""), ("fe80::1%eth0", ""), ("203.0.113.7", ""),
])  # fmt: skip
def test_country_of_an_address(countries: Countries, ip: str | bytes, code: str) -> None:
    assert countries(ip) == code


@pytest.mark.parametrize(
    "ip", ["", "-", "1.2.3", "1.2.3.4.5", "localhost", "01.2.3.4", b"\xff", "1.2.3.4:80"]
)
def test_other_text_is_an_error(countries: Countries, ip: str | bytes) -> None:
    with pytest.raises(InvalidArgument, match="ip must be an IPv4 or IPv6 address"):
        countries(ip)
    with pytest.raises(TypeError, match="ip must be a str or bytes, not int"):
        countries(7)  # type: ignore[arg-type]


def test_an_invalid_address_is_a_malformed_line(countries: Countries) -> None:
    visits = Aggregator("visits")
    file = Lines([b"89.160.20.112", b"10.0.0.1", b"unknown"])
    assert visits.add_file(file, lambda line: ("day", countries(line))).malformed == 1
    assert [(one.key, one.count) for one in visits.top("day")] == [("", 1), ("SE", 1)]


def test_countries_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geoip2, "GeoIP2", FakeGeoIP2)
    monkeypatch.setattr(FakeGeoIP2, "queries", 0)
    countries = Countries("somewhere")
    assert [countries("1.2.3.4"), countries("1.2.3.4"), countries("1.2.3.5")] == ["DE", "DE", ""]
    assert FakeGeoIP2.queries == 2


def test_the_setting_of_django_names_the_database(countries: Countries, settings: Any) -> None:
    settings.GEOIP_PATH = DATABASE
    assert Countries()("2.125.160.216") == "GB"


@pytest.mark.parametrize("made", [lambda path: None, lambda path: path / "missing", Path.touch, Path.mkdir])
def test_without_a_database(made: Callable[[Path], object], tmp_path: Path, settings: Any) -> None:
    path = tmp_path / "countries.mmdb"
    made(path)
    for given in (path, None):
        with pytest.raises(ConfigurationError, match="set GEOIP_PATH to the database or its folder"):
            Countries(given)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geoip2, "HAS_GEOIP2", False)
    with pytest.raises(ConfigurationError, match=r"pip install 'django-redis-messaging\[geoip\]'"):
        Countries()


def test_the_service_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """geoip2 is imported when a database is opened."""
    original = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        assert name.partition(".")[0] not in {"geoip2", "maxminddb"}
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [name for name in sys.modules if ".services.aggregates" in name]:
        monkeypatch.delitem(sys.modules, name)
    __import__("django_redis_messaging.services.aggregates")
