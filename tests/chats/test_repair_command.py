"""`manage.py messaging_repair`: chats that have lost keys, and members who have lost their list of chats."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError
from django.test import override_settings

from django_redis_messaging import Chat, ChatNotFound, Inbox
from django_redis_messaging.devserver.server import EmbeddedServer
from django_redis_messaging.management.commands import messaging_repair
from django_redis_messaging.services.chats import repairing
from django_redis_messaging.services.chats.joining import Joining
from tests.support.server import bodies, copied, ids, index, keys, no_server, said, server, snapshot
from tests.support.terminal import output_of

ANN, BOB, CAT, DAN = ("ann", 6, "owner"), ("bob", 0, "member"), ("cat", 5, "owner"), ("dan", 3, "member")
Member = tuple[str, int, str]


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


def members(chat: Chat) -> list[Member]:
    return [(one.user, one.read_id, one.role) for one in chat.members()]


def check_use(chat: Chat) -> None:
    """Everybody can use the chat, also after a repair."""
    server().hset(keys(chat).info, "open", 1)
    assert chat.send("ann", "next").id == 7
    for user in ("bob", "cat", "dan"):
        assert [news.messages[-1].body for news in Inbox(user).pending()] == ["next"]
        assert [one.chat_id for one in Inbox(user).chats()] == [chat.id]
        chat.ack(user, 7)
        assert Inbox(user).unread() == 0
    assert chat.join("eve") is True
    for user in ("eve", "dan", "bob", "ann", "cat"):
        assert chat.leave(user) is True
        assert not server().hexists(index(user), chat.id)
    assert not any(server().exists(key) for key in keys(chat).all_keys[:-2])


def forget_some(chat: Chat) -> None:
    server().hdel(keys(chat).roster, "ann", "cat", "dan")


def write_junk(chat: Chat) -> None:
    server().set(keys(chat).newest, "junk")
    server().hset(keys(chat).roster, mapping={"bob": "junk", "eve": "junk"})


def add_former(chat: Chat) -> None:
    server().zadd(keys(chat).standing, {"eve": 2.5})


ALL, LATER = [ANN, BOB, CAT, DAN], ["four", "five", "six"]
#: what is lost or damaged, what the output says, members afterwards, and what dan can read
DAMAGES: list[tuple[list[str] | Callable[[Chat], None], str, list[Member], list[str]]] = [
    (["newest"], "rebuilt newest.", ALL, ["three", *LATER]),
    (
        ["members"],
        "rebuilt members.",
        [("ann", 0, "owner"), BOB, ("cat", 0, "owner"), ("dan", 2, "member")],
        ["three", *LATER],
    ),
    (
        ["roster"],
        "rebuilt roster, info.",
        [ANN, BOB, ("cat", 5, "member"), DAN],
        LATER,
    ),
    (["standing"], "rebuilt standing.", ALL, ["three", *LATER]),
    (["info"], "rebuilt info.", ALL, ["three", *LATER]),
    (
        ["newest", "members", "standing", "info"],
        "rebuilt newest, members, standing, info.",
        [("ann", 0, "owner"), BOB, ("cat", 0, "owner"), ("dan", 2, "member")],
        ["three", *LATER],
    ),
    (
        forget_some,
        "rebuilt roster, info.",
        [ANN, BOB, ("cat", 5, "member"), DAN],
        LATER,
    ),
    (write_junk, "rebuilt newest, roster.", ALL, ["three", *LATER]),
    (add_former, "rebuilt standing.", ALL, ["three", *LATER]),
]


class TestLostKeys:
    @pytest.mark.parametrize(("damage", "text", "expected", "read"), DAMAGES)
    def test_keys_are_rebuilt(
        self, damage: Any, text: str, expected: list[Member], read: list[str], chat: Chat
    ) -> None:
        lost = damage if isinstance(damage, list) else []
        if lost:
            lose(chat, *lost)
        else:
            damage(chat)
        if "newest" in lost:
            with pytest.raises(ChatNotFound):
                chat.send("ann", "x")
        assert f"Chat {chat.id!r}: {text}\n" in output()
        assert output().startswith("1 chat checked, 0 rebuilt, 0 that can't be repaired; 0 restored in lists")
        assert members(chat) == expected
        assert bodies(chat.history("dan")) == read
        info, owners = chat.info(), sum(role == "owner" for _, _, role in expected)
        assert (info.last_id, info.first_id, info.member_count) == (6, 1, 4)
        assert server().hget(keys(chat).info, "owners") == b"%d" % owners
        if "info" in lost:
            assert (info.title, info.open, info.edits) == ("", False, 0)
            assert info.created_at == chat.members()[0].joined_at
            ((_, latest),) = server().zrange(keys(chat).standing, -1, -1, withscores=True)
            assert int(server().hget(keys(chat).info, "joins")) == latest
            with pytest.raises(Exception, match="not open"):
                chat.join("eve")
        check_use(chat)

    def test_cursors_of_a_chat_that_has_lost_its_newest(self, chat: Chat) -> None:
        cursor = chat.history("cat").cursor
        lose(chat, "newest")
        output()
        assert chat.info().active_at == chat.history("ann").messages[-1].sent_at
        assert chat.info().keep_last == 1000
        page = chat.history("cat", after=cursor)
        assert (page.reset, ids(page)) == (True, [6])
        assert chat.ack("cat", cursor) == 5
        assert Inbox("bob").unread() == 6  # with his own
        lose(chat, "newest")
        output()
        assert chat.history("cat", after=page.cursor).reset is True

    def test_lost_newest_of_a_chat_whose_messages_were_removed(self) -> None:
        chat = Chat.create("ann", ["bob"], "one", keep_last=0)
        said(chat, "ann", "two", "three")
        chat.ack("bob", 3)
        chat.join("cat", by="ann")
        lose(chat, "newest")
        output()
        assert (chat.info().last_id, chat.info().first_id) == (3, 4)
        assert chat.send("ann", "four").id == 4
        assert [ids(news) for news in Inbox("cat").pending()] == [[4]]

    def test_lost_newest_of_a_chat_whose_newest_messages_nobody_has_read(self) -> None:
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


class TestWhatStopsNothing:
    def test_intact_chats_are_not_changed(self, chat: Chat) -> None:
        Chat.create("ann", [], chat_id="empty").delete("ann")
        Chat.create("bob", [], chat_id="alone")
        assert output().startswith("2 chats checked")
        before = snapshot()
        for arguments in ([], ["--user", "bob"], ["--chat", chat.id], ["--user", "nobody"]):
            assert "rebuilt, 0 that" in output(*arguments)
            assert snapshot() == before

    def test_keys_of_another_program(self, chat: Chat) -> None:
        start = keys(chat).tag.partition("{")[0] + "{chat:"
        for chat_id in (b"", b"%00", 2000 * b"x", b"\xff"):
            server().set(start.encode() + chat_id + b"}:log", "x")
        lose(chat, "info")
        text, errors = output_of("messaging_repair")
        assert f"Chat {chat.id!r}: rebuilt info." in text
        assert "5 chats checked, 1 rebuilt, 3 that can't be repaired" in text
        assert len(errors.splitlines()) == 3

    def test_a_chat_without_members_and_roster(self, chat: Chat) -> None:
        lose(chat, "members", "roster")
        before = copied(chat)
        text, errors = output_of("messaging_repair")
        assert f"Chat {chat.id!r} can't be repaired" in errors
        assert "1 that can't be repaired" in text
        assert copied(chat) == before

    def test_a_broken_chat(self, chat: Chat) -> None:
        lose(Chat.create("ann", [], chat_id="other"), "info")
        lose(chat, "members")
        server().set(keys(chat).members, "not ours")
        text, errors = output_of("messaging_repair")
        assert f"Chat {chat.id!r}: " in errors
        assert "'other': rebuilt info" in text

    def test_members_who_leave_during_the_repair(self, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_lost_lists_of_chats(chat: Chat) -> None:
    Chat.create("ann", ["bob"], "hi", chat_id="second")
    Chat.create("ann", ["cat"], "hi", chat_id="third")
    for user in ("bob", "cat"):
        server().delete(index(user))
    assert f"Chat {chat.id!r}: restored in the lists of 1 member.\n" in output("--user", "bob")
    assert sorted(one.chat_id for one in Inbox("bob").chats()) == [chat.id, "second"]
    assert Inbox("bob").unread() == 6
    Chat("second").leave("bob")
    assert not server().exists(index("cat"))
    output()
    assert Inbox("cat").unread() == 2
    Chat("third").leave("cat")
    check_use(chat)


class TestOptions:
    def test_invalid_arguments(self, chat: Chat) -> None:
        lose(chat, "info")
        with pytest.raises(CommandError, match="There is no chat 'no', 'nowhere'"):
            output("--chat", "no", "--chat", chat.id, "--chat", "nowhere")
        assert chat.info().title == ""
        with pytest.raises(CommandError, match="There is no chat 'nowhere'"):
            output("--chat", chat.id, "--chat", "nowhere")
        for option in ("--chat", "--user"):
            with pytest.raises(CommandError, match="empty"):
                output(option, "")

    def test_progress_and_silence(self, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(messaging_repair, "REPORT_INTERVAL", 0)
        assert output().startswith("1 chat checked so far.\n")
        lose(chat, "info")
        assert output_of("messaging_repair", "--verbosity", "0") == ("", "")
        assert chat.info().title == ""

    def test_another_alias(self) -> None:
        with EmbeddedServer() as other:
            entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": other.url}
            with override_settings(CACHES={**django_settings.CACHES, "other": entry}):
                Chat.create("ann", [], using="other")
                assert output().startswith("0 chats")
                assert output("--using", "other").startswith("1 chat ")

    def test_an_unreachable_server(self) -> None:
        with no_server(), pytest.raises(CommandError, match="Redis was not available"):
            output()
