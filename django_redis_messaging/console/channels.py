"""Chats, mailboxes, broadcast and file channels, directories and live streams: what they store, for whom, and
who is behind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.utils.formats import number_format
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import conf
from ..core.encoding import current_prefix, printable
from ..core.operations import perform
from ..services.broadcasts import usage as broadcasts
from ..services.chats import usage as chats
from ..services.chats.values import Message
from ..services.common import pages
from ..services.common.operators import ListedFileChannel, read_locks
from ..services.common.pages import Page
from ..services.common.things import Thing
from ..services.directories import usage as directories
from ..services.directories.directory import Contact, Directory
from ..services.files.channel import ConsumerStats, FileChannel
from ..services.files.keys import lease_key
from ..services.live.counting import UserStreams, streams_of_process
from ..services.mailboxes import usage as mailboxes
from ..services.mailboxes.mailbox import Mail
from ..web import identity as identities
from ..web import problems
from ..web.problems import Problem
from . import access
from .contents import masked
from .listing import NOT_FOUND, FactsPage, ListPage, client, user_cell
from .tables import Cell, Row, Table, Value, to_cell
from .why import explained

#: messages or mails that a page shows to users who may read them, and characters of each
MAX_MESSAGES, MAX_TEXT = 20, 500
#: directories on a page, and names that match a prefix
DIRECTORIES, SUGGESTIONS = 100, 20
#: consumers of a file channel that a page shows
MAX_CONSUMERS = 100


class ChatsPage(ListPage):
    """The chats, with their sizes and slowest readers."""

    section = "chats"
    titles: ClassVar = {"chat": gettext_lazy("Chats")}

    def chat(self) -> Table:
        """The chats."""
        columns = [
            _("Chat"), _("Members"), _("Messages"), _("Size"), _("Newest message"), _("Slowest reader"),
            _("Pinned"),
        ]  # fmt: skip
        note = _("Pinned: what is stored only until the slowest reader has read it.")
        empty = _("There are no chats.")
        return self.list_of(pages.page_chats, columns, self.chat_row, empty, note, slowest_reader)

    def chat_row(self, chat: chats.ChatUsage) -> Row:
        thing = Thing("chat", chat.chat_id)
        slowest = chat.readers[0] if chat.readers else None
        title = printable(chat.title) if self.may_read(thing) else ""
        values: list[Value] = [
            Cell(printable(chat.chat_id), title, url=self.url_of(thing)),
            chat.member_count,
            chat.messages,
            size(chat.bytes),
            chat.active_at,
            reader_cell(slowest, self.labels) if slowest and slowest.unread else None,
            pinned(slowest) if slowest else None,
        ]
        return Row(values)


def slowest_reader(chat: chats.ChatUsage) -> str:
    """The member who has read least; empty if there is none."""
    return chat.readers[0].user if chat.readers else ""


def reader_cell(reader: chats.Reader, labels: Mapping[str, str]) -> Cell:
    """A member who has not read all."""
    if reader.hides:
        return Cell("", _("hides what they have read"))
    unread = _("%(number)s unread") % {"number": number_format(reader.unread)}
    return user_cell(reader.user, labels, unread)


def pinned(reader: chats.Reader) -> Cell | None:
    """What is stored only until this member has read it."""
    if reader.hides or not reader.pinned:
        return None
    return Cell(number_format(reader.pinned), size(reader.pinned_bytes).text, is_number=True)


def size(number: int) -> Cell:
    """A number of bytes."""
    units = (_("%(number)s B"), _("%(number)s KiB"), _("%(number)s MiB"), _("%(number)s GiB"))
    value, at = float(number), 0
    while value >= 1024 and at < len(units) - 1:
        value, at = value / 1024, at + 1
    return Cell(units[at] % {"number": number_format(value, 0 if at == 0 else 1)}, is_number=True)


class ChatPage(FactsPage):
    """One chat: its members, those who have read least first, from the rank `?from=` on; and its newest
    messages, for users who may read them."""

    section = "chats"
    kinds = ("chat",)

    def get(self, request: HttpRequest) -> HttpResponse:
        first = rank(request)
        chat = self.chat_from(first)
        facts = [
            (_("Chat"), to_cell(chat.chat_id)),
            (_("Title"), to_cell(chat.title if self.may_read(self.thing) else None)),
            (_("Open to all"), Cell(_("yes") if chat.open else _("no"))),
            (_("Created"), to_cell(chat.created_at)),
            (_("Newest message"), to_cell(chat.active_at)),
            (_("Messages"), Cell(number_format(chat.messages), message_range(chat))),
            (_("Size"), size(chat.bytes)),
            (_("Kept when all have read"), to_cell(chat.keep_last)),
            (_("Members"), to_cell(chat.member_count)),
        ]
        tables = [self.members(chat, first)]
        if self.may_read(self.thing):
            tables.append(self.messages())
        return self.described(facts, tables, **explained(self, self.thing))

    def chat_from(self, first: int) -> chats.ChatUsage:
        """The chat, with members from this rank on; raises the Problem if it doesn't exist."""
        reading = chats.read_usage(
            current_prefix(), [self.thing.name], first=first, readers=chats.MAX_READERS
        )
        found = perform(conf.alias(), reading)
        if not found:
            raise Problem(NOT_FOUND)
        return found[0]

    def members(self, chat: chats.ChatUsage, first: int) -> Table:
        """The members, those who have read least first."""
        labels = identities.current().labels(reader.user for reader in chat.readers)
        following = first + chats.MAX_READERS
        has_more = following < chat.member_count
        return Table(
            _("Members"),
            [
                _("Member"),
                _("Role"),
                _("Joined"),
                _("Read up to"),
                _("Unread"),
                _("Muted until"),
                _("Pinned"),
            ],
            chat.readers,
            lambda reader: member_row(reader, labels),
            _("There are no members."),
            next_url=self.url("chat", thing=str(self.thing), **{"from": str(following)}) if has_more else "",
            note=_("Those who have read least are first."),
        )

    def messages(self) -> Table:
        """The newest messages."""
        found = perform(conf.alias(), chats.read_tail(current_prefix(), self.thing.name, MAX_MESSAGES))
        labels = identities.current().labels(message.sender for message in found)

        def row(message: Message) -> Row:
            body = shown(self.console, {"body": message.body}, "body")
            text = Cell("", mark=_("deleted"), tone="") if message.deleted else Cell(body)
            return Row([Cell(str(message.id)), message.sent_at, user_cell(message.sender, labels), text])

        columns = [_("Message"), _("Time"), _("Sender"), _("Text")]
        return Table(_("Newest messages"), columns, found[::-1], row, _("There are no messages."))


