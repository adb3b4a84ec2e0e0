"""Fenced updates of rows in a database."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db import OperationalError, connections, models, transaction
from django.db.models import F, QuerySet
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from django_redis_messaging import InvalidArgument, Lock, afenced_update, fenced_update
from django_redis_messaging.services.locks import fencing

from ..support import postgresql
from ..support.server import DEADLINE, until

#: what can differ is the database, not the Redis server
pytestmark = pytest.mark.one_server
#: the alias of the database under test
ALIAS = "fencing"
#: µs since 1970, as of a lock that was granted in 2026
NOW = 1_790_000_000_000_000


class Named(models.Model):
    name = models.CharField(max_length=40)

    class Meta:
        app_label = "fencing"
        abstract = True

    def __str__(self) -> str:
        return self.name


class Owner(Named):
    pass


class Account(Named):
    owner = models.ForeignKey(Owner, models.CASCADE)
    balance = models.IntegerField(default=100)
    fence = models.BigIntegerField(null=True)
    version = models.PositiveBigIntegerField(default=0)


class Savings(Account):
    rate = models.BigIntegerField(default=0)


def disconnect() -> None:
    """Close the connection of this thread. The next database of this alias gets another one."""
    connections[ALIAS].close()
    del connections[ALIAS]


@pytest.fixture
def database(
    request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """SQLite or PostgreSQL, with the tables of the models. Tests begin and end their own transactions."""
    entry = {
        "ENGINE": f"django.db.backends.{request.param}",
        "NAME": str(tmp_path / "fencing.sqlite3"),
        "OPTIONS": {"timeout": DEADLINE},
    }
    if request.param == "postgresql":
        options = {"options": f"-c lock_timeout={DEADLINE:g}s"}
        entry |= {"NAME": postgresql.USER, "USER": postgresql.USER, "OPTIONS": options}
        entry["HOST"] = request.getfixturevalue("postgresql_host")
    connections.settings[ALIAS] = connections.settings["default"] | entry
    tables = (Owner, Account, Savings)
    with django_db_blocker.unblock():
        with connections[ALIAS].schema_editor() as editor:
            for model in tables:
                editor.create_model(model)
        yield
        with connections[ALIAS].schema_editor() as editor:
            for model in reversed(tables):
                editor.delete_model(model)
        disconnect()
    del connections.settings[ALIAS]


@pytest.fixture
def accounts(database: None) -> QuerySet[Account]:
    """Accounts whose stored fences are NULL, NOW, NOW + 1 and NOW + 2."""
    owner = Owner.objects.using(ALIAS).create(name="ann")
    for name, fence in {"new": None, "old": NOW, "equal": NOW + 1, "later": NOW + 2}.items():
        Account.objects.using(ALIAS).create(owner=owner, name=name, fence=fence)
    return Account.objects.using(ALIAS)


def state(accounts: QuerySet[Account], name: str) -> tuple[int | None, int]:
    found = accounts.get(name=name)
    return found.fence, found.balance


def in_thread(function: Callable[[], Any]) -> Any:
    """Call a function in a thread of a pool."""
    try:
        return function()
    finally:
        disconnect()


BOTH = pytest.mark.parametrize("database", ["sqlite3", "postgresql"], indirect=True)
POSTGRESQL = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


@BOTH
class TestUpdate:
    def test_rows_without_a_later_fence_are_updated(self, accounts: QuerySet[Account]) -> None:
        """Each row is compared for itself, in one query."""
        assert fenced_update(accounts.filter(name="nobody"), "fence", NOW + 9) == 0
        with CaptureQueriesContext(connections[ALIAS]) as queries:
            assert fenced_update(accounts, "fence", NOW + 1, balance=70) == 3
        assert [query["sql"].split()[0] for query in queries] == ["UPDATE"]
        for name in ("new", "old", "equal"):
            assert state(accounts, name) == (NOW + 1, 70)
        assert state(accounts, "later") == (NOW + 2, 100)
        assert fenced_update(accounts.filter(name="later"), "fence", NOW + 1, balance=70) == 0
        assert fenced_update(accounts.exclude(name="old"), "fence", NOW + 9) == 3
        assert state(accounts, "old") == (NOW + 1, 70)

    def test_values_can_be_expressions_and_are_not_required(self, accounts: QuerySet[Account]) -> None:
        old = accounts.filter(name="old")
        assert fenced_update(old, "fence", NOW + 1) == 1
        for _ in range(2):
            assert fenced_update(old, "fence", NOW + 1, balance=F("balance") - 30) == 1
        assert state(accounts, "old") == (NOW + 1, 40)

    def test_positive_field_and_largest_fence(self, accounts: QuerySet[Account]) -> None:
        old = accounts.filter(name="old")
        assert fenced_update(old, field="version", fence=2**63 - 1, balance=70) == 1
        assert fenced_update(old, "version", 2**63 - 2) == 0
        assert state(accounts, "old") == (NOW, 70)

    def test_rollback_restores_the_fence(self, accounts: QuerySet[Account]) -> None:
        with transaction.atomic(using=ALIAS):
            assert fenced_update(accounts.filter(name="old"), "fence", NOW + 1, balance=70) == 1
            assert fenced_update(accounts.filter(name="old"), "fence", NOW, balance=0) == 0
            transaction.set_rollback(True, using=ALIAS)
        assert fenced_update(accounts.filter(name="old"), "fence", NOW) == 1
        assert state(accounts, "old") == (NOW, 100)

    async def test_async(self, accounts: QuerySet[Account]) -> None:
        try:
            assert await afenced_update(accounts.filter(name="old"), "fence", NOW + 1, balance=70) == 1
            assert await afenced_update(accounts.filter(name="old"), "fence", NOW, balance=0) == 0
            assert (await accounts.aget(name="old")).balance == 70
        finally:
            await sync_to_async(disconnect)()


@BOTH
class TestLock:
    def test_former_holder_is_refused(self, accounts: QuerySet[Account]) -> None:
        account = accounts.filter(name="new")
        former, later = Lock("account", timeout=0.05), Lock("account")
        assert former.acquire()
        assert later.acquire()  # at the end of the former holder's lease
        assert fenced_update(account, "fence", later.fence, balance=F("balance") - 30) == 1
        assert fenced_update(account, "fence", former.fence, balance=0) == 0
        assert state(accounts, "new") == (later.fence, 70)

    @pytest.mark.promise
    def test_stale_writes_of_concurrent_clients_are_refused(self, accounts: QuerySet[Account]) -> None:
        account = accounts.filter(name="new")
        fences = random.Random(14).sample(range(1, 1000), 60)

        def write(fence: int) -> int:
            return int(in_thread(lambda: fenced_update(account, "fence", fence, balance=fence)))

        with ThreadPoolExecutor(8) as pool:
            accepted = sum(pool.map(write, fences))
        assert 1 <= accepted < len(fences)
        assert state(accounts, "new") == (max(fences), max(fences))


def waits_for_a_lock() -> bool:
    """Whether a transaction of another connection waits for a lock."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])


