"""Chat and Inbox behave like the model; and the state machine that checks this finds planted bugs."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from .machine import ChatMachine
from .planting import PROFILE, Plant, PlantedBugs


@pytest.mark.worlds
def test_app_behaves_like_the_model() -> None:
    run_state_machine_as_test(ChatMachine, settings=PROFILE)


PLANTS: dict[str, Plant] = {
    "trimming above the lowest position": (
        "_log",
        "math.min(math.floor(lowest[2] or 0), last - keep)",
        "math.max(math.floor(lowest[2] or 0), last - keep)",
    ),
    "trimming ignores positions": (
        "_log",
        "math.min(math.floor(lowest[2] or 0), last - keep)",
        "last - keep",
    ),
    "cursors are not checked": ("_positions", "if cursor.epoch == '' then", "if true then"),
    "cursors of lost data are valid": ("_positions", "== cursor.stamp", "~= ''"),
    "cursors of empty pages have no stamp": (
        "_positions",
        "if id == chat.last and id > 0 then",
        "if false then",
    ),
    "own messages count as unread": ("_positions", "return last - from - ", "return last - from - 0 * "),
    "resets are reported at every position": ("_seen", "position <= tonumber(reported_at)", "true"),
    "resets are reported once at a position": (
        "_seen",
        "position <= tonumber(reported_at)",
        "position < tonumber(reported_at)",
    ),
    "other messages in place of the newest are not noticed": (
        "_seen",
        "or not is_cursor_valid",
        "or nil and not is_cursor_valid",
    ),
    "send ignores request ids": ("chat_send", "if recorded then", "if false then"),
    "create ignores request ids": ("chat_create", "if recorded then", "if false then"),
    "sending acks unread messages of others": ("chat_send", "position < chat.last", "false"),
    "sending does not move the position": ("chat_send", "redis.call('ZADD', members, id, sender)", ""),
    "acks move the position back": ("chat_ack", "id <= position or not", "not"),
    "acks move the position above the newest": ("chat_ack", "math.min(cursor.id, chat.last)", "cursor.id"),
    "joining shows earlier messages": ("chat_join", "= chat.last, user\n", "= 0, user\n"),
    "members add whom an owner removed": ("chat_join", "role ~= 'owner'", "not role"),
    "add ignores who asks": ("chat_join", "'join\\0' .. asker ..", "'join\\0' .."),
    "add ignores request ids": ("chat_join", "if recorded then", "if false then"),
    "members add who left for good": ("chat_join", "has_opted_out[at] and", "false and"),
    "joining does not end a removal": ("chat_join", "'ZREM', removed,", "'ZCARD', removed) --"),
    "create ignores who asks": ("chat_create", "'create\\0' .. ARGV[first_user] ..", "'create\\0' .."),
    "confirmation ignores the token": ("inbox_confirm", "pending_joining ~= joining and", "true or"),
    "leaving appoints no owner": ("chat_leave", "redis.call('HINCRBY', info, 'owners', -1) == 0", "false"),
    "repair removes members": ("inbox_pending", "or not position", "or not position or chat.last == 2"),
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
    "pending acks more than it returns": ("inbox_pending", "own, user, to)", "own, user, last)"),
    "any member deletes": ("chat_retract", "role ~= 'owner'", "false"),
    "members delete earlier messages": ("chat_retract", "role == 'owner' and first", "first"),
    "editing reaches earlier messages": ("chat_edit", "math.max(first, join_id + 1)", "first"),
    "history shows earlier messages": ("chat_history", "math.max(first, join_id + 1)", "first"),
}


class TestPlantedBugs(PlantedBugs):
    machine = ChatMachine
    plants = PLANTS
    #: a cursor above the newest message
    errors = (IndexError,)
