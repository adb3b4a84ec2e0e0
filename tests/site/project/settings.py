"""Settings of a small site with tests."""

import os

import django_redis_messaging.devserver.server

SECRET_KEY = "site"
USE_TZ = True
STATIC_URL = "static/"
ROOT_URLCONF = "site_urls"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_redis_messaging", "early"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ALLOWED_HOSTS = ["localhost"]
SITE = os.environ["SITE_REDIS"]
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "messaging": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": SITE},
    "jobs": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": SITE.replace("db=0", "db=1")},
    "cluster": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": SITE.replace("db=0", "db=2"),
        "OPTIONS": {"CONNECTION_FACTORY": "django_redis_messaging.cluster.ClusterConnectionFactory"},
    },
    "pages": {
        "BACKEND": "pages.OwnCache",
        "LOCATION": [SITE.replace("db=0", "db=3")] * 2,
        "KEY_PREFIX": "pages",
        "OPTIONS": {
            "SERIALIZER": "django_redis.serializers.json.JSONSerializer",
            "PASSWORD": "wrong",
            "SOCKET_TIMEOUT": 5,
        },
    },
}
REDIS_MESSAGING = {
    "PREFIX": "site",
    "FOLLOW_USERS": True,
    "COMMAND_DEADLINE": 5,
}
if "IS_CONFIGURED" in os.environ:
    del CACHES["cluster"], CACHES["pages"]  # they can't be used on this server
if "TEST_SERVER" in os.environ:
    REDIS_MESSAGING["TEST"] = {"SERVER": os.environ["TEST_SERVER"]}
else:
    # the private server has no replicas
    REDIS_MESSAGING["DURABILITY"] = {"replicas": 1, "timeout": 0.01} if "DURABLE" in os.environ else None
if "NO_PROGRAM" in os.environ:
    os.environ["PATH"] = "/nowhere"
    django_redis_messaging.devserver.server.find_bundled = lambda: None
