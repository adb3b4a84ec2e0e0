"""System checks: values.py and settings.py read only what the site has configured, servers.py and formats.py
query the servers. docs/checks.md describes each of them.

Checks of the layers above, which this package doesn't import, are in web/checks.py, web/layout.py,
middleware.py and tasks/occurrences.py; apps.py registers them. The backend of tasks has those of its OPTIONS,
in tasks/options.py.
"""

from django.core.checks import CheckMessage

from .formats import check_formats
from .servers import check_flags, check_server, check_topology
from .settings import begin_run, check_alias, check_handlers, check_transport, check_variable
from .values import check_settings

CHECKS = (begin_run, check_settings, check_alias, check_handlers)
DEPLOYMENT_CHECKS = (
    check_transport,
    check_variable,
    check_server,
    check_topology,
    check_flags,
    check_formats,
)


def check() -> list[CheckMessage]:
    """What `manage.py check` reports."""
    return [message for one in CHECKS for message in one()]


def check_deployment() -> list[CheckMessage]:
    """What `check --deploy` reports in addition."""
    return [message for one in DEPLOYMENT_CHECKS for message in one()]
