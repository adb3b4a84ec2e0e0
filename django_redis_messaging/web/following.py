"""Keeps directories and chats in step with changes of users, if FOLLOW_USERS is set.

Changes that send no signal of the user model, such as QuerySet.update() or those of groups, aren't seen:
`manage.py sync_directory` makes the directories equal to the user model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models.signals import post_delete, post_save

from .. import conf
from ..errors import MessagingError

logger = logging.getLogger(__name__)


def connect() -> None:
    """Connect the receivers. They do nothing unless FOLLOW_USERS is set."""
    model, uid = settings.AUTH_USER_MODEL, "django_redis_messaging.following"
    post_save.connect(_user_saved, sender=model, dispatch_uid=uid)
    post_delete.connect(_user_deleted, sender=model, dispatch_uid=uid)


def _user_saved(instance: Any, using: str, raw: bool, update_fields: frozenset[str] | None, **_: Any) -> None:
    if raw or update_fields == frozenset({"last_login"}):  # a fixture, or a sign-in
        return
    if conf.current().FOLLOW_USERS:
        from .identity import current

        pk, member = instance.pk, current().member_id(instance)
        _after_commit(lambda: update_user(pk, member), pk, using)


def _user_deleted(instance: Any, using: str, **_: Any) -> None:
    if conf.current().FOLLOW_USERS:
        from ..services.forgetting import forget
        from .identity import current

        pk, member = instance.pk, current().member_id(instance)
        _after_commit(lambda: forget(member), pk, using)


def _after_commit(change: Callable[[], None], pk: Any, using: str) -> None:
    """Call `change` after the transaction. Its failure must not reach whoever saved the user."""

    def attempt() -> None:
        try:
            change()
        except (MessagingError, ValueError) as error:
            logger.warning("Following a change of user %r failed; sync_directory repairs it: %s", pk, error)

    transaction.on_commit(attempt, using=using, robust=True)


def update_user(pk: Any, member: str) -> None:
    """Put a user into their directories under their present label, and remove them from the others that are
    filled from the user model.

    Reads the user from the database, so that several calls in any order have the same result.
    """
    # not at the top: the app imports this module before its models are loaded
    from .placing import FollowedUser

    FollowedUser(member).place([pk])
