"""Users and records as other sites have them. Only tests of identity and pages swap the users in."""

from __future__ import annotations

import uuid

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager
from django.db import models


class Person(AbstractBaseUser):
    """A UUID as key, an e-mail address as user name, and nothing else: no names, no is_staff."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    email = models.EmailField(unique=True)
    is_active = models.BooleanField(default=True)

    USERNAME_FIELD = "email"
    objects: BaseUserManager[Person] = BaseUserManager()

    def __str__(self) -> str:
        return self.email


class Named(AbstractBaseUser):
    """A text as key, so that any id could be one, and a full name that may be empty."""

    slug = models.CharField(primary_key=True, max_length=40)
    full_name = models.CharField(max_length=80, blank=True)

    USERNAME_FIELD = "slug"
    objects: BaseUserManager[Named] = BaseUserManager()

    def __str__(self) -> str:
        return self.slug

    def get_full_name(self) -> str:
        return self.full_name


class Review(models.Model):
    """A record that belongs to people: member ids."""

    author = models.CharField(max_length=40)
    reader = models.CharField(max_length=40, null=True, blank=True)  # noqa: DJ001 (NULL is not "")
    reviewers = models.JSONField(default=list, blank=True)

    def __str__(self) -> str:
        return f"Review by {self.author}"


class Remark(models.Model):
    """A record on the page of another one."""

    review = models.ForeignKey(Review, models.CASCADE)
    by = models.CharField(max_length=40)

    def __str__(self) -> str:
        return f"Remark by {self.by}"
