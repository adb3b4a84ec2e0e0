"""The settings."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings

from django_redis_messaging import conf
from django_redis_messaging.errors import ConfigurationError

pytestmark = pytest.mark.versions

REDIS = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}


def test_defaults_need_no_setting() -> None:
    with override_settings(REDIS_MESSAGING={}):
        del settings.REDIS_MESSAGING  # type: ignore[misc]
        assert conf.configured() == {}
        assert conf.current() == conf.Settings()


def test_given_values_replace_the_defaults_and_take_effect_at_once() -> None:
    with override_settings(REDIS_MESSAGING={"SEND_RATE": 1}):
        assert conf.current() == conf.Settings(SEND_RATE=1)
        with override_settings(REDIS_MESSAGING={"SEND_RATE": 2, "CHAT_MAX_LENGHT": 7}):  # an unknown key
            assert conf.current() == conf.Settings(SEND_RATE=2)
        assert conf.current().SEND_RATE == 1


@pytest.mark.parametrize("given", [None, [], "messaging"])
def test_only_a_dict_is_accepted(given: object) -> None:
    with (
        override_settings(REDIS_MESSAGING=given),
        pytest.raises(ConfigurationError, match="REDIS_MESSAGING must be a dict"),
    ):
        conf.current()


@pytest.mark.parametrize(
    ("alias", "caches", "expected"),
    [
        ({}, ("default", "messaging"), "messaging"),
        ({}, ("default",), "default"),
        ({"ALIAS": "chats"}, ("default",), "chats"),
    ],
)
def test_alias(alias: dict[str, str], caches: tuple[str, ...], expected: str) -> None:
    with override_settings(REDIS_MESSAGING=alias, CACHES=dict.fromkeys(caches, REDIS)):
        assert conf.alias() == expected


def test_prefix_callable_is_called_each_time(own_prefix: str) -> None:
    tenants = iter("ab")
    with override_settings(REDIS_MESSAGING={"PREFIX": lambda: next(tenants)}):
        assert [conf.prefix(), conf.prefix()] == [f"{own_prefix}:a", f"{own_prefix}:b"]


def test_every_setting_has_a_comment() -> None:
    """conf.py is the reference of the settings."""
    source = Path(str(conf.__file__)).read_text(encoding="utf-8")
    for field in dataclasses.fields(conf.Settings):
        assert re.search(rf"#: .+\n    {field.name}: ", source), field.name


def test_settings_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        conf.current().SEND_RATE = 5  # type: ignore[misc]
