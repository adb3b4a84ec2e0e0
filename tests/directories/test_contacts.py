"""Recent contacts: order, size limit, suggestions, counting."""

import inspect
import itertools
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_redis_messaging import conf
from django_redis_messaging.core import clients
from django_redis_messaging.errors import ConfigurationError, Unavailable
from django_redis_messaging.services.directories.recent import RecentContacts, forget_contacts
from django_redis_messaging.services.users.keys import UserKeys

from ..support.server import get_redis_connection

numbers = itertools.count()


def touched(*contacts: str, user: str = "ann", **options: Any) -> RecentContacts:
    recent = RecentContacts(user, **options)
    for contact in contacts:
        recent.touch(contact)
    return recent


def test_latest_contact_is_first_and_each_is_listed_once() -> None:
    assert touched("bob", "cleo", "bob", "dan").list() == ["dan", "bob", "cleo"]


def test_no_contacts() -> None:
    for order in ("recent", "frequency"):
        recent = RecentContacts("ann", order=order)
        assert (recent.list(), recent.suggest("")) == ([], [])


def test_frequency_sorts_by_count_then_by_latest_use() -> None:
    recent = touched("bob", "cleo", "bob", "dan", "eve", order="frequency")
    assert recent.list() == ["bob", "eve", "dan", "cleo"]


def test_both_orders_are_updated_by_every_touch() -> None:
    touched("bob", "bob", "cleo")
    assert RecentContacts("ann", order="frequency").list() == ["bob", "cleo"]


def test_size_limit_removes_the_oldest() -> None:
    assert touched("bob", "cleo", "dan", size=2).list() == ["dan", "cleo"]
    assert RecentContacts("ann").list() == ["dan", "cleo"]


def test_size_limit_removes_the_least_used_but_not_the_new_contact() -> None:
    recent = touched("bob", "bob", "cleo", "cleo", "dan", size=2, order="frequency")
    assert recent.list() == ["cleo", "dan"]


def test_removed_contact_counts_from_one() -> None:
    recent = touched("bob", "bob", "bob", "cleo", "dan", size=2)
    recent.touch("bob")
    assert uses_of("ann") == {b"bob": 1, b"dan": 1}


def test_size_limits_reads() -> None:
    touched(*"abcdef", "a", "a")
    assert RecentContacts("ann", size=2).list() == ["a", "f"]
    assert RecentContacts("ann", size=2, order="frequency").list() == ["a", "f"]


def test_lowered_size_removes_many_at_once() -> None:
    touched(*(str(number) for number in range(700)), size=1000)
    small = touched("x", size=10)
    assert len(RecentContacts("ann", size=1000).list()) == 201  # no script moves more than 500
    small.touch("y")
    assert RecentContacts("ann", size=1000).list()[:3] == ["y", "x", "699"]
    assert len(uses_of("ann")) == 10


def test_remove_deletes_contact_and_count() -> None:
    recent = touched("bob", "bob", "cleo", order="frequency")
    recent.remove("bob")
    recent.remove("nobody")
    recent.touch("bob")
    assert recent.list() == ["bob", "cleo"]


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("", ["john.smith jones", "Straße", "İbo", "j@x.org"]),
        ("J", ["john.smith jones", "j@x.org"]),
        ("smith j", ["john.smith jones"]),
        ("STRASSE", ["Straße"]),
        ("i\u0307b", ["İbo"]),
        ("x.", ["j@x.org"]),
        ("mith", []),
    ],
)
def test_suggest_matches_folded_word_starts(prefix: str, found: list[str]) -> None:
    recent = touched("j@x.org", "İbo", "Straße", "john.smith jones")
    assert recent.suggest(prefix) == found
    assert recent.suggest(prefix, limit=1) == found[:1]


operations = st.lists(
    st.tuples(st.sampled_from(["touch"] * 4 + ["remove"]), st.sampled_from("abcdefg")), max_size=40
)


