"""Fills the demo: users, the directory they are found in, and a few chats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.urls import reverse

from django_redis_messaging import Chat, ChatExists, Mailbox, notify
from django_redis_messaging.services.directories import Directory
from django_redis_messaging.web.identity import current as identity

from .cast import CAST, TALKS, WELCOME, Talk
from .names import full_names

#: contacts stored between two reports of progress
PAGE = 500

#: contacts between two lines of progress where the output is no terminal
REPORT = 1000

Report = Callable[[int, int], None]


def make_users(contacts: int) -> None:
    """The people of the cast, and `contacts` more whom nobody signs in as."""
    nobody = make_password(None)
    cast = [
        User(
            username=person.username,
            first_name=person.first_name,
            last_name=person.last_name,
            password=nobody,
            is_staff=person is CAST[0],
            is_superuser=person is CAST[0],
        )
        for person in CAST
    ]
    others = (
        User(username=f"contact-{number}", first_name=first, last_name=last, password=nobody)
        for number, (first, last) in enumerate(full_names(contacts), start=1)
    )
    User.objects.bulk_create(cast, ignore_conflicts=True)
    User.objects.bulk_create(others, batch_size=PAGE, ignore_conflicts=True)


def fill_directory(report: Report) -> int:
    """Put all users into the directory they share, unless they are there; returns how many it has."""
    users = User.objects.order_by("pk")
    total = users.count()
    directory = Directory(identity().directories(None)[0])
    if directory.size() == total:
        return total
    pairs = ((identity().member_id(user), identity().label(user)) for user in users.iterator())
    done = 0
    while page := list(islice(pairs, PAGE)):
        done += directory.add_many(page)
        report(done, total)
    return directory.size()


def start_talks(talks: Iterable[Talk] = TALKS) -> None:
    """The chats of the cast; those that exist already are left as they are."""
    ids = _ids()
    for talk in talks:
        first, *lines = talk.lines
        try:
            chat = Chat.create(
                ids[first[0]],
                [ids[name] for name in talk.people],
                first[1],
                chat_id=talk.chat_id,
                title=talk.title,
            )
        except ChatExists:
            continue
        for number, (speaker, line) in enumerate(lines):
            chat.send(ids[speaker], line, request_id=f"demo-{number}")


def welcome() -> None:
    """Notify each of the cast of what there is to try, unless they were notified of anything before."""
    for member in _ids().values():
        if not Mailbox(member).status().last_id:
            for text, address in WELCOME:
                notify(member, text, url=reverse(address))


def _ids() -> dict[str, str]:
    """The member id of each person of the cast."""
    users = User.objects.filter(username__in=[person.username for person in CAST])
    return {user.username: identity().member_id(user) for user in users}
