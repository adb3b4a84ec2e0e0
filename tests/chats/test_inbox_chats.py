"""The list of a user's chats: order, pages, summaries."""

from collections.abc import Callable

import pytest

from django_redis_messaging import Chat, ChatSummary, Inbox

from ..support.server import bodies, create_chat, keys, server, server_ms, until


def later() -> None:
    """Wait for the next millisecond of the server's clock."""
    now = server_ms()
    until(lambda: server_ms() > now)


def names(summaries: list[ChatSummary]) -> list[str]:
    return [summary.chat_id for summary in summaries]


def test_chats_are_sorted_by_latest_activity() -> None:
    chats = {}
    for name in "xyz":
        later()
        chats[name] = create_chat(name, members=("bob", "cat"))
    assert names(Inbox("bob").chats()) == ["z", "y", "x"]
    later()
    message = chats["x"].send("cat", "hello")
    first, *others = Inbox("bob").chats()
    assert (first.chat_id, first.last_message, first.unread, first.title) == ("x", message, 1, "")
    assert (first.active_at, first.member_count, first.muted) == (message.sent_at, 3, False)
    assert names(others) == ["z", "y"]
    assert [(other.last_message, other.unread) for other in others] == [(None, 0)] * 2
    chats["x"].ack("bob", 1)
    assert names(Inbox("bob").chats()) == ["x", "z", "y"]


def test_pages_of_chats_are_adjacent() -> None:
    for name in "vwxyz":
        create_chat(name, "one")
    every = names(Inbox("bob").chats())
    assert sorted(every) == list("vwxyz")
    for limit in (1, 2, 5, 9):
        seen: list[str] = []
        while page := Inbox("bob").chats(limit=limit, after=seen[-1] if seen else None):
            assert len(page) <= limit
            seen += names(page)
        assert seen == every
    with pytest.raises(ValueError, match="start with the first page"):
        Inbox("bob").chats(after="nowhere")


def read_pages(limit: int, between: Callable[[], object]) -> list[list[str]]:
    """All pages of bob's list by cursor; `between` is called after the first one."""
    pages: list[list[str]] = []
    page = Inbox("bob").chats(limit=limit)
    while page:
        pages.append(names(page))
        assert len(pages) < 10, "the pages don't end"
        if len(pages) == 1:
            between()
        page = Inbox("bob").chats(limit=limit, after=page[-1].cursor)
    return pages


def test_pages_by_cursor_continue_while_chats_move() -> None:
    for name in "uvwxyz":
        create_chat(name, "one", members=("bob", "cat"))
        later()
    assert read_pages(2, lambda: None) == [["z", "y"], ["x", "w"], ["v", "u"]]
    assert read_pages(2, lambda: Chat("y").send("cat", "up")) == [["z", "y"], ["x", "w"], ["v", "u"]]
    later()
    assert names(Inbox("bob").chats()) == ["y", "z", "x", "w", "v", "u"]
    assert read_pages(2, lambda: Chat("y").send("cat", "up")) == [["y", "z"], ["x", "w"], ["v", "u"]]
    assert read_pages(3, lambda: Chat("u").send("cat", "up")) == [["y", "z", "x"], ["w", "v"]]
    assert read_pages(3, lambda: Chat("z").leave("bob")) == [["u", "y", "z"], ["x", "w", "v"]]
    assert read_pages(2, lambda: Chat("y").delete("ann")) == [["u", "y"], ["x", "w"], ["v"]]


def test_cursors_separate_chats_of_the_same_millisecond() -> None:
    chat_ids = [f"chat-{at}" for at in range(20)]
    for chat_id in chat_ids:
        create_chat(chat_id, "one")
        server().set(keys(chat_id).newest, server().get(keys(chat_ids[0]).newest))
    assert len({one.active_at for one in Inbox("bob").chats()}) == 1
    assert [name for page in read_pages(3, lambda: None) for name in page] == sorted(chat_ids, reverse=True)


def test_after_can_be_any_chat_id() -> None:
    """Also one that looks like a cursor; other texts are refused."""
    odd = ["00000000000-x", "fffffffffff-x", "1-x", "00000000000-", "-"]
    for name in odd:
        create_chat(name, "one")
    listed = names(Inbox("bob").chats())
    assert sorted(listed) == sorted(odd)
    for rank, name in enumerate(listed):
        assert names(Inbox("bob").chats(after=name)) == listed[rank + 1 :]
    for wrong in ("nowhere", "00000000000-", "g0000000000-x"):
        Chat("00000000000-").leave("bob")
        with pytest.raises(ValueError, match="start with the first page"):
            Inbox("bob").chats(after=wrong)
    for wrong in ("", "00000000000-" + "x" * 256):
        with pytest.raises(ValueError, match="after"):
            Inbox("bob").chats(after=wrong)
    with pytest.raises(TypeError, match="after must be a str"):
        Inbox("bob").chats(after=5)  # type: ignore[arg-type]


