"""The users of the demo as members of chats."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth.models import User
from django.templatetags.static import static

from django_redis_messaging.web.identity import Identity

from .fixtures import USERS


class DemoIdentity(Identity):
    """Those whom the sign-in page shows have pictures."""

    def pictures(self, ids: Iterable[str]) -> dict[str, str]:
        users = User.objects.filter(pk__in=ids, username__in=[user.username for user in USERS])
        return {
            str(pk): static(f"people/faces/{username}.svg")
            for pk, username in users.values_list("pk", "username")
        }
