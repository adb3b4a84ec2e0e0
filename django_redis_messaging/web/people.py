"""People as the pages show them, and the people a user may write to."""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from django.utils.text import Truncator

from ..core.commands import batched
from ..core.encoding import name
from ..errors import InvalidArgument
from ..services.chats.keys import direct_id, is_direct
from ..services.directories import Directory
from ..services.directories.folding import fold, matches
from ..services.directories.recent import RecentContacts
from ..services.users.privacy import Blocks
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
#: characters of a description that are shown
MAX_DESCRIPTION_LENGTH = 80
#: characters of the longest URL of a picture
MAX_PICTURE_LENGTH = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Person:
    """A person as shown: a label, and an avatar made of a picture, or of initials and a colour."""

    id: str
    label: str
    #: the second line, and the URL of a picture, as the identity returns them; "" if there is none
    description: str = ""
    picture: str = ""
    #: whether another person with this name is shown, too
    is_ambiguous: bool = False

    def __post_init__(self) -> None:
        # A name must not reverse the text around it, nor look like another name.
        object.__setattr__(self, "label", visible_text(self.label) or self.id)

    @property
    def distinction(self) -> str:
        """What tells the person from others with the same name."""
        return self.description or self.id

    @property
    def name(self) -> str:
        """The label, if necessary with what tells the person from others with the same one."""
        return self.distinct_name if self.is_ambiguous else self.label

    @property
    def distinct_name(self) -> str:
        return f"{self.label} ({self.distinction})"

    @property
    def detail(self) -> str:
        """The second line in lists of people; "" if it would repeat the name."""
        if self.is_ambiguous:
            return self.distinction
        return "" if fold(self.description) == fold(self.label) else self.description

    @property
    def looks(self) -> dict[str, str]:
        """What answers say of the person besides the label."""
        return {"description": self.description, "picture": self.picture}

    @property
    def as_json(self) -> dict[str, Any]:
        """The person in the format of suggestions."""
        return {
            "id": self.id,
            "text": self.label,
            "name": self.name,
            "initials": self.initials,
            "hue": self.hue,
            "picture": self.picture,
            "description": self.detail,
        }

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


