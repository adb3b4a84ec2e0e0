"""People as the pages show them, and the people a user may write to."""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from ..core.keys import name
from ..core.steps import batched
from ..errors import InvalidArgument
from ..services.blocks import Blocks
from ..services.chats.direct import direct_id, is_direct
from ..services.contacts import RecentContacts
from ..services.directories import Directory
from ..services.directories.folding import fold, matches
from .identity import Identity
from .texts import visible_text

#: number of avatar colours: see .drm-hue-… in messaging.css
HUES = 12
#: members whose labels are read from a directory at once
LABELS_BATCH = 500
#: people on a page of suggestions
SUGGESTIONS_PER_PAGE = 20
#: maximum number of pages of suggestions
MAX_SUGGESTION_PAGES = 10
#: matches that a search reads from a directory that lists people who have left
MAX_MATCHES = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Person:
    """A person as shown: a label, and an avatar made of initials and a colour."""

    id: str
    label: str
    #: what tells people with the same name apart, if that is needed
    hint: str = ""

    def __post_init__(self) -> None:
        # A name must not reverse the text around it, nor look like another name.
        object.__setattr__(self, "label", visible_text(self.label) or self.id)

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


def with_hints(identity: Identity, persons: Sequence[Person]) -> list[Person]:
    """The people; those with the same name have what tells them apart."""
    counts = Counter(fold(person.label) for person in persons)
    alike = {person.id for person in persons if counts[fold(person.label)] > 1}
    hints = identity.hints(alike) if alike else {}
    return [
        dataclasses.replace(person, hint=visible_text(hints.get(person.id, "")) or person.id)
        if person.id in alike
        else person
        for person in persons
    ]


def reachable_labels(identity: Identity, user: Any, ids: Sequence[str]) -> dict[str, str]:
    """id → label of the members among `ids` who are in one of the user's directories, and still active.

    Users may only write to these people (the guild rule).
    """
    found: dict[str, str] = {}
    for guild in identity.directories(user):
        directory = Directory(guild)
        missing = [member for member in ids if member not in found and _is_member_id(member)]
        for batch in batched(missing, LABELS_BATCH):
            found |= directory.labels(batch)
    available = identity.available(found)
    return {member: label for member, label in found.items() if member in available}


def _is_member_id(value: str) -> bool:
    """Whether `value` can be a member id: form data can be anything."""
    try:
        name(value, "member")
    except InvalidArgument:
        return False
    return True


def must_fill_directory(identity: Identity, user: Any) -> bool:
    """Whether the page tells the user how to fill the directories: to staff, if all of theirs are empty."""
    is_staff = getattr(user, "is_staff", False)  # a custom user model may not have it
    return is_staff and not any(Directory(guild).size() for guild in identity.directories(user))


def recent_contacts(identity: Identity, user: Any) -> list[Person]:
    """The people the user has written to, most recent first."""
    return people(identity, RecentContacts(identity.member_id(user)).list())


def blocked_in(identity: Identity, member: str, chat_id: str) -> Person | None:
    """The person whom a member has blocked, if this is the id of their direct chat."""
    if not is_direct(chat_id):
        return None
    blocked = Blocks(member).list()
    return next(iter(people(identity, (one for one in blocked if direct_id(member, one) == chat_id))), None)


def blocked_people(identity: Identity, user: Any, first: int, count: int) -> tuple[list[Person], bool]:
    """The people whom the user has blocked, the latest first: `count` from rank `first` on; and whether there
    are more."""
    blocked = Blocks(identity.member_id(user)).list()
    return people(identity, blocked[first : first + count]), len(blocked) > first + count


def suggest(identity: Identity, user: Any, prefix: str, *, page: int = 1) -> tuple[list[Person], bool]:
    """People whose name, or a word of it, begins with `prefix`, and whether there are more.

    Recent contacts come first, then the people in the user's directories.
    """
    end = SUGGESTIONS_PER_PAGE * min(page, MAX_SUGGESTION_PAGES)
    suggestions = _available_matches(identity, user, prefix, end + 1)
    more = len(suggestions) > end and page < MAX_SUGGESTION_PAGES
    return suggestions[end - SUGGESTIONS_PER_PAGE : end], more


def _available_matches(identity: Identity, user: Any, prefix: str, wanted: int) -> list[Person]:
    """The people who match: at least `wanted`, if the first MAX_MATCHES of a directory contain as many."""
    contacts, me = _matching_contacts(identity, user, prefix), identity.member_id(user)
    guilds, limit = identity.directories(user), wanted + 1  # one may be the user
    while True:
        matches = [Directory(guild).suggest(prefix, limit=limit) for guild in guilds]
        found = {person.id: person for person in contacts}
        for contact in (contact for match in matches for contact in match):
            found.setdefault(contact.id, Person(contact.id, contact.label))
        found.pop(me, None)
        available = identity.available(found)
        people_found = [person for person in found.values() if person.id in available]
        complete = all(len(match) < limit for match in matches)
        if complete or limit == MAX_MATCHES or len(people_found) >= wanted:
            return people_found
        limit = min(limit * 4, MAX_MATCHES)  # some of a directory that is out of date were left out


def _matching_contacts(identity: Identity, user: Any, prefix: str) -> list[Person]:
    """The recent contacts that match and are in one of the user's directories."""
    folded = fold(prefix)
    matching = [person for person in recent_contacts(identity, user) if matches(folded, person.label)]
    labels = reachable_labels(identity, user, [person.id for person in matching])
    return [Person(person.id, labels[person.id]) for person in matching if person.id in labels]
