"""The site's cache on a Redis Cluster of three primaries, through django-redis."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.cache import caches, close_caches
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisClusterException
from redis.retry import Retry

from django_redis_messaging import Chat, Unavailable
from django_redis_messaging.core import clients
from django_redis_messaging.devserver.server import free_port
from tests.support.aliases import entry, leading_to
from tests.support.clusters import Cluster, until

pytestmark = pytest.mark.timing

CLUSTER = {
    "CLIENT_CLASS": "django_redis_messaging.cluster.ClusterClient",
    "CONNECTION_FACTORY": "django_redis_messaging.cluster.ClusterConnectionFactory",
}
#: of all primaries
VALUES = {f"key-{number}": {"number": number} for number in range(30)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as started:
        yield started


@contextmanager
def site(location: object, prefix: str = "site", **options: Any) -> Iterator[Any]:
    """The cache "default" of a site, while "messaging" has the same location."""
    messaging = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location}
    default = {**messaging, "KEY_PREFIX": prefix, "OPTIONS": {**CLUSTER, **options}}
    clients.close()
    with override_settings(CACHES={"default": default, "messaging": messaging}):
        yield caches["default"]
        clients.close()


@pytest.fixture
def cache(cluster: Cluster) -> Iterator[Any]:
    with site([cluster.url(number) for number in range(3)]) as found:
        yield found
        found.clear()


def test_keys_of_several_nodes(cache: Any, cluster: Cluster) -> None:
    cache.set_many(VALUES, timeout=60)
    stored = [client.dbsize() for client in cluster.clients]
    assert sum(stored) == 30 and all(stored)
    assert cache.get_many([*VALUES, "missing"]) == VALUES
    assert cache.delete_many(["key-0", "key-1", "key-2", "missing"]) == 3
    assert set(cache.keys("key-*")) == set(cache.iter_keys("key-*")) == set(list(VALUES)[3:])
    cache.set_many(VALUES, timeout=0)
    assert cache.get_many(VALUES) == {}
    cache.set_many({**VALUES, "other": 1})
    assert cache.delete_pattern("key-*") == 30
    assert cache.get_many([*VALUES, "other"]) == {"other": 1}


def test_keys_of_one_node(cache: Any) -> None:
    cache.set("text", "one", timeout=100)
    assert (cache.get("text"), cache.has_key("text"), cache.has_key("other")) == ("one", True, False)
    assert not cache.add("text", "two") and cache.add("number", 5)
    assert (cache.incr("number", 3), cache.decr("number")) == (8, 7)
    with pytest.raises(ValueError, match="not found"):
        cache.incr("missing")
    assert cache.get_or_set("made", lambda: 4) == 4
    assert 90 < cache.ttl("text") <= 100 and cache.touch("text", 1000) and cache.ttl("text") > 900
    assert cache.delete("text") and not cache.delete("text")
    assert cache.incr_version("made") == 2 and cache.get("made", version=2) == 4
    with cache.lock("job", timeout=10):
        assert not cache.lock("job", blocking=False).acquire()
    assert cache.lock("job", timeout=10).acquire(blocking=False)


def test_clear_removes_the_keys_of_this_cache_only(cache: Any, cluster: Cluster) -> None:
    chat = Chat.create("ann", ["bob"])
    with site(cluster.url(0), prefix="si[t]e") as other:
        other.set_many(VALUES)
    cache.set_many(VALUES)
    cache.set("key", 1, version=7)
    cache.clear()
    assert cache.get_many(VALUES) == {} and cache.get("key", version=7) is None
    assert len(chat.members()) == 2
    with site(cluster.url(0), prefix="si[t]e") as other:
        assert other.get_many(VALUES) == VALUES
        other.clear()


def test_commands_that_need_one_slot_say_so(cache: Any) -> None:
    cache.sadd("{group}a", 1, 2)
    cache.sadd("{group}b", 2, 3)
    cache.sadd("others", 2)
    assert cache.sinter("{group}a", "{group}b") == {2}
    with pytest.raises(RedisClusterException, match="same key slot"):
        cache.sinter("{group}a", "others")


def test_all_nodes_of_the_location_are_used(cluster: Cluster) -> None:
    dead = f"redis://127.0.0.1:{free_port()}"
    with site(f"{dead}, {cluster.url(1)}") as cache:
        cache.set_many(VALUES)
        assert cache.get_many(VALUES) == VALUES
        cache.clear()


def test_the_default_client_works_with_one_node(cluster: Cluster) -> None:
    with site(cluster.url(2), CLIENT_CLASS="django_redis.client.DefaultClient") as cache:
        cache.set_many(VALUES)
        assert cache.get_many(VALUES) == VALUES
        assert cache.delete_pattern("*") == 30


def test_caches_share_one_client_but_not_with_other_options(cluster: Cluster) -> None:
    def client(**options: Any) -> Any:
        with site(cluster.url(0), **options) as cache:
            return cache.client.get_client()

    assert client() is client()
    assert client() is not client(SOCKET_TIMEOUT=3)
    assert client(SOCKET_TIMEOUT=3).get_connection_kwargs()["socket_timeout"] == 3


def test_a_forked_child_has_its_own_client(cache: Any) -> None:
    cache.set("key", "parent")
    before = cache.client.get_client()
    with locks_held(before):  # as by another thread during the fork
        pid = os.fork()
        if pid == 0:
            mine = cache.client.get_client()
            os._exit(0 if cache.get("key") == "parent" and mine is not before else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert cache.get("key") == "parent" and cache.client.get_client() is before


@contextmanager
def locks_held(client: Any) -> Iterator[None]:
    with client._lock, client.nodes_manager._lock, client.nodes_manager._initialization_lock:
        yield


def test_connections_are_closed_with_the_caches(cluster: Cluster) -> None:
    def connected() -> int:
        return sum(len(client.client_list()) for client in cluster.clients)

    before = connected()
    with site(cluster.url(0), CLOSE_CONNECTION=True, SOCKET_TIMEOUT=4) as cache:
        cache.set_many(VALUES)
        assert connected() >= before + 3
        close_caches()
        until(lambda: connected() == before)
        assert cache.get_many(VALUES) == VALUES
        cache.clear()


def test_an_outage_can_be_ignored() -> None:
    nowhere = f"redis://127.0.0.1:{free_port()}"
    unreachable = pytest.raises(ConnectionError, match="cannot be connected")
    with site(nowhere, CONNECTION_POOL_KWARGS={"retry": Retry(NoBackoff(), 0)}) as cache, unreachable:
        cache.get("key")
    with site(nowhere, IGNORE_EXCEPTIONS=True) as cache:
        assert cache.keys("*") is None and cache.delete_pattern("*") is None
        assert (cache.get("key", 5), cache.get_many(["key"])) == (5, {})
        assert not cache.set("key", 1) and cache.set_many(VALUES) is None and cache.clear() is None


def test_nodes_that_stop_later() -> None:
    with Cluster() as private, site([private.url(0), private.url(1)], IGNORE_EXCEPTIONS=True) as cache:
        cache.set_many(VALUES)
        for stopped in (private.servers[:1], private.servers[1:]):
            for server in stopped:
                server.kill()
            assert cache.set_many(VALUES) is None and cache.clear() is None
            found = [cache.get(key) for key in VALUES]
            assert None in found and cache.get_many(VALUES) == {}


def test_the_alias_of_messaging_may_use_it(cluster: Cluster) -> None:
    with leading_to(entry(cluster.url(0), **CLUSTER)):
        chats = [Chat.create("ann", ["bob"]) for _ in VALUES]
        assert [chat.send("ann", "hi").id for chat in chats] == [1] * 30
    with leading_to(entry(f"redis://127.0.0.1:{free_port()}", **CLUSTER)), pytest.raises(Unavailable):
        Chat.create("ann", ["bob"])


@pytest.mark.parametrize(
    "location", ["unix:///run/redis.sock", "redis://node:6379/1", "node:6379", "redis://node,redis://node/2"]
)
def test_locations_that_are_no_nodes(location: str) -> None:
    with site(location) as cache, pytest.raises(ImproperlyConfigured, match="nodes of a Cluster"):
        cache.get("key")