def during_transaction(account: QuerySet[Account], first: int, second: int, commit: bool = True) -> int:
    """Update a row with the second fence from another thread, while a transaction that has updated it with
    the first one is open. Returns the number of updated rows."""
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=ALIAS):
            assert fenced_update(account, "fence", first, balance=70) == 1
            written = pool.submit(in_thread, lambda: fenced_update(account, "fence", second, balance=0))
            until(waits_for_a_lock)
            transaction.set_rollback(not commit, using=ALIAS)
        return int(written.result(DEADLINE))


@POSTGRESQL
class TestWaitingForARow:
    """An UPDATE of a row that another transaction has changed waits for its end, then compares again."""

    @pytest.mark.parametrize(
        ("first", "second", "commit", "updated"),
        [
            pytest.param(NOW + 2, NOW + 1, True, 0, id="stale"),
            pytest.param(NOW + 2, NOW + 1, False, 1, id="later one rolled back"),
            pytest.param(NOW + 1, NOW + 2, True, 1, id="later"),
        ],
    )
    @pytest.mark.parametrize("subquery", [False, True])
    def test_fences_are_compared_after_waiting(
        self, accounts: QuerySet[Account], first: int, second: int, commit: bool, updated: int, subquery: bool
    ) -> None:
        account = accounts.filter(name="old", owner__name="ann")
        account = accounts.filter(pk__in=account.values("pk")) if subquery else accounts.filter(name="old")
        assert during_transaction(account, first, second, commit) == updated
        assert state(accounts, "old") == ((second, 0) if updated else (first, 70))

    def test_joins_are_refused_because_their_fences_would_be_outdated(
        self, accounts: QuerySet[Account], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fencing, "_check_condition", lambda found: None)
        account = accounts.filter(name="old", owner__name="ann")
        assert during_transaction(account, NOW + 2, NOW + 1) == 1  # the stale write

    def test_repeatable_read_raises_an_error(self, accounts: QuerySet[Account]) -> None:
        options = connections.settings[ALIAS]["OPTIONS"]  # of the connection of the other thread
        options["options"] += r" -c default_transaction_isolation=repeatable\ read"
        with pytest.raises(OperationalError, match="could not serialize"):
            during_transaction(accounts.filter(name="old"), NOW + 2, NOW + 1)
        assert state(accounts, "old") == (NOW + 2, 70)


