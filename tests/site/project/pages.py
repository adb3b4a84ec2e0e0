"""A cache of the site."""

from django_redis.cache import RedisCache


class OwnCache(RedisCache):
    """A site's own backend."""
