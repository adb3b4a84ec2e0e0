"""People as the pages show them, and whom a user may write to."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from ..core.batches import batched
from ..core.keys import name
from ..services.contacts import RecentContacts
from ..services.directories import Directory
from ..services.folding import fold, matches
from .identity import Identity

#: how many colours an avatar can have: see .drm-hue-… in messaging.css
HUES = 12
#: members whose labels are asked for at once
PAGE = 500
#: a page of suggestions
SUGGESTED = 20
#: pages of suggestions there are at most
SUGGESTED_PAGES = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Person:
    """Somebody as shown: a label, and an avatar made of initials and a colour."""

    id: str
    label: str

    @property
    def initials(self) -> str:
        return initials(self.label)

    @property
    def hue(self) -> int:
        return hue(self.id)


def initials(label: str) -> str:
    """The first letters of the first and the last word.

    >>> initials("ann b. lee"), initials("@bob"), initials("!")
    ('AL', 'B', '#')
    """
    starts = [letter for word in label.split() if (letter := _letter(word))]
    picked = starts[:1] + starts[1:][-1:]
    return "".join(picked).upper() or "#"


def _letter(word: str) -> str:
    return next((sign for sign in word if sign.isalnum()), "")


def hue(member: str) -> int:
    """Which of the colours somebody has; the same one everywhere."""
    return zlib.crc32(member.encode()) % HUES


def people(identity: Identity, ids: Iterable[str]) -> list[Person]:
    """The people with these ids, in this order."""
    wanted = list(ids)
    labels = identity.labels(wanted) if wanted else {}
    return [Person(member, labels.get(member, member)) for member in wanted]


def known(identity: Identity, user: Any, ids: Sequence[str]) -> dict[str, str]:
    """id → label of those that are in one of the user's directories: the guild rule."""
    found: dict[str, str] = {}
    for guild in identity.directories(user):
        directory = Directory(guild)
        for page in batched([member for member in ids if member not in found and _is_name(member)], PAGE):
            found |= directory.labels(page)
    return found


def _is_name(member: str) -> bool:
    """Whether it can be somebody's id at all: what comes in a form can be anything."""
    try:
        name(member, "member")
    except ValueError:
        return False
    return True


def recents(identity: Identity, user: Any) -> list[Person]:
    """Whom the user wrote to, the latest first."""
    return people(identity, RecentContacts(identity.member_id(user)).list())


def suggest(identity: Identity, user: Any, prefix: str, *, page: int = 1) -> tuple[list[Person], bool]:
    """People whose name, or a word of it, begins with `prefix`, and whether there are more: the recent
    ones first, then those of the user's directories."""
    upto = SUGGESTED * min(page, SUGGESTED_PAGES)
    myself = identity.member_id(user)
    found = {person.id: person for person in _recents_by(identity, user, prefix)}
    for guild in identity.directories(user):
        # One more than is shown tells whether there are more, and one may be the user.
        for contact in Directory(guild).suggest(prefix, limit=upto + 2):
            found.setdefault(contact.id, Person(contact.id, contact.label))
    found.pop(myself, None)
    everyone = list(found.values())
    more = len(everyone) > upto and page < SUGGESTED_PAGES
    return everyone[upto - SUGGESTED : upto], more


def _recents_by(identity: Identity, user: Any, prefix: str) -> list[Person]:
    """The recent contacts that match, as long as they are in a directory of the user's."""
    folded = fold(prefix)
    matching = [person for person in recents(identity, user) if matches(folded, person.label)]
    labels = known(identity, user, [person.id for person in matching])
    return [Person(person.id, labels[person.id]) for person in matching if person.id in labels]
