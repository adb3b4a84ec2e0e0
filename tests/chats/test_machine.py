"""Chat and Inbox behave like the model; and the state machine that checks this finds planted bugs."""

from __future__ import annotations

import pytest

from ..support.chat_machine import ChatMachine
from ..support.state_machines import MachineTests, Plants

PLANTS: Plants = {
    "chats/_log": {
        "trimming above the lowest position": (
            "math.min(math.floor(lowest[2] or 0), last - keep)",
            "math.max(math.floor(lowest[2] or 0), last - keep)",
        ),
        "trimming ignores positions": ("math.min(math.floor(lowest[2] or 0), last - keep)", "last - keep"),
    },
    "chats/_positions": {
        "cursors are not checked": ("if cursor.epoch == '' then", "if true then"),
        "cursors of lost data are valid": ("== cursor.stamp", "~= ''"),
        "cursors of empty pages have no stamp": ("if id == chat.last and id > 0 then", "if false then"),
        "own messages count as unread": ("return last - from - ", "return last - from - 0 * "),
        "resets are reported at every position": ("position <= tonumber(reported_at)", "true"),
        "resets are reported once at a position": (
            "position <= tonumber(reported_at)",
            "position < tonumber(reported_at)",
        ),
        "other messages in place of the newest are not noticed": (
            "or not is_cursor_valid",
            "or nil and not is_cursor_valid",
        ),
    },
    "chats/send": {
        "send ignores request ids": ("if recorded then", "if false then"),
        "sending acks unread messages of others": ("position < last", "false"),
        "sending does not move the position": ("redis.call('ZADD', members, id, sender)", ""),
    },
    "chats/create": {
        "create ignores request ids": ("if recorded then", "if false then"),
        "create ignores who asks": ("'create\\0' .. ARGV[first_user] ..", "'create\\0' .."),
    },
    "chats/ack": {
        "acks move the position back": ("id <= position or not", "not"),
        "acks move the position above the newest": ("math.min(cursor.id, chat.last)", "cursor.id"),
    },
    "chats/join": {
        "joining shows earlier messages": ("= chat.last, user\n", "= 0, user\n"),
        "members add whom an owner removed": ("role ~= 'owner'", "not role"),
        "add ignores who asks": ("'join\\0' .. asker ..", "'join\\0' .."),
        "add ignores request ids": ("if recorded then", "if false then"),
        "members add who left for good": ("has_opted_out[at] and", "false and"),
        "joining does not end a removal": ("'ZREM', keys.removed,", "'ZCARD', keys.removed) --"),
    },
    "chats/inbox_confirm": {
        "confirmation ignores the token": ("pending_joining ~= joining and", "true or"),
    },
    "chats/leave": {
        "leaving appoints no owner": ("redis.call('HINCRBY', keys.info, 'owners', -1) == 0", "false"),
    },
    "chats/inbox_pending": {
        "repair removes members": ("or not position", "or not position or chat.last == 2"),
        "pending reports no gap": ("from - position - 1, to <", "0, to <"),
        "pending skips a message": ("math.max(position + 1, first)", "math.max(position + 2, first)"),
        "pending takes the newest message for acked": ("last == position", "last <= position + 1"),
        "pending acks more than it returns": ("own, user, to)", "own, user, last)"),
    },
    "chats/edit": {
        "any member deletes": ("deletes and role == 'owner'", "deletes"),
        "members delete earlier messages": ("moderates and first", "deletes and first"),
        "owners edit messages of others": ("deletes and role == 'owner'", "role == 'owner'"),
        "editing reaches earlier messages": ("math.max(first, join_id + 1)", "first"),
    },
    "chats/history": {
        "history shows earlier messages": ("math.max(first, join_id + 1)", "first"),
    },
}


@pytest.mark.worlds
class TestMachine(MachineTests):
    machine = ChatMachine
    plants = PLANTS
    #: a cursor above the newest message
    errors = (IndexError,)
