"""Who is who: the one place where the pages ask the site about its users.

A site subclasses `Identity` and names its class in `REDIS_MESSAGING["IDENTITY"]`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.signals import setting_changed
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from .. import conf
from ..errors import ConfigurationError

#: characters of a deleted user's id that its label shows
ID_SHOWN = 8


class Identity:
    """Any user of the site that is signed in and active; everybody in one directory."""

    def member_id(self, user: Any) -> str:
        """The name under which the services know a user; it must never change."""
        return str(user.pk)

    def labels(self, ids: Iterable[str]) -> dict[str, str]:
        """What people read in place of each id. Every id gets one; a deleted user's too."""
        wanted = list(dict.fromkeys(ids))
        keys = {member: key for member in wanted if (key := self._key(member)) is not None}
        found = {str(user.pk): self.label(user) for user in self._users(keys.values())}
        return {member: found.get(member) or self._label_of_missing(member, keys) for member in wanted}

    def directories(self, user: Any) -> Sequence[str]:
        """The directories (guilds) whose members the user may find and write to."""
        return ("everyone",)

    def users(self) -> Any:
        """All users, as a QuerySet, for `manage.py index_contacts`. Where `directories` or `may_use` look at
        something related, override it with prefetch_related() of that."""
        return get_user_model()._default_manager.all()

    def may_use(self, user: Any) -> bool:
        """Whether the pages are for this user at all."""
        return bool(user.is_authenticated and user.is_active)

    def may_create(self, user: Any, recipients: Sequence[str]) -> bool:
        """Whether the user may open a chat with these; that all are in a directory of the user's is
        checked apart."""
        return True

    def may_add(self, user: Any, chat_id: str, member: str) -> bool:
        """Whether the user may bring `member` into a chat; the chat has its own say."""
        return True

    def label(self, user: Any) -> str:
        """What people read in place of one user: full name, else user name."""
        full_name = getattr(user, "get_full_name", str)()
        return str(full_name).strip() or str(user.get_username()).strip() or str(user.pk)

    def _key(self, member: str) -> Any:
        """The primary key that an id stands for, or None."""
        try:
            # Its validators too: a number that is too large for the column is an error of the database.
            return get_user_model()._meta.pk.clean(member, None)
        except (ValidationError, ValueError, TypeError):
            return None

    def _users(self, keys: Iterable[Any]) -> Iterable[Any]:
        wanted = list(keys)
        return get_user_model()._default_manager.filter(pk__in=wanted) if wanted else ()

    def _label_of_missing(self, member: str, keys: dict[str, Any]) -> str:
        # What can't be a key is a name that the site's own code gave, such as "backup-bot".
        if member not in keys:
            return member
        return _("Former user %(id)s") % {"id": member[:ID_SHOWN]}


@functools.cache
def current() -> Identity:
    """The identity in force, made once."""
    path = conf.current().IDENTITY
    try:
        made = import_string(path)()
    except (ImportError, TypeError) as error:
        raise ConfigurationError(
            f'{conf.NAME}["IDENTITY"] is {path!r}, which can\'t be loaded: {error}. '
            "Give the dotted path of a subclass of django_redis_messaging.web.identity.Identity."
        ) from error
    if not isinstance(made, Identity):
        raise ConfigurationError(f'{conf.NAME}["IDENTITY"] is {path!r}, which is no subclass of Identity.')
    return made


def _forget(*, setting: str, **_: object) -> None:
    if setting in {conf.NAME, "AUTH_USER_MODEL"}:
        current.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_redis_messaging.identity")
