"""A capacity model: from measured costs and assumptions to messages, memory, connections and primaries.

uv run python -m benchmarks.capacity
uv run python -m benchmarks.capacity --kept 50 --list-interval 60

It is arithmetic, without a server. `benchmarks.costs` and `benchmarks.scaling` measure the constants, and
`benchmarks.skew` checks the part about hot chats.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from dataclasses import dataclass

from .harness import table
from .skew import Popularity, hottest_share

DAY = 86_400
GIB = 1024**3


@dataclass(frozen=True)
class Costs:
    """Measured on one server, for messages of 200 characters. µs of a processor, and bytes."""

    send: float = 30
    """Sending a message, to any number of members."""
    poll: float = 35
    """Polling an open chat without news."""
    news: float = 1.3
    """Each message that a poll returns, in addition."""
    ack: float = 20
    bell: float = 24
    request: float = 30
    """A request to one more primary."""
    describe: float = 16
    """One chat of the list of chats."""
    message_bytes: float = 280
    chat_bytes: float = 730
    member_bytes: float = 190
    """A member of a chat, with the entry in the user's list of chats."""
    mail_bytes: float = 315
    connection_bytes: float = 38_000


@dataclass(frozen=True)
class Assumptions:
    """How people use the site, and the machines. The defaults are those of the table in docs/scaling.md."""

    online: float = 0.1
    """Share of the users who have a page open at the busiest time."""
    reading: float = 0.7
    """Share of these who have a chat open; the others have the list of chats open."""
    messages: float = 20
    """Messages that a user sends in a day."""
    peak: float = 3
    """Messages per second at the busiest time, divided by the average."""
    chats: float = 20
    """Chats of a user."""
    members: float = 10
    """Members of a chat."""
    kept: float = 1000
    """Messages that a chat holds once all members have read them: at most its `keep_last`."""
    mails: float = 20
    """Notifications that a user keeps."""
    poll_interval: float = 10
    """Seconds between two polls of a page: 2 while messages arrive, up to 15 otherwise."""
    list_interval: float = 10
    """The same for the list of chats."""
    bell_interval: float = 25
    """The same for the bell."""
    exponent: float = 0.8
    """Zipf exponent of the popularity of chats."""
    hot_members: float = 1000
    """CHAT_MAX_MEMBERS"""
    hot_rate: float = 60
    """SEND_RATE: messages that a user can send in a minute."""
    requests: float = 300
    """Requests per second that a web process serves."""
    threads: float = 4
    """Threads of a web process: each uses one connection to a primary at a time."""
    load: float = 0.6
    """Share of its processor that the busiest primary may use."""
    memory: float = 32 * GIB
    """Bytes of data in a primary: half of the memory of its machine, because of copies on write."""


@dataclass(frozen=True)
class Capacity:
    """What a site with this number of users needs at its busiest time."""

    users: float
    messages: float
    """Messages per second."""
    polls: float
    """Requests per second that only ask for news."""
    memory: float
    """Bytes of all primaries together."""
    processors: float
    """Processors that the primaries use, together."""
    primaries: int
    limit: str
    """What determines the number of primaries: "processor" or "memory"."""
    connections: float
    """Connections to each primary, if all threads of all web processes have used it."""


def capacity(users: float, given: Assumptions = Assumptions(), costs: Costs = Costs()) -> Capacity:
    """Calculate the capacity for a number of users.

    >>> small = capacity(10_000)
    >>> small.primaries, round(small.messages), round(small.polls)
    (1, 7, 140)

    With more primaries, a list of chats costs more, because its chats are on more of them:

    >>> capacity(10**7).processors > 1000 * capacity(10**4).processors
    True

    Chats that keep fewer messages need less memory:

    >>> lean = Assumptions(kept=50)
    >>> capacity(10**7, lean).memory < capacity(10**7).memory / 5
    True
    """
    messages = users * given.messages / DAY * given.peak
    polls = poll_rate(users, given)
    processes = math.ceil((polls + messages * given.members) / given.requests)
    connections = processes * given.threads
    memory = stored_bytes(users, given, costs)
    usable = given.memory - connections * costs.connection_bytes
    primaries, limit = math.ceil(memory / usable), "memory"
    while busiest(users, primaries, given, costs) > given.load:
        # Each step costs a little more than the last one because of the requests to more primaries.
        wanted = primaries * busiest(users, primaries, given, costs) / given.load
        primaries, limit = max(primaries + 1, math.floor(wanted)), "processor"
    return Capacity(
        users=users,
        messages=messages,
        polls=polls,
        memory=memory,
        processors=processors(users, primaries, given, costs),
        primaries=primaries,
        limit=limit,
        connections=connections,
    )


