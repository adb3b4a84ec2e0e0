"""The audit trail: entries, pages, limits, repeats."""

from __future__ import annotations

import pytest

from django_redis_messaging import InvalidArgument
from django_redis_messaging.services.audit import AuditTrail, trail
from django_redis_messaging.services.common.things import Thing


def test_entries_come_latest_first_and_by_pages() -> None:
    audit = AuditTrail()
    for number in range(5):
        audit.record("ann", "retry", Thing("task", f"{number}", "default"), number=number)
    page = audit.entries(limit=3)
    assert [entry.number for entry in page] == [4, 3, 2]
    rest = audit.entries(page[-1].id, limit=3)
    assert [entry.thing for entry in rest] == ["task:default/1", "task:default/0"]
    assert rest[0].at <= page[0].at and rest[0].by == "ann" and rest[0].detail == ""


def test_a_repeat_adds_nothing() -> None:
    audit = AuditTrail()
    first = audit.record("ann", "retry", "a", request_id="r")
    assert audit.record("ann", "retry", "a", request_id="r") == first
    assert len(audit.entries()) == 1


def test_old_entries_go_and_long_texts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail, "MAX_ENTRIES", 3)
    audit = AuditTrail()
    for number in range(5):
        audit.record("ann", "retry", "x" * 600, number=number)
    entries = audit.entries()
    assert [entry.number for entry in entries] == [4, 3, 2]
    assert len(entries[0].thing) == 500


@pytest.mark.parametrize("before", ["1", "-", "(5-0", "5-0 ", "x" * 300, "1-1-1", "+"])
def test_other_positions_are_refused(before: str) -> None:
    with pytest.raises(InvalidArgument, match="before"):
        AuditTrail().entries(before)