#: arguments other than those of a valid update, with the error
INVALID: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "manager": ({"queryset": Account.objects}, TypeError, "not Manager"),
    "model": ({"queryset": Account}, TypeError, "must be a QuerySet"),
    "slice": ({"queryset": Account.objects.all()[:1]}, TypeError, "slice"),
    "filter by a related model": (
        {"queryset": Account.objects.filter(owner__name="ann")},
        InvalidArgument,
        "pk__in",
    ),
    "fence 0": ({"fence": 0}, InvalidArgument, "never acquired"),
    "negative fence": ({"fence": -1}, InvalidArgument, "between 1 and"),
    "too large a fence": ({"fence": 2**63}, InvalidArgument, "between 1"),
    "fence True": ({"fence": True}, TypeError, "not bool"),
    "fence False": ({"fence": False}, TypeError, "not bool"),
    "fence float": ({"fence": 1.0}, TypeError, "not float"),
    "fence None": ({"fence": None}, TypeError, "not NoneType"),
    "field not a str": ({"field": F("fence")}, TypeError, "name of a field"),
    "unknown field": ({"field": "fances"}, InvalidArgument, "does not exist"),
    "lookup": ({"field": "owner__id"}, InvalidArgument, "does not exist"),
    "field of 32 bits": ({"field": "balance"}, InvalidArgument, "BigIntegerField"),
    "field of text": ({"field": "name"}, InvalidArgument, "type CharField"),
    "primary key": ({"field": "id"}, InvalidArgument, "primary key"),
    "relation": ({"field": "owner"}, InvalidArgument, "type ForeignKey"),
    "field of a parent model": ({"queryset": Savings.objects.all()}, InvalidArgument, "queryset of Account"),
    "value of a parent model": (
        {"queryset": Savings.objects.all(), "field": "rate", "balance": 1},
        InvalidArgument,
        "'balance' is in the table of Account",
    ),
    "value of the fence": (
        {"field": "version", "version": 2},
        InvalidArgument,
        "must not contain 'version'",
    ),
    "unknown value": ({"bilance": 2}, FieldDoesNotExist, "bilan"),
    "value of a relation": ({"name": F("owner__name")}, FieldError, "Joined field"),
}


@pytest.mark.parametrize("case", INVALID)
def test_bad_input_is_refused_before_any_query(case: str) -> None:
    """A query would raise RuntimeError here: pytest-django blocks the database."""
    arguments, error, message = INVALID[case]
    valid = {"queryset": Account.objects.all(), "field": "fence", "fence": 1}
    with pytest.raises(error, match=message):
        fenced_update(**{**valid, **arguments})


async def test_bad_input_of_the_async_version() -> None:
    with pytest.raises(InvalidArgument, match="never acquired"):
        await afenced_update(Account.objects.all(), "fence", 0)
