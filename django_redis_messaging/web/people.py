"""People as the pages show them, and the people a user may write to."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from ..core.keys import name
from ..core.steps import batched
from ..errors import InvalidArgument
from ..services.contacts import RecentContacts
from ..services.directories import Directory
from ..services.directories.folding import fold, matches
from .identity import Identity

#: number of avatar colours: see .drm-hue-… in messaging.css
HUES = 12
#: members whose labels are read from a directory at once
LABELS_BATCH = 500
#: people on a page of suggestions
SUGGESTIONS_PER_PAGE = 20
#: maximum number of pages of suggestions
MAX_SUGGESTION_PAGES = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Person:
    """A person as shown: a label, and an avatar made of initials and a colour."""

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
    letters = [letter for word in label.split() if (letter := _first_letter(word))]
    picked = letters[:1] + letters[1:][-1:]
    return "".join(picked).upper() or "#"


def _first_letter(word: str) -> str:
    return next((character for character in word if character.isalnum()), "")


def hue(member: str) -> int:
    """The number of the avatar colour of a member, the same on all pages."""
    return zlib.crc32(member.encode()) % HUES


def people(identity: Identity, ids: Iterable[str]) -> list[Person]:
    """The people with these ids, in this order."""
    wanted = list(ids)
    labels = identity.labels(wanted) if wanted else {}
    return [Person(member, labels.get(member, member)) for member in wanted]


def reachable_labels(identity: Identity, user: Any, ids: Sequence[str]) -> dict[str, str]:
    """id → label of the members among `ids` who are in one of the user's directories.

    Users may only write to these people (the guild rule).
    """
    found: dict[str, str] = {}
    for guild in identity.directories(user):
        directory = Directory(guild)
        missing = [member for member in ids if member not in found and _is_member_id(member)]
        for batch in batched(missing, LABELS_BATCH):
            found |= directory.labels(batch)
    return found


def _is_member_id(value: str) -> bool:
    """Whether `value` can be a member id: form data can be anything."""
    try:
        name(value, "member")
    except InvalidArgument:
        return False
    return True


def recent_contacts(identity: Identity, user: Any) -> list[Person]:
    """The people the user has written to, most recent first."""
    return people(identity, RecentContacts(identity.member_id(user)).list())


def suggest(identity: Identity, user: Any, prefix: str, *, page: int = 1) -> tuple[list[Person], bool]:
    """People whose name, or a word of it, begins with `prefix`, and whether there are more.

    Recent contacts come first, then the people in the user's directories.
    """
    end = SUGGESTIONS_PER_PAGE * min(page, MAX_SUGGESTION_PAGES)
    found = {person.id: person for person in _matching_contacts(identity, user, prefix)}
    for guild in identity.directories(user):
        # Two more than are shown: one may be the user, the other one shows whether there are more.
        for contact in Directory(guild).suggest(prefix, limit=end + 2):
            found.setdefault(contact.id, Person(contact.id, contact.label))
    found.pop(identity.member_id(user), None)
    suggestions = list(found.values())
    more = len(suggestions) > end and page < MAX_SUGGESTION_PAGES
    return suggestions[end - SUGGESTIONS_PER_PAGE : end], more


def _matching_contacts(identity: Identity, user: Any, prefix: str) -> list[Person]:
    """The recent contacts that match and are in one of the user's directories."""
    folded = fold(prefix)
    matching = [person for person in recent_contacts(identity, user) if matches(folded, person.label)]
    labels = reachable_labels(identity, user, [person.id for person in matching])
    return [Person(person.id, labels[person.id]) for person in matching if person.id in labels]
