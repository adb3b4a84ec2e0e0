"""Chat and Inbox behave like the model; and the state machine that checks this finds planted bugs."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from ..support.chat_machine import ChatMachine
from ..support.planted_bugs import PROFILE, Plant, PlantedBugs


@pytest.mark.worlds
def test_app_behaves_like_the_model() -> None:
    run_state_machine_as_test(ChatMachine, settings=PROFILE)


PLANTS: dict[str, Plant] = {
    "trimming above the lowest position": (
        "chats/_log",
        "math.min(math.floor(lowest[2] or 0), last - keep)",
        "math.max(math.floor(lowest[2] or 0), last - keep)",
    ),
    "trimming ignores positions": (
        "chats/_log",
        "math.min(math.floor(lowest[2] or 0), last - keep)",
        "last - keep",
    ),
    "cursors are not checked": ("chats/_positions", "if cursor.epoch == '' then", "if true then"),
    "cursors of lost data are valid": ("chats/_positions", "== cursor.stamp", "~= ''"),
    "cursors of empty pages have no stamp": (
        "chats/_positions",
        "if id == chat.last and id > 0 then",
        "if false then",
    ),
    "own messages count as unread": (
        "chats/_positions",
        "return last - from - ",
        "return last - from - 0 * ",
    ),
    "resets are reported at every position": (
        "chats/_positions",
        "position <= tonumber(reported_at)",
        "true",
    ),
    "resets are reported once at a position": (
        "chats/_positions",
        "position <= tonumber(reported_at)",
        "position < tonumber(reported_at)",
    ),
    "other messages in place of the newest are not noticed": (
        "chats/_positions",
        "or not is_cursor_valid",
        "or nil and not is_cursor_valid",
    ),
    "send ignores request ids": ("chats/send", "if recorded then", "if false then"),
    "create ignores request ids": ("chats/create", "if recorded then", "if false then"),
    "sending acks unread messages of others": ("chats/send", "position < last", "false"),
    "sending does not move the position": ("chats/send", "redis.call('ZADD', members, id, sender)", ""),
    "acks move the position back": ("chats/ack", "id <= position or not", "not"),
    "acks move the position above the newest": ("chats/ack", "math.min(cursor.id, chat.last)", "cursor.id"),
    "joining shows earlier messages": ("chats/join", "= chat.last, user\n", "= 0, user\n"),
    "members add whom an owner removed": ("chats/join", "role ~= 'owner'", "not role"),
    "add ignores who asks": ("chats/join", "'join\\0' .. asker ..", "'join\\0' .."),
    "add ignores request ids": ("chats/join", "if recorded then", "if false then"),
    "members add who left for good": ("chats/join", "has_opted_out[at] and", "false and"),
    "joining does not end a removal": ("chats/join", "'ZREM', keys.removed,", "'ZCARD', keys.removed) --"),
    "create ignores who asks": ("chats/create", "'create\\0' .. ARGV[first_user] ..", "'create\\0' .."),
    "confirmation ignores the token": ("chats/inbox_confirm", "pending_joining ~= joining and", "true or"),
    "leaving appoints no owner": (
        "chats/leave",
        "redis.call('HINCRBY', keys.info, 'owners', -1) == 0",
        "false",
    ),
    "repair removes members": ("chats/inbox_pending", "or not position", "or not position or chat.last == 2"),
    "pending reports no gap": ("chats/inbox_pending", "from - position - 1, to <", "0, to <"),
    "pending skips a message": (
        "chats/inbox_pending",
        "math.max(position + 1, first)",
        "math.max(position + 2, first)",
    ),
    "pending takes the newest message for acked": (
        "chats/inbox_pending",
        "last == position",
        "last <= position + 1",
    ),
    "pending acks more than it returns": ("chats/inbox_pending", "own, user, to)", "own, user, last)"),
    "any member deletes": ("chats/edit", "deletes and role == 'owner'", "deletes"),
    "members delete earlier messages": ("chats/edit", "moderates and first", "deletes and first"),
    "owners edit messages of others": ("chats/edit", "deletes and role == 'owner'", "role == 'owner'"),
    "editing reaches earlier messages": ("chats/edit", "math.max(first, join_id + 1)", "first"),
    "history shows earlier messages": ("chats/history", "math.max(first, join_id + 1)", "first"),
}


class TestPlantedBugs(PlantedBugs):
    machine = ChatMachine
    plants = PLANTS
    #: a cursor above the newest message
    errors = (IndexError,)