def message_range(chat: chats.ChatUsage) -> str:
    """The ids of the stored messages."""
    numbers = {"first": chat.first_id, "last": chat.last_id}
    return _("%(first)s to %(last)s") % numbers if chat.messages else ""


def member_row(reader: chats.Reader, labels: Mapping[str, str]) -> Row:
    user = user_cell(reader.user, labels)
    role = _("owner") if reader.role == "owner" else _("member")
    position: Value = Cell(str(reader.read_id), is_number=True)
    unread: Value = reader.unread
    if reader.hides:
        position, unread = Cell("", _("hidden")), None
    return Row([user, role, reader.joined_at, position, unread, reader.muted_until, pinned(reader)])


def rank(request: HttpRequest) -> int:
    """The rank at which a list begins; raises the Problem for another text."""
    text = request.GET.get("from", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Problem(problems.INVALID)
    return int(text)


def shown(console: access.Console, payload: Any, name: str = "") -> str:
    """A payload as text of bounded length, without secrets; of a dict, the value with this name."""
    found = masked(console, payload)
    value = found[name] if name else found
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return Truncator(printable(text)).chars(MAX_TEXT)


class ChannelsPage(ListPage):
    """Mailboxes, broadcast channels, file channels, directories and live streams."""

    section = "channels"
    titles: ClassVar = {
        "mailbox": gettext_lazy("Mailboxes"),
        "broadcast": gettext_lazy("Broadcast channels"),
        "files": gettext_lazy("File channels"),
        "directory": gettext_lazy("Directories"),
        "streams": gettext_lazy("Live streams"),
    }

    def mailbox(self) -> Table:
        """The mailboxes."""
        columns = [_("User"), _("Unread"), _("Stored"), _("Last fetched")]
        empty = _("There are no mailboxes.")
        return self.list_of(pages.page_mailboxes, columns, self.mailbox_row, empty, user=name_of)

    def mailbox_row(self, box: mailboxes.MailboxUsage) -> Row:
        name = replace(user_cell(box.name, self.labels), url=self.url_of(Thing("mailbox", box.name)))
        return Row([name, box.unread, box.mails, box.fetched_at])

    def broadcast(self) -> Table:
        """The broadcast channels."""
        columns = [
            _("Channel"), _("Events"), _("Size (about)"), _("Oldest event"), _("Newest event"),
            _("Events per second"),
        ]  # fmt: skip
        empty = _("There are no broadcast channels.")
        return self.list_of(pages.page_broadcasts, columns, self.broadcast_row, empty)

    def broadcast_row(self, one: broadcasts.BroadcastUsage) -> Row:
        name = Cell(printable(one.name), url=self.url_of(Thing("broadcast", one.name)))
        return Row([name, one.events, size(one.bytes), one.first_at, one.last_at, one.rate])

    def files(self) -> Table:
        """The file channels."""
        columns = [_("Channel"), _("Files"), _("Size"), _("Consumers"), _("Slowest consumer")]
        empty = _("There are no file channels.")
        return self.list_of(pages.page_file_channels, columns, self.files_row, empty)

    def files_row(self, one: ListedFileChannel) -> Row:
        stats = one.stats
        name = Cell(printable(one.name), url=self.url_of(Thing("files", one.name)))
        slowest = max(stats.consumers, key=lambda consumer: consumer.waiting, default=None)
        behind = None
        if slowest is not None and slowest.waiting:
            detail = ngettext("%(number)s file behind", "%(number)s files behind", slowest.waiting)
            detail %= {"number": number_format(slowest.waiting)}
            behind = Cell(printable(slowest.name), detail)
        return Row([name, stats.files, size(stats.bytes), len(stats.consumers), behind])

    def directory(self) -> Table:
        """The directories, which have a registry: their pages begin at a rank."""
        first = rank(self.request)
        prefix = current_prefix()
        if self.text:
            found = perform(conf.alias(), directories.read_usage(prefix, [self.text]))
            found = [one for one in found if one.members]
        else:
            found = perform(conf.alias(), directories.list_usage(prefix, first, DIRECTORIES))
        following = {"kind": "directory", "from": str(first + DIRECTORIES)}
        return Table(
            str(self.titles["directory"]),
            [_("Directory"), _("Members"), _("Entries")],
            found,
            self.directory_row,
            _("There are no directories."),
            next_url=self.url("channels", **following) if len(found) == DIRECTORIES else "",
            note=_("The filter finds one directory by its whole name."),
        )

    def directory_row(self, one: directories.DirectoryUsage) -> Row:
        name = Cell(printable(one.name), url=self.url_of(Thing("directory", one.name)))
        return Row([name, one.members, one.entries])

    def streams(self) -> Table:
        """The users with live streams in any process."""
        here = streams_of_process(conf.alias(), current_prefix())
        columns = [_("User"), _("Streams"), _("Of them in this process"), _("Seen as online")]
        numbers = {"streams": number_format(here.total()), "users": number_format(len(here))}
        note = _("Streams in this process: %(streams)s. Users who have them: %(users)s.") % numbers
        empty = _("Nobody has a live stream.")
        return self.list_of(pages.page_streams, columns, self.streams_row, empty, note, name_of)

    def streams_row(self, one: UserStreams) -> Row:
        online = _("yes") if one.online else _("no")
        return Row([user_cell(one.name, self.labels), one.streams, one.here, online])


def name_of(one: mailboxes.MailboxUsage | UserStreams) -> str:
    """The user to whom it belongs."""
    return one.name


class MailboxPage(FactsPage):
    """One mailbox, and its newest mails, for users who may read them."""

    section = "channels"
    kinds = ("mailbox",)

    def get(self, request: HttpRequest) -> HttpResponse:
        prefix = current_prefix()
        found = perform(conf.alias(), mailboxes.read_usage(prefix, [self.thing.name]))
        if not found:
            raise Problem(NOT_FOUND)
        box = found[0]
        facts = [
            (_("User"), user_cell(box.name, identities.current().labels([box.name]))),
            (_("Unread"), to_cell(box.unread)),
            (_("Stored"), to_cell(box.mails)),
            (_("Id of the newest mail"), Cell(str(box.last_id))),
            (_("Last fetched"), to_cell(box.fetched_at)),
        ]
        tables = [self.mails()] if self.may_read(self.thing) else []
        return self.described(facts, tables, **explained(self, self.thing))

    def mails(self) -> Table:
        """The newest mails."""
        found = perform(conf.alias(), mailboxes.read_newest(current_prefix(), self.thing.name, MAX_MESSAGES))
        labels = identities.current().labels(mail.sender for mail in found if mail.sender)

        def row(mail: Mail) -> Row:
            state = _("read") if mail.read else _("unread")
            sender = user_cell(mail.sender or "", labels, mail.group or "")
            return Row([Cell(str(mail.id)), mail.sent_at, sender, state, shown(self.console, mail.payload)])

        columns = [_("Mail"), _("Time"), _("Sender"), _("State"), _("Payload")]
        return Table(_("Newest mails"), columns, found, row, _("There are no mails."))


class BroadcastPage(FactsPage):
    """One broadcast channel, and its named consumers."""

    section = "channels"
    kinds = ("broadcast",)

    def get(self, request: HttpRequest) -> HttpResponse:
        found = perform(conf.alias(), broadcasts.read_usage(conf.alias(), [self.thing.name]))
        if not found:
            raise Problem(NOT_FOUND)
        one = found[0]
        facts = [
            (_("Channel"), to_cell(one.name)),
            (_("Events"), to_cell(one.events)),
            (_("Size (about)"), size(one.bytes)),
            (_("Oldest event"), to_cell(one.first_at)),
            (_("Newest event"), to_cell(one.last_at)),
            (_("Events per second"), to_cell(one.rate)),
        ]
        return self.described(facts, [self.consumers(one)])

    def consumers(self, usage: broadcasts.BroadcastUsage) -> Table:
        """The named consumers: they are searched, too."""
        cursor = self.request.GET.get("cursor", "")
        page: Page[broadcasts.Follower] = pages.page_followers(conf.alias(), current_prefix(), usage, cursor)
        following = page.cursor and self.url("broadcast", thing=str(self.thing), cursor=page.cursor)
        return Table(
            _("Named consumers"),
            [_("Consumer"), _("Event handled last"), _("Published"), _("Events behind")],
            sorted(page.items, key=lambda one: (-one.behind, one.name)),
            lambda one: Row([one.name, Cell(str(one.read_id), is_number=True), one.read_at, one.behind]),
            _("Nothing on this page of the search.") if following else _("There are no named consumers."),
            next_url=following,
        )


class FilesPage(FactsPage):
    """One file channel, and the progress of its consumers."""

    section = "channels"
    kinds = ("files",)

    def get(self, request: HttpRequest) -> HttpResponse:
        stats = FileChannel(self.thing.name).stats()
        if stats is None:
            raise Problem(NOT_FOUND)
        facts = [
            (_("Channel"), to_cell(self.thing.name)),
            (_("Files"), to_cell(stats.files)),
            (
                _("Size"),
                Cell(size(stats.bytes).text, _("of %(limit)s") % {"limit": size(stats.max_bytes).text}),
            ),
            (_("State"), Cell(_("the last file has been published") if stats.final else _("accepts files"))),
            (_("Expected consumers"), to_cell(stats.open_places)),
        ]
        consumers = sorted(stats.consumers, key=lambda one: (-one.waiting, one.name))[:MAX_CONSUMERS]
        return self.described(facts, [self.consumers(consumers)], **explained(self, self.thing))

    def consumers(self, consumers: Sequence[ConsumerStats]) -> Table:
        """The consumers, each with the process that has its lease."""
        channel, prefix = self.thing.name, current_prefix()
        keys = [lease_key(prefix, channel, one.name) for one in consumers]
        leases = perform(conf.alias(), read_locks(prefix, [(key, key) for key in keys]))
        holders = {one.name: one.info.holder for one in leases}

        def row(one: ConsumerStats) -> Row:
            key = lease_key(prefix, channel, one.name)
            return Row([one.name, one.waiting, one.seen_at, client(holders.get(key))])

        columns = [_("Consumer"), _("Files behind"), _("Last seen"), _("Process")]
        return Table(_("Consumers"), columns, consumers, row, _("There are no consumers."))


class DirectoryPage(FactsPage):
    """One directory, and what a prefix (`?q=`) finds in it, for users who may read it."""

    section = "channels"
    kinds = ("directory",)

    def get(self, request: HttpRequest) -> HttpResponse:
        [one] = perform(conf.alias(), directories.read_usage(current_prefix(), [self.thing.name]))
        if not one.members and not one.entries:
            raise Problem(NOT_FOUND)
        facts = [
            (_("Directory"), to_cell(one.name)),
            (_("Members"), to_cell(one.members)),
            (_("Entries"), to_cell(one.entries)),
        ]
        if not self.may_read(self.thing):
            return self.described(facts)
        prefix = request.GET.get("q", "")
        tables = [self.suggestions(prefix)] if prefix else []
        return self.described(facts, tables, field=self.field(prefix))

    def field(self, prefix: str) -> dict[str, Any]:
        """The form for a prefix."""
        return {
            "method": "get", "url": "", "label": _("Try a prefix"), "type": "search", "name": "q",
            "value": prefix, "thing": str(self.thing), "button": _("Search"),
        }  # fmt: skip

    def suggestions(self, prefix: str) -> Table:
        """What users get who type this prefix."""

        def row(contact: Contact) -> Row:
            return Row([contact.label, contact.id])

        found = Directory(self.thing.name).suggest(prefix, SUGGESTIONS)
        return Table(_("Suggestions"), [_("Name"), _("Member")], found, row, _("No name begins like this."))
