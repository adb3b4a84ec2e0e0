"""Invalid input raises a clear error and changes nothing."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from django_redis_messaging import Blocks, Chat, ChatNotFound, Inbox, NotAMember

from ..support.server import all_keys, bodies, index, server, snapshot

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


BAD_NAMES = {
    "empty": ("", ValueError, "empty"),
    "300 bytes": ("é" * 150, ValueError, "300 bytes"),
    "256 bytes": ("x" * 256, ValueError, "256 bytes"),
    "NUL": ("a\0b", ValueError, "NUL"),
    "lone surrogate": ("a\udc80", ValueError, "surrogate"),
    "bytes": (b"ann", TypeError, "must be a str"),
    "int": (7, TypeError, "must be a str"),
    "list": (["ann"], TypeError, "must be a str"),
}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("bad", BAD_NAMES)
@pytest.mark.parametrize("operation", [*BY_MEMBERS, *BY_ANYBODY])
def test_invalid_names(operation: str, bad: str, chat: Chat) -> None:
    value, error, words = BAD_NAMES[bad]
    with pytest.raises(error, match=words):
        (BY_MEMBERS | BY_ANYBODY)[operation](chat, value)


#: arguments for which None is valid
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
@pytest.mark.parametrize("operation", sorted({*BY_MEMBERS, *BY_ANYBODY} - OPTIONAL))
def test_none_is_not_a_name(operation: str, chat: Chat) -> None:
    with pytest.raises(TypeError, match="must be a str, not NoneType"):
        (BY_MEMBERS | BY_ANYBODY)[operation](chat, None)


@pytest.mark.parametrize(
    "odd",
    ["{}", "a:b", "%", "%7B", "a b", " ", "\n", "é", "😀", "x" * 255, "{chat:club}", "-", "no chat", "'"],
)
def test_unusual_names_round_trip(odd: str, chat: Chat) -> None:
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


@pytest.mark.parametrize("operation", BY_MEMBERS)
@pytest.mark.parametrize("user", ["nobody", "Ann", "ann ", " ann", "no chat"])
def test_non_members_cannot_do_anything(operation: str, user: str, chat: Chat) -> None:
    before = snapshot(but=[index("dan")])
    with pytest.raises(NotAMember):
        BY_MEMBERS[operation](chat, user)
    assert snapshot(but=[index("dan")]) == before


@pytest.mark.parametrize("operation", [*BY_MEMBERS, *BY_NOBODY, "join"])
def test_unknown_chat(operation: str, chat: Chat) -> None:
    before = snapshot(but=[index("dan")])
    unknown = Chat("unknown")
    whole: dict[str, Callable[[], Any]] = {
        **{name: lambda one=one: one(unknown, "ann") for name, one in BY_MEMBERS.items()},  # type: ignore[misc]
        **{name: lambda one=one: one(unknown) for name, one in BY_NOBODY.items()},  # type: ignore[misc]
        "join": lambda: unknown.join("dan"),
    }
    if operation in {"delete", "leave by"}:
        assert whole[operation]() is False
    else:
        with pytest.raises(ChatNotFound, match="unknown"):
            whole[operation]()
    assert snapshot(but=[index("dan")]) == before


WRONG: dict[str, tuple[Callable[[Chat], Any], type[Exception], str]] = {
    "body None": (lambda chat: chat.send("ann", None), TypeError, "body"),  # type: ignore[arg-type]
    "body bytes": (lambda chat: chat.send("ann", b"x"), TypeError, "body"),  # type: ignore[arg-type]
    "body surrogate": (lambda chat: chat.send("ann", "\ud800"), ValueError, "body.*surrogate"),
    "first body": (lambda chat: Chat.create("ann", [], 5), TypeError, "body"),  # type: ignore[arg-type]
    "first body surrogate": (lambda chat: Chat.create("ann", [], "\udfff"), ValueError, "body.*surrogate"),
    "edit": (lambda chat: chat.edit("ann", 1, None), TypeError, "body"),  # type: ignore[arg-type]
    "edit surrogate": (lambda chat: chat.edit("ann", 1, "\ud800"), ValueError, "body.*surrogate"),
    "title": (lambda chat: chat.rename("ann", 5), TypeError, "title"),  # type: ignore[arg-type]
    "title surrogate": (lambda chat: chat.rename("ann", "\ud800"), ValueError, "title.*surrogate"),
    "first title": (lambda chat: Chat.create("ann", [], title=None), TypeError, "title"),  # type: ignore[arg-type]
    "first title surrogate": (lambda chat: Chat.create("ann", [], title="\ud800"), ValueError, "title"),
    "recipients None": (lambda chat: Chat.create("ann", None), TypeError, "iterable"),  # type: ignore[arg-type]
    "recipients str": (lambda chat: Chat.create("ann", "bob"), TypeError, "list"),
    "recipients bytes": (lambda chat: Chat.create("ann", b"bob"), TypeError, "recipient"),  # type: ignore[arg-type]
    "open": (lambda chat: Chat.create("ann", [], open="yes"), TypeError, "open"),  # type: ignore[arg-type]
    "open int": (lambda chat: Chat.create("ann", [], open=1), TypeError, "open"),  # type: ignore[arg-type]
    "keep_last bool": (lambda chat: Chat.create("ann", [], keep_last=True), TypeError, "keep_last"),
    "keep_last float": (lambda chat: Chat.create("ann", [], keep_last=1.0), TypeError, "keep_last"),  # type: ignore[arg-type]
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
    "reply_to str": (lambda chat: chat.send("ann", "x", reply_to="1"), TypeError, "reply_to"),  # type: ignore[arg-type]
    "reply_to 0": (lambda chat: chat.send("ann", "x", reply_to=0), ValueError, "reply_to"),
    "reply_to beyond": (lambda chat: chat.send("ann", "x", reply_to=4), ValueError, "reply_to"),
    "role": (lambda chat: chat.set_role("ann", "bob", "king"), ValueError, "role"),  # type: ignore[arg-type]
    "role None": (lambda chat: chat.set_role("ann", "bob", None), ValueError, "role"),  # type: ignore[arg-type]
    "until": (lambda chat: chat.mute("ann", "later"), TypeError, "until"),  # type: ignore[arg-type]
    "until naive": (lambda chat: chat.mute("ann", datetime(2099, 1, 1)), ValueError, "naive"),
    "ack": (lambda chat: Inbox("ann").pending(ack=1), TypeError, "ack"),  # type: ignore[arg-type]
    "total": (lambda chat: Inbox("ann").pending(total=0), ValueError, "total"),
}


def circle() -> list[Any]:
    around: list[Any] = []
    around.append(around)
    return around


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("case", WRONG)
def test_invalid_arguments(case: str, chat: Chat) -> None:
    operation, error, words = WRONG[case]
    with pytest.raises(error, match=words):
        operation(chat)


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


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("bad", [True, False, 1.0, b"1", [1], -1, 2**60], ids=repr)
@pytest.mark.parametrize("operation", PLACES)
def test_invalid_positions(operation: str, bad: Any, chat: Chat) -> None:
    with pytest.raises(ValueError if type(bad) is int else TypeError):
        PLACES[operation](chat, bad)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("bad", [True, 1.0, "1", None, 0, -1, 1001], ids=repr)
@pytest.mark.parametrize("operation", LIMITS)
def test_invalid_limits(operation: str, bad: Any, chat: Chat) -> None:
    with pytest.raises(ValueError if type(bad) is int else TypeError, match="limit"):
        LIMITS[operation](chat, bad)


def test_invalid_name_in_a_list_prevents_all_writes() -> None:
    with pytest.raises(ValueError, match="recipient"):
        Chat.create("ann", [*(f"user {number}" for number in range(600)), "a\0b"], "x")
    assert all_keys() == []


async def test_async_versions_check_arguments(chat: Chat) -> None:
    before = snapshot()
    with pytest.raises(ValueError, match="surrogate"):
        await chat.asend("ann", "\ud800")
    with pytest.raises(TypeError, match="key 1"):
        await chat.asend("ann", "x", data={1: 1})
    with pytest.raises(TypeError, match="open"):
        await Chat.acreate("ann", ["bob"], open="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a cursor"):
        await chat.aack("bob", "x")
    server().script_flush()
    assert len(await Inbox("bob").apending()) == 1
    assert snapshot() == before
