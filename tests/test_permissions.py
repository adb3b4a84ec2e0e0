"""The services run with the permissions that docs/security.md lists, which are no more than they need."""

from __future__ import annotations

import pytest

from django_redis_messaging.core.encoding import FORMAT

from .support import permissions
from .support.services import STORIES, Call, awaiting, blocking, tasks

pytestmark = pytest.mark.worlds


@pytest.mark.one_server
def test_the_line_lists_what_is_sent_and_nothing_else() -> None:
    rules = permissions.line()
    more = [rule for words in permissions.additions().values() for rule in words]
    listed = permissions.commands(rules)
    assert permissions.sent() - listed - permissions.commands(more) == set()
    assert listed - permissions.sent() == set(), "not needed"
    assert permissions.commands(more) - permissions.sent() <= {"CLIENT"}, "not needed"
    assert not listed & permissions.commands(more)
    assert len(permissions.additions()) == 10
    assert rules[:3] == [f"~PREFIX:{FORMAT}:*", "resetchannels", "-@all"]
    assert rules[3:] == sorted(f"+{command.lower()}" for command in listed)


@pytest.mark.parametrize("style", [blocking, awaiting])
async def test_each_service_runs_with_it(
    style: Call, server_kind: str, messaging_alias: str, own_prefix: str, closing: None
) -> None:
    more = permissions.additions()["Redis Cluster"] if server_kind == "cluster" else []
    with permissions.limited(messaging_alias, own_prefix, *more):
        for story in (*STORIES, tasks):
            await story(style, story.__qualname__)


def test_it_permits_nothing_else(messaging_alias: str, own_prefix: str) -> None:
    others = (":other", f":{FORMAT}0:x", f"x:{FORMAT}:x", f":b:{FORMAT}:x")
    foreign = [own_prefix + other for other in others]
    with permissions.limited(messaging_alias, own_prefix) as admin:
        dry_run = ("ACL", "DRYRUN", permissions.USER)
        assert admin.execute_command(*dry_run, "GET", f"{own_prefix}:{FORMAT}:x") in (b"OK", True)
        refused = [("GET", key) for key in foreign]
        refused += [
            ("KEYS", "*"),
            ("FLUSHDB",),
            ("CONFIG", "GET", "*"),
            ("SCAN", "0"),
            ("MONITOR",),
            ("SAVE",),
        ]
        for words in refused:
            assert b"no permissions" in admin.execute_command(*dry_run, *words), words
