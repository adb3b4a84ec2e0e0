"""The traffic page of the demo: the access log, counted by country and day."""

from __future__ import annotations

import gzip
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from django_redis_messaging import ConfigurationError, Countries
from django_redis_messaging.services.aggregates.aggregator import AggregateKeys

from ..support.demo import Browser, Demo
from ..support.processes import ROOT
from ..support.server import until

#: beside the repository: real data, which the tests don't need
DATA = ROOT.parent / "shared" / "data"
REAL_LOG, DATABASE = DATA / "access.log.gz", DATA / "GeoLite2-Country-Test.mmdb"
#: seconds
DEADLINE = 60.0
REQUEST = re.compile(r'(\S+) - - \[(\d+)/(\w+)/(\d+):\d\d:\d\d:\d\d \+0000\] "')
MONTHS = {"May": "05"}


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> Any:
    """The modules of the app, on the server of the tests."""
    monkeypatch.syspath_prepend(ROOT / "testproject")
    settings.DATA_DIR, settings.ACCESS_LOG, settings.GEOIP_PATH = tmp_path, "", DATABASE
    from traffic import (
        access_log,  # type: ignore[import-not-found]
        counting,  # type: ignore[import-not-found]
        figures,  # type: ignore[import-not-found]
        origins,  # type: ignore[import-not-found]
    )

    origins.origin_of.cache_clear()
    origins._database.cache_clear()
    return SimpleNamespace(access_log=access_log, counting=counting, figures=figures, origins=origins)


@pytest.fixture
def counted(traffic: Any) -> Iterator[Callable[[], None]]:
    """Waits until the thread of the site has counted what was published."""
    stop = traffic.counting.start()

    def wait() -> None:
        assert traffic.counting.wait_until_counted(DEADLINE)

    yield wait
    stop()


def read(log: Path) -> list[str]:
    text = gzip.decompress(log.read_bytes()) if log.suffix == ".gz" else log.read_bytes()
    return text.decode("ascii").splitlines()


def requests_of(lines: list[str]) -> list[tuple[str, str]]:
    """The day and the address of each well-formed line."""
    found = [match.groups() for match in map(REQUEST.match, lines) if match]
    return [(f"{year}-{MONTHS[month]}-{day}", address) for address, day, month, year in found]


@pytest.mark.parametrize("log", ["generated", pytest.param("real", marks=pytest.mark.skipif(
    not REAL_LOG.exists(), reason="there is no real access log beside the repository"
))])  # fmt: skip
def test_counts_equal_those_by_brute_force(
    log: str, traffic: Any, counted: Callable[[], None], settings: Any
) -> None:
    settings.ACCESS_LOG = REAL_LOG if log == "real" else ""
    visits, lines = traffic.counting.visits(), read(traffic.access_log.find_log())
    requests = requests_of(lines)
    expected = Counter((day, traffic.origins.origin_of(address)) for day, address in requests)
    assert len(expected) > 12
    for _ in range(2):  # the second time, nothing is published
        traffic.counting.publish()
        counted()
        found = {(day, one.key): one.count for day in visits.periods() for one in visits.top(day, 1000)}
        assert found == expected
        assert visits.malformed() == len(lines) - len(requests)
    days = traffic.figures.read_days(visits)
    assert {str(one.day): one.total for one in days} == Counter(day for day, _ in requests)
    assert all(sum(bar.count for bar in one.rows) == one.total for one in days)
    assert {float(bar.width) for one in days for bar in one.rows} >= {100.0}


