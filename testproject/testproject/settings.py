"""Settings of the demo. For your own machine only: DEBUG is on, and users sign in without a password."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parents[2]
#: all data of the demo; ignored by git
DATA_DIR = Path(os.environ.get("DEMO_DIR", BASE_DIR / ".demo"))

SECRET_KEY = "public: for the demo only"  # noqa: S105
DEBUG = True
ALLOWED_HOSTS: list[str] = []
#: `manage.py demo` sets it if only this machine can reach the site
STAFF_SIGN_IN_BY_CLICK = False
ROOT_URLCONF = "testproject.urls"
ASGI_APPLICATION = "testproject.asgi.application"
WSGI_APPLICATION = "testproject.wsgi.application"
USE_TZ = True
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_redis_messaging",
    "people",
    "orders",
    "shop",
    "market",
    "traffic",
    "office",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASE_FILE = DATA_DIR / "db.sqlite3"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATABASE_FILE,
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL", "transaction_mode": "IMMEDIATE"},
    }
}

#: `manage.py demo` stores the URL of its servers here: other commands use them, unless REDIS_URL overrides it
LOCATION_FILE = DATA_DIR / "location"
_LOCATION = LOCATION_FILE.read_text() if LOCATION_FILE.exists() else "redis://127.0.0.1:6379/1"
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "messaging": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("REDIS_URL", _LOCATION),
    },
}
REDIS_MESSAGING = {"PREFIX": "demo", "IDENTITY": "people.identity.DemoIdentity"}
TASKS = {
    "default": {
        "BACKEND": "django_redis_messaging.tasks.RedisBackend",
        "QUEUES": ["default", "emails", "invoices", "stock", "reports"],
    }
}
# The traffic would fill the terminal: each start, end and error of a task is a line there, too.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {name: {"level": "CRITICAL"} for name in ("django.tasks", "django_tasks")},
}
#: seconds after which an unpaid order is cancelled
TIME_TO_PAY = float(os.environ.get("DEMO_TIME_TO_PAY", "30"))
_SHARED_DATA = BASE_DIR.parent / "shared" / "data"
#: the access log of the traffic page; one is generated if it doesn't exist
ACCESS_LOG = os.environ.get("DEMO_ACCESS_LOG", _SHARED_DATA / "access.log.gz")
#: the GeoIP2 database of countries; optional
GEOIP_PATH = os.environ.get("GEOIP_PATH", _SHARED_DATA / "GeoLite2-Country-Test.mmdb")
EMAIL_BACKEND = "orders.mail.UnreliableBackend"

TIME_ZONE = "UTC"
LANGUAGES = [
    ("en", "English"),
    ("de", "German"),
    ("zh-hans", "Simplified Chinese"),
    ("ar", "Arabic"),  # not translated: shows pages from right to left
]
LOCALE_PATHS = [BASE_DIR / "testproject" / "locale"]
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "messaging:chats"
LOGOUT_REDIRECT_URL = "sign-in"