@given(operations, st.integers(1, 5), st.sampled_from(["recent", "frequency"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_behaves_like_the_model(steps: list[tuple[str, str]], size: int, order: Any) -> None:
    recent = RecentContacts(f"user-{next(numbers)}", size=size, order=order)
    counts: dict[str, int] = {}  # oldest use first
    for verb, contact in steps:
        before = counts.pop(contact, 0)
        if verb == "touch":
            getattr(recent, verb)(contact)
            if len(counts) == size:
                del counts[next(iter(counts)) if order == "recent" else min(counts, key=counts.__getitem__)]
            counts[contact] = before + 1
        else:
            recent.remove(contact)
    expected = list(reversed(counts))
    if order == "frequency":
        expected.sort(key=counts.__getitem__, reverse=True)
    assert recent.list() == expected


def touch_step(recent: RecentContacts, contact: str) -> Any:
    """The step of a touch, to be sent several times, like a call that is repeated after a lost reply."""
    return next(RecentContacts.touch.__wrapped__(recent, contact))  # type: ignore[attr-defined]


def test_repeated_touch_counts_once() -> None:
    recent = touched("bob", "cleo")
    step = touch_step(recent, "bob")
    clients.execute(conf.alias(), step)
    recent.touch("bob")  # another use, before the repeat
    recent.touch("dan")
    clients.execute(conf.alias(), step)
    assert uses_of("ann") == {b"bob": 3, b"cleo": 1, b"dan": 1}
    assert recent.list() == ["dan", "bob", "cleo"]


def test_repeated_touch_does_not_restore_a_removed_contact() -> None:
    recent = touched("cleo")
    step = touch_step(recent, "bob")
    clients.execute(conf.alias(), step)
    recent.remove("bob")
    clients.execute(conf.alias(), step)
    assert recent.list() == ["cleo"]


def test_touches_are_remembered_for_a_limited_time() -> None:
    touched("bob", "cleo")
    client = get_redis_connection(conf.alias())
    expiries = [client.pttl(key) for key in keys("ann").contact_touches if client.exists(key)]
    # one to two windows, of two COMMAND_DEADLINEs each
    window = 2000 * conf.current().COMMAND_DEADLINE
    assert expiries and all(window / 2 < ms <= 2 * window for ms in expiries)


def test_concurrent_touches_are_all_counted() -> None:
    def use(contact: str) -> None:
        for _ in range(50):
            RecentContacts("ann").touch(contact)
            RecentContacts("ann").touch("all")

    threads = [threading.Thread(target=use, args=[contact], daemon=True) for contact in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert uses_of("ann") == {b"a": 50, b"b": 50, b"c": 50, b"d": 50, b"all": 200}
    clients.close()


def test_forget_deletes_all_contacts() -> None:
    touched("bob")
    touched("bob", user="ann2")
    clients.perform(conf.alias(), forget_contacts(conf.prefix(), "ann"))
    left = get_redis_connection(conf.alias()).scan_iter(match=f"{keys('ann').tag}:*")
    assert not list(left)
    assert RecentContacts("ann2").list() == ["bob"]


async def test_async_versions() -> None:
    recent = RecentContacts("ann", order="frequency")
    for contact in ["bob", "cleo", "bob"]:
        await recent.atouch(contact)
    assert await recent.alist() == ["bob", "cleo"]
    assert await recent.asuggest("C") == ["cleo"]
    await recent.aremove("bob")
    assert await recent.alist() == ["cleo"]


def test_every_operation_has_an_async_version() -> None:
    for verb in ("touch", "remove", "list", "suggest"):
        twin = getattr(RecentContacts, f"a{verb}")
        assert inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(getattr(RecentContacts, verb))


BAD_NAMES = [("", ValueError), ("a\0b", ValueError), ("a\ud800", ValueError), ("é" * 128, ValueError),
             (7, TypeError), (None, TypeError)]  # fmt: skip


@pytest.mark.parametrize(("name", "error"), BAD_NAMES)
def test_bad_names(name: Any, error: type[Exception]) -> None:
    recent = RecentContacts("ann")
    with pytest.raises(error, match="user"):
        RecentContacts(name)
    for operation in (recent.touch, recent.remove):
        with pytest.raises(error, match="contact"):
            operation(name)
    assert recent.list() == []


def test_bad_options() -> None:
    for bad, error in [
        (0, ValueError),
        (1001, ValueError),
        (-1, ValueError),
        (True, TypeError),
        (1.0, TypeError),
    ]:
        with pytest.raises(error, match="size"):
            RecentContacts("ann", size=bad)  # type: ignore[arg-type]
        with pytest.raises(error, match="limit"):
            RecentContacts("ann").suggest("a", limit=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="order"):
        RecentContacts("ann", order="alphabet")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="prefix"):
        RecentContacts("ann").suggest(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="surrogate"):
        RecentContacts("ann").suggest("\udfff")


@pytest.mark.parametrize("name", ["a:b", "{x}", "a b", "%", "`", "😀", "e\u0301", "\n"])
def test_unusual_names_are_stored_unchanged(name: str) -> None:
    recent = touched(name, user=name)
    assert recent.list() == [name]
    assert RecentContacts("ann").list() == []


@pytest.mark.parametrize("foreign", ["contacts", "contact_uses", "contact_touches"])
def test_key_of_another_type_raises_an_error_and_changes_nothing(foreign: str) -> None:
    touched("bob", "cleo")
    client, own = get_redis_connection(conf.alias()), keys("ann")
    if foreign == "contact_touches":
        for key in own.contact_touches:
            client.set(key, "not ours")
    else:
        client.set(getattr(own, foreign), "not ours")
    names = [own.contacts, own.contact_uses, *own.contact_touches]
    before = [client.dump(key) for key in names]
    with pytest.raises(ConfigurationError, match="another type"):
        RecentContacts("ann").touch("dan")
    assert [client.dump(key) for key in names] == before


def test_full_memory_refuses_touching_but_not_removing() -> None:
    recent = touched("bob", "cleo", order="frequency")
    repeated = touch_step(recent, "cleo")
    clients.execute(conf.alias(), repeated)
    recent.touch("bob")
    server = get_redis_connection(conf.alias())
    server.config_set("maxmemory", 1)
    try:
        with pytest.raises(Unavailable):
            recent.touch("cleo")
        clients.execute(conf.alias(), repeated)  # it has been applied: no error
        assert recent.list() == ["bob", "cleo"]
        recent.remove("bob")
        assert recent.list() == ["cleo"]
    finally:
        server.config_set("maxmemory", 0)


def keys(user: str) -> UserKeys:
    return UserKeys(conf.prefix(), user)


def uses_of(user: str) -> dict[bytes, int]:
    held = get_redis_connection(conf.alias()).hgetall(keys(user).contact_uses)
    return {contact: int(uses) for contact, uses in held.items()}


def test_prefixes_are_bounded() -> None:
    with pytest.raises(ValueError, match="at most 1000 characters, not 1001"):
        RecentContacts("ann").suggest("x" * 1001)
