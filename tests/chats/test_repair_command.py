"""`manage.py messaging_repair`: chats that have lost keys, and members who have lost their list of chats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError
from django.test import override_settings

from django_redis_messaging import Chat, ChatNotFound, Inbox, conf
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.management.commands import messaging_repair
from django_redis_messaging.services.chats import repairing
from django_redis_messaging.services.chats.joining import Joining
from tests.support.server import bodies, copied, ids, index, keys, said, server, snapshot
from tests.support.terminal import output_of


def output(*arguments: str) -> str:
    return output_of("messaging_repair", *arguments)[0]


@pytest.fixture
def chat() -> Chat:
    """A chat of ann, bob and cat (owners: ann, cat) with six messages; dan joined after the second. Bob wrote
    the third while he was behind."""
    made = Chat.create("ann", ["bob", "cat"], "one", chat_id="club: {x}", title="Club", open=True)
    made.set_role("ann", "cat", "owner")
    made.send("ann", "two")
    made.join("dan")
    made.send("bob", "three")
    said(made, "ann", "four", "five", "six")
    made.ack("ann", 6)
    made.ack("cat", 5)
    made.ack("dan", 3)
    made.mute("dan", datetime.now(UTC) + timedelta(hours=1))
    return made


def lose(chat: Chat, *parts: str) -> None:
    for part in parts:
        assert server().delete(getattr(keys(chat), part)) == 1


def members(chat: Chat) -> list[tuple[str, int, str]]:
    return [(one.user, one.read_id, one.role) for one in chat.members()]


MEMBERS = [("ann", 6, "owner"), ("bob", 0, "member"), ("cat", 5, "owner"), ("dan", 3, "member")]


def check_use(chat: Chat, *, last: int = 6) -> None:
    """Everybody can use the chat, also after a repair."""
    assert chat.send("ann", "next").id == last + 1
    for user in ("bob", "cat", "dan"):
        assert [news.messages[-1].body for news in Inbox(user).pending()] == ["next"]
        assert [one.chat_id for one in Inbox(user).chats()] == [chat.id]
        chat.ack(user, last + 1)
        assert Inbox(user).unread() == 0
    assert chat.join("eve") is True
    for user in ("eve", "dan", "bob", "ann", "cat"):
        assert chat.leave(user) is True
        assert not server().hexists(index(user), chat.id)
    assert not any(server().exists(key) for key in keys(chat).all_keys[:-2])


def test_intact_chats_are_not_changed(chat: Chat) -> None:
    Chat.create("ann", [], chat_id="empty").delete("ann")
    Chat.create("bob", [], chat_id="alone")
    assert output().startswith("2 chats checked")
    before = snapshot()
    for arguments in ([], ["--user", "bob"], ["--chat", chat.id], ["--user", "nobody"]):
        assert "rebuilt, 0 that" in output(*arguments)
        assert snapshot() == before


def test_lost_newest(chat: Chat) -> None:
    cursor = chat.history("cat").cursor
    lose(chat, "newest")
    with pytest.raises(ChatNotFound):
        chat.send("ann", "x")
    assert f"Chat {chat.id!r}: rebuilt newest.\n" in output()
    info = chat.info()
    assert (info.last_id, info.first_id, info.keep_last) == (6, 1, 1000)
    assert info.active_at == chat.history("ann").messages[-1].sent_at
    assert members(chat) == MEMBERS
    page = chat.history("cat", after=cursor)
    assert (page.reset, ids(page)) == (True, [6])
    assert chat.ack("cat", cursor) == 5
    assert (
        output() == "1 chat checked, 0 rebuilt, 0 that can't be repaired; 0 restored in lists of members.\n"
    )
    assert Inbox("bob").unread() == 6  # with his own
    lose(chat, "newest")
    output()
    assert chat.history("cat", after=page.cursor).reset is True
    check_use(chat)


def test_lost_newest_of_a_chat_whose_messages_were_removed() -> None:
    chat = Chat.create("ann", ["bob"], "one", keep_last=0)
    said(chat, "ann", "two", "three")
    chat.ack("bob", 3)
    chat.join("cat", by="ann")
    lose(chat, "newest")
    output()
    assert (chat.info().last_id, chat.info().first_id) == (3, 4)
    assert chat.send("ann", "four").id == 4
    assert [ids(news) for news in Inbox("cat").pending()] == [[4]]


def test_lost_newest_of_a_chat_whose_newest_messages_nobody_has_read() -> None:
    chat = Chat.create("ann", ["bob", "cat"], keep_last=3)
    said(chat, "ann", *"123456")
    for user in ("bob", "cat"):
        chat.ack(user, 6)
    for _ in range(5):
        said(chat, "bob", "b")
        said(chat, "cat", "c")
    users = ("ann", "bob", "cat")
    unread = [Inbox(user).unread() for user in users]
    lose(chat, "newest")
    output()
    assert (unread, chat.info().last_id) == ([10, 5, 5], 16)
    # at least these: members' own messages count, too
    assert all(Inbox(user).unread() >= number for user, number in zip(users, unread, strict=True))


def test_values_of_another_program(chat: Chat) -> None:
    server().set(keys(chat).newest, "junk")
    server().hset(keys(chat).roster, mapping={"bob": "junk", "eve": "junk"})
    assert f"Chat {chat.id!r}: rebuilt newest, roster; restored in the lists of 1 member." in output()
    assert members(chat) == MEMBERS
    assert chat.info().last_id == 6


def test_keys_of_another_program_stop_nothing(chat: Chat) -> None:
    start = keys(chat).tag.partition("{")[0] + "{chat:"
    for chat_id in (b"", b"%00", 2000 * b"x", b"\xff"):
        server().set(start.encode() + chat_id + b"}:log", "x")
    lose(chat, "info")
    text, errors = output_of("messaging_repair")
    assert f"Chat {chat.id!r}: rebuilt info." in text
    assert "5 chats checked, 1 rebuilt, 3 that can't be repaired" in text
    assert len(errors.splitlines()) == 3


def test_lost_members(chat: Chat) -> None:
    lose(chat, "members")
    output("--chat", chat.id)
    assert members(chat) == [
        ("ann", 0, "owner"),
        ("bob", 0, "member"),
        ("cat", 0, "owner"),
        ("dan", 2, "member"),
    ]
    assert bodies(chat.history("dan")) == ["three", "four", "five", "six"]
    check_use(chat)


def test_lost_roster(chat: Chat) -> None:
    lose(chat, "roster")
    text = f"Chat {chat.id!r}: rebuilt roster, info; restored in the lists of 4 members.\n"
    assert text in output("--chat", chat.id)
    assert members(chat) == [
        ("ann", 6, "owner"),
        ("bob", 0, "member"),
        ("cat", 5, "member"),
        ("dan", 3, "member"),
    ]
    assert bodies(chat.history("dan")) == ["four", "five", "six"]
    assert server().hget(keys(chat).info, "owners") == b"1"
    check_use(chat)


def test_part_of_a_roster_was_lost(chat: Chat) -> None:
    server().hdel(keys(chat).roster, "ann", "cat", "dan")
    assert f"Chat {chat.id!r}: rebuilt roster, info; restored in the lists of 3 members.\n" in output()
    assert [(user, role) for user, _, role in members(chat)] == [
        *(("ann", "owner"), ("bob", "member"), ("cat", "member"), ("dan", "member"))
    ]
    assert bodies(chat.history("bob"))[0] == "one"
    check_use(chat)


def test_former_members_among_the_seniority(chat: Chat) -> None:
    server().zadd(keys(chat).standing, {"eve": 2.5})
    assert f"Chat {chat.id!r}: rebuilt standing.\n" in output()
    assert members(chat) == MEMBERS
    check_use(chat)


def test_lost_seniority(chat: Chat) -> None:
    lose(chat, "standing")
    assert f"Chat {chat.id!r}: rebuilt standing.\n" in output()
    assert [user for user, _, _ in members(chat)] == ["ann", "cat", "bob", "dan"]
    check_use(chat)


def test_lost_info(chat: Chat) -> None:
    lose(chat, "info")
    assert f"Chat {chat.id!r}: rebuilt info.\n" in output()
    info = chat.info()
    assert (info.title, info.open, info.edits) == ("", False, 0)
    assert info.created_at == chat.members()[0].joined_at
    values = server().hmget(keys(chat).info, "owners", "joins")
    assert values == [b"2", b"4"]
    with pytest.raises(Exception, match="not open"):
        chat.join("eve")
    server().hset(keys(chat).info, "open", 1)
    check_use(chat)


def test_several_lost_keys(chat: Chat) -> None:
    lose(chat, "newest", "members", "standing", "info")
    output()
    assert chat.info().member_count == 4
    server().hset(keys(chat).info, "open", 1)
    check_use(chat)


def test_a_chat_without_members_and_roster(chat: Chat) -> None:
    lose(chat, "members", "roster")
    before = copied(chat)
    out, errors = output_of("messaging_repair")
    assert f"Chat {chat.id!r} can't be repaired" in errors
    assert "1 that can't be repaired" in out
    assert copied(chat) == before


def test_a_broken_chat_stops_nothing(chat: Chat) -> None:
    other = Chat.create("ann", [], chat_id="other")
    lose(other, "info")
    lose(chat, "members")
    server().set(keys(chat).members, "not ours")
    out, errors = output_of("messaging_repair")
    assert (f"Chat {chat.id!r}: " in errors, "'other': rebuilt info" in out) == (True, True)


def test_lost_list_of_chats(chat: Chat) -> None:
    Chat.create("ann", ["bob"], "hi", chat_id="second")
    Chat.create("ann", ["cat"], "hi", chat_id="third")
    for user in ("bob", "cat"):
        server().delete(index(user))
    cats = f"Chat {chat.id!r}: restored in the lists of 1 member.\n"
    assert cats in output("--user", "bob")
    assert sorted(one.chat_id for one in Inbox("bob").chats()) == [chat.id, "second"]
    assert Inbox("bob").unread() == 6
    Chat("second").leave("bob")
    assert not server().exists(index("cat"))
    output()
    assert Inbox("cat").unread() == 2
    Chat("third").leave("cat")
    check_use(chat)


def test_members_who_leave_during_the_repair(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("bob", "dan"):
        server().delete(index(user))
    reserve = messaging_repair.ChatRepair._write_entries

    def leave_before(self: Any, users: Any) -> Any:
        chat.leave("bob")
        return reserve(self, users)

    class LeavingBefore(Joining):
        def confirm(self, *arguments: Any) -> Any:
            chat.leave("dan")
            chat.join("dan")
            return super().confirm(*arguments)

    monkeypatch.setattr(messaging_repair.ChatRepair, "_write_entries", leave_before)
    monkeypatch.setattr(repairing, "Joining", LeavingBefore)
    output()
    assert not server().exists(index("bob"))
    chat.send("ann", "next")
    assert Inbox("dan").unread() == 1


def test_invalid_arguments(chat: Chat) -> None:
    lose(chat, "info")
    with pytest.raises(CommandError, match="There is no chat 'no', 'nowhere'"):
        output("--chat", "no", "--chat", chat.id, "--chat", "nowhere")
    assert chat.info().title == ""
    with pytest.raises(CommandError, match="There is no chat 'nowhere'"):
        output("--chat", chat.id, "--chat", "nowhere")
    for option in ("--chat", "--user"):
        with pytest.raises(CommandError, match="empty"):
            output(option, "")


def test_progress_and_silence(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messaging_repair, "REPORT_INTERVAL", 0)
    assert output().startswith("1 chat checked so far.\n")
    lose(chat, "info")
    assert output_of("messaging_repair", "--verbosity", "0") == ("", "")
    assert chat.info().title == ""


def test_chats_of_another_alias() -> None:
    with EmbeddedServer() as other:
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": other.url}
        with override_settings(CACHES={**django_settings.CACHES, "other": entry}):
            Chat.create("ann", [], using="other")
            assert output().startswith("0 chats")
            assert output("--using", "other").startswith("1 chat ")


def test_an_unreachable_server() -> None:
    entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "unix:///nonexistent/redis.sock"}
    caches, options = {**django_settings.CACHES, conf.alias(): entry}, django_settings.REDIS_MESSAGING
    with (
        override_settings(CACHES=caches, REDIS_MESSAGING={**options, "COMMAND_DEADLINE": 0.2}),
        pytest.raises(CommandError, match="Redis was not available"),
    ):
        output()
