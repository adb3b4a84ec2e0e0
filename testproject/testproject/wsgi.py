"""The site as WSGI servers load it."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
application = get_wsgi_application()

from shop import following  # noqa: E402  (apps are ready now)

# each process that serves loads this, after it was forked
following.start()