class TestLog:
    def test_the_generated_log_is_always_the_same(self, traffic: Any, tmp_path: Path) -> None:
        log = traffic.access_log.find_log()
        before = log.stat()
        assert read(log) == list(traffic.access_log.generate_lines())
        assert traffic.access_log.find_log().stat() == before
        assert [path.name for path in tmp_path.iterdir()] == ["access.log"]
        assert len(read(log)) - len(requests_of(read(log))) == 7

    def test_lines(self, traffic: Any) -> None:
        line = b'2001:db8::1 - ann [07/May/2015:23:59:59 +0000] "GET / HTTP/1.1" 200 5'
        assert traffic.access_log.parse_line(line) == ("2015-05-07", "2001:db8::1")
        for wrong in (b"", b"-", line[:30], line.replace(b"May", b"Mai"), line.replace(b"07/", b"32/")):
            with pytest.raises(ValueError):
                traffic.access_log.parse_line(wrong)


class TestOrigins:
    @pytest.mark.parametrize(
        ("address", "origin"),
        [
            ("192.0.2.1", "US"),
            ("192.0.2.200", "FR"),
            ("2001:db8:2::7", "JP"),
            ("83.149.9.216", "Europe and Middle East"),
            ("66.249.73.135", "North America"),
            ("200.49.190.101", "Latin America"),
            ("41.0.0.1", "Africa"),
            ("2404:6800::1", "Asia and Pacific"),
            ("10.1.2.3", ""),
            ("192.168.1.1", ""),
            ("::1", ""),
            ("240.0.0.1", ""),
        ],
    )
    def test_tables(self, traffic: Any, address: str, origin: str) -> None:
        assert traffic.origins.origin_of(address) == origin

    def test_the_database_comes_before_the_regions(self, traffic: Any) -> None:
        try:
            Countries(DATABASE)
        except ConfigurationError as error:
            pytest.skip(str(error))
        assert traffic.origins.origin_of("89.160.20.112") == "SE"

    def test_without_a_database(self, traffic: Any, settings: Any) -> None:
        settings.GEOIP_PATH = DATA / "missing.mmdb"
        assert traffic.origins.origin_of("89.160.20.112") == "Europe and Middle East"

    def test_names(self, traffic: Any) -> None:
        names = [traffic.origins.origin_name(origin) for origin in ("DE", "Africa", "XX", "")]
        assert names == ["Germany", "Africa", "XX", "Unknown"]

    def test_an_invalid_address_is_an_error(self, traffic: Any) -> None:
        with pytest.raises(ValueError, match="localhost"):
            traffic.origins.origin_of("localhost")


def totals_of(page: str) -> dict[str, int]:
    """Day → requests, of the first table of the page."""
    row = re.compile(r'<time datetime="([\d-]+)">[^<]+</time></a></th>\s*<td class="number">(\d+)</td>')
    return {day: int(count) for day, count in row.findall(page)}


@pytest.mark.promise
def test_a_demo_that_was_killed_counts_each_line_once(start: Callable[..., Demo], tmp_path: Path) -> None:
    log = tmp_path / "large.log"
    line = b'192.0.2.7 - - [%02d/May/2026:10:05:03 +0000] "GET / HTTP/1.1" 200 512\n'
    log.write_bytes(b"".join(line % (number % 28 + 1) for number in range(28)) * 15_000)
    demo = start(env={"DEMO_ACCESS_LOG": str(log)})
    browser = Browser(demo.address, "alice")

    def publish() -> None:
        with suppress(OSError, AssertionError):  # the demo is killed meanwhile
            browser.post("/traffic/process/", at="/traffic/")

    thread = threading.Thread(target=publish)
    thread.start()
    with redis.Redis(unix_socket_path=str(tmp_path / "redis" / "server.sock")) as client:
        until(lambda: client.exists(AggregateKeys("demo", "visits").markers))  # written by the first flush
    demo.stop(signal.SIGKILL)
    thread.join()

    browser = Browser(start(env={"DEMO_ACCESS_LOG": str(log)}).address, "alice")
    browser.post("/traffic/process/", at="/traffic/")
    page = browser.until("/traffic/", "420000 requests")
    assert totals_of(page) == {f"2026-05-{day:02}": 15_000 for day in range(1, 29)}
    until(lambda: "being counted" not in browser.get("/traffic/"), DEADLINE)
    assert totals_of(browser.get("/traffic/")) == totals_of(page)
