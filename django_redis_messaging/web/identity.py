"""Maps the site's users to members of chats: the only place where the pages and the services read users.

A site subclasses `Identity` and sets `REDIS_MESSAGING["IDENTITY"]` to the path of its class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.exceptions import SynchronousOnlyOperation, ValidationError
from django.db.models import Model
from django.http import HttpRequest
from django.utils.functional import LazyObject
from django.utils.translation import gettext as _

from .. import conf

#: characters of the id in the label of a deleted user
SHORT_ID_LENGTH = 8
#: the module of AuthenticationMiddleware, which makes request.user a lazy object
_AUTH_MIDDLEWARE = "django.contrib.auth.middleware"


class Identity:
    """The default: all active users may use the pages, and all are in one directory."""

    def member_id(self, user: Any) -> str:
        """The id of a user in chats and mailboxes. It must never change."""
        return str(user.pk)

    def labels(self, ids: Iterable[str]) -> dict[str, str]:
        """The text that is shown for each id. Ids of deleted users have a label, too."""
        wanted = list(dict.fromkeys(ids))
        keys = {member: key for member in wanted if (key := self._key(member)) is not None}
        found = {str(user.pk): self.label(user) for user in self._users(keys.values())}
        return {member: found.get(member) or self._missing_label(member, keys) for member in wanted}

    def descriptions(self, ids: Iterable[str]) -> dict[str, str]:
        """The second line of each person, which tells people with the same label apart: in lists of people,
        and beside names that several people have. Where somebody has none, the id tells them apart."""
        keys = (key for member in ids if (key := self._key(member)) is not None)
        return {self.member_id(user): self.hint(user) for user in self._users(keys)}

    def pictures(self, ids: Iterable[str]) -> dict[str, str]:
        """The URL of each person's picture, which must be square and opaque: of this site, or one that the
        `img-src` of its Content-Security-Policy contains. People without one have their initials."""
        return {}

    def directories(self, user: Any) -> Sequence[str]:
        """The directories (guilds) in which the user may find people and write to them."""
        return ("everyone",)

    def users(self) -> Any:
        """All users, as a QuerySet, for `manage.py sync_directory`.

        Override it with prefetch_related() if `directories` or `may_use` read related objects.
        """
        return get_user_model()._default_manager.all()

    def available(self, ids: Iterable[str]) -> set[str]:
        """Those of the ids to whom the pages let others write: not of users who are deleted or inactive.

        A directory may still contain them. Ids that the site's own code has chosen, such as "backup-bot", are
        available.
        """
        keys = {member: self._key(member) for member in ids}
        users = self._users(key for key in keys.values() if key is not None)
        found = {self.member_id(user) for user in users if self.may_use(user)}
        return {member for member, key in keys.items() if key is None or member in found}

    def may_use(self, user: Any) -> bool:
        """Whether the user may use the pages."""
        return bool(user.is_authenticated and user.is_active)

    def may_create(self, user: Any, recipients: Sequence[str]) -> bool:
        """Whether the user may create a chat with the recipients.

        The pages also require that all of them are in one of the user's directories.
        """
        return True

    def may_add(self, user: Any, chat_id: str, member: str) -> bool:
        """Whether the user may add `member` to a chat. The chat checks its own rules as well."""
        return True

    def label(self, user: Any) -> str:
        """The text that is shown for a user: the full name, else the user name."""
        full_name = getattr(user, "get_full_name", str)()
        return str(full_name).strip() or str(user.get_username()).strip() or str(user.pk)

    def hint(self, user: Any) -> str:
        """What tells a user from others with the same label: the user name, unless it is an e-mail
        address."""
        username = str(user.get_username())
        return "" if "@" in username else username

    def email(self, user: Any) -> str:
        """The address to which digests are mailed; "" for none."""
        return str(getattr(user, user.get_email_field_name(), None) or "")

    def wants_digest(self, user: Any) -> bool:
        """Whether unread messages are mailed to the user, who can stop it: see `manage.py send_digests`."""
        return True

    def language(self, user: Any) -> str:
        """The language of mails to the user, such as "de"; "" for that of the site."""
        return ""

    def time_zone(self, user: Any) -> str:
        """The time zone of times in mails to the user, such as "Europe/Berlin"; "" for that of the site."""
        return ""

    def _key(self, member: str) -> Any:
        """The primary key for a member id, or None if it can't be one."""
        try:
            # clean() runs the validators, too: a number too large for the column would be a database error.
            return get_user_model()._meta.pk.clean(member, None)
        except (ValidationError, ValueError, TypeError):
            return None

    def _users(self, keys: Iterable[Any]) -> Iterable[Any]:
        wanted = list(keys)
        return get_user_model()._default_manager.filter(pk__in=wanted) if wanted else ()

    def _missing_label(self, member: str, keys: dict[str, Any]) -> str:
        # An id that can't be a primary key was chosen by the site's own code, such as "backup-bot".
        if member not in keys:
            return member
        return _("Former user %(id)s") % {"id": member[:SHORT_ID_LENGTH]}


