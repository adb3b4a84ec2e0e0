"""The site as ASGI servers load it."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
application = get_asgi_application()

from shop import following  # noqa: E402  (apps are ready now)

# each process that serves loads this, after it was forked
following.start()
