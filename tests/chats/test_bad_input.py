"""Invalid input and keys of another type raise a clear error and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from django_redis_messaging import Blocks, Chat, ChatNotFound, ConfigurationError, Inbox, NotAMember

from ..support.server import all_keys, bodies, contents, ids, index, joining, keys, server, snapshot

Operation = Callable[[Chat, Any], Any]

#: every operation for a user who must be a member
BY_MEMBERS: dict[str, Operation] = {
    "send": lambda chat, user: chat.send(user, "x"),
    "history": lambda chat, user: chat.history(user),
    "ack": lambda chat, user: chat.ack(user, 1),
    "edit": lambda chat, user: chat.edit(user, 1, "x"),
    "delete_message": lambda chat, user: chat.delete_message(user, 1),
    "rename": lambda chat, user: chat.rename(user, "x"),
    "set_role": lambda chat, user: chat.set_role(user, "bob", "owner"),
    "set_role of": lambda chat, user: chat.set_role("ann", user, "owner"),
    "mute": lambda chat, user: chat.mute(user, None),
    "typing": lambda chat, user: chat.typing(user),
    "delete": lambda chat, user: chat.delete(user),
    "members": lambda chat, user: chat.members(after=user),
    "join by": lambda chat, user: chat.join("dan", by=user),
    "add by": lambda chat, user: chat.add(["dan"], by=user),
    "leave by": lambda chat, user: chat.leave("bob", by=user),
}
#: every other operation that takes a name
BY_ANYBODY: dict[str, Operation] = {
    "join": lambda chat, user: chat.join(user, by="ann"),
    "add": lambda chat, user: chat.add(["dan", user], by="ann"),
    "add once": lambda chat, user: chat.add(["dan"], by="ann", request_id=user),
    "leave": lambda chat, user: chat.leave(user),
    "direct": lambda chat, user: Chat.direct("ann", user),
    "direct by": lambda chat, user: Chat.direct(user, "ann"),
    "block": lambda chat, user: Blocks("ann").block(user),
    "unblock": lambda chat, user: Blocks("ann").unblock(user),
    "blocks": lambda chat, user: Blocks(user),
    "create by": lambda chat, user: Chat.create(user, ["bob"], "x"),
    "create for": lambda chat, user: Chat.create("ann", ["bob", user], "x"),
    "create as": lambda chat, user: Chat.create("ann", ["bob"], "x", chat_id=user),
    "create once": lambda chat, user: Chat.create("ann", ["bob"], "x", request_id=user),
    "send once": lambda chat, user: chat.send("ann", "x", request_id=user),
    "chat": lambda chat, user: Chat(user),
    "inbox": lambda chat, user: Inbox(user),
    "chats after": lambda chat, user: Inbox("ann").chats(after=user),
}
#: operations that take no user but need an existing chat
BY_NOBODY: dict[str, Callable[[Chat], Any]] = {
    "members": lambda chat: chat.members(),
    "seen_by": lambda chat: chat.seen_by(1),
    "typists": lambda chat: chat.typists(),
    "info": lambda chat: chat.info(),
}


def circle() -> list[Any]:
    around: list[Any] = []
    around.append(around)
    return around


WRONG: dict[str, tuple[Callable[[Chat], Any], type[Exception], str]] = {
    "body None": (lambda chat: chat.send("ann", None), TypeError, "body"),
    "body bytes": (lambda chat: chat.send("ann", b"x"), TypeError, "body"),
    "body surrogate": (lambda chat: chat.send("ann", "\ud800"), ValueError, "body.*surrogate"),
    "first body": (lambda chat: Chat.create("ann", [], 5), TypeError, "body"),
    "first body surrogate": (lambda chat: Chat.create("ann", [], "\udfff"), ValueError, "body.*surrogate"),
    "edit": (lambda chat: chat.edit("ann", 1, None), TypeError, "body"),
    "edit surrogate": (lambda chat: chat.edit("ann", 1, "\ud800"), ValueError, "body.*surrogate"),
    "title": (lambda chat: chat.rename("ann", 5), TypeError, "title"),
    "title surrogate": (lambda chat: chat.rename("ann", "\ud800"), ValueError, "title.*surrogate"),
    "first title": (lambda chat: Chat.create("ann", [], title=None), TypeError, "title"),
    "first title surrogate": (lambda chat: Chat.create("ann", [], title="\ud800"), ValueError, "title"),
    "recipients None": (lambda chat: Chat.create("ann", None), TypeError, "list of users"),
    "recipients str": (lambda chat: Chat.create("ann", "bob"), TypeError, "list"),
    "recipients bytes": (lambda chat: Chat.create("ann", b"bob"), TypeError, "recipient"),
    "open": (lambda chat: Chat.create("ann", [], open="yes"), TypeError, "open"),
    "open int": (lambda chat: Chat.create("ann", [], open=1), TypeError, "open"),
    "keep_last bool": (lambda chat: Chat.create("ann", [], keep_last=True), TypeError, "keep_last"),
    "keep_last float": (lambda chat: Chat.create("ann", [], keep_last=1.0), TypeError, "keep_last"),
    "keep_last negative": (lambda chat: Chat.create("ann", [], keep_last=-1), ValueError, "keep_last"),
    "keep_last huge": (lambda chat: Chat.create("ann", [], keep_last=10**15), ValueError, "keep_last"),
    "data object": (lambda chat: chat.send("ann", "x", data=object()), TypeError, "data must be made of"),
    "data bytes": (lambda chat: chat.send("ann", "x", data=[b"x"]), TypeError, "data must be made of"),
    "data set": (lambda chat: chat.send("ann", "x", data={1}), TypeError, "data must be made of"),
    "data moment": (lambda chat: chat.send("ann", "x", data=datetime.now(UTC)), TypeError, "data"),
    "data key": (lambda chat: chat.send("ann", "x", data=[{"a": {1: 2}}]), TypeError, "key 1"),
    "data key None": (lambda chat: chat.send("ann", "x", data={None: 2}), TypeError, "key None"),
    "data nan": (lambda chat: chat.send("ann", "x", data=[float("nan")]), ValueError, "data"),
    "data inf": (lambda chat: chat.send("ann", "x", data=float("inf")), ValueError, "data"),
    "data surrogate": (lambda chat: chat.send("ann", "x", data=["\ud800"]), ValueError, "data"),
    "data key surrogate": (lambda chat: chat.send("ann", "x", data={"\ud800": 1}), ValueError, "data"),
    "data circle": (lambda chat: chat.send("ann", "x", data=circle()), ValueError, "data"),
    "reply_to bool": (lambda chat: chat.send("ann", "x", reply_to=True), TypeError, "reply_to"),
    "reply_to str": (lambda chat: chat.send("ann", "x", reply_to="1"), TypeError, "reply_to"),
    "reply_to 0": (lambda chat: chat.send("ann", "x", reply_to=0), ValueError, "reply_to"),
    "reply_to beyond": (lambda chat: chat.send("ann", "x", reply_to=4), ValueError, "reply_to"),
    "role": (lambda chat: chat.set_role("ann", "bob", "king"), ValueError, "role"),
    "role None": (lambda chat: chat.set_role("ann", "bob", None), ValueError, "role"),
    "again": (lambda chat: chat.leave("bob", again=1), TypeError, "again"),
    "again by another": (lambda chat: chat.leave("bob", by="ann", again=False), ValueError, "by themselves"),
    "until": (lambda chat: chat.mute("ann", "later"), TypeError, "until"),
    "until naive": (lambda chat: chat.mute("ann", datetime(2099, 1, 1)), ValueError, "naive"),
    "ack": (lambda chat: Inbox("ann").pending(ack=1), TypeError, "ack"),
    "total": (lambda chat: Inbox("ann").pending(total=0), ValueError, "total"),
}


PLACES: dict[str, Operation] = {
    "ack": lambda chat, place: chat.ack("ann", place),
    "after": lambda chat, place: chat.history("ann", after=place),
    "before": lambda chat, place: chat.history("ann", before=place),
    "edit": lambda chat, place: chat.edit("ann", place, "x"),
    "delete_message": lambda chat, place: chat.delete_message("ann", place),
    "seen_by": lambda chat, place: chat.seen_by(place),
}
LIMITS: dict[str, Operation] = {
    "history": lambda chat, limit: chat.history("ann", limit=limit),
    "members": lambda chat, limit: chat.members(limit=limit),
    "seen_by": lambda chat, limit: chat.seen_by(1, limit=limit),
    "pending": lambda chat, limit: Inbox("ann").pending(limit=limit),
    "chats": lambda chat, limit: Inbox("ann").chats(limit=limit),
}


@pytest.fixture
def chat() -> Chat:
    """An open chat of ann (owner) and bob, who is behind."""
    made = Chat.create("ann", ["bob"], "one", chat_id="club", title="Club", open=True)
    made.send("bob", "two", data={"n": 1})
    made.send("ann", "three")
    return made


@pytest.fixture
def unchanged(chat: Chat) -> Any:
    """Check that no key has changed after the test."""
    before = snapshot()
    yield
    assert snapshot() == before


def refused(error: type[Exception], words: str, name: str, act: Callable[..., Any], *arguments: Any) -> None:
    """Check that an operation raises this error with these words."""
    try:
        act(*arguments)
    except error as caught:
        assert words in str(caught), (name, caught)
    else:
        pytest.fail(f"{name} was not refused")


BAD_NAMES = {
    "empty": ("", ValueError, "empty"),
    "300 bytes": ("é" * 150, ValueError, "300 bytes"),
    "256 bytes": ("x" * 256, ValueError, "256 bytes"),
    "NUL": ("a\0b", ValueError, "NUL"),
    "lone surrogate": ("a\udc80", ValueError, "surrogate"),
    "bytes": (b"ann", TypeError, "must be a str"),
    "int": (7, TypeError, "must be a str"),
    "list": (["ann"], TypeError, "must be a str"),
    "none": (None, TypeError, "not NoneType"),
}
#: operations for which None is valid
OPTIONAL = {
    "members",
    "join by",
    "leave by",
    "create as",
    "create once",
    "send once",
    "add once",
    "chats after",
}


@pytest.mark.usefixtures("unchanged")
class TestArguments:
    @pytest.mark.parametrize("bad", BAD_NAMES)
    def test_invalid_names(self, bad: str, chat: Chat) -> None:
        value, error, words = BAD_NAMES[bad]
        for name, operation in (BY_MEMBERS | BY_ANYBODY).items():
            if value is not None or name not in OPTIONAL:
                refused(error, words, name, operation, chat, value)

    def test_an_invalid_name_in_a_list(self) -> None:
        names = [*(f"user {number}" for number in range(600)), "a\0b"]
        refused(ValueError, "recipient", "create", Chat.create, "ann", names, "x")

    @pytest.mark.parametrize("case", WRONG)
    def test_invalid_arguments(self, case: str, chat: Chat) -> None:
        operation, error, words = WRONG[case]
        with pytest.raises(error, match=words):
            operation(chat)

    @pytest.mark.parametrize("bad", [True, False, 1.0, b"1", [1], -1, 2**60], ids=repr)
    def test_invalid_positions(self, bad: Any, chat: Chat) -> None:
        for name, operation in PLACES.items():
            refused(ValueError if type(bad) is int else TypeError, "", name, operation, chat, bad)

    @pytest.mark.parametrize("bad", [True, 1.0, "1", None, 0, -1, 1001], ids=repr)
    def test_invalid_limits(self, bad: Any, chat: Chat) -> None:
        for name, operation in LIMITS.items():
            refused(ValueError if type(bad) is int else TypeError, "limit", name, operation, chat, bad)

    @pytest.mark.parametrize("user", ["nobody", "Ann", "ann ", " ann", "no chat"])
    def test_non_members(self, user: str, chat: Chat) -> None:
        for name, operation in BY_MEMBERS.items():
            refused(NotAMember, "", name, operation, chat, user)

    def test_unknown_chat(self) -> None:
        unknown = Chat("unknown")
        attempts = {name: (operation, unknown, "ann") for name, operation in BY_MEMBERS.items()}
        for name in ("delete", "leave by"):
            act, *arguments = attempts.pop(name)
            assert act(*arguments) is False
        attempts |= {f"{name} of nobody": (operation, unknown) for name, operation in BY_NOBODY.items()}
        attempts["join"] = (unknown.join, "dan")
        for name, attempt in attempts.items():
            refused(ChatNotFound, "unknown", name, *attempt)


@pytest.mark.parametrize(
    "odd",
    [
        *("{}", "a:b", "%", "%7B", "%41", "a b", " ", "\n", "é", "e\u0301", "😀", "x" * 255, "{chat:club}"),
        *("x}:newest", "-", "*", "`", "A", "no chat", "'"),
    ],
)
def test_unusual_names_can_be_used(odd: str, chat: Chat) -> None:
    own = Chat.create(odd, [odd, "eve"], odd, chat_id=odd, title=odd, request_id=odd)
    assert own.id == odd
    assert own.send(odd, odd, data={odd: odd}, request_id=odd).id == 2
    assert own.send(odd, "again", request_id=odd).id == 2
    assert own.edit(odd, 1, odd + "!") is not None
    assert own.set_role(odd, "eve", "owner") is True
    own.typing(odd)
    assert [one.user for one in own.members()] == [odd, "eve"]
    assert (own.typists(), own.seen_by(2), own.info().title) == ([odd], [odd], odd)
    (news,) = Inbox("eve").pending()
    assert (news.chat_id, bodies(news)) == (odd, [odd + "!", odd])
    assert news.messages[1].data == {odd: odd}
    assert [one.chat_id for one in Inbox(odd).chats()] == [odd]
    assert own.leave(odd) is True
    with pytest.raises(NotAMember) as caught:
        own.history(odd)
    assert repr(odd) in str(caught.value)
    assert chat.join(odd) is True
    assert bodies(chat.history("bob")) == ["one", "two", "three"]


ROSTER, MEMBER, REQUESTS = "roster standing info", "members own log typing mutes", "requests:0 requests:1"
#: the operations, and the keys whose type each must check
TAKES: dict[str, tuple[Callable[[Chat], Any], str]] = {
    "send": (lambda chat: chat.send("bob", "x"), "newest members own log requests:0 requests:1 typing"),
    "ack": (lambda chat: chat.ack("bob", 2), "newest members own log"),
    "join": (
        lambda chat: chat.join("dan", by="ann"),
        f"newest members {ROSTER} events removed opted-out {REQUESTS}",
    ),
    "join alone": (
        lambda chat: chat.join("dan"),
        f"newest members {ROSTER} events removed opted-out {REQUESTS}",
    ),
    "history": (lambda chat: chat.history("bob"), "newest roster log"),
    "changes": (lambda chat: chat.changes("bob", after=0), f"newest {MEMBER} {ROSTER}"),
    "pending": (lambda chat: Inbox("bob").pending(), "newest members log"),
    "pending with ack": (lambda chat: Inbox("bob").pending(ack=True), "newest members own log"),
    "unread": (lambda chat: Inbox("bob").unread(), "newest members own log"),
    "chats": (lambda chat: Inbox("bob").chats(), "newest members own log roster mutes info standing"),
    "leave": (lambda chat: chat.leave("bob"), f"newest {MEMBER} {ROSTER} events {REQUESTS}"),
    "leave for good": (
        lambda chat: chat.leave("bob", again=False),
        f"newest {MEMBER} {ROSTER} events opted-out {REQUESTS}",
    ),
    "edit": (lambda chat: chat.edit("bob", 2, "x"), "newest roster log info edits"),
    "delete_message": (lambda chat: chat.delete_message("bob", 2), "newest roster log info edits"),
    "set_role": (lambda chat: chat.set_role("ann", "bob", "owner"), f"newest roster info events {REQUESTS}"),
    "rename": (lambda chat: chat.rename("bob", "x"), "members info newest events"),
    "mute": (lambda chat: chat.mute("bob", datetime(2099, 1, 1, tzinfo=UTC)), "members mutes"),
    "typing": (lambda chat: chat.typing("bob"), "members typing"),
    "members": (lambda chat: chat.members(), "members roster standing"),
    "seen_by": (lambda chat: chat.seen_by(1), "members roster"),
    "typists": (lambda chat: chat.typists(), "typing"),
    "info": (lambda chat: chat.info(), "newest info members log"),
}
#: the operations that leave out a broken chat, for it must not hide the others
LISTS = {"pending", "pending with ack", "unread", "chats"}


@pytest.mark.worlds
class TestForeignKeys:
    @pytest.mark.parametrize("operation", TAKES)
    def test_chat_key_of_another_type(
        self, operation: str, chat: Chat, caplog: pytest.LogCaptureFixture
    ) -> None:
        act, takes = TAKES[operation]
        copy = snapshot()
        for key in keys(chat).all_keys:
            server().delete(key)
            server().sadd(key, "not ours")
            before = {**copy, **contents([key])}
            part = key.removeprefix(keys(chat).tag + ":")
            if operation in LISTS and part in takes.split():
                assert not act(chat), part
                assert "left out of a list: 'WRONGTYPE" in caplog.text
                caplog.clear()
                assert snapshot() == before, part
            elif part in takes.split():
                refused(ConfigurationError, "another type", part, act, chat)
                assert snapshot(but=[index("dan"), joining("dan")]) == before, part
            else:
                act(chat)
                assert contents([key])[key] == before[key], part
                for name in copy.keys() - {key}:
                    server().restore(name, 0, copy[name], replace=True)
            for name in [key, *set(all_keys()) - copy.keys()]:
                server().delete(name)
            if key in copy:
                server().restore(key, 0, copy[key])

    def test_list_of_chats_of_another_type(self, chat: Chat) -> None:
        server().delete(index("bob"))
        server().sadd(index("bob"), "not ours")
        before = snapshot()
        for name, act in {
            "join": lambda: chat.join("bob"),
            "pending": lambda: Inbox("bob").pending(),
            "unread": lambda: Inbox("bob").unread(),
            "chats": lambda: Inbox("bob").chats(),
            "create": lambda: Chat.create("bob", []),
        }.items():
            refused(ConfigurationError, "another type", name, act)
            assert snapshot() == before, name


@pytest.mark.worlds
def test_a_flushed_script_cache_has_no_effect(chat: Chat) -> None:
    for act, expected in (
        (lambda: chat.send("ann", "four").id, 4),
        (lambda: chat.ack("bob", 4), 4),
        (lambda: chat.join("dan"), True),
        (lambda: ids(chat.history("bob", after=3)), [4]),
        (lambda: [ids(news) for news in Inbox("ann").pending()], [[2, 3, 4]]),
        (lambda: Chat.create("ann", ["bob", "eve"], "x", chat_id="other").info().member_count, 3),
        (lambda: len(Inbox("bob").pending(ack=True)), 1),
        (lambda: chat.leave("dan"), True),
    ):
        server().script_flush()
        assert act() == expected
