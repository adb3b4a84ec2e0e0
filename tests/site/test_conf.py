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


def test_given_value_replaces_the_default() -> None:
    with override_settings(REDIS_MESSAGING={"CHAT_MAX_LENGTH": 7}):
        assert conf.current() == conf.Settings(CHAT_MAX_LENGTH=7)


def test_changed_settings_take_effect() -> None:
    with override_settings(REDIS_MESSAGING={"SEND_RATE": 1}):
        assert conf.current().SEND_RATE == 1
        with override_settings(REDIS_MESSAGING={"SEND_RATE": 2}):
            assert conf.current().SEND_RATE == 2
        assert conf.current().SEND_RATE == 1


def test_unknown_keys_are_ignored() -> None:
    with override_settings(REDIS_MESSAGING={"CHAT_MAX_LENGHT": 7}):
        assert conf.current() == conf.Settings()


@pytest.mark.parametrize("given", [None, [], "messaging"])
def test_only_a_dict_is_accepted(given: object) -> None:
    with (
        override_settings(REDIS_MESSAGING=given),
        pytest.raises(ConfigurationError, match="REDIS_MESSAGING must be a dict"),
    ):
        conf.current()


class TestAlias:
    def test_messaging_is_preferred(self) -> None:
        with override_settings(REDIS_MESSAGING={}, CACHES={"default": REDIS, "messaging": REDIS}):
            assert conf.alias() == "messaging"

    def test_default_is_the_fallback(self) -> None:
        with override_settings(REDIS_MESSAGING={}, CACHES={"default": REDIS}):
            assert conf.alias() == "default"

    def test_alias_setting_takes_precedence(self) -> None:
        with override_settings(REDIS_MESSAGING={"ALIAS": "chats"}, CACHES={"default": REDIS}):
            assert conf.alias() == "chats"


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
