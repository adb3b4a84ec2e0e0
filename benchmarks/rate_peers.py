"""Rate limiters behind one interface: those of this app, and those of other packages that are installed.

Each is used as its documentation shows, with its defaults, through the call that only decides: without a
decorator, a request or a response.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django_redis_messaging.devserver.server import EmbeddedServer, free_port

OURS = "django-redis-messaging"
#: of each limit, or the start of its keys
NAME = "bench"
#: decides about one use of a key; True: it was allowed
Take = Callable[[str], bool]
AsyncTake = Callable[[str], Awaitable[bool]]


class Limiter(NamedTuple):
    """A rate limiter."""

    name: str
    #: that must be installed
    package: str
    #: makes it, for a limit and a period in seconds; Django has been set up for the server of the URL
    make: Callable[[str, int, int], Take]
    amake: Callable[[str, int, int], AsyncTake] | None = None
    #: the most uses that it promises to allow within any period: multiples of the limit
    promise: float = 1
    #: what it must allow in the first period, and in each later one, if there are always more: the same
    supply: tuple[float, float] = (1, 1)
    #: what the requests contain that count a use
    request: bytes = b"EVALSHA"


class Server(EmbeddedServer):
    """On a TCP port, since not all of the others take a unix socket."""

    def __init__(self) -> None:
        self.port = free_port()
        super().__init__(options={"port": self.port, "bind": "127.0.0.1"})

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


def set_up(url: str) -> None:
    """Set up Django, and the settings of all limiters."""
    import django
    from django.conf import settings

    place = urlsplit(url)
    settings.configure(
        USE_TZ=True,
        INSTALLED_APPS=["django_redis_messaging"],
        CACHES={"messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}},
        RATELIMIT_USE_CACHE="messaging",
        RATELIMIT_BACKEND="redis",
        RATELIMIT_REDIS={"host": place.hostname, "port": place.port},  # async, it doesn't take a URL
    )
    django.setup()
    logging.disable()  # what they log about outages


def rate_limit(algorithm: Any) -> tuple[Callable[..., Take], Callable[..., AsyncTake]]:
    """RateLimit of this app."""

    def make(url: str, limit: int, period: int) -> Take:
        from django_redis_messaging import RateLimit

        take = RateLimit(NAME, limit, per=period, algorithm=algorithm).take
        return lambda key: take(key).allowed

    def amake(url: str, limit: int, period: int) -> AsyncTake:
        from django_redis_messaging import RateLimit

        atake = RateLimit(NAME, limit, per=period, algorithm=algorithm).atake

        async def allows(key: str) -> bool:
            return (await atake(key)).allowed

        return allows

    return make, amake


def django_ratelimit(url: str, limit: int, period: int) -> Take:
    from django_ratelimit.core import get_usage

    rate = f"{limit}/{period}s"

    def take(key: str) -> bool:
        usage = get_usage(None, group=NAME, key=lambda group, request: key, rate=rate, increment=True)
        return not usage["should_limit"]

    return take


def limits(strategy: str) -> tuple[Callable[..., Take], Callable[..., AsyncTake]]:
    """One strategy of the package limits."""

    def make(url: str, limit: int, period: int) -> Take:
        import limits

        storage: Any = limits.storage.storage_from_string(url, key_prefix=strategy)
        limiter = limits.strategies.STRATEGIES[strategy](storage)
        item = limits.RateLimitItemPerSecond(limit, period)
        return lambda key: limiter.hit(item, NAME, key)

    def amake(url: str, limit: int, period: int) -> AsyncTake:
        import limits
        import limits.aio.strategies

        # with redis-py, like the others; its default is coredis
        options = {"implementation": "redispy", "key_prefix": strategy}
        storage: Any = limits.storage.storage_from_string(f"async+{url}", **options)
        limiter = limits.aio.strategies.STRATEGIES[strategy](storage)
        item = limits.RateLimitItemPerSecond(limit, period)
        return lambda key: limiter.hit(item, NAME, key)

    return make, amake


def smart_window(url: str, limit: int, period: int) -> Take:
    from django_smart_ratelimit import get_backend

    backend = get_backend()
    return lambda key: backend.incr(f"{NAME}:{key}", period) <= limit


def asmart_window(url: str, limit: int, period: int) -> AsyncTake:
    from django_smart_ratelimit.backends import get_async_backend

    backend: Any = get_async_backend()

    async def take(key: str) -> bool:
        return await backend.aincr(f"{NAME}:{key}", period) <= limit  # type: ignore[no-any-return]

    return take


def smart_bucket(url: str, limit: int, period: int) -> Take:
    from django_smart_ratelimit import TokenBucketAlgorithm, get_backend

    backend, bucket = get_backend(), TokenBucketAlgorithm()
    return lambda key: bucket.is_allowed(backend, f"{NAME}:{key}", limit, period)[0]


def pyrate(*, is_gcra: bool) -> tuple[Callable[..., Take], Callable[..., AsyncTake]]:
    """PyrateLimiter, with a bucket for each key."""

    def limiter(redis: Any, limit: int, period: int) -> Any:
        import pyrate_limiter

        rates = [pyrate_limiter.Rate(limit, 1000 * period)]

        def bucket(name: str) -> Any:
            if not is_gcra:
                return pyrate_limiter.RedisBucket.init(rates, redis, f"log:{NAME}:{name}")
            store = pyrate_limiter.RedisStateStore(redis, f"state:{NAME}:{name}")
            return pyrate_limiter.StateBucket(rates, pyrate_limiter.GCRA(), store)

        return pyrate_limiter.Limiter(pyrate_buckets(bucket))

    def make(url: str, limit: int, period: int) -> Take:
        import redis

        acquire = limiter(redis.Redis.from_url(url), limit, period).try_acquire
        return lambda key: acquire(key, blocking=False)

    def amake(url: str, limit: int, period: int) -> AsyncTake:
        import redis.asyncio

        acquire = limiter(redis.asyncio.Redis.from_url(url), limit, period).try_acquire_async
        return lambda key: acquire(key, blocking=False)

    return make, amake


def pyrate_buckets(bucket: Callable[[str], Any]) -> Any:
    """A factory that keeps the bucket of each key; an async one has to be awaited."""
    import pyrate_limiter

    class Buckets(pyrate_limiter.BucketFactory):
        def __init__(self) -> None:
            self.known: dict[str, Any] = {}
            self.clock = pyrate_limiter.WallClock()

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return pyrate_limiter.RateItem(name, self.clock.now(), weight=weight)

        def get(self, item: Any) -> Any:
            if item.name in self.known:
                return self.known[item.name]
            made = bucket(item.name)
            return (
                self.add_later(item.name, made) if hasattr(made, "__await__") else self.add(item.name, made)
            )

        def add(self, name: str, made: Any) -> Any:
            self.known[name] = made
            self.schedule_leak(made)
            return made

        async def add_later(self, name: str, made: Any) -> Any:
            return self.add(name, await made)

    return Buckets()


#: a full burst, and what is refilled in a period
BURST: dict[str, Any] = {"promise": 2, "supply": (2, 1)}
ALL = [
    Limiter("RateLimit, gcra", OURS, *rate_limit("gcra"), **BURST),
    Limiter("RateLimit, window", OURS, *rate_limit("window")),
    Limiter("django-ratelimit", "django-ratelimit", django_ratelimit, promise=2, request=b"INCRBY"),
    Limiter("limits, fixed window", "limits", *limits("fixed-window"), promise=2),
    Limiter("limits, moving window", "limits", *limits("moving-window")),
    Limiter("limits, sliding counter", "limits", *limits("sliding-window-counter"), promise=2),
    Limiter("smart-ratelimit, window", "django-smart-ratelimit", smart_window, asmart_window),
    Limiter("smart-ratelimit, bucket", "django-smart-ratelimit", smart_bucket, **BURST),
    Limiter("PyrateLimiter, window", "pyrate-limiter", *pyrate(is_gcra=False)),
    Limiter("PyrateLimiter, GCRA", "pyrate-limiter", *pyrate(is_gcra=True), **BURST),
]


def installed() -> list[Limiter]:
    """The limiters whose packages are installed."""
    return [one for one in ALL if importlib.util.find_spec(one.package.replace("-", "_"))]
