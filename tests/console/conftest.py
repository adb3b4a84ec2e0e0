"""Fixtures: operators, and a site with the console in several places."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from ..web.conftest import client_of, contexts, database, no_permissions, person, visit  # noqa: F401


@pytest.fixture
def operator() -> User:
    """A superuser who may use the admin."""
    return User.objects.create(username="boss", is_superuser=True, is_staff=True)


@pytest.fixture
def boss(operator: User) -> Client:
    """The client of the operator."""
    return client_of(operator)
