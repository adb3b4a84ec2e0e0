"""What a user leaves behind, removed: and only that."""

import pytest

from django_redis_messaging import (
    Chat,
    ChatNotFound,
    Directory,
    Inbox,
    NotAMember,
    RecentContacts,
    aforget,
    forget,
)

from .asking import all_keys, bodies, talk


def settle_in(user: str) -> None:
    """Chats with others and one alone, contacts, two directories."""
    talk("shared", "hi", members=(user, "cat"))
    Chat.create(user, ["cat"], "mine", chat_id="owned")
    Chat.create(user, [], "note", chat_id="alone")
    for order in ("recent", "frequency"):
        RecentContacts(user, order=order).touch("cat")
    for guild in ("club", "staff"):
        Directory(guild).add_many([(user, "Bob Builder"), ("cat", "Cat Stevens")])


def test_everything_of_the_user_is_gone_and_what_others_have_stays() -> None:
    settle_in("bob")
    RecentContacts("cat").touch("bob")

    forget("bob")

    assert Inbox("bob").chats() == []
    assert RecentContacts("bob").list() == []
    for guild in ("club", "staff"):
        assert Directory(guild).suggest("bob") == []
        assert [contact.id for contact in Directory(guild).suggest("")] == ["cat"]
    with pytest.raises(NotAMember):
        Chat("shared").history("bob")
    with pytest.raises(ChatNotFound):
        Chat("alone").info()
    assert bodies(Chat("owned").history("cat")) == ["mine"]
    assert [member.role for member in Chat("owned").members()] == ["owner"]
    assert RecentContacts("cat").list() == ["bob"]
    assert not [key for key in all_keys() if "{user:bob}" in key]


def test_it_can_be_done_again() -> None:
    settle_in("bob")
    forget("bob")
    before = sorted(all_keys())
    forget("bob")
    forget("nobody")
    assert sorted(all_keys()) == before


async def test_awaiting() -> None:
    await Chat.acreate("ann", ["bob"], "hi", chat_id="shared")
    await aforget("bob")
    assert await Inbox("bob").achats() == []


def test_more_chats_than_one_pipeline_takes() -> None:
    for number in range(110):
        Chat.create("ann", ["bob"], chat_id=f"c{number}")
    forget("bob")
    assert Inbox("bob").chats(limit=1000) == []
    assert len(Inbox("ann").chats(limit=1000)) == 110


@pytest.mark.parametrize("user", ["", "a\0b", "x" * 256])
def test_bad_names(user: str) -> None:
    with pytest.raises(ValueError, match="user"):
        forget(user)