def test_last_message_can_be_a_tombstone_or_missing() -> None:
    chat = create_chat("x", "one")
    chat.delete_message("ann", 1)
    last = Inbox("bob").chats()[0].last_message
    assert last is not None
    assert last.deleted
    gone = Chat.create("ann", ["bob"], "read", chat_id="y", keep_last=0)
    gone.ack("bob", 1)
    assert {one.chat_id: one.last_message for one in Inbox("bob").chats()} == {"x": last, "y": None}


def sent_bytes(call: Callable[[], object]) -> int:
    """The bytes that the server sends because of a call."""
    started = server().info("stats")["total_net_output_bytes"]
    own = server().info("stats")["total_net_output_bytes"] - started
    call()
    return int(server().info("stats")["total_net_output_bytes"]) - started - 2 * own


def described(call: Callable[[], object]) -> int:
    """The number of chats that a call describes: it counts the members of each."""
    server().config_resetstat()
    call()
    commands = server().info("commandstats")
    return int(commands.get("cmdstat_zcard", {"calls": 0})["calls"])


def test_a_page_costs_what_is_on_it() -> None:
    large = "'" * 60_000
    for number in range(60):
        create_chat(f"chat {number}", large)
    inbox = Inbox("bob")
    assert described(lambda: inbox.chats(limit=10)) == 10
    cursor = inbox.chats(limit=25)[-1].cursor
    assert described(lambda: inbox.chats(limit=10, after=cursor)) == 10
    assert sent_bytes(lambda: inbox.chats(limit=60)) < 80_000


def test_the_last_message_of_a_list_is_an_excerpt() -> None:
    chat = create_chat("x", members=("bob",))
    short = chat.send("ann", "😀" * 100, data={"a": 1})
    assert Inbox("bob").chats()[0].last_message == short
    for body in ("😀\n" * 300, "\\" * 1000, "\x01" * 1000, "x" * 2000, "é" + "漢" * 400):
        sent = chat.send("ann", body, data={"a": 1})
        last = Inbox("bob").chats()[0].last_message
        assert last is not None
        assert last.body[-1] == "…" and body.startswith(last.body[:-1])
        assert 80 < len(last.body) <= 512
        assert (last.id, last.cursor, last.sender, last.data) == (sent.id, sent.cursor, "ann", None)
    chat.send("ann", "short", data="x" * 2000)
    last = Inbox("bob").chats()[0].last_message
    assert last is not None and (last.body, last.data) == ("short", None)


def test_a_page_is_filled_if_some_chats_are_not_the_users() -> None:
    for name in "stuvwxyz":
        create_chat(name, "one")
        later()
    for name in "zxv":
        server().zrem(keys(name).members, "bob")
    assert names(Inbox("bob").chats(limit=3)) == ["y", "w", "u"]
    assert names(Inbox("bob").chats(limit=9)) == ["y", "w", "u", "t", "s"]
    server().delete(keys("y").newest)
    assert names(Inbox("bob").chats(limit=3)) == ["w", "u", "t"]


def test_unusual_names_are_supported() -> None:
    odd = ["a:b", "{x}", "a b", "%41", "A", "`", "😀", "e\u0301", "\n", "x}:newest", "*"]
    for name in odd:
        create_chat(name, "one", members=tuple(odd))
    for name in odd:
        assert sorted([news.chat_id for news in Inbox(name).pending()]) == sorted(odd)
        assert sorted(names(Inbox(name).chats())) == sorted(odd)
        Chat("%41").ack(name, 1)
        assert Inbox(name).unread() == len(odd) - 1


def test_reused_inbox_returns_the_same_as_a_new_one() -> None:
    """It caches the chats of its latest read; added, removed and re-added chats must still be found."""
    kept = Inbox("bob")
    assert kept.pending() == []
    for name in ("one", "two"):
        create_chat(name, "hi")
    assert kept.unread() == Inbox("bob").unread() == 2
    Chat("one").leave("bob")
    Chat("two").ack("bob", 1)
    assert kept.pending() == Inbox("bob").pending() == []
    Chat("two").send("ann", "more")
    assert bodies(kept.pending()[0]) == bodies(Inbox("bob").pending()[0]) == ["more"]
    Chat("one").join("bob", by="ann")
    Chat("one").send("ann", "welcome back")
    assert {news.chat_id for news in kept.pending()} == {"one", "two"}
