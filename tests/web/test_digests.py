"""E-mail digests: `manage.py send_digests`."""

from __future__ import annotations

import asyncio
import contextlib
import email.policy
import io
import itertools
import logging
import re
import signal
import smtplib
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import django
import pytest
from django.core.mail.backends.locmem import EmailBackend
from django.core.management import CommandError
from django.core.signing import Signer
from django.test import Client
from django.urls import reverse
from django.utils import formats
from pytest_django import Settings

from django_redis_messaging import Blocks, Chat, Choices, ConfigurationError, Lock, Unavailable, conf, forget
from django_redis_messaging.management.commands.send_digests import MailingDisplay
from django_redis_messaging.services.chats import digests as services_digests
from django_redis_messaging.services.chats.digests import MAX_AGE, DigestInbox, DigestRecord, DigestRun
from django_redis_messaging.web import digest_mailing
from django_redis_messaging.web.digest_mailing import Mailing, MailingFailed, send_digests
from django_redis_messaging.web.identity import Identity

from ..conftest import Call
from ..support.people import Member
from ..support.server import all_keys, change, keys, server, server_ms, until
from ..support.terminal import output_of
from .conftest import Person, get, post

BASE = "https://example.com"


@pytest.fixture(autouse=True)
def due_at_once(settings: Settings) -> None:
    change(settings, DIGEST_AFTER=0.001, DIGEST_BASE_URL=BASE)
    settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}


@pytest.fixture
def bob(person: Person) -> Member:
    return Member(person("bob", first_name="Bob", email="bob@example.org"))


@pytest.fixture
def cat(person: Person) -> Member:
    return Member(person("cat", first_name="Cat", email="cat@example.org"))


@pytest.fixture
def chat(ann: Member, bob: Member) -> Chat:
    made = Chat.create(ann, [bob], title="Trip <b>")
    send(made, ann, "See <this>")
    return made


def send(chat: Chat, sender: str, text: str) -> None:
    """Send a message, and wait until it is old enough for a digest."""
    sent = chat.send(sender, text).sent_at
    until(lambda: server_ms() > sent.timestamp() * 1000 + 2)


class Hooks(Identity):
    def email(self, user: Any) -> str:
        return f"{user.username}@hooks.example" if user.username != "cat" else ""

    def wants_digest(self, user: Any) -> bool:
        return bool(user.username != "ann")

    def language(self, user: Any) -> str:
        return "de"


class Abroad(Identity):
    def time_zone(self, user: Any) -> str:
        return {"bob": "Asia/Shanghai", "cat": "../nowhere"}.get(user.username, "")


class Defective(Identity):
    def email(self, user: Any) -> str:
        if user.username == "cat":
            raise RuntimeError
        return super().email(user)


class InvalidIds(Identity):
    def member_id(self, user: Any) -> str:
        return "" if user.username == "ann" else super().member_id(user)


def test_what_is_unread_is_mailed_once(chat: Chat, ann: Member, mailoutbox: list[Any]) -> None:
    assert output_of("send_digests")[0] == "1 digest mailed, 0 failed.\n"
    (mail,) = mailoutbox
    assert (mail.to, mail.subject) == (["bob@example.org"], "1 unread message on example.com")
    url = BASE + reverse("messaging:room", args=[chat.id])
    assert re.search(rf"\nAnn, “Trip <b>” \(1\)\n  Ann, \S.*: “See <this>”\n  {url}\n", mail.body)
    ((html, kind),) = mail.alternatives
    assert kind == "text/html" and "<strong><bdi>Ann</bdi></strong>, " in html
    assert "“See &lt;this&gt;”" in html
    assert '<h2 style="font-size: 1em"><bdi>Ann, “Trip &lt;b&gt;”</bdi> (1)</h2>' in html
    assert f'<a href="{url}">Open this chat</a>' in html
    output_of("send_digests")
    assert len(mailoutbox) == 1
    send(chat, ann, "Second")
    output_of("send_digests")
    assert "See" not in mailoutbox[1].body and "“Second”" in mailoutbox[1].body


