"""`manage.py messaging_repair`: rebuilds keys of chats that were lost, and their members' lists of chats."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import MessagingError, OutcomeUnknown, Unavailable, conf
from ...core.encoding import current_prefix, name
from ...services.chats.repairing import ChatRepair, Repair
from ...services.common.operators import list_chats
from ..output import format_count

#: seconds between two lines of progress
REPORT_INTERVAL = 10.0
#: of an intact chat
NOTHING = Repair([], 0)


class Command(BaseCommand):
    """Repairs chats, one after the other."""

    help = (
        "Rebuild keys of chats that were lost from the chats' other keys, and restore chats that are missing "
        "in the lists of their members. Intact chats are not changed. By default, all chats and all their "
        "members are checked."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--user", action="append", help="check only the chats of this user, and only this user's list; "
            "repeat for more"
        )  # fmt: skip
        which.add_argument("--chat", action="append", help="check only this chat; repeat for more")
        parser.add_argument("--using", metavar="ALIAS", help="alias in CACHES (default: that of the app)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Repair them."""
        using = options["using"] or conf.alias()
        self._verbosity = options["verbosity"]
        self._checked = self._repaired = self._restored = self._failed = 0
        try:
            users = options["user"] and [name(user, "user") for user in options["user"]]
            given = options["chat"] and [name(chat_id, "chat") for chat_id in options["chat"]]
            chats = given or list_chats(using, current_prefix())
            missing = [
                chat_id
                for chat_id in self._reported(chats)
                if self._repair(chat_id, using, users) is None and given
            ]
        except (MessagingError, ValueError) as error:
            raise CommandError(str(error)) from error
        self._write(
            f"{format_count(self._checked, 'chat')} checked, {self._repaired} rebuilt, {self._failed} that "
            f"can't be repaired; {self._restored} restored in lists of members."
        )
        if missing:
            raise CommandError(f"There is no chat {', '.join(map(repr, missing))}.")

    def _reported(self, chats: Iterable[str]) -> Iterator[str]:
        """The chats, with a line of progress now and then."""
        reported = monotonic()
        for chat_id in chats:
            yield chat_id
            self._checked += 1
            if monotonic() >= reported + REPORT_INTERVAL:
                reported = monotonic()
                self._write(f"{format_count(self._checked, 'chat')} checked so far.")

    def _repair(self, chat_id: str, using: str, users: list[str] | None) -> Repair | None:
        try:
            repair = ChatRepair(chat_id, using=using).run(users)
        except (Unavailable, OutcomeUnknown):
            raise
        except MessagingError as error:  # of this chat: its keys are not those of a chat
            self._failed += 1
            self.stderr.write(f"Chat {chat_id!r}: {error}")
            return NOTHING
        if repair is not None and repair != NOTHING:
            self._repaired += bool(repair.rebuilt)
            self._restored += repair.restored
            self._write(f"Chat {chat_id!r}: {_text(repair)}.")
        return repair

    def _write(self, text: str) -> None:
        if self._verbosity:
            self.stdout.write(text)
            self.stdout.flush()


def _text(repair: Repair) -> str:
    parts = [f"rebuilt {', '.join(repair.rebuilt)}"] if repair.rebuilt else []
    if repair.restored:
        parts.append(f"restored in the lists of {format_count(repair.restored, 'member')}")
    return "; ".join(parts)
