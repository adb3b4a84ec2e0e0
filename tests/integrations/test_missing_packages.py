"""Sites without the optional packages."""

from __future__ import annotations

import importlib
import sys

import pytest

from ..test_package import NAME, modules, run_python

pytestmark = pytest.mark.one_server

#: module → the package that it needs, and what to install
NEEDED = {
    "metrics": ("prometheus_client", r"django-redis-messaging\[metrics\]"),
    "otel": ("opentelemetry", r"django-redis-messaging\[otel\]"),
    "health": ("health_check", "django-health-check"),
    "debug_panel": ("debug_toolbar", "django-debug-toolbar"),
}


@pytest.mark.parametrize("name", NEEDED)
def test_error_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, advice = NEEDED[name]
    for loaded in [*sys.modules]:
        if loaded.startswith((f"{NAME}.{name}", f"{package}.")):
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"pip install '?{advice}"):
        importlib.import_module(f"{NAME}.{name}")


def test_everything_else_works() -> None:
    packages = [package for package, _ in NEEDED.values()]
    others = [name for name in modules() if name.split(".")[1:2] not in [[one] for one in NEEDED]]
    assert 100 < len(others) < len(modules())
    run_python(
        f"""
import importlib, sys, django
for package in {packages!r}:
    sys.modules[package] = None
django.setup()
for name in {others!r}:
    importlib.import_module(name)
""",
        DJANGO_SETTINGS_MODULE="tests.settings",
    )
