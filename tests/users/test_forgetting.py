"""forget() removes all data of a user, and nothing else."""

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

from ..support.server import all_keys, bodies, create_chat


def test_all_data_of_the_user_is_removed_and_nothing_else() -> None:
    create_chat("shared", "hi", members=("bob", "cat"))
    Chat.create("bob", ["cat"], "mine", chat_id="owned")
    Chat.create("bob", [], "note", chat_id="alone")
    for order in ("recent", "frequency"):
        RecentContacts("bob", order=order).touch("cat")
    for guild in ("club", "staff"):
        Directory(guild).add_many([("bob", "Bob Builder"), ("cat", "Cat Stevens")])
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
    before = all_keys()
    for user in ("bob", "nobody"):
        forget(user)
    assert all_keys() == before


async def test_async_version() -> None:
    await Chat.acreate("ann", ["bob"], "hi", chat_id="shared")
    await aforget("bob")
    assert await Inbox("bob").achats() == []


def test_more_chats_than_fit_into_one_pipeline() -> None:
    for number in range(110):
        Chat.create("ann", ["bob"], chat_id=f"c{number}")
    forget("bob")
    assert Inbox("bob").chats(limit=1000) == []
    assert len(Inbox("ann").chats(limit=1000)) == 110


@pytest.mark.parametrize("user", ["", "a\0b", "x" * 256])
def test_bad_names(user: str) -> None:
    with pytest.raises(ValueError, match="user"):
        forget(user)