def poll_rate(users: float, given: Assumptions) -> float:
    """Polls per second: open chats, lists of chats, bells."""
    page = given.reading / given.poll_interval + (1 - given.reading) / given.list_interval
    return users * given.online * (page + 1 / given.bell_interval)


def processors(users: float, primaries: int, given: Assumptions, costs: Costs) -> float:
    """Processors that all primaries use together, at the busiest time."""
    online = users * given.online
    chats = online * given.reading * costs.poll / given.poll_interval
    lists = online * (1 - given.reading) * list_cost(primaries, given, costs) / given.list_interval
    bells = online * costs.bell / given.bell_interval
    return (chats + lists + bells + 1e6 * message_load(users, given, costs)) / 1e6


def message_load(users: float, given: Assumptions, costs: Costs) -> float:
    """Processors for sending messages, and for each other member who reads and acks each of them at once."""
    messages = users * given.messages / DAY * given.peak
    return messages * (costs.send + (given.members - 1) * given.online * (costs.news + costs.ack)) / 1e6


def list_cost(primaries: int, given: Assumptions, costs: Costs) -> float:
    """µs for a list of chats: the index, then the newest keys and the chats on the primaries that have some.

    >>> small, large = (round(list_cost(number, Assumptions(), Costs())) for number in (1, 1000))
    >>> small < large < 4 * small
    True
    """
    requests = 1 + 2 * primaries_used(given.chats, primaries)
    return requests * costs.request + given.chats * costs.describe


def primaries_used(chats: float, primaries: int) -> float:
    """How many primaries own some of these chats, on average.

    >>> [round(primaries_used(20, number), 1) for number in (1, 3, 10, 100, 1000)]
    [1.0, 3.0, 8.8, 18.2, 19.8]
    """
    return primaries * (1 - math.pow(1 - 1 / primaries, chats))


def stored_bytes(users: float, given: Assumptions, costs: Costs) -> float:
    """Bytes of chats, members, messages and notifications."""
    chats = users * given.chats / given.members
    one = costs.chat_bytes + given.members * costs.member_bytes + given.kept * costs.message_bytes
    return chats * one + users * given.mails * costs.mail_bytes


def busiest(users: float, primaries: int, given: Assumptions, costs: Costs) -> float:
    """Share of its processor that the busiest primary uses.

    Polls are spread evenly: a chat has at most `hot_members` readers. Messages follow the popularity of
    chats, but a chat can't get more of them than its members may send.
    """
    sent = message_load(users, given, costs)
    even = processors(users, primaries, given, costs) - sent
    chats = Popularity(max(2, users * given.chats / given.members), given.exponent)
    hot = hot_chat(given, costs)
    share = hottest_share(primaries, chats, most=min(1.0, hot / sent))
    return even / primaries + sent * share


def hot_chat(given: Assumptions, costs: Costs) -> float:
    """Processors that one chat can use through the pages: all its members send as often as they may.

    >>> 0 < hot_chat(Assumptions(), Costs()) < 1
    True
    """
    sends = given.hot_members * given.hot_rate / 60
    polls = given.hot_members / 2  # the shortest interval is two seconds
    return (sends * costs.send + polls * (costs.poll + 50 * costs.news + costs.ack)) / 1e6


def cells(found: Capacity) -> list[str]:
    """A row of the table."""
    return [
        f"{found.users:,.0f}",
        f"{found.messages:,.0f}",
        f"{found.polls:,.0f}",
        f"{found.memory / GIB:,.1f}",
        f"{found.processors:,.2f}",
        f"{found.primaries:,}",
        found.limit,
        f"{found.connections:,.0f}",
    ]


def main(given: Assumptions) -> None:
    head = ["users", "messages/s", "polls/s", "GiB", "processors", "primaries", "limit", "connections each"]
    print(table([head, *(cells(capacity(10**power, given)) for power in range(4, 9))]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for one in dataclasses.fields(Assumptions):
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=float, default=one.default)
    main(Assumptions(**vars(parser.parse_args())))
