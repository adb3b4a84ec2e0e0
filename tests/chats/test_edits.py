"""Editing and deleting messages: permissions, what stays, tombstones."""

import pytest
from pytest_django import Settings

from django_redis_messaging import Chat, ChatNotFound, Inbox, NotAMember, NotPermitted

from ..support.server import bodies, change, ids, said, snapshot


@pytest.fixture
def chat() -> Chat:
    """A chat of ann (owner), bob and cat with three messages by bob."""
    made = Chat.create("ann", ["bob", "cat"], chat_id="edits")
    made.send("bob", "one")
    made.send("bob", "two", data={"n": [1, {}]}, reply_to=1)
    made.send("bob", "three")
    return made


def test_edit_replaces_only_the_body(chat: Chat) -> None:
    before = chat.history("cat").messages
    edited = chat.edit("bob", 2, 'zwei "2" 😀')
    assert edited is not None
    after = chat.history("cat").messages
    assert after == [before[0], edited, before[2]]
    assert (edited.body, edited.data, edited.reply_to) == ('zwei "2" 😀', {"n": [1, {}]}, 1)
    assert (edited.cursor, edited.sent_at, edited.sender) == (before[1].cursor, before[1].sent_at, "bob")
    assert edited.edited_at is not None
    assert edited.edited_at >= edited.sent_at
    assert edited.deleted is False
    assert chat.info().edits == 1
    assert chat.edit("bob", 2, "") is not None
    assert bodies(chat.history("cat")) == ["one", "", "three"]


def test_only_the_author_can_edit(chat: Chat) -> None:
    before = snapshot()
    for user in ("ann", "cat"):
        with pytest.raises(NotPermitted, match="edits"):
            chat.edit(user, 2, "mine")
    with pytest.raises(NotAMember):
        chat.edit("dan", 2, "mine")
    with pytest.raises(ChatNotFound):
        Chat("no").edit("bob", 2, "mine")
    assert snapshot() == before


@pytest.mark.parametrize(
    ("author", "other"), [("bob", "bo"), ("bo", "bob"), ('b"', "b"), ("b,1", "b"), ("é", "e")]
)
def test_name_with_the_authors_name_as_prefix_is_not_the_author(author: str, other: str) -> None:
    chat = Chat.create("ann", [author, other])
    chat.send(author, "a", data=[other])
    with pytest.raises(NotPermitted):
        chat.edit(other, 1, "b")
    with pytest.raises(NotPermitted):
        chat.delete_message(other, 1)
    assert chat.edit(author, 1, "c") is not None


@pytest.mark.parametrize("user", ["bob", "ann"])
def test_author_and_owner_can_delete_and_leave_a_tombstone(chat: Chat, user: str) -> None:
    before = chat.history("cat").messages
    gone = chat.delete_message(user, 2)
    assert gone is not None
    after = chat.history("cat").messages
    assert after == [before[0], gone, before[2]]
    assert (gone.id, gone.sender, gone.body, gone.data, gone.reply_to) == (2, "bob", "", None, None)
    assert (gone.deleted, gone.sent_at, gone.cursor) == (True, before[1].sent_at, before[1].cursor)
    assert gone.edited_at is not None
    assert gone.edited_at >= gone.sent_at
    assert chat.send("cat", "next").id == 4
    assert chat.info().edits == 1


def test_other_members_cannot_delete(chat: Chat) -> None:
    before = snapshot()
    with pytest.raises(NotPermitted):
        chat.delete_message("cat", 2)
    with pytest.raises(NotAMember):
        chat.delete_message("dan", 2)
    with pytest.raises(ChatNotFound):
        Chat("no").delete_message("bob", 2)
    assert snapshot() == before


def test_deleting_twice_changes_nothing_and_editing_a_tombstone_returns_none(chat: Chat) -> None:
    gone = chat.delete_message("bob", 2)
    before = snapshot()
    assert chat.delete_message("ann", 2) == gone
    assert chat.edit("bob", 2, "back") is None
    assert snapshot() == before


def test_missing_message_returns_none(chat: Chat, settings: Settings) -> None:
    assert (chat.edit("bob", 4, "x"), chat.delete_message("bob", 99)) == (None, None)
    change(settings, CHAT_MAX_LENGTH=1)
    chat.send("bob", "four")
    assert (chat.edit("bob", 3, "x"), chat.delete_message("ann", 1)) == (None, None)
    assert bodies(chat.history("cat")) == ["four"]


def test_an_owner_deletes_messages_from_before_joining(chat: Chat) -> None:
    chat.join("dan", by="ann")
    assert chat.delete_message("dan", 2) is None
    chat.set_role("ann", "dan", "owner")
    assert chat.edit("dan", 2, "x") is None
    deleted = chat.delete_message("dan", 2)
    assert (deleted.body, deleted.deleted) == ("", True)
    assert chat.history("cat").messages[1].deleted
    assert chat.history("dan").messages == []


def test_messages_from_before_joining_cannot_be_corrected(chat: Chat) -> None:
    chat.leave("bob")
    chat.join("bob", by="ann")
    assert chat.edit("bob", 2, "x") is None
    assert chat.delete_message("bob", 2) is None
    assert chat.history("cat").messages[1].body == "two"


def test_corrections_change_neither_unread_nor_positions(chat: Chat) -> None:
    chat.ack("cat", 1)
    chat.send("cat", "four")
    chat.edit("bob", 2, "zwei")
    chat.delete_message("bob", 3)
    chat.edit("cat", 4, "vier")
    assert Inbox("cat").unread() == 2
    (news,) = Inbox("cat").pending()
    assert bodies(news) == ["zwei", "", "vier"]
    assert [one.read_id for one in chat.members()] == [0, 3, 1]
    assert chat.ack("cat", 2) == 2
    assert Inbox("cat").unread() == 1
    assert Inbox("ann").unread() == 4


def test_edit_keeps_the_cursor(chat: Chat) -> None:
    cursor = chat.history("cat").messages[1].cursor
    chat.edit("bob", 2, "zwei")
    assert chat.ack("cat", cursor) == 2
    chat.delete_message("bob", 2)
    page = chat.history("cat", after=cursor)
    assert (ids(page), page.reset) == ([3], False)


def test_repeated_send_does_not_undo_an_edit(chat: Chat) -> None:
    chat.send("bob", "four", request_id="r")
    chat.edit("bob", 4, "vier")
    chat.send("bob", "four", request_id="r")
    assert bodies(chat.history("cat")) == ["one", "two", "three", "vier"]


async def test_async_edit_and_delete(chat: Chat) -> None:
    said(chat, "cat", "four")
    edited = await chat.aedit("cat", 4, "vier")
    assert edited is not None
    assert edited.body == "vier"
    gone = await chat.adelete_message("ann", 4)
    assert gone is not None
    assert gone.deleted
    assert await chat.aedit("cat", 4, "x") is None
    with pytest.raises(NotPermitted):
        await chat.adelete_message("cat", 1)
