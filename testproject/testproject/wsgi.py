"""The WSGI application."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
application = get_wsgi_application()

from shop import subscriptions  # noqa: E402  (needs the app registry)

# Each server process imports this module after the fork.
subscriptions.start()
