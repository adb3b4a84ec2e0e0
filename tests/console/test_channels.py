"""The pages of chats, mailboxes, broadcast and file channels, directories and live streams."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from django_redis_messaging import Broadcast, Chat, Choices, Directory, FileChannel, Mailbox, conf
from django_redis_messaging.console.access import Console
from django_redis_messaging.console.listing import user_cell
from django_redis_messaging.console.tables import to_cell
from django_redis_messaging.core.operations import perform
from django_redis_messaging.services.chats.usage import Reader, read_usage
from django_redis_messaging.services.common.things import Thing
from django_redis_messaging.services.live.counting import streams_of_process
from django_redis_messaging.services.live.hub import hub_of
from django_redis_messaging.services.live.presence import Presence

from ..support.console import HOSTILE, SHOWN, facts, get, names, page, rows, url
from ..support.server import change, no_server, server, snapshot
from .conftest import Sign

#: the pages of one thing, each with the list that leads there
PAGES = {
    "chat": ("chats", "chat"), "mailbox": ("channels", "mailbox"), "broadcast": ("channels", "broadcast"),
    "files": ("channels", "files"), "directory": ("channels", "directory"),
}  # fmt: skip


class Curious(Console):
    """Superusers may read all but one chat."""

    def may_read(self, user: Any, thing: Thing) -> bool:
        return thing.name != "secret"


class Discreet(Console):
    """Nobody reads anything."""

    def may_read(self, user: Any, thing: Thing) -> bool:
        return False


@pytest.fixture
def curious(settings: Settings) -> None:
    change(settings, CONSOLE=f"{__name__}.Curious")


def readers(chat: Chat) -> dict[str, Reader]:
    [usage] = perform(conf.alias(), read_usage(conf.prefix(), [chat.id], readers=25))
    return {one.user: one for one in usage.readers}


def fill_with_hostile_names(tmp_path: Path) -> None:
    """One of each kind, where every text is hostile."""
    Chat.create(HOSTILE, [HOSTILE + "2"], HOSTILE, title=HOSTILE, chat_id=HOSTILE)
    Mailbox(HOSTILE).send({HOSTILE: HOSTILE}, sender=HOSTILE, group=HOSTILE)
    channel = Broadcast(HOSTILE)
    channel.publish(HOSTILE)
    channel.keep(HOSTILE, channel.cursor())
    (tmp_path / "log").write_text("x")
    FileChannel(HOSTILE).publish(tmp_path / "log", consumers=[HOSTILE])
    Directory(HOSTILE).add(HOSTILE, HOSTILE)
    Presence().enter(HOSTILE, "token")


class TestAllPages:
    def test_lists_are_empty_at_first(self, boss: Client) -> None:
        assert "There are no chats." in page(boss, "chats")
        for kind, empty in (
            ("mailbox", "no mailboxes"), ("broadcast", "no broadcast channels"),
            ("files", "no file channels"), ("directory", "no directories"),
            ("streams", "Nobody has a live stream."),
        ):  # fmt: skip
            assert empty in page(boss, "channels", kind=kind)
        for name in PAGES:
            assert get(boss, name, thing=f"{name}:missing").status_code == 404, name
            for wrong in ("", "missing", "lock:x", f"{name}:"):
                assert get(boss, name, thing=wrong).status_code == 400, (name, wrong)

    def test_hostile_names_and_payloads(self, boss: Client, curious: None, tmp_path: Path) -> None:
        fill_with_hostile_names(tmp_path)
        lists = {kind: page(boss, name, kind=kind) for name, kind in PAGES.values()}
        lists["streams"] = page(boss, "channels", kind="streams")
        for kind, shown in lists.items():
            assert f"<bdi>{SHOWN}" in shown and "<script>alert" not in shown, kind
        for kind in PAGES:
            query = {"q": "<"} if kind == "directory" else {}
            shown = page(boss, kind, thing=Thing(kind, HOSTILE), **query)
            assert rows(shown) and shown.count(SHOWN) >= 4 and "<script>alert" not in shown, kind
            assert f"thing={kind}%3A%253Cscript%253E" in lists[kind]

    def test_filters_by_a_text_in_the_name(self, boss: Client) -> None:
        for name in ("team red", "team*", "other"):
            Chat.create("ann", [], chat_id=name)
            Mailbox(name).send(1)
            Directory(name).add("ann", "Ann")
        for list_name, kind in (("chats", "chat"), ("channels", "mailbox")):
            for wanted, found in (
                ("team", ["team red team red", "team* team*"]),
                ("m*", ["team* team*"]),
                ("x", []),
            ):
                shown = names(page(boss, list_name, kind=kind, name=wanted))
                assert [one.split(" ")[0] for one in shown] == [one.split(" ")[0] for one in found]
            assert get(boss, list_name, name="x" * 256).status_code == 400
        assert names(page(boss, "channels", kind="directory", name="other")) == ["other"]
        assert names(page(boss, "channels", kind="directory", name="oth")) == []

    def test_reading_changes_nothing(self, boss: Client, curious: None, tmp_path: Path) -> None:
        fill_with_hostile_names(tmp_path)
        before = snapshot()
        for name, kind in PAGES.values():
            page(boss, name, kind=kind)
            page(boss, kind, thing=Thing(kind, HOSTILE))
        assert {key: value for key, value in snapshot().items() if key in before} == before

    def test_roles(self, sign_in: Sign) -> None:
        Chat.create("ann", [], chat_id="7")
        clients = {
            302: [Client(), sign_in("user")], 403: [sign_in("staff", is_staff=True)],
            200: [sign_in("boss", is_staff=True, is_superuser=True)],
        }  # fmt: skip
        for status, those in clients.items():
            for client in those:
                assert get(client, "chats").status_code == get(client, "channels").status_code == status
                assert get(client, "chat", thing="chat:7").status_code == status
        assert clients[200][0].post(url("chats")).status_code == 405

    def test_ranks_and_cursors_of_others_are_refused(self, boss: Client) -> None:
        Chat.create("ann", [], chat_id="7")
        for wrong in ("x", "-1", "9" * 10, "1.5", "٣"):
            assert get(boss, "chat", thing="chat:7", **{"from": wrong}).status_code == 400
            assert get(boss, "channels", kind="directory", **{"from": wrong}).status_code == 400
            assert get(boss, "chats", cursor=wrong).status_code == 400
        assert get(boss, "channels", kind="chat").status_code == 400

    def test_redis_is_not_available(self, boss: Client) -> None:
        with no_server():
            assert get(boss, "chats").status_code == get(boss, "channels").status_code == 503


class TestChats:
    def test_members_may_hide_what_they_have_read(self, boss: Client) -> None:
        Choices().choose("bob", receipts=False)
        chat = Chat.create("ann", ["bob"], chat_id="team", keep_last=0)
        chat.send("ann", "x" * 100)
        [shown] = rows(page(boss, "chats"))
        assert shown[5] == "hides what they have read" and shown[6] == ""
        members = {row[0]: row for row in rows(page(boss, "chat", thing="chat:team"))}
        assert members["bob"][3:5] == ["hidden", ""] and members["bob"][6] == ""
        assert members["ann"][3:5] == ["1", "0"]

    def test_the_slowest_reader_and_what_it_pins(self, boss: Client) -> None:
        chat = Chat.create("ann", ["bob", "cat"], title="Team", chat_id="team", keep_last=2)
        for number in range(10):
            chat.send("ann", "x" * 100 * (number + 1))
        chat.ack("bob", 3)
        chat.ack("cat", 9)
        shown = rows(page(boss, "chats"))
        assert [shown[0][0], *shown[0][1:3]] == ["team", "3", "7"] and "Team" not in " ".join(shown[0])
        assert user_cell("3", {"3": "ann"}, "1 unread").detail == "3: 1 unread"
        assert shown[0][5] == "bob 7 unread" and shown[0][6].startswith("5 ")
        members = rows(page(boss, "chat", thing="chat:team"))
        assert [row[0] for row in members] == ["bob", "cat", "ann"]
        assert [row[4] for row in members] == ["7", "1", "0"]
        assert [row[6].split()[:1] for row in members] == [["5"], [], []]

    def test_pinned_messages_are_those_that_an_ack_removes(self) -> None:
        """Their bytes, too: compared with what is removed."""
        chat = Chat.create("ann", ["bob", "cat"], chat_id="team", keep_last=0)
        for number in range(20):
            chat.send("ann", "x" * number)
        chat.ack("cat", 20)
        chat.ack("bob", 5)
        reader = readers(chat)["bob"]
        assert (reader.pinned, reader.unread) == (15, 15)
        stored = sum(map(len, server().lrange(f"{conf.prefix()}:2:{{chat:team}}:log", 0, -1)))
        assert 0.7 * stored < reader.pinned_bytes <= stored
        assert {name: one.pinned for name, one in readers(chat).items()} == {"ann": 0, "bob": 15, "cat": 0}
        chat.ack("bob", 20)
        assert readers(chat)["bob"].pinned == readers(chat)["bob"].pinned_bytes == 0

    def test_own_messages_and_edits_count_once(self) -> None:
        chat = Chat.create("ann", ["bob"], chat_id="team")
        chat.send("ann", "One")
        chat.send("bob", "Two")
        chat.edit("ann", 1, "One, but longer than before")
        found = readers(chat)
        assert (found["ann"].unread, found["bob"].unread) == (1, 1)
        assert found["ann"].pinned == found["bob"].pinned == 0, "1000 are kept anyway"

    def test_members_page(self, boss: Client) -> None:
        chat = Chat.create("ann", [f"user {number:02}" for number in range(59)], "One", chat_id="team")
        chat.mute("user 00", datetime.now(UTC) + timedelta(days=1))
        found = list[str]()
        for first in (0, 25, 50):
            shown = get(boss, "chat", thing="chat:team", **{"from": first}).content.decode()
            assert ("from=" in shown) is (first < 50)
            found += names(shown)
        assert sorted(found) == sorted(["ann", *(f"user {number:02}" for number in range(59))])
        assert readers(chat)["user 00"].muted_until is not None

    def test_bodies_only_with_permission(self, boss: Client, settings: Settings) -> None:
        for name in ("team", "secret"):
            Chat.create("ann", ["bob"], f"Body of {name}", chat_id=name).send("bob", "x" * 5000)
        assert "Body of" not in page(boss, "chat", thing="chat:team")
        change(settings, CONSOLE=f"{__name__}.Curious")
        shown = page(boss, "chat", thing="chat:team")
        assert "Body of team" in shown and "x" * 499 in shown and "x" * 501 not in shown
        assert "Body of" not in page(boss, "chat", thing="chat:secret")

    def test_deleted_messages_and_the_newest_ones(self, boss: Client, curious: None) -> None:
        chat = Chat.create("ann", [], chat_id="team")
        for number in range(30):
            chat.send("ann", f"Message {number}")
        chat.delete_message("ann", 30)
        shown = page(boss, "chat", thing="chat:team")
        assert "Message 10<" in shown and "Message 9<" not in shown and "deleted" in shown


class TestMailboxes:
    def test_counts_and_the_time_of_the_fetch(self, boss: Client) -> None:
        box = Mailbox("7")
        for number in range(3):
            box.send({"text": f"Payload {number}"})
        box.ack(1)
        assert rows(page(boss, "channels", kind="mailbox"))[0][:3] == ["Former user 7 7", "2", "3"]
        shown = page(boss, "mailbox", thing="mailbox:7")
        assert "Payload" not in shown and "Last fetched" not in facts(shown)
        box.fetch()
        assert "Last fetched" in facts(page(boss, "mailbox", thing="mailbox:7"))

    def test_payloads_only_with_permission_and_without_secrets(self, boss: Client, curious: None) -> None:
        box = Mailbox("7")
        box.send({"text": "Hello", "api_key": "5fz", "nested": [{"password": "hunter2"}]}, sender="ann")
        for number in range(20):
            box.send("y" * 1000 + str(number))
        box.mark_read([21])
        shown = rows(page(boss, "mailbox", thing="mailbox:7"))
        assert [row[0] for row in shown] == [str(number) for number in range(21, 1, -1)]
        assert [row[3] for row in shown[:2]] == ["read", "unread"] and len(shown[0][4]) <= 500
        for number in range(2, 22):
            box.discard(number)
        [row] = rows(page(boss, "mailbox", thing="mailbox:7"))
        assert "Hello" in row[4] and "5fz" not in row[4] and "hunter2" not in row[4]
        assert Mailbox("7").status().last_fetched_at is None


class TestChannels:
    def test_a_broadcast_channel_and_its_consumers(self, boss: Client) -> None:
        channel = Broadcast("prices")
        start = channel.cursor()
        for number in range(5):
            channel.publish({"price": number})
        channel.keep("shop", start)
        channel.keep("site", channel.cursor())
        Broadcast("price").keep("other", Broadcast("price").cursor())
        assert [row[:2] for row in rows(page(boss, "channels", kind="broadcast"))] == [
            ["price", "0"],
            ["prices", "5"],
        ]
        shown = page(boss, "broadcast", thing="broadcast:prices")
        (name, *_, behind), site = rows(shown)
        assert (name, behind) == ("shop", "5") and site[0::3] == ["site", "0"]
        assert site[1] == "5" and site[2] == to_cell(channel.fetch().events[-1].published_at).text
        assert facts(shown)["Events"] == "5" and "price&quot;" not in shown

    def test_a_file_channel_and_its_consumers(self, boss: Client, tmp_path: Path) -> None:
        for number in range(3):
            (tmp_path / f"{number}.log").write_text("GET /\n")
        channel = FileChannel("logs")
        channel.publish(tmp_path, consumers=["fast", "slow"])
        with channel._lease("fast", 60, print):
            for file in channel.consume("slow"):
                file.ack()
                break
            text = page(boss, "files", thing="files:logs")
            shown = rows(text)
            assert "The consumer slow has not acked 2 files of file channel logs" in text
        assert [row[:2] for row in shown] == [["fast", "3"], ["slow", "2"]]
        assert "process" in shown[0][3] and shown[1][3] == ""
        [row] = rows(page(boss, "channels", kind="files"))
        assert row[:2] == ["logs", "3"] and row[4] == "fast 3 files behind"

    def test_a_directory_and_a_prefix(self, boss: Client, settings: Settings) -> None:
        staff = Directory("staff")
        staff.add_many([("u1", "Ann Smith"), ("u2", "Bob Miller")])
        assert [row[:2] for row in rows(page(boss, "channels", kind="directory"))] == [["staff", "2"]]
        assert rows(page(boss, "directory", thing="directory:staff")) == []
        assert rows(page(boss, "directory", thing="directory:staff", q="smi")) == [["Ann Smith", "u1"]]
        assert get(boss, "directory", thing="directory:staff", q="x" * 1001).status_code == 400
        change(settings, CONSOLE=f"{__name__}.Discreet")
        shown = page(boss, "directory", thing="directory:staff", q="smi")
        assert "Ann" not in shown and shown.count('name="q"') == 1  # that of the search

    def test_live_streams(self, boss: Client) -> None:
        Presence().enter("ann", "one")
        Presence().enter("ann", "two")
        Presence().enter("bob", "three")
        assert rows(page(boss, "channels", kind="streams")) == [
            ["ann", "2", "0", "yes"],
            ["bob", "1", "0", "yes"],
        ]


async def test_the_streams_of_this_process_are_counted(closing: None) -> None:
    alias, prefix = conf.alias(), conf.prefix()
    assert streams_of_process(alias, prefix) == {}
    async with hub_of().stream("ann", {}), hub_of().stream("ann", {}), hub_of().stream("bob", {}):
        assert streams_of_process(alias, prefix) == {"ann": 2, "bob": 1}
        assert streams_of_process(alias, "other") == {}
    assert streams_of_process(alias, prefix) == {}
