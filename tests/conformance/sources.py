"""Source distributions whose own tests run with this package.

    uv run --group sources python -m tests.conformance.sources

downloads those of the installed versions, verified by the hashes in uv.lock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: where the distributions are unpacked
DIRECTORY = ROOT / ".sources"
PACKAGES = ("django", "redis")
COMMAND = "uv run --group sources python -m tests.conformance.sources"


def find_source(package: str) -> Path | None:
    """The directory of a package's source: DJANGO_SOURCE or REDIS_SOURCE, or the one that was downloaded for
    the installed version; None if there is none."""
    given = os.environ.get(f"{package.upper()}_SOURCE")
    if given:
        return Path(given)
    directory = DIRECTORY / f"{package}-{version(package)}"
    return directory if directory.is_dir() else None


def missing_source(package: str) -> str | None:
    """Why the tests of a package can't run, and what to do; None if its source is there."""
    if find_source(package) is not None:
        return None
    name = f"{package}-{version(package)}"
    return f"The tests of {name} are only in its source distribution, which is missing: run `{COMMAND}`."


def download_source(package: str) -> None:
    """Download and unpack the source distribution of the installed version."""
    with tempfile.TemporaryDirectory() as directory:
        requirements = Path(directory, "requirements.txt")
        requirements.write_text(f"{package}=={version(package)} --hash={_locked_hash(package)}\n")
        options = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", directory]
        subprocess.run([*command, "--requirement", str(requirements)], check=True)
        [archive] = Path(directory).glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(DIRECTORY, filter="data")


def _locked_hash(package: str) -> str:
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    wanted = package, version(package)
    [found] = [one["sdist"]["hash"] for one in locked if (one["name"], one["version"]) == wanted]
    return str(found)


if __name__ == "__main__":
    for package in PACKAGES:
        if find_source(package) is None:
            download_source(package)
