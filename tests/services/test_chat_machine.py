"""Chat and Inbox behave like the model; and the state machine that checks this finds planted bugs."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from django_redis_messaging.services import inboxes

from .machine import ChatMachine
from .planting import PROFILE, Plant, PlantedBugs, finds_a_mistake


@pytest.mark.worlds
def test_app_behaves_like_the_model() -> None:
    run_state_machine_as_test(ChatMachine, settings=PROFILE)


PLANTS: dict[str, Plant] = {
    "trimming above the lowest position": (
        "_log",
        "math.min(tonumber(lowest[2]), last - keep)",
        "math.max(tonumber(lowest[2]), last - keep)",
    ),
    "trimming ignores positions": ("_log", "math.min(tonumber(lowest[2]), last - keep)", "last - keep"),
    "cursors are not checked": ("_positions", "if cursor.epoch == '' then", "if true then"),
    "cursors of lost data are valid": ("_positions", "return cursor.id < first or", "return true or"),
    "own messages count as unread": ("_positions", "return last - from - own", "return last - from"),
    "send ignores request ids": ("chat_send", "if recorded then", "if false then"),
    "create ignores request ids": ("chat_create", "if recorded then", "if false then"),
    "sending acks unread messages of others": ("chat_send", "tonumber(position) < last", "false"),
    "sending does not move the position": ("chat_send", "redis.call('ZADD', members, id, sender)", ""),
    "acks move the position back": ("chat_ack", "if id <= position then", "if false then"),
    "acks move the position above the newest": ("chat_ack", "math.min(cursor.id, last)", "cursor.id"),
    "joining shows earlier messages": ("chat_join", "'ZADD', members, last,", "'ZADD', members, 0,"),
    "confirmation ignores the token": ("inbox_confirm", "if token ~= '?' .. joining then", "if true then"),
    "leaving keeps counts": ("chat_leave", "'s' .. user, 'a' .. user)", "'')"),
    "leaving appoints no owner": ("chat_leave", "redis.call('HINCRBY', info, 'owners', -1) == 0", "false"),
    "leaving does not trim": ("chat_leave", "trim_acked(members, log, first, last, keep)", ""),
    "repair removes members": ("inbox_pending", "or not position", "or not position or last == 2"),
    "pending reports no gap": ("inbox_pending", "from - position - 1, to <", "0, to <"),
    "pending skips a message": (
        "inbox_pending",
        "math.max(position + 1, first)",
        "math.max(position + 2, first)",
    ),
    "pending takes the newest message for acked": (
        "inbox_pending",
        "last == position",
        "last <= position + 1",
    ),
    "pending acks more than it returns": ("inbox_pending", "user, author, to)", "user, author, last)"),
    "any member deletes": ("chat_retract", "role ~= 'owner'", "false"),
    "editing reaches earlier messages": ("_entry", "or id <= join_id then", "then"),
    "history shows earlier messages": ("chat_history", "math.max(first, join_id + 1)", "first"),
}


class TestPlantedBugs(PlantedBugs):
    machine = ChatMachine
    plants = PLANTS

    def test_in_the_detection_of_lost_data(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inboxes._Entry, "has_lost_data", lambda *_: False)
        finds_a_mistake(ChatMachine)