def test_what_is_left_out(
    chat: Chat, ann: Member, bob: Member, mailoutbox: list[Any], settings: Settings
) -> None:
    change(settings, DIGEST_AFTER=60)
    assert send_digests().mailed == 0, "too new"
    change(settings, DIGEST_AFTER=0.001)
    chat.mute(bob, datetime.now(UTC) + timedelta(hours=1))
    assert send_digests().mailed == 0, "muted"
    chat.mute(bob, None)
    chat.delete_message(ann, 1)
    assert send_digests().mailed == 0, "deleted"
    send(chat, ann, "Read")
    chat.ack(bob, 2)
    assert send_digests().mailed == 0, "read"
    send(chat, ann, "Unread")
    bob.user.is_active = False
    bob.user.save()
    assert send_digests().mailed == 0, "inactive"
    bob.user.is_active = True
    bob.user.save()
    assert send_digests().mailed == 1
    assert len(mailoutbox) == 1 and "(1)" in mailoutbox[0].body


def test_the_hooks_of_the_identity(
    chat: Chat, ann: Member, bob: Member, cat: Member, mailoutbox: list[Any], settings: Settings
) -> None:
    chat.add([cat], by=ann)
    send(chat, ann, "All")
    chat.send(bob, "To Ann")
    change(settings, IDENTITY=f"{__name__}.Hooks")
    output_of("send_digests")
    (mail,) = mailoutbox
    assert mail.to == ["bob@hooks.example"]
    assert mail.subject == "2 ungelesene Nachrichten auf example.com"
    assert '<html lang="de" dir="ltr" ' in mail.alternatives[0][0]


def test_times_are_those_of_the_recipient(
    chat: Chat, ann: Member, cat: Member, mailoutbox: list[Any], settings: Settings
) -> None:
    settings.TIME_ZONE = "America/New_York"
    change(settings, IDENTITY=f"{__name__}.Abroad")
    chat.add([cat], by=ann)
    send(chat, ann, "All")
    output_of("send_digests")
    sent_at = chat.history(cat).messages[-1].sent_at
    for mail, zone in zip(mailoutbox, ("Asia/Shanghai", "America/New_York"), strict=True):
        local = formats.date_format(sent_at.astimezone(ZoneInfo(zone)), "SHORT_DATETIME_FORMAT")
        assert f"  Ann, {local}: “All”\n" in mail.body
        assert f"Times are in the time zone {zone}." in mail.body


def test_a_digest_shows_some_chats_and_counts_the_others(
    ann: Member, bob: Member, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_mailing, "MAX_SHOWN_CHATS", 2)
    for number in range(4):
        title = f"Chat {number}"  # the id orders chats of equal times
        chat = Chat.create(ann, [bob], title=title, chat_id=title)
        for text in range(7):
            chat.send(ann, f"Text {text} " + "x" * 1_000)
    send(chat, ann, "Last")
    output_of("send_digests")
    body = mailoutbox[0].body
    assert body.startswith("You have 29 unread messages.")
    assert "“Chat 3” (8)" in body and "“Chat 2” (7)" in body and "And 2 more chats." in body
    assert "“Last”" in body and body.count("“Text") == 5 and "Chat 1" not in body
    assert len(body) < 1_800


