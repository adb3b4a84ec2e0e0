"""Users who are not members can't find out whether a chat exists."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.urls import reverse

from .conftest import Room
from .test_roles import TABLE

#: arguments that are refused for some reason, for any of the views
BAD: list[dict[str, Any]] = [
    {"body": "x" * 70_000, "title": "x" * 1000, "up_to": "%", "member": "", "to": "nobody", "hours": "-1"},
    {"body": "\x07", "title": "\x07", "up_to": "9" * 30, "member": "no\0body", "to": ["a\0", "b"]},
]
VIEWS = [row for row in TABLE if TABLE[row].outsider == 404]


def answers(room: Room, view: tuple[str, str], operations: list[str], chat_id: str, **data: Any) -> Any:
    name, method = view
    args = [chat_id, "0"] if name in ("edit", "delete_message", "message") else [chat_id]
    path = reverse(f"messaging:{name}", args=args)
    if method == "get" and data:
        data = {"before": "%", "after": "%", "edit": "x", "html": "1", **data}
    operations.clear()
    answer = getattr(room.client("outsider", json=True), method)(path, data)
    return answer.status_code, re.sub(chat_id, "", answer.content.decode()), list(operations)


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_same_answer_and_operations_whatever_is_wrong(
    room: Room, operations: list[str], view: tuple[str, str]
) -> None:
    seen = [
        answers(room, view, operations, chat_id, **data)
        for chat_id in (room.chat.id, "there-is-none")
        for data in (dict(TABLE[view].data), *BAD, {})
    ]
    assert seen[0][0] == 404
    assert seen == [seen[0]] * len(seen)
