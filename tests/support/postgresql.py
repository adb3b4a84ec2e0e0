"""A private PostgreSQL server, on a unix socket in a temporary directory."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: seconds to wait for the start and for the end of the server, also on a busy machine
DEADLINE = 60.0
#: the superuser of the server, who needs no password
USER = "postgres"
#: accounts that can run the server if the tests run as root: PostgreSQL refuses root
ACCOUNTS = ("postgres", "nobody")
#: runs the server of the programs $1 in the directory $2 until the standard input ends, which also happens
#: if the process of the tests is killed
SCRIPT = f"""
(
    "$1/initdb" -D "$2/data" -U {USER} -A trust -E UTF8 --locale=C --no-sync --no-instructions &&
        exec "$1/postgres" -D "$2/data" -k "$2" -c listen_addresses= -c fsync=off -c full_page_writes=off \
            -c synchronous_commit=off -c shared_buffers=8MB -c max_connections=100
) </dev/null >"$2/log" 2>&1 &
read -r _
kill -INT $!
wait
rm -rf "$2"
"""


@contextmanager
def running_server(programs: Path) -> Iterator[str]:
    """Start a server and stop it at the end. Yields the directory of its socket, the `HOST` in DATABASES."""
    directory = tempfile.mkdtemp(prefix="messaging-postgresql-")
    account = _account()
    if account:
        shutil.chown(directory, account["user"], account["group"])
    process = subprocess.Popen(
        ["/bin/sh", "-c", SCRIPT, "sh", str(programs), directory],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        cwd=directory, env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, start_new_session=True, **account,
    )  # fmt: skip
    try:
        _wait_until_ready(directory)
        yield directory
    finally:
        process.communicate(timeout=DEADLINE)


def _account() -> dict[str, Any]:
    """The account that runs the server, as arguments of Popen; empty for the current one."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = next(known[name] for name in ACCOUNTS if name in known)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _wait_until_ready(directory: str) -> None:
    import psycopg  # not at the top: it may be missing

    ends = time.monotonic() + DEADLINE
    while True:
        try:
            psycopg.connect(host=directory, user=USER, dbname=USER).close()
            return
        except psycopg.OperationalError as error:
            if time.monotonic() > ends:
                log = Path(directory, "log").read_text(errors="replace")
                raise TimeoutError(f"PostgreSQL did not start within {DEADLINE:g} s:\n{log}") from error
        time.sleep(0.02)
