"""Helpers for the tests of directories and recent contacts."""

from __future__ import annotations

from typing import Any

from django_redis_messaging import Directory, RecentContacts, conf
from django_redis_messaging.services.directories.directory import DirectoryKeys
from django_redis_messaging.services.users.keys import UserKeys

from .server import server


def found(directory: Directory, prefix: str, limit: int = 10) -> list[str]:
    """The ids of the members that are suggested."""
    return [contact.id for contact in directory.suggest(prefix, limit)]


def keys_of(guild: str) -> tuple[str, str]:
    """The keys of the entries and the records of a directory."""
    keys = DirectoryKeys(conf.prefix(), guild)
    return keys.entries, keys.records


def touched(*contacts: str, user: str = "ann", **options: Any) -> RecentContacts:
    """The recent contacts of a user, after touching these."""
    recent = RecentContacts(user, **options)
    for contact in contacts:
        recent.touch(contact)
    return recent


def contact_keys(user: str) -> UserKeys:
    return UserKeys(conf.prefix(), user)


def uses_of(user: str) -> dict[bytes, int]:
    """How often each contact was touched."""
    held = server().hgetall(contact_keys(user).contact_uses)
    return {contact: int(uses) for contact, uses in held.items()}
