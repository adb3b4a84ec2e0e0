"""E-mail digests: `manage.py send_digests`."""

from __future__ import annotations

import io
import logging
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.mail.backends.locmem import EmailBackend
from django.core.management import CommandError
from django.urls import reverse
from pytest_django import Settings

from django_redis_messaging import Chat, ConfigurationError, Lock, Unavailable, forget
from django_redis_messaging.management.commands.send_digests import MailingDisplay
from django_redis_messaging.services.digests import MAX_AGE, DigestRecord
from django_redis_messaging.web import digest_mailing, digests
from django_redis_messaging.web.digest_mailing import Mailing, send_digests
from django_redis_messaging.web.identity import Identity
from tests.conftest import Call
from tests.services.asking import all_keys, change, server, server_ms, until
from tests.terminal import output_of

BASE = "https://example.com"


@pytest.fixture(autouse=True)
def due_at_once(settings: Settings) -> None:
    change(settings, DIGEST_AFTER=0.001, DIGEST_BASE_URL=BASE)
    settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}


@pytest.fixture
def people(person: Callable[..., User]) -> dict[str, User]:
    made = {name: person(name, first_name=name.title()) for name in ("ann", "bob", "cat")}
    for name in ("bob", "cat"):
        made[name].email = f"{name}@example.org"
        made[name].save()
    return made


@pytest.fixture
def chat(people: dict[str, User]) -> Chat:
    made = Chat.create(id_of(people, "ann"), [id_of(people, "bob")], title="Trip <b>")
    send(made, people, "See <this>")
    return made


def id_of(people: dict[str, User], name: str) -> str:
    return str(people[name].pk)


def send(chat: Chat, people: dict[str, User], text: str) -> None:
    """Send a message, and wait until it is old enough for a digest."""
    sent = chat.send(id_of(people, "ann"), text).sent_at
    until(lambda: server_ms() > sent.timestamp() * 1000 + 2)


class Hooks(Identity):
    def email(self, user: Any) -> str:
        return f"{user.username}@hooks.example" if user.username != "cat" else ""

    def wants_digest(self, user: Any) -> bool:
        return bool(user.username != "ann")

    def language(self, user: Any) -> str:
        return "de"


class InvalidIds(Identity):
    def member_id(self, user: Any) -> str:
        return "" if user.username == "ann" else super().member_id(user)


def test_what_is_unread_is_mailed_once(chat: Chat, people: dict[str, User], mailoutbox: list[Any]) -> None:
    assert output_of("send_digests")[0] == "1 digest mailed, 0 failed.\n"
    (mail,) = mailoutbox
    assert (mail.to, mail.subject) == (["bob@example.org"], "1 unread message on example.com")
    url = BASE + reverse("messaging:room", args=[chat.id])
    assert f"\nTrip <b> (1)\n  Ann: See <this>\n  {url}\n" in mail.body
    ((html, kind),) = mail.alternatives
    assert kind == "text/html" and "<strong>Ann</strong>: See &lt;this&gt;" in html
    assert f'<a href="{url}">Trip &lt;b&gt;</a> (1)' in html
    output_of("send_digests")
    assert len(mailoutbox) == 1
    send(chat, people, "Second")
    output_of("send_digests")
    assert "See" not in mailoutbox[1].body and "Ann: Second" in mailoutbox[1].body


def test_what_is_left_out(
    chat: Chat, people: dict[str, User], mailoutbox: list[Any], settings: Settings
) -> None:
    bob = id_of(people, "bob")
    change(settings, DIGEST_AFTER=60)
    assert send_digests().mailed == 0, "too new"
    change(settings, DIGEST_AFTER=0.001)
    chat.mute(bob, datetime.now(UTC) + timedelta(hours=1))
    assert send_digests().mailed == 0, "muted"
    chat.mute(bob, None)
    chat.delete_message(id_of(people, "ann"), 1)
    assert send_digests().mailed == 0, "deleted"
    send(chat, people, "Read")
    chat.ack(bob, 2)
    assert send_digests().mailed == 0, "read"
    send(chat, people, "Unread")
    people["bob"].is_active = False
    people["bob"].save()
    assert send_digests().mailed == 0, "inactive"
    people["bob"].is_active = True
    people["bob"].save()
    assert send_digests().mailed == 1
    assert len(mailoutbox) == 1 and "(1)" in mailoutbox[0].body


