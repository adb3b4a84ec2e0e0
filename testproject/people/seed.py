"""Creates the data of the demo: users, their directory, chats, notifications and the market."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from itertools import cycle, islice

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.urls import reverse
from market.models import Item, Wallet

from django_redis_messaging import Chat, ChatExists, Mailbox, notify
from django_redis_messaging.services.directories import Directory
from django_redis_messaging.web.identity import current as identity

from .fixtures import CHATS, FUNDS, ITEMS, NOTIFICATIONS, SENTENCES, USERS, DemoChat, titles
from .names import full_names
from .serving import stop_if_requested

#: users or contacts stored at once
BATCH_SIZE = 500
#: contacts between two lines of progress if the output is not a terminal
PROGRESS_INTERVAL = 1000

#: is called with the number of contacts stored so far, and the total
ReportProgress = Callable[[int, int], None]


def create_users(contacts: int) -> None:
    """Create the demo users, and `contacts` more users who can't sign in."""
    unusable = make_password(None)
    users = [
        User(
            username=user.username,
            first_name=user.first_name,
            last_name=user.last_name,
            password=unusable,
            is_staff=user is USERS[0],
            is_superuser=user is USERS[0],
        )
        for user in USERS
    ]
    others = (
        User(username=f"contact-{number}", first_name=first, last_name=last, password=unusable)
        for number, (first, last) in enumerate(full_names(contacts), start=1)
    )
    User.objects.bulk_create(users, ignore_conflicts=True)
    User.objects.bulk_create(others, batch_size=BATCH_SIZE, ignore_conflicts=True)


def set_staff_password() -> tuple[str, str]:
    """Give the superuser of the demo a new password; returns user name and password."""
    user, password = User.objects.get(username=USERS[0].username), secrets.token_urlsafe(12)
    user.set_password(password)
    user.save(update_fields=["password"])
    return user.username, password


def fill_directory(report_progress: ReportProgress) -> int:
    """Add all users to their common directory, unless it is complete; returns its size."""
    users = User.objects.order_by("pk")
    total = users.count()
    directory = Directory(identity().directories(None)[0])
    if directory.size() == total:
        return total
    done = 0
    for start in range(0, total, BATCH_SIZE):
        page = users[start : start + BATCH_SIZE]
        done += directory.add_many([(identity().member_id(user), identity().label(user)) for user in page])
        report_progress(done, total)
    return directory.size()


def create_chats(chats: Iterable[DemoChat] = CHATS) -> None:
    """Create the chats of the demo users; existing chats are left unchanged."""
    ids = _member_ids()
    for demo in chats:
        (sender, text), *messages = demo.messages
        try:
            chat = Chat.create(
                ids[sender],
                [ids[username] for username in demo.members],
                text,
                chat_id=demo.chat_id,
                title=demo.title,
            )
        except ChatExists:
            continue
        for number, (sender, text) in enumerate(messages):
            chat.send(ids[sender], text, request_id=f"demo-{number}")


def fill_chats(chats: int, messages: int) -> None:
    """Create chats of all demo users, each with this number of messages; existing chats are left unchanged.

    They are filled concurrently, which takes a third of the time.
    """
    members = list(_member_ids().values())

    async def fill_all() -> None:
        named = enumerate(islice(titles(), chats))
        await asyncio.gather(*(_fill_chat(number, title, members, messages) for number, title in named))

    asyncio.run(fill_all())


async def _fill_chat(number: int, title: str, members: list[str], messages: int) -> None:
    """Create a chat. In every fifth one, up to four messages are unread by those who sent none of them."""
    senders = list(islice(cycle(members), number % len(members), number % len(members) + messages))
    texts = islice(cycle(SENTENCES), number % len(SENTENCES), None)
    try:
        chat = await Chat.acreate(
            senders[0], members, next(texts), chat_id=f"demo-chat-{number}", title=title
        )
    except ChatExists:
        return
    for sender, text in zip(senders[1:], texts, strict=False):
        stop_if_requested()
        await chat.asend(sender, text)
    unread = number % 4 + 1 if number % 5 == 0 else 0
    for member in members:
        has_sent = member in senders[-unread:]
        await chat.aack(member, messages if has_sent else max(1, messages - unread))


def send_notifications() -> None:
    """Notify the demo users of what to try, unless they have had notifications before."""
    for member in _member_ids().values():
        if not Mailbox(member).status().last_id:
            for text, url_name in NOTIFICATIONS:
                notify(member, text, url=reverse(url_name))


def open_market() -> None:
    """Give the demo users funds and items, unless they have had them before."""
    ids = _member_ids()
    for member in ids.values():
        Wallet.objects.get_or_create(member=member, defaults={"funds": FUNDS})
    if not Item.objects.exists():
        owned = ((ids[username], name, price) for username, name, price in ITEMS)
        Item.objects.bulk_create(
            Item(name=name, price=price, owner=owner, location=owner) for owner, name, price in owned
        )


def _member_ids() -> dict[str, str]:
    """user name → member id of the demo users."""
    users = User.objects.filter(username__in=[user.username for user in USERS])
    return {user.username: identity().member_id(user) for user in users}
