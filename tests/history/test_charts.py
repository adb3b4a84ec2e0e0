"""Charts: where the points are, and that nothing but text comes from outside."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from django.utils import translation

from django_redis_messaging.console.charts import (
    HEIGHT,
    TOP,
    WIDTH,
    Curve,
    Kind,
    Unit,
    chart,
    number_text,
    sparkline,
    table_view,
)

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
HOSTILE = "<script>alert('x')</script>\"&{}%\x1b"


def points(
    *numbers: float | None, step: float = 10, first: datetime = NOON
) -> list[tuple[datetime, float | None]]:
    return [(first + timedelta(seconds=step * at), number) for at, number in enumerate(numbers)]


def parsed(markup: str) -> ElementTree.Element:
    """Raises for markup that is not well-formed."""
    return ElementTree.fromstring(markup.replace("\x1b", ""))  # noqa: S314  (XML has no such character)


def paths(markup: str, kind: str) -> list[list[tuple[float, float]]]:
    """The points of the paths of a class, the first curve first."""
    drawn = [
        path for plot in parsed(markup).iter("svg") if "viewBox" in plot.attrib for path in plot.iter("path")
    ]
    found = [one for one in drawn if kind in one.attrib["class"].split()]
    return [
        [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", one.attrib["d"])]
        for one in found[::-1]
    ]


def texts(markup: str, place: str) -> list[str]:
    [found] = [one for one in parsed(markup).iter() if one.get("class") == place]
    return ["".join(one.itertext()) for one in found.iter("text")]


def test_points_are_in_the_middle_of_their_steps() -> None:
    [line] = paths(chart([Curve("a", points(0, 50, 100, 25))], "t"), "drm-line")
    assert line == [(125, TOP + HEIGHT), (375, TOP + HEIGHT / 2), (625, TOP), (875, TOP + 0.75 * HEIGHT)]


def test_gaps_interrupt_lines_and_single_points_are_dots() -> None:
    markup = chart([Curve("a", points(1, 2, None, 3, None, 4, 4))], "t")
    [path] = [one for one in parsed(markup).iter("path") if "drm-line" in one.attrib["class"]]
    assert path.attrib["d"].count("M") == 2
    assert paths(markup, "drm-dots") == [[(WIDTH / 2, TOP + HEIGHT / 4)]]
    assert len(list(parsed(markup).iter("rect"))) == 5


def test_bars_are_stacked() -> None:
    markup = chart([Curve("a", points(10, 10)), Curve("b", points(10, 30))], "t", kind="bars")
    drawn = [one.attrib["d"] for one in parsed(markup).iter("path") if "drm-bars" in one.attrib["class"]]
    # the later curve is drawn first; each bar goes up to its top, and down to its base
    assert [re.findall(r"V([\d.]+)", path) for path in drawn] == [
        ["88.0", "128.0", f"{TOP:.1f}", "128.0"],
        ["128.0", "168.0", "128.0", "168.0"],
    ]


@pytest.mark.parametrize(
    ("highest", "unit", "labels"),
    [
        (0, "", ["0", "1"]),
        (1, "", ["0", "1"]),
        (97, "", ["0", "25", "50", "75", "100"]),
        (1234, "", ["0", "500", "1k", "1.5k"]),
        (0.19, "s", ["0 s", "50 ms", "100 ms", "150 ms", "200 ms"]),
        (7200, "s", ["0 s", "30 min", "1 h", "1.5 h", "2 h"]),
        (3 * 2**20, "B", ["0 B", "1 MiB", "2 MiB", "3 MiB"]),
        (0.4, "/s", ["0/s", "0.1/s", "0.2/s", "0.3/s", "0.4/s"]),
    ],
)
def test_labels_of_numbers_are_round(highest: float, unit: Unit, labels: list[str]) -> None:
    assert texts(chart([Curve("a", points(0, highest))], "t", unit=unit), "drm-chart-numbers") == labels


@pytest.mark.parametrize(
    ("count", "step", "labels"),
    [
        (360, 10, ["13:10", "13:20", "13:30", "13:40", "13:50"]),
        (360, 240, ["16:00", "20:00", "29 Nov", "04:00", "08:00", "12:00"]),
        (336, 3600, ["30 Nov", "3 Dec", "6 Dec", "9 Dec", "12 Dec"]),
    ],
)
def test_labels_of_times_are_round_local_times(
    count: int, step: int, labels: list[str], settings: Any
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    markup = chart([Curve("a", points(*[1.0] * count, step=step))], "t")
    assert texts(markup, "drm-chart-times") == labels


def test_times_when_the_clocks_change(settings: Any) -> None:
    """Noon stays noon on the day that has 25 hours."""
    settings.TIME_ZONE = "Europe/Berlin"
    first = datetime(2026, 10, 24, 12, tzinfo=UTC)
    markup = chart([Curve("a", points(*[1.0] * 48, step=3600, first=first))], "t")
    assert "12:00" in texts(markup, "drm-chart-times")
    assert "13:00" not in texts(markup, "drm-chart-times")


def test_hover_and_table_have_the_numbers(settings: Any) -> None:
    settings.TIME_ZONE = "UTC"
    curves = [Curve("Ran", points(3, None, 1500)), Curve("Failed", points(1, None, None))]
    titles = ["".join(one.itertext()) for one in parsed(chart(curves, "t")).iter("title")]
    assert titles == ["28 Nov 12:00:00\nRan: 3\nFailed: 1", "28 Nov 12:00:20\nRan: 1.5k"]
    assert table_view(curves).head == ["Time", "Ran", "Failed"]
    dash = "\N{EN DASH}"
    assert table_view(curves).rows == [["28 Nov 12:00:20", "1.5k", dash], ["28 Nov 12:00:00", "3", "1"]]
    many = [Curve("Ran", points(*range(360)))]
    titles = ["".join(one.itertext()) for one in parsed(chart(many, "t")).iter("title")]
    assert len(titles) == 120
    assert titles[0] == f"28 Nov 12:00:00{dash}12:00:20\nRan: 2"


@pytest.mark.parametrize("kind", ["lines", "bars"])
def test_names_are_text(kind: Kind) -> None:
    curves = [Curve(HOSTILE, points(1, 2)), Curve("b", points(None, None))]
    for markup in (chart(curves, HOSTILE, kind=kind), sparkline(points(1, 2), HOSTILE)):
        tags = {one.tag for one in parsed(markup).iter()}
        graphics, others = {"g", "line", "path", "rect", "svg", "text", "title"}, {"div", "figcaption"}
        assert tags <= graphics | others | {"figure", "li", "span", "ul"}
        assert not {name for one in parsed(markup).iter() for name in one.attrib} & {
            "style",
            "href",
            "onload",
        }


def test_nothing_to_draw() -> None:
    for markup in (chart([], "t"), chart([Curve("a", points(None, None))], "t")):
        assert "No data" in "".join(parsed(markup).itertext())
        assert paths(markup, "drm-line") == []
    assert "a: no data" in sparkline([], "a")
    assert table_view([]).rows == []


def test_screen_readers_get_a_summary() -> None:
    label = parsed(sparkline(points(3, 9, 4, None), "Ready")).attrib["aria-label"]
    assert label == "Ready: latest 4, highest 9"


def test_wrong_curves() -> None:
    with pytest.raises(ValueError, match="curves must be at most 6, not 7"):
        chart([Curve("a", points(1))] * 7, "t")
    with pytest.raises(ValueError, match="the same moments"):
        chart([Curve("a", points(1)), Curve("b", points(1, 2))], "t")


def test_numbers_of_other_languages() -> None:
    with translation.override("de"):
        assert number_text(1500) == "1,5k"
        assert 'd="M125.0' in chart([Curve("a", points(0, 0.5, 1, 2))], "t")
    assert [number_text(one, "s") for one in (0.0001, 0.0351, 1.25, 90, 7200)] == [
        "100 µs", "35 ms", "1.2 s", "1.5 min", "2 h",
    ]  # fmt: skip
