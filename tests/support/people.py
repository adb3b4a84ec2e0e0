"""Users as the services know them: by their member ids."""

from __future__ import annotations

from django.contrib.auth.models import User


class Member(str):
    """The member id of a user, who is kept with it."""

    user: User

    def __new__(cls, user: User) -> Member:
        found = super().__new__(cls, user.pk)
        found.user = user
        return found


def user_of(one: User | Member) -> User:
    return one.user if isinstance(one, Member) else one
