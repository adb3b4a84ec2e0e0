"""Mailboxes: sending, reading and counting, compared with a bare PING and the original list per recipient.

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
    "with a group",
    "to a full mailbox",
)
UNREAD, FETCH, NEWS = "Mailbox.unread", "Mailbox.fetch", 20
PAYLOAD = {"text": "Your order was sent.", "url": "/orders/17/", "level": "info"}


def sending(rounds: int) -> list[list[str]]:
    """Send one mail; the original pushes it to a list. Returns rows of the summary."""
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
    results = contest.run()
    print(results)
    return [
        [name, f"{results[name].ratio:.2f}", f"{results.speedup(name, ORIGINAL):.2f} times the original"]
        for name in (SEND, GROUP, FULL)
    ]


def reading(rounds: int) -> list[list[str]]:
    """Count and fetch twenty unread mails; the original reads its list. Returns rows of the summary."""
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
    results = contest.run()
    print(results)
    return [
        [UNREAD, f"{results[UNREAD].ratio:.2f}", ""],
        [
            f"{FETCH}, {NEWS}",
            f"{results[FETCH].ratio:.2f}",
            f"{results.speedup(FETCH, ORIGINAL):.2f} times the original",
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