@conf.cached
def current() -> Identity:
    """The identity in the settings, created once."""
    return conf.instance("IDENTITY", Identity)


def member_id_of(user: Any, what: str) -> str:
    """The member id of a user object that was passed to a service as the argument `what`.

    Raises TypeError for anything else, and for users who have no member id.
    """
    user = _loaded(user, what)
    if isinstance(user, type) or not hasattr(user, "is_authenticated"):
        raise TypeError(f"{what} must be a str or a user object, not {_kind_and_remedy(user)}.")
    if not user.is_authenticated:
        raise TypeError(
            f"{what} is an anonymous user: let only users who have logged in come here (login_required), or "
            "check user.is_authenticated first."
        )
    if user.pk is None:
        raise TypeError(
            f"{what} is a user without a primary key: save the user first, or pass the member id that it had "
            "before it was deleted."
        )
    identity = current()
    if type(identity).member_id is Identity.member_id:
        _check_model(user, what)
    member = identity.member_id(user)
    if not isinstance(member, str):
        path = f"{type(identity).__name__}.member_id()"
        raise TypeError(f"{path} must return a str, not {type(member).__name__}.")
    return member


def _check_model(user: Any, what: str) -> None:
    """Raise TypeError if it is a user of another model, who may have the primary key of someone else."""
    if isinstance(user, Model) and not isinstance(user, get_user_model()):
        raise TypeError(
            f"{what} must be a user of {settings.AUTH_USER_MODEL}, not {user._meta.label}: let member_id() "
            "of your IDENTITY return ids that tell the users of both models apart."
        )


def _kind_and_remedy(value: object) -> str:
    """What was passed in place of a user, and what to pass."""
    if isinstance(value, type):
        return f"the class {value.__name__}: pass an instance"
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return f"{type(value).__name__}: pass one user"
    return f"{type(value).__name__}: pass the user object, or the member id as a str, such as str(user.pk)"


async def asynchronous_user(request: HttpRequest) -> Any:
    """The user of a request, without blocking the event loop; None without AuthenticationMiddleware."""
    user = getattr(request, "user", None)
    # What is not lazy was set by the site itself, or by a test.
    if isinstance(user, LazyObject):
        of_session = _request_of(user)
        return await (sync_to_async(_load)(user) if of_session is None else of_session.auser())
    return user


def _loaded(user: Any, what: str) -> Any:
    """`user`, loaded if it is lazy, as request.user is."""
    try:
        return _load(user)
    except SynchronousOnlyOperation:
        # What `await request.auser()` has returned before, as it does in login_required, is kept in the
        # request, where request.user doesn't look for it.
        awaited = getattr(_request_of(user), "_acached_user", None)
    if awaited is None:
        raise TypeError(
            f"{what} is a user that is not loaded yet, and can't be in async code: "
            "pass await request.auser()."
        )
    return awaited


def _load(user: Any) -> Any:
    user.__class__  # noqa: B018 (loads it)
    return user


def _request_of(lazy_user: LazyObject[Any]) -> Any:
    """The request of whose session a lazy object of AuthenticationMiddleware is the user; None for the lazy
    object of another middleware: that can be another user, such as an impersonated one."""
    load: Any = vars(lazy_user).get("_setupfunc")
    # Its function may have Django's __module__: functools.wraps copies that.
    if getattr(load, "__globals__", {}).get("__name__") != _AUTH_MIDDLEWARE:
        return None
    for variable, cell in zip(load.__code__.co_freevars, load.__closure__ or (), strict=True):
        if variable == "request":
            return cell.cell_contents
    return None