class People:
    """The people on a page or in an answer.

    If all of them are added before the first one is read, each hook of the identity is called at most once.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._labels: dict[str, str] = {}
        self._descriptions: dict[str, str] = {}
        self._pictures: dict[str, str] = {}
        #: all, and those with a picture, and with a second line where names are ambiguous
        self._added: set[str] = set()
        self._shown: set[str] = set()
        #: all as they are shown; empty if somebody was added since they were read
        self._persons: dict[str, Person] = {}

    def add(self, ids: Iterable[str]) -> None:
        """Add people of whom only the names are needed, for `names`."""
        self._extend(self._added, set(ids))

    def show(self, ids: Iterable[str]) -> None:
        """Add people who are shown themselves, with a picture."""
        wanted = set(ids)
        self._extend(self._added, wanted)
        self._extend(self._shown, wanted)

    def show_all(self, persons: Iterable[Person]) -> None:
        """Add people whose labels are known."""
        known = {person.id: person.label for person in persons}
        self._labels = known | self._labels
        self.show(known)

    def labelled(self, ids: Iterable[str]) -> list[Person]:
        """These people with their labels only, to choose those who are shown."""
        wanted = list(ids)
        self._read_labels({*wanted, *self._added})
        return [Person(member, self._labels[member]) for member in wanted]

    def __getitem__(self, member: str) -> Person:
        self.add([member])
        if not self._persons:
            self._read()
        return self._persons[member]

    def names(self, ids: Iterable[str], *, among: Iterable[str] = ()) -> list[str]:
        """The names of these people. Where several have one name, of these and of those `among` whom they are
        shown, what tells them apart follows the name."""
        wanted = list(ids)
        others = {*wanted, *among} if wanted else set()
        self.add(others)
        counts = Counter(fold(self[member].label) for member in others)
        return [
            person.distinct_name if counts[fold(person.label)] > 1 else person.label
            for person in map(self.__getitem__, wanted)
        ]

    def _extend(self, known: set[str], wanted: set[str]) -> None:
        if not wanted <= known:
            known |= wanted
            self._persons = {}

    def _read(self) -> None:
        self._read_labels(self._added)
        names = {member: fold(self._labels[member]) for member in self._added}
        counts, shown = Counter(names.values()), Counter(names[member] for member in self._shown)
        namesakes = {member for member, name in names.items() if counts[name] > 1}
        self._read_descriptions((self._shown | namesakes) - self._descriptions.keys())
        self._read_pictures(self._shown - self._pictures.keys())
        descriptions = self._descriptions | self._longer_descriptions(namesakes, names)
        self._persons = {
            member: Person(
                member,
                self._labels[member],
                descriptions.get(member, ""),
                self._pictures.get(member, ""),
                member in self._shown and shown[name] > 1,
            )
            for member, name in names.items()
        }

    def _read_labels(self, ids: Iterable[str]) -> None:
        unknown = [member for member in ids if member not in self._labels]
        self._labels |= {person.id: person.label for person in people(self._identity, unknown)}

    def _read_descriptions(self, ids: Collection[str]) -> None:
        found = self._identity.descriptions(list(ids)) if ids else {}
        self._descriptions |= {member: _description(found.get(member)) for member in ids}

    def _read_pictures(self, ids: Collection[str]) -> None:
        found = self._identity.pictures(list(ids)) if ids else {}
        self._pictures |= {member: picture_url(found.get(member)) for member in ids}

    def _longer_descriptions(self, namesakes: Iterable[str], names: Mapping[str, str]) -> dict[str, str]:
        """The descriptions that several people with one name have, with their ids."""
        seen = {member: (names[member], fold(self._descriptions[member] or member)) for member in namesakes}
        counts = Counter(seen.values())
        return {
            member: f"{self._descriptions[member] or member} · {member}"
            for member, both in seen.items()
            if counts[both] > 1
        }


def _description(value: object) -> str:
    """A description as it is shown: in one line."""
    line = " ".join(visible_text(str(value or "")).split())
    return Truncator(line).chars(MAX_DESCRIPTION_LENGTH)


def picture_url(value: object) -> str:
    """The URL of a picture, or "" for what can't be one. Browsers load it only if the site's policy permits.

    >>> picture_url("/media/ann.png"), picture_url("https://cdn.example/ann.png")
    ('/media/ann.png', 'https://cdn.example/ann.png')
    >>> picture_url("javascript:alert(1)"), picture_url("data:image/png;base64,"), picture_url("https:x")
    ('', '', '')
    """
    url = str(value or "")
    if len(url) > MAX_PICTURE_LENGTH or not url.isprintable() or "\\" in url or " " in url:
        return ""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    is_absolute = parts.scheme in ("http", "https") and bool(parts.netloc)
    return url if is_absolute or not parts.scheme else ""


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
    """Whether the page tells the user how to fill the directories: to staff and superusers, if all of
    theirs are empty."""
    # a model may have neither
    is_told = getattr(user, "is_staff", False) or getattr(user, "is_superuser", False)
    return is_told and not any(Directory(guild).size() for guild in identity.directories(user))


def recent_contacts(identity: Identity, user: Any, people: People) -> list[Person]:
    """The people the user has written to, most recent first; with their labels only."""
    return people.labelled(RecentContacts(identity.member_id(user)).list())


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


def suggest(
    identity: Identity, user: Any, prefix: str, recents: Iterable[Person], *, page: int = 1
) -> tuple[list[Person], bool]:
    """People whose name, or a word of it, begins with `prefix`, and whether there are more.

    `recents`, the recent contacts, come first, then the people in the user's directories.
    """
    end = SUGGESTIONS_PER_PAGE * min(page, MAX_SUGGESTION_PAGES)
    suggestions = _available_matches(identity, user, prefix, end + 1, recents)
    more = len(suggestions) > end and page < MAX_SUGGESTION_PAGES
    return suggestions[end - SUGGESTIONS_PER_PAGE : end], more


def people_named(identity: Identity, user: Any, typed: str) -> list[Person]:
    """The people whom the user can mean by a typed name: those with exactly this name, else all whom
    `suggest` finds. Only a single one is clear."""
    recents = recent_contacts(identity, user, People(identity))
    found, _ = suggest(identity, user, typed, recents)
    return [person for person in found if fold(person.label) == fold(typed)] or found


def with_named(named: Sequence[Person], chosen: Sequence[str], found: Sequence[str]) -> list[str] | None:
    """The ids of the chosen people and of the one whom a typed name means; None if that isn't clear.

    `named`: see `people_named`; `found`: those of whom the user could choose when the name had been typed.

    >>> bobs = [Person("1", "Bob"), Person("2", "Bob")]
    >>> with_named(bobs[:1], ["3"], []), with_named(bobs, ["2"], []), with_named(bobs, ["2"], ["1", "2"])
    (['3', '1'], None, ['2'])
    """
    ids = [person.id for person in named]
    if any(member in found and member in chosen for member in ids):
        return list(chosen)
    return list(dict.fromkeys([*chosen, *ids])) if len(ids) == 1 else None


def _available_matches(
    identity: Identity, user: Any, prefix: str, wanted: int, recents: Iterable[Person]
) -> list[Person]:
    """The people who match: at least `wanted`, if the first MAX_MATCHES of a directory contain as many."""
    contacts, me = _matching_contacts(identity, user, prefix, recents), identity.member_id(user)
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


def _matching_contacts(identity: Identity, user: Any, prefix: str, recents: Iterable[Person]) -> list[Person]:
    """The recent contacts that match and are in one of the user's directories."""
    folded = fold(prefix)
    matching = [person for person in recents if matches(folded, person.label)]
    labels = reachable_labels(identity, user, [person.id for person in matching])
    return [Person(person.id, labels[person.id]) for person in matching if person.id in labels]
