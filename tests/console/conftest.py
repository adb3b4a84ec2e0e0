"""Fixtures: operators and their clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from ..web.conftest import (  # noqa: F401
    browser_type_launch_args,
    client_of,
    database,
    no_permissions,
    person,
    visit,
)

Sign = Callable[..., Client]


@pytest.fixture
def sign_in() -> Sign:
    """Clients of users who are signed in, by name."""

    def make(name: str, **fields: Any) -> Client:
        return client_of(User.objects.create(username=name, **fields))

    return make


@pytest.fixture
def operator() -> User:
    """A superuser who may use the admin."""
    return User.objects.create(username="boss", is_superuser=True, is_staff=True)


@pytest.fixture
def boss(operator: User) -> Client:
    """The client of the operator."""
    return client_of(operator)