class TestWhatIsCounted:
    async def test_the_period_excludes_its_beginning_and_includes_its_end(self, call: Call) -> None:
        chat = Chat.create("ann", ["bob"])
        moments = []
        for text in ("One", "Two", "Three"):
            moments.append(chat.send("ann", text).sent_at)
            until(lambda: server_ms() > moments[-1].timestamp() * 1000)

        async def find(since: datetime, end: datetime) -> list[str]:
            found = await call(DigestInbox("bob"), "find", since, end)
            return [message.body for unread in found for message in unread.latest]

        one, two, three = moments
        assert await find(one, two) == ["Two"]
        assert await find(two, three) == ["Three"]
        assert await find(one - timedelta(milliseconds=1), one) == ["One"]
        assert await find(three, three + timedelta(hours=1)) == []

    async def test_long_messages_and_those_of_blocked_people(self, call: Call) -> None:
        chat = Chat.create("ann", ["bob", "eve"], chat_id="long")
        for number in range(12):
            chat.send("ann", f"Long {number} " + "x" * 65_000)
            chat.send("eve", "y" * 65_000)
            chat.send("bob", "Own")
        chat.delete_message("ann", chat.send("ann", "Deleted").id)
        for number in range(130):
            chat.send("eve" if number % 10 == 9 else "ann", f"Short {number}")
        now = (await call(DigestRecord("bob"), "read")).now
        (found,) = await call(DigestInbox("bob"), "find", now - MAX_AGE, now, hidden=["eve"])
        assert found.summary.unread == 12 + 117
        assert [message.body for message in found.latest] == ["Short 126", "Short 127", "Short 128"]
        (found,) = await call(DigestInbox("bob"), "find", now - MAX_AGE, now, latest=1)
        assert found.summary.unread == 24 + 130
        assert [message.body for message in found.latest] == ["Short 129"]

    async def test_many_messages_of_many_chats(self, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(3):
            chat = Chat.create("ann", ["bob"], chat_id=f"many-{number}")
            async with asyncio.TaskGroup() as group:
                for _ in range(1_100):
                    group.create_task(chat.asend("ann", "Hello"))
        now = (await call(DigestRecord("bob"), "read")).now
        arguments = now - MAX_AGE, now + timedelta(hours=1)
        before = scripts_run()
        found = await call(DigestInbox("bob"), "find", *arguments)
        assert [unread.summary.unread for unread in found] == [1_100] * 3
        assert 4 <= scripts_run() - before <= 6, "1000 messages at a time, on the Cluster of each chat"
        monkeypatch.setattr(services_digests, "MAX_SCRIPTS", 1)
        found = await call(DigestInbox("bob"), "find", *arguments)
        assert found and {unread.summary.unread for unread in found} == {1_100}

    async def test_a_chat_with_more_new_messages_than_old_ones(self, call: Call) -> None:
        chat = Chat.create("ann", ["bob"])
        old = chat.send("ann", "Old").sent_at
        until(lambda: server_ms() > old.timestamp() * 1000)
        for _ in range(130):
            chat.send("ann", "New")
        (found,) = await call(DigestInbox("bob"), "find", old - timedelta(hours=1), old)
        assert (found.summary.unread, [message.body for message in found.latest]) == (1, ["Old"])

    async def test_what_others_sent_since_the_member_joined(self, call: Call) -> None:
        chat = Chat.create("ann", ["cat"], "Before")
        chat.join("bob", by="ann")
        chat.send("ann", "After")
        chat.send("bob", "Own")
        now = (await call(DigestRecord("bob"), "read")).now
        for position in (1, 0):  # 0: as if the position had been lost
            server().zadd(keys(chat).members, {"bob": position})
            (found,) = await call(DigestInbox("bob"), "find", now - MAX_AGE, now)
            assert (found.summary.unread, [message.body for message in found.latest]) == (1, ["After"])
        chat.leave("bob")
        assert await call(DigestInbox("bob"), "find", now - MAX_AGE, now) == []


async def test_a_broken_chat_hides_no_others(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    chats = [Chat.create("ann", ["bob"], "Hello", chat_id=f"chat-{number}") for number in range(4)]
    server().lset(keys(chats[0]).log, 0, "foreign")
    server().lset(keys(chats[1]).log, 0, f"[{server_ms()},1,0,5,3,foreign]")
    server().delete(keys(chats[2]).log)
    now = (await call(DigestRecord("bob"), "read")).now
    (found,) = await call(DigestInbox("bob"), "find", now - MAX_AGE, now)
    assert found.summary.chat_id == "chat-3"
    assert "'chat-0' was left out of a digest" in caplog.text
    assert "'chat-1' was left out of a digest" in caplog.text


def scripts_run() -> int:
    """The number of scripts that the server has run."""
    return int(server().info("commandstats")["cmdstat_evalsha"]["calls"])


def test_messages_of_blocked_people_are_left_out(
    chat: Chat, ann: Member, bob: Member, cat: Member, mailoutbox: list[Any]
) -> None:
    chat.add([cat], by=ann)
    Blocks(bob).block(cat)
    chat.send(cat, "Buy now")
    chat.send(ann, "Hello")
    send(chat, cat, "Buy now")
    send_digests()
    assert mailoutbox[0].subject == "2 unread messages on example.com"
    assert "Buy" not in mailoutbox[0].body and "(2)" in mailoutbox[0].body
    send(chat, cat, "Buy now")
    assert send_digests().mailed == 0


class TestTextsOfUsers:
    """Whoever can write to a user can make the site mail this text: it must not be taken for the site's."""

    def test_they_are_quoted_and_have_no_links(
        self, ann: Member, bob: Member, cat: Member, mailoutbox: list[Any]
    ) -> None:
        ann.user.first_name = "Support\nhttps://evil.example/1 (www.evil.example)"
        ann.user.save()
        title = "Sign in: https://evil.example/2 \u202e" + "x" * 300
        chat = Chat.create(ann, [bob, cat], title=title)
        send(chat, ann, "” Your account:\r\n\r\nevil.example/3 <a href='https://evil.example/4'>x</a>")
        output_of("send_digests")
        mail = mailoutbox[0]
        assert mail.subject == "1 unread message on example.com"
        assert f"\nGroup “Sign in: [link] {'x' * 63}…” (1)\n  Support [link] ([link]), " in mail.body
        assert ": “' Your account: evil. example/3 <a href='[link]>”\n" in mail.body
        ((html, _),) = mail.alternatives
        for text in (mail.body, html):
            assert "evil.example" not in text and "\u202e" not in text
            assert set(re.findall(r"\w+://[^/]*", text)) == {BASE}
        assert "href='" not in html and "<script" not in html

    def test_a_title_does_not_hide_who_writes(self, ann: Member, bob: Member, mailoutbox: list[Any]) -> None:
        """In a direct chat, the title is not used."""
        direct = Chat.direct(ann, bob)
        direct.rename(ann, "Bank")
        for chat, heading in (
            (Chat.create(ann, [bob]), "Ann (1)"),
            (Chat.create(ann, [bob], title="Bank"), "Ann, “Bank” (1)"),
            (Chat.create(ann, [bob], title="\u202e"), "Ann (1)"),
            (direct, "Ann (1)"),
        ):
            send(chat, ann, "Hello")
            send_digests()
            assert f"\n{heading}\n  Ann, " in mailoutbox.pop().body
            assert mailoutbox == []


class TestUnsubscribing:
    def link(self, mail: Any) -> str:
        """The link in the header, as a mail program reads it."""
        header = rb"^List-Unsubscribe:\s+<(https://example\.com/\S+)>\r?$"
        found = re.search(header, as_sent(mail), re.MULTILINE)
        assert found, as_sent(mail)
        return found[1].decode().removeprefix(BASE)

    @pytest.mark.versions
    def test_one_click_stops_the_digests_of_this_user(
        self, chat: Chat, ann: Member, bob: Member, cat: Member, mailoutbox: list[Any]
    ) -> None:
        chat.add([cat], by=ann)
        send(chat, ann, "All")
        output_of("send_digests")
        bobs, cats = map(self.link, mailoutbox)
        assert bobs != cats
        assert b"\nList-Unsubscribe-Post: List-Unsubscribe=One-Click" in as_sent(mailoutbox[0])
        assert BASE + bobs in mailoutbox[0].body and BASE + bobs in mailoutbox[0].alternatives[0][0]
        client = Client(enforce_csrf_checks=True)
        page = client.get(bobs)
        assert '<form method="post">' in page.content.decode()
        assert "no-store" in page["Cache-Control"] and page["Referrer-Policy"] == "same-origin"
        assert Choices().get(bob).digests, "GET changes nothing"
        answer = client.post(bobs, {"List-Unsubscribe": "One-Click"})
        assert answer.status_code == 200 and "no longer" in answer.content.decode()
        send(chat, ann, "More")
        output_of("send_digests")
        assert [mail.to for mail in mailoutbox[2:]] == [["cat@example.org"]]

    def test_another_link_stops_nothing(self, bob: Member, settings: Settings, client: Client) -> None:
        good = digest_mailing.unsubscribe_token(bob)
        change(settings, PREFIX=conf.prefix() + ":tenant")
        other_tenant = digest_mailing.unsubscribe_token(bob)
        change(settings, PREFIX=conf.prefix().removesuffix(":tenant"))
        other_salt = Signer().sign_object(bob)
        for token in (good[:-1], "x" + good, bob, other_tenant, other_salt):
            answer = client.post(reverse("messaging:unsubscribe", args=[token]))
            assert answer.status_code == 404 and "not valid" in answer.content.decode()
        assert Choices().get(bob).digests

    def test_the_link_opens_nothing_else_and_fails_without_redis(
        self, bob: Member, client: Client, request: pytest.FixtureRequest
    ) -> None:
        token = digest_mailing.unsubscribe_token(bob)
        assert post(client, "unsubscribe", token).status_code == 200
        assert get(client, "chats").status_code == 302
        request.getfixturevalue("away")
        assert post(client, "unsubscribe", token).status_code == 503, "the mail program repeats it"


def as_sent(mail: Any) -> bytes:
    """The mail as the mail server receives it."""
    with contextlib.suppress(TypeError):  # before Django 6.0
        return bytes(mail.message(policy=email.policy.SMTP).as_bytes())
    return bytes(mail.message().as_bytes())


def test_a_dry_run_mails_and_records_nothing(chat: Chat, bob: Member, mailoutbox: list[Any]) -> None:
    before = all_keys()
    out = output_of("send_digests", "--dry-run")[0]
    assert out == f"'{bob}': 1 message in 1 chat\n1 digest to mail, 0 failed.\n"
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


@pytest.fixture
def many(ann: Member, bob: Member, cat: Member, person: Person) -> Chat:
    """A chat with an unread message for Bob, Cat and u0 … u4, whose primary keys follow in this order."""
    members = [bob.user, cat.user, *(person(f"u{number}") for number in range(5))]
    for user in members:
        user.email = f"{user.username}@example.org"
        user.save()
    chat = Chat.create(ann, [str(user.pk) for user in members])
    send(chat, ann, "Again")
    return chat


def failing(monkeypatch: pytest.MonkeyPatch, errors: Callable[[str], Exception | None]) -> None:
    """Make mails fail with the error for their recipient, if there is one."""
    real = EmailBackend.send_messages

    def send_messages(self: EmailBackend, messages: Any) -> int:
        error = errors(messages[0].to[0].partition("@")[0])
        if error is not None:
            raise error
        return real(self, messages)

    monkeypatch.setattr(EmailBackend, "send_messages", send_messages)


def recipients(mails: list[Any]) -> list[str]:
    return [mail.to[0].partition("@")[0] for mail in mails]


class TestFailures:
    def test_a_failed_mail_is_repeated(
        self, many: Chat, bob: Member, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
            failing(patched, lambda name: OSError("refused\n") if name == "bob" else None)
            with pytest.raises(CommandError, match="1 failed"):
                output_of("send_digests")
        assert repr(bob) in caplog.text and r"refused\n" in caplog.text
        assert "Again" not in caplog.text
        output_of("send_digests")
        assert recipients(mailoutbox) == ["cat", "u0", "u1", "u2", "u3", "u4", "bob"]

    @pytest.mark.parametrize(
        "error",
        [
            smtplib.SMTPRecipientsRefused({"x@example.org": (550, b"no such user")}),
            smtplib.SMTPRecipientsRefused({"x@example.org": (450, b"try again later")}),
            smtplib.SMTPDataError(554, b"rejected as spam"),
            ValueError("invalid address"),
        ],
        ids=str,
    )
    def test_refused_addresses_stop_nobody_else(
        self, many: Chat, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        monkeypatch.setattr(digest_mailing, "MAX_FAILURES", 1)
        monkeypatch.setattr(digest_mailing, "MAX_FAILURE_TIME", 0)
        failing(monkeypatch, lambda name: error if name in {"bob", "cat", "u0"} else None)
        counts = send_digests()
        assert (counts.mailed, counts.failed) == (4, 3)
        assert recipients(mailoutbox) == ["u1", "u2", "u3", "u4"]

    @pytest.mark.parametrize(
        "error",
        [
            ConnectionRefusedError("refused"),
            ssl.SSLCertVerificationError("expired"),
            smtplib.SMTPServerDisconnected("gone"),
            smtplib.SMTPAuthenticationError(535, b"no"),
            smtplib.SMTPSenderRefused(550, b"no", "x@example.org"),
            smtplib.SMTPRecipientsRefused({"x@example.org": (421, b"shutting down")}),
            smtplib.SMTPDataError(452, b"disk full"),
            RuntimeError("of another backend"),
        ],
        ids=str,
    )
    def test_a_dead_mail_server_ends_the_run(
        self, many: Chat, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        monkeypatch.setattr(digest_mailing, "MAX_FAILURES", 3)
        failing(monkeypatch, lambda name: error)
        with pytest.raises(MailingFailed, match="in a row: 3"):
            send_digests()

    def test_only_failures_in_a_row_end_the_run(
        self, many: Chat, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(digest_mailing, "MAX_FAILURES", 2)
        failing(monkeypatch, lambda name: OSError("lost") if name in {"bob", "u0", "u2", "u4"} else None)
        assert send_digests().failed == 4
        assert recipients(mailoutbox) == ["cat", "u1", "u3"]

    def test_only_the_time_of_failures_in_a_row_ends_the_run(
        self, many: Chat, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = itertools.count(step=5)
        monkeypatch.setattr(digest_mailing.time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(digest_mailing, "MAX_FAILURE_TIME", 10)
        failing(monkeypatch, lambda name: OSError("lost") if name in {"bob", "u0", "u2", "u3"} else None)
        with pytest.raises(MailingFailed, match="in a row: 2"):
            send_digests()
        assert recipients(mailoutbox) == ["cat", "u1"]

    def test_the_next_run_begins_where_one_has_ended(
        self, many: Chat, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(digest_mailing, "MAX_FAILURES", 2)
        with monkeypatch.context() as patched:
            failing(patched, lambda name: OSError("lost") if name in {"bob", "cat", "u1", "u2"} else None)
            with pytest.raises(MailingFailed):
                send_digests()
            assert recipients(mailoutbox) == []
            with pytest.raises(MailingFailed):
                send_digests()
            assert recipients(mailoutbox) == ["u0"]
            with pytest.raises(MailingFailed):
                send_digests()
            assert recipients(mailoutbox) == ["u0", "u3", "u4"], "then those before them"
        assert send_digests().mailed == 4
        assert DigestRun().read() is None

    def test_a_user_with_whom_each_run_ends_starves_nobody(
        self, many: Chat, mailoutbox: list[Any], settings: Settings
    ) -> None:
        change(settings, IDENTITY=f"{__name__}.Defective")
        with pytest.raises(RuntimeError):
            send_digests()
        assert recipients(mailoutbox) == ["bob"]
        with pytest.raises(RuntimeError):
            send_digests()
        assert recipients(mailoutbox) == ["bob", "u0", "u1", "u2", "u3", "u4"]

    def test_a_killed_run_is_continued_behind_its_last_batch(
        self, many: Chat, bob: Member, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(digest_mailing, "BATCH", 2)
        monkeypatch.setattr(Mailing, "_record", lambda *_, **options: None)  # as if the process were killed
        change(settings, IDENTITY=f"{__name__}.Defective")
        with pytest.raises(RuntimeError):
            send_digests()
        assert DigestRun().read() == bob

    def test_a_position_that_is_no_key_is_ignored(self, many: Chat, mailoutbox: list[Any]) -> None:
        DigestRun().save("not a number")
        assert send_digests().mailed == 7

    @pytest.mark.timing
    def test_a_mail_server_that_is_gone_ends_the_run_soon(
        self, many: Chat, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(digest_mailing, "MAIL_TIMEOUT", 0.2)
        monkeypatch.setattr(digest_mailing, "MAX_FAILURE_TIME", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as listening:  # accepts, and never says anything
            smtp_backend(settings, listening.getsockname()[1])
            began = time.monotonic()
            with pytest.raises(MailingFailed, match="in a row: 2"):
                send_digests()
        assert time.monotonic() - began < 10


def smtp_backend(settings: Settings, port: int) -> None:
    backend = "django.core.mail.backends.smtp.EmailBackend"
    settings.MAILERS = {"default": {"BACKEND": backend, "OPTIONS": {"host": "127.0.0.1", "port": port}}}
    if django.VERSION < (6, 1):
        settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = backend, "127.0.0.1", port


def test_a_mail_that_the_backend_does_not_send_is_repeated(
    chat: Chat, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(EmailBackend, "send_messages", lambda self, messages: 0)
        assert send_digests().failed == 1
    assert send_digests().mailed == len(mailoutbox) == 1


def test_a_user_whose_id_is_not_valid_does_not_stop_the_others(
    chat: Chat, ann: Member, mailoutbox: list[Any], settings: Settings
) -> None:
    ann.user.email = "ann@example.org"
    ann.user.save()
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
    chat: Chat, ann: Member, cat: Member, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_mailing, "LEASE", 0.2)
    chat.add([cat], by=ann)
    send(chat, ann, "All")

    def lose(digest: object) -> None:
        server().delete(Lock("send_digests").key)
        until(lambda: mailing._lost)

    mailing = Mailing(found=lose)
    assert mailing.run() is False
    assert len(mailoutbox) == 1
    assert DigestRun().read() is None, "another run may have begun"


def test_a_signal_stops_it_after_the_current_user(
    chat: Chat, ann: Member, cat: Member, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat.add([cat], by=ann)
    send(chat, ann, "All")
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
    chat: Chat, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_mailing, "BATCH", 1)
    mailing, display = Mailing(), MailingDisplay(io.StringIO(), "Sending")
    display.begin(mailing)
    assert mailing.run() is True
    assert display.line() == "2 of 2 users, 1 mailed"


def test_without_the_pages(settings: Settings) -> None:
    settings.ROOT_URLCONF = "django.contrib.auth.urls"
    with pytest.raises(ConfigurationError, match="include"):
        Mailing()


async def test_the_record_expires_and_is_forgotten(call: Call) -> None:
    record = DigestRecord("ann")
    now, since, wanted, blocked = await call(record, "read")
    assert (now - since, wanted, blocked) == (MAX_AGE, True, [])
    await call(record, "save", now - timedelta(hours=1))
    assert (await call(record, "read")).since == now - timedelta(hours=1)
    assert 0 < server().pttl(all_keys()[0]) <= MAX_AGE.total_seconds() * 1000
    # too old; from before the clock was set back
    for saved in (now - 2 * MAX_AGE, now + timedelta(hours=1)):
        await call(record, "save", saved)
        state = await call(record, "read")
        assert state.now - state.since == MAX_AGE
    Blocks("ann").block("eve")
    Choices().choose("ann", digests=False)
    assert (await call(record, "read"))[2:] == (False, ["eve"])
    forget("ann")
    assert all_keys() == []
