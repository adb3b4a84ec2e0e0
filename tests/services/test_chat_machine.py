"""Chat and Inbox are what the model is; and the machine that says so finds the bugs that are planted."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from django_redis_messaging.services import inboxes

from .machine import ChatMachine
from .planting import PROFILE, Plant, PlantedBugs, finds_a_mistake


@pytest.mark.worlds
def test_everything_is_as_in_the_model() -> None:
    run_state_machine_as_test(ChatMachine, settings=PROFILE)


PLANTS: dict[str, Plant] = {
    "cleanup above the minimum": (
        "_log",
        "math.min(tonumber(least[2]), last - keep)",
        "math.max(tonumber(least[2]), last - keep)",
    ),
    "cleanup ignores who reads": ("_log", "math.min(tonumber(least[2]), last - keep)", "last - keep"),
    "cursors are not compared": ("_positions", "if cursor_epoch == '' then", "if true then"),
    "a cursor of lost data counts": ("_positions", "return id < first or", "return true or"),
    "one's own are unread": ("_positions", "return last - from - own", "return last - from"),
    "no request ids": ("chat_send", "if answered then", "if false then"),
    "no request ids of creating": ("chat_create", "if answered then", "if false then"),
    "sending swallows what others said": ("chat_send", "tonumber(position) < last", "false"),
    "sending moves nothing": ("chat_send", "redis.call('ZADD', KEYS[2], id, ARGV[1])", ""),
    "acks move back": ("chat_ack", "if id <= position then", "if false then"),
    "acks move beyond the newest": ("chat_ack", "id = math.min(id, last)", ""),
    "joining shows what was before": ("chat_join", "'ZADD', KEYS[2], last,", "'ZADD', KEYS[2], 0,"),
    "the list confirms nothing": ("inbox_confirm", "if token ~= '?' .. ARGV[2] then", "if true then"),
    "leaving leaves counts": ("chat_leave", "'s' .. ARGV[1], 'a' .. ARGV[1])", "'')"),
    "leaving leaves no owner": ("chat_leave", "redis.call('HINCRBY', KEYS[9], 'owners', -1) == 0", "false"),
    "leaving frees nothing": ("chat_leave", "released(KEYS[2], KEYS[4], first, last, keep)", ""),
    "healing removes who is in": ("inbox_pending", "or not position", "or not position or last == 2"),
    "pending tells no gap": ("inbox_pending", "from - position - 1, to <", "0, to <"),
    "pending skips one": ("inbox_pending", "math.max(position + 1, first)", "math.max(position + 2, first)"),
    "pending is early to call all acked": ("inbox_pending", "last == position", "last <= position + 1"),
    "fetching acks all": ("inbox_pending", "ARGV[1], ARGV[2], to)", "ARGV[1], ARGV[2], last)"),
    "anybody deletes": ("chat_retract", "role ~= 'owner'", "false"),
    "editing shows what was before": ("chat_edit", "or id <= join_id then", "then"),
    "history shows what was before": ("chat_history", "math.max(first, join_id + 1)", "first"),
}


class TestPlantedBugs(PlantedBugs):
    machine = ChatMachine
    plants = PLANTS

    def test_in_what_is_told_of_lost_data(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inboxes._Entry, "lost", lambda *_: False)
        finds_a_mistake(ChatMachine)