def test_the_hooks_of_the_identity(
    chat: Chat, people: dict[str, User], mailoutbox: list[Any], settings: Settings
) -> None:
    chat.add([id_of(people, "cat")], by=id_of(people, "ann"))
    send(chat, people, "All")
    chat.send(id_of(people, "bob"), "To Ann")
    change(settings, IDENTITY=f"{__name__}.Hooks")
    output_of("send_digests")
    (mail,) = mailoutbox
    assert mail.to == ["bob@hooks.example"]
    assert mail.subject == "2 ungelesene Nachrichten auf example.com"
    assert '<html lang="de" dir="ltr">' in mail.alternatives[0][0]


def test_a_digest_is_bounded(
    people: dict[str, User], mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "MAX_SHOWN_CHATS", 2)
    monkeypatch.setattr(digests, "MAX_MESSAGES", 5)
    monkeypatch.setattr(digests, "_PAGE_SIZE", 1)
    monkeypatch.setattr(digests, "MAX_CHATS", 3)
    for number in range(4):
        ids = id_of(people, "ann"), [id_of(people, "bob")]
        chat = Chat.create(*ids, title=f"Chat {number}", chat_id=f"chat-{number}")  # the order of equal times
        for text in range(7):
            chat.send(id_of(people, "ann"), f"Text {text} " + "x" * 1_000)
    send(chat, people, "Last")
    output_of("send_digests")
    body = mailoutbox[0].body
    assert body.startswith("You have 15 unread messages.")
    assert "Chat 3 (5)" in body and "Chat 2 (5)" in body and "And 1 more chat." in body
    assert "Ann: Last" in body and body.count("Ann: Text") == 5 and "Chat 1" not in body
    assert len(body) < 1_500


def test_a_dry_run_mails_and_records_nothing(
    chat: Chat, people: dict[str, User], mailoutbox: list[Any]
) -> None:
    before = all_keys()
    out = output_of("send_digests", "--dry-run")[0]
    assert out == f"'{id_of(people, 'bob')}': 1 message in 1 chat\n1 digest to mail, 0 failed.\n"
    assert mailoutbox == [] and all_keys() == before


def test_links_need_a_base(chat: Chat, settings: Settings, mailoutbox: list[Any]) -> None:
    change(settings, DIGEST_BASE_URL="")
    with pytest.raises(CommandError, match="DIGEST_BASE_URL"):
        output_of("send_digests")
    for bad in ("example.com", "ftp://example.com", "https://", "https://[x", "https://a.example/?b"):
        with pytest.raises(CommandError, match="must be like"):
            output_of("send_digests", "--base-url", bad)
    output_of("send_digests", "--base-url", "https://other.example/chat/")
    assert f"https://other.example/chat{reverse('messaging:chats')}" in mailoutbox[0].body


