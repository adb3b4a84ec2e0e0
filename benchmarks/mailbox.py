"""Mailboxes: sending, reading and counting, against a bare PING and the original list per recipient.

uv run python -m benchmarks.mailbox
uv run python -m benchmarks.mailbox --rounds 5
"""

from __future__ import annotations

import argparse
import itertools
import json
import time

from .harness import Contest, driver, server, table

PING, ORIGINAL, SEND, GROUP, FULL = (
    "PING",
    "original algorithm",
    "Mailbox.send",
    "of a group",
    "to a full one",
)
UNREAD, FETCH, NEWS = "Mailbox.unread", "Mailbox.fetch", 20
PAYLOAD = {"text": "Your order was sent.", "url": "/orders/17/", "level": "info"}


def sending(rounds: int) -> list[list[str]]:
    """One mail; the original pushes it to a list, and reads and removes all at once."""
    from django_redis_messaging import Mailbox

    client, box, full = driver(), Mailbox("ann"), Mailbox("full")
    for _ in range(1000):
        full.send(PAYLOAD)
    contest = Contest("send a mail", rounds)
    contest.add(PING, client.ping)
    sent = itertools.count(1)
    contest.add(SEND, lambda: box.send(PAYLOAD), prepare=lambda: next(sent) % 500 or box.clear())
    contest.add(GROUP, lambda: box.send(PAYLOAD, group="orders"))
    contest.add(FULL, lambda: full.send(PAYLOAD))
    contest.add(
        ORIGINAL,
        lambda: client.rpush("original:ann", json.dumps({"at": time.time(), **PAYLOAD})),
        prepare=lambda: client.delete("original:ann"),
    )
    standings = contest.run()
    print(standings)
    return [
        [name, f"{standings[name].ratio:.2f}", f"{standings.times(name, ORIGINAL):.2f} times the original"]
        for name in (SEND, GROUP, FULL)
    ]


def reading(rounds: int) -> list[list[str]]:
    """Twenty unread mails, read and acked; the original reads its list and trims it."""
    from django_redis_messaging import Mailbox

    client, box, bell = driver(), Mailbox("reader"), Mailbox("bell")
    for _ in range(NEWS):
        box.send(PAYLOAD)
        bell.send(PAYLOAD)
        client.rpush("original:reader", json.dumps({"at": time.time(), **PAYLOAD}))

    def original() -> None:
        for raw in client.lrange("original:reader", 0, -1):
            json.loads(raw)

    contest = Contest(f"count and read {NEWS} mails", rounds)
    contest.add(PING, client.ping)
    contest.add(UNREAD, bell.unread)
    contest.add(FETCH, box.fetch)
    contest.add(ORIGINAL, original)
    standings = contest.run()
    print(standings)
    return [
        [UNREAD, f"{standings[UNREAD].ratio:.2f}", ""],
        [
            f"{FETCH}, {NEWS}",
            f"{standings[FETCH].ratio:.2f}",
            f"{standings.times(FETCH, ORIGINAL):.2f} times the original",
        ],
    ]


def main(rounds: int) -> None:
    with server():
        summary = [["", "of PING", ""], *sending(rounds), *reading(rounds)]
    print(f"\n{table(summary)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    main(parser.parse_args().rounds)
