"""Checks that no process of the site takes part in a run of tests by mistake."""

from __future__ import annotations

from django.core.checks import CheckMessage, Warning

from ..core import runs


def begin_run(**_: object) -> list[CheckMessage]:
    """Report nothing. `manage.py test` runs the checks before the tests: begin their run, so that processes
    that they start take part in it."""
    runs.notice()
    return []


def check_variable(**_: object) -> list[CheckMessage]:
    """Check that no run of tests has started this process."""
    run = runs.current()
    if run is None or run.is_own:
        return []
    return [
        Warning(
            f"The environment variable {runs.VARIABLE} is set: this process uses the server or the prefix of "
            "a run of tests, not those of the site.",
            hint="Unset it. Only runs of tests set it, for processes that they start.",
            id="messaging.W022",
        )
    ]