def test_a_failed_mail_is_repeated(
    chat: Chat,
    people: dict[str, User],
    mailoutbox: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chat.add([id_of(people, "cat")], by=id_of(people, "ann"))
    send(chat, people, "Again")
    real = EmailBackend.send_messages

    def refuse_bob(self: EmailBackend, messages: Any) -> int:
        if messages[0].to == ["bob@example.org"]:
            raise OSError("refused\n")
        return real(self, messages)

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(EmailBackend, "send_messages", refuse_bob)
        with pytest.raises(CommandError, match="1 failed"):
            output_of("send_digests")
        patched.setattr(digest_mailing, "MAX_FAILURES", 1)
        with pytest.raises(CommandError, match="in a row"):
            output_of("send_digests")
    assert repr(id_of(people, "bob")) in caplog.text and r"refused\n" in caplog.text
    assert "Again" not in caplog.text
    output_of("send_digests")
    assert [mail.to for mail in mailoutbox] == [["cat@example.org"], ["bob@example.org"]]


def test_a_mail_that_the_backend_does_not_send_is_repeated(
    chat: Chat, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(EmailBackend, "send_messages", lambda self, messages: 0)
        assert send_digests().failed == 1
    assert send_digests().mailed == len(mailoutbox) == 1


def test_a_user_whose_id_is_not_valid_does_not_stop_the_others(
    chat: Chat, people: dict[str, User], mailoutbox: list[Any], settings: Settings
) -> None:
    people["ann"].email = "ann@example.org"
    people["ann"].save()
    change(settings, IDENTITY=f"{__name__}.InvalidIds")
    counts = send_digests()
    assert (counts.mailed, counts.failed) == (1, 1)


def test_a_crash_after_a_mail_repeats_it(
    chat: Chat, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise Unavailable("gone")

    with monkeypatch.context() as patched, pytest.raises(CommandError, match="gone"):
        patched.setattr(DigestRecord, "save", crash)
        output_of("send_digests")
    output_of("send_digests")
    assert len(mailoutbox) == 2


def test_one_run_at_a_time(chat: Chat, mailoutbox: list[Any]) -> None:
    with Lock("send_digests"), pytest.raises(CommandError, match="Another run"):
        output_of("send_digests")
    assert mailoutbox == []


def test_a_run_that_loses_its_lock_ends(
    chat: Chat, people: dict[str, User], mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_mailing, "LEASE", 0.2)
    chat.add([id_of(people, "cat")], by=id_of(people, "ann"))
    send(chat, people, "All")

    def lose(digest: object) -> None:
        server().delete(Lock("send_digests").key)
        until(lambda: mailing._lost)

    mailing = Mailing(found=lose)
    assert mailing.run() is False
    assert len(mailoutbox) == 1


def test_a_signal_stops_it_after_the_current_user(
    chat: Chat, people: dict[str, User], mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.add([id_of(people, "cat")], by=id_of(people, "ann"))
    send(chat, people, "All")
    real = EmailBackend.send_messages

    def interrupted(self: EmailBackend, messages: Any) -> int:
        signal.raise_signal(signal.SIGTERM)
        return real(self, messages)

    with monkeypatch.context() as patched, pytest.raises(CommandError, match="Stopped") as caught:
        patched.setattr(EmailBackend, "send_messages", interrupted)
        output_of("send_digests")
    assert caught.value.returncode == 3
    output_of("send_digests")
    assert [mail.to for mail in mailoutbox] == [["bob@example.org"], ["cat@example.org"]]


def test_users_are_read_in_batches(
    chat: Chat, people: dict[str, User], mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_mailing, "BATCH", 2)
    mailing, display = Mailing(), MailingDisplay(io.StringIO(), "Sending")
    display.begin(mailing)
    assert mailing.run() is True
    assert display.snapshot(0).text == "3 of 3 users, 1 mailed"


def test_without_the_pages(settings: Settings) -> None:
    settings.ROOT_URLCONF = "django.contrib.auth.urls"
    with pytest.raises(ConfigurationError, match="include"):
        Mailing()


async def test_the_record_expires_and_is_forgotten(call: Call) -> None:
    record = DigestRecord("ann")
    now, since = await call(record, "read")
    assert now - since == MAX_AGE
    await call(record, "save", now - timedelta(hours=1))
    assert (await call(record, "read")).since == now - timedelta(hours=1)
    assert 0 < server().pttl(all_keys()[0]) <= MAX_AGE.total_seconds() * 1000
    await call(record, "save", now - 2 * MAX_AGE)
    later, since = await call(record, "read")
    assert later - since == MAX_AGE


def test_forget_deletes_the_record() -> None:
    DigestRecord("ann").save(datetime.now(UTC))
    forget("ann")
    assert all_keys() == []
