"""Group chat: sending, and reading pending messages, compared with a bare PING and the original algorithm.

uv run python -m benchmarks.chat
uv run python -m benchmarks.chat --chats 100 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from redis import WatchError

from .harness import Contest, driver, server, table

PING, ORIGINAL = "PING", "original algorithm"
SEND, FETCH, READ = "Chat.send", "Inbox.pending(ack=True)", "Inbox.pending"
#: new messages of each chat, in the contests with new messages
NEWS = 10
BODY = "x" * 200
READER = "reader"


class Original:
    """The original algorithm, from its description: a lock around each send, and a fetch that acks."""

    def __init__(self) -> None:
        self.client = driver()

    def create(self, chat: str, members: Sequence[str]) -> None:
        self.client.zadd(f"original:chat:{chat}", dict.fromkeys(members, 0))
        for member in members:
            self.client.zadd(f"original:seen:{member}", {chat: 0})

    def send(self, chat: str, sender: str, body: str) -> None:
        token = self._acquire(chat)
        number = self.client.incr(f"original:ids:{chat}")
        packed = json.dumps({"id": number, "ts": time.time(), "sender": sender, "message": body})
        self.client.zadd(f"original:msgs:{chat}", {packed: number})
        self._release(chat, token)

    def _acquire(self, chat: str) -> str:
        token = uuid.uuid4().hex
        while not self.client.setnx(f"original:lock:{chat}", token):
            time.sleep(0.001)
        return token

    def _release(self, chat: str, token: str) -> None:
        name = f"original:lock:{chat}"
        with self.client.pipeline() as transaction:
            while True:
                try:
                    transaction.watch(name)
                    if transaction.get(name) == token.encode():
                        transaction.multi()
                        transaction.delete(name)
                        transaction.execute()
                    return
                except WatchError:
                    continue

    def fetch(self, member: str) -> list[tuple[str, list[dict[str, Any]]]]:
        seen = self.client.zrange(f"original:seen:{member}", 0, -1, withscores=True)
        pipeline = self.client.pipeline()
        for chat, position in seen:
            pipeline.zrangebyscore(f"original:msgs:{chat.decode()}", position + 1, "inf")
        found = []
        closing = self.client.pipeline()
        for (raw, _), packed in zip(seen, pipeline.execute(), strict=True):
            if packed:
                chat = raw.decode()
                messages = [json.loads(one) for one in packed]
                self._ack(closing, chat, member, messages[-1]["id"])
                found.append((chat, messages))
        closing.execute()
        return found

    def _ack(self, closing: Any, chat: str, member: str, position: int) -> None:
        self.client.zadd(f"original:chat:{chat}", {member: position})
        least = self.client.zrange(f"original:chat:{chat}", 0, 0, withscores=True)
        closing.zadd(f"original:seen:{member}", {chat: position})
        if least:
            closing.zremrangebyscore(f"original:msgs:{chat}", 0, least[0][1])

    def refill(self, chats: Sequence[str], news: int) -> None:
        """Add new messages, without the lock. Not timed."""
        pipeline = self.client.pipeline(transaction=False)
        for chat in chats:
            last = self.client.incrby(f"original:ids:{chat}", news)
            for number in range(last - news + 1, last + 1):
                packed = json.dumps({"id": number, "ts": time.time(), "sender": "ann", "message": BODY})
                pipeline.zadd(f"original:msgs:{chat}", {packed: number})
        pipeline.execute()


def sending(rounds: int, callers: int) -> list[str]:
    """Send to one chat from several processes. Returns a row of the summary."""
    from django_redis_messaging import Chat

    name = f"send-{callers}"
    chat = Chat.create("ann", ["bob"], chat_id=name)
    original = Original()
    original.create(name, ["ann", "bob"])
    contest = Contest(f"send, callers: {callers}", rounds, 0.2 if callers == 1 else 0.5, callers)
    contest.add(PING, driver().ping)
    contest.add(SEND, lambda: chat.send("ann", BODY))
    contest.add(ORIGINAL, lambda: original.send(name, "ann", BODY))
    results = contest.run()
    print(results)
    times = f"{results.speedup(SEND, ORIGINAL):.1f}"
    return [f"send, callers: {callers}", f"{results[SEND].ratio:.2f}", times]


def reading(rounds: int, count: int, news: int) -> list[str]:
    """Read several chats with new messages in each. Returns a row of the summary."""
    from django_redis_messaging import Chat, Inbox

    user = f"{READER}-{count}-{news}"
    names = [f"{user}-{number}" for number in range(count)]
    original, inbox = Original(), Inbox(user)
    for name in names:
        Chat.create("ann", [user], chat_id=name)
        original.create(name, ["ann", user])
    contest = Contest(f"pending, {count} chats with {news} each", rounds)
    contest.add(PING, driver().ping)
    contender = READ
    if news:
        contender, stock = FETCH, Stock(inbox, names, news)
        contest.add(READ, lambda: inbox.pending(total=count * news), prepare=stock.fill)
        contest.add(FETCH, stock.take, prepare=stock.fill)
        contest.add(ORIGINAL, lambda: original.fetch(user), prepare=lambda: original.refill(names, news))
    else:
        contest.add(READ, inbox.pending)
        contest.add(ORIGINAL, lambda: original.fetch(user))
    results = contest.run()
    print(results)
    times = f"{results.speedup(contender, ORIGINAL):.1f}"
    return [f"pending, {count} chats with {news} each", f"{results[contender].ratio:.2f}", times]


class Stock:
    """New messages for a reader; `fill` adds more after `take` has read them."""

    def __init__(self, inbox: Any, names: Sequence[str], news: int) -> None:
        self.inbox, self.names, self.news = inbox, names, news
        self.full = False

    def fill(self) -> None:
        from django_redis_messaging import Chat
        from django_redis_messaging.core import clients

        if self.full:
            return
        send: Any = Chat.send
        for name in self.names:
            steps = [next(send.__wrapped__(Chat(name), "ann", BODY)) for _ in range(self.news)]
            clients.execute("messaging", steps)
        self.full = True

    def take(self) -> None:
        found = self.inbox.pending(total=len(self.names) * self.news, ack=True)
        if sum(len(chat.messages) for chat in found) != len(self.names) * self.news:
            raise RuntimeError("The reader didn't get what was sent.")
        self.full = False


def storing(size: int = 270, count: int = 1000) -> str:
    """Bytes in Redis for a stored entry of `size` bytes."""
    from django_redis_messaging import Chat
    from django_redis_messaging.services.chats import values

    chat = Chat.create("ann", ["bob"], chat_id="storing")
    frame = len("[1763000000000,0,") + len(values.encode_content("ann", "", None, None, "request"))
    for _ in range(count):
        chat.send("ann", "x" * (size - frame))
    client, log = driver(), chat._keys.log
    stored = sum(map(len, client.lrange(log, 0, -1))) / count
    used = client.memory_usage(log, samples=0) / count
    return f"a stored entry of {stored:.0f} bytes takes {used:.0f} bytes in Redis"


def main(chats: Sequence[int], callers: Sequence[int], rounds: int) -> None:
    summary = [["", "of PING", "times the original"]]
    with server():
        summary += [sending(rounds, number) for number in callers]
        summary += [reading(rounds, count, news) for count in chats for news in (0, NEWS)]
        print(f"\n{table(summary)}\n\n{storing()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chats", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    main(options.chats, options.callers, options.rounds)
