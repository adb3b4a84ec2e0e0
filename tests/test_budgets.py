"""No operation costs more than budgets.toml allows."""

from __future__ import annotations

import sys

import pytest

from . import budgets

ADVICE = """\
The counts differ from those of tests/budgets.toml.
If one is higher and has to be, raise its limit in the same commit, with the reason as a comment on its line.
If one is lower, lower its limit too, so that it stays low.
"""


def differences(measured: dict[str, list[int]], table: dict[str, budgets.Budget]) -> list[str]:
    """A line for each count that is not the one of the table."""
    lines = [f"{name}: in the table, but not measured" for name in sorted(table.keys() - measured.keys())]
    for name, counts in measured.items():
        if name not in table:
            lines.append(f"{name}: not in the table: {counts}")
            continue
        kinds = budgets.KINDS if len(counts) > 1 else ("files",)
        rows = zip(kinds, counts, table[name].limit, table[name].reference, strict=True)
        for kind, new, limit, reference in rows:
            if new != limit:
                word = "higher" if new > limit else "lower"
                at = f"{reference} at {budgets.REFERENCE}"
                lines.append(f"{name}: {kind}: {new} is {word} than the limit {limit} ({at})")
    return lines


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 13),
    reason="the counts of calls are those of Python 3.13; other versions inline other calls",
)
def test_counts_are_those_of_the_table() -> None:
    found = differences(budgets.flat(budgets.measure()), budgets.read_table())
    if found:
        pytest.fail("\n".join([ADVICE, *found]), pytrace=False)


@pytest.mark.parametrize(
    ("counts", "lines"),
    [
        ([1, 5, 90, 80], []),
        ([2, 5, 90, 80], ["send: round trips: 2 is higher than the limit 1 (1 at 29d0740)"]),
        ([1, 4, 90, 80], ["send: commands: 4 is lower than the limit 5 (4 at 29d0740)"]),
        (None, ["send: in the table, but not measured"]),
    ],
)
def test_checker_finds_differences(counts: list[int] | None, lines: list[str]) -> None:
    table = {"send": budgets.Budget([1, 5, 90, 80], [1, 4, 90, 80])}
    assert differences({} if counts is None else {"send": counts}, table) == lines


def test_checker_finds_operations_without_a_budget() -> None:
    assert differences({"send": [1, 5, 90, 80]}, {}) == ["send: not in the table: [1, 5, 90, 80]"]
