"""Users as a site passes them: type checkers accept user objects and member ids wherever a user is taken.

mypy and pyright check this file with the package. Each comment `type: ignore` marks a mistake that both have
to report: an unnecessary one is an error.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from django_redis_messaging import (
    Blocks,
    Chat,
    Choices,
    Directory,
    Inbox,
    Mailbox,
    RecentContacts,
    aforget,
    anotify,
    anotify_many,
    forget,
    live,
    notify,
    notify_many,
)


@login_required
def check_view(request: HttpRequest) -> HttpResponse:
    chat = Chat.create(request.user, User.objects.filter(is_staff=True), "Hello!")
    notify(request.user, "Ready", sender=request.user)
    assert_type(Inbox(request.user).unread(), int)
    return HttpResponse(chat.id)


@login_required
async def check_async_view(request: HttpRequest) -> HttpResponse:
    await anotify(request.user, "Ready")
    user = await request.auser()
    await anotify(user, "Ready", sender=user)
    assert_type(await Inbox(user).aunread(), int)
    async for event in live.events(user):
        assert_type(event, live.LiveEvent)
    return HttpResponse()


def check_chats(user: AbstractBaseUser, other: User, everybody: QuerySet[User]) -> None:
    chat = Chat.create(user, [other, "bob"], "Hello!")
    assert_type(Chat.direct(user, other), Chat)
    assert_type(chat.send(user, "Hi", mentions=everybody).sender, str)
    assert_type(chat.members(after=user)[0].user, str)
    assert_type(chat.add([other], by=user), list[str])
    assert_type(chat.join(other, by="ann"), bool)
    chat.set_role(user, other, "owner")
    chat.leave(other, by=user)
    chat.ack("ann", 1)
    chat.send(7, "Hi")  # type: ignore[arg-type]
    chat.send([user], "Hi")  # type: ignore[arg-type]
    chat.send(User, "Hi")  # type: ignore[arg-type]
    chat.add(other, by=user)  # type: ignore[arg-type]
    chat.add([7], by=user)  # type: ignore[list-item]
    Chat.create(user, other)  # type: ignore[arg-type]
    Chat.direct(user, None)  # type: ignore[arg-type]


def check_others(user: AbstractBaseUser, other: User, everybody: list[User]) -> None:
    assert_type(Inbox(user).user, str)
    assert_type(Mailbox(user).send("Hi", sender=other).sender, str | None)
    assert_type(Blocks(user).block(other), bool | None)
    assert_type(notify_many(everybody, "Ready", sender=user), list[str])
    Choices().choose(user, online=False)
    RecentContacts(user).touch(other)
    Directory("staff").add(user, "Ann")
    Directory("staff").add_many((one, one.get_full_name()) for one in everybody)
    Directory("staff").add_many([("bob", "Bob"), (user, "Ann")])
    assert_type(Directory("staff").labels(everybody), dict[str, str])
    live.Presence().online(everybody)
    forget(user)
    forget(user.pk)
    forget(7)  # type: ignore[arg-type]
    Inbox(7)  # type: ignore[arg-type]
    Mailbox(None)  # type: ignore[arg-type]
    notify_many(user, "Ready")  # type: ignore[arg-type]
    Directory("staff").add_many([(7, "Ann")])  # type: ignore[list-item]


async def check_async_versions(user: AbstractBaseUser, everybody: list[User]) -> None:
    chat = await Chat.acreate(user, everybody)
    await chat.asend(user, "Hi")
    await chat.asend(7, "Hi")  # type: ignore[arg-type]
    assert_type(await anotify_many(everybody, "Ready"), list[str])
    await anotify_many(user, "Ready")  # type: ignore[arg-type]
    await aforget(user)
    await aforget(7)  # type: ignore[arg-type]
