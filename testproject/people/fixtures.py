"""The users, chats, notifications and items that the demo starts with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple


class DemoUser(NamedTuple):
    """A user shown on the sign-in page."""

    username: str
    first_name: str
    last_name: str

    @property
    def full_name(self) -> str:
        return f"{self.first_name} {self.last_name}"


class DemoChat(NamedTuple):
    """A chat that exists when the demo starts. The sender of the first message creates it."""

    chat_id: str
    title: str
    #: user names
    members: tuple[str, ...]
    #: (user name, text), oldest first
    messages: tuple[tuple[str, str], ...]


#: the first one is a superuser
USERS = (
    DemoUser("alice", "Alice", "Moreau"),
    DemoUser("bob", "Bob", "Lindqvist"),
    DemoUser("carol", "Carol", "Okafor"),
    DemoUser("dave", "Dave", "Marchetti"),
    DemoUser("erin", "Erin", "Nakamura"),
    DemoUser("frank", "Frank", "Oliveira"),
)

CHATS = (
    DemoChat(
        "demo-lunch",
        "Lunch on Friday",
        ("alice", "bob", "carol", "dave"),
        (
            ("carol", "The noodle place by the station has a table for four at half past twelve."),
            ("bob", "Count me in. Is it still the one with the very small chairs?"),
            ("alice", "It is, and the very large bowls. I'll be there."),
            ("dave", "Ten minutes late, as ever. Order me number 14, please."),
        ),
    ),
    DemoChat(
        "demo-release",
        "Release",
        ("alice", "bob", "erin"),
        (
            ("erin", "All checks are green. Shall we ship it before the weekend?"),
            ("alice", "Monday morning, when everybody is there to look after it."),
            ("erin", "Monday it is. I'll write the notes until then."),
        ),
    ),
    DemoChat(
        "demo-books",
        "",
        ("carol", "frank"),
        (
            ("frank", "I have finished the book you lent me. The last chapter!"),
            ("carol", "I know. Don't say a word to Dave, he is only half way through."),
        ),
    ),
)

#: each pair is the title of a chat
TEAMS = ("Design", "Support", "Sales", "Hiring", "Events", "Travel", "Office", "Training")
PLACES = ("Lisbon", "Oslo", "Nairobi", "Kyoto", "Bogotá", "Montréal", "Zürich", "Auckland")

#: the messages of these chats, again and again
SENTENCES = (
    "Good morning! Anything new since yesterday?",
    "The draft is ready. Could somebody read it before noon?",
    "I'll take it.",
    "Two small things: the date on page 3 is last year's, and the second picture is missing.",
    "Fixed, thanks.",
    "Who is on call this weekend?",
    "Me, until Saturday evening.",
    "The customer called again. They can reproduce it every time, but only on the old tablets, and only after"
    " the screen was locked for more than ten minutes. I have asked for their logs.",
    "👍",
    "Let's talk about it at the stand-up.",
    "I booked the large room from two to four.",
    "Agenda:\n1. Budget\n2. The new colleague\n3. Cake",
    "Is number 3 negotiable?",
    "It is not.",
    "The train is late, start without me.",
    "Here is the page I meant: https://example.org/guides/getting-started",
    "That answers my question.",
    "Can we move the review to Thursday?",
    "Thursday works.",
    "Not for me, but I'll read the notes.",
    "Numbers are up by a tenth compared with last month.",
    "Nice! Well done, everybody.",
    "The keys are at the reception.",
    "Have a nice evening.",
)

#: coins that each user of the market starts with
FUNDS = 100

#: (user name of the owner, name, price in coins) of the items at the market
ITEMS = (
    ("alice", "Desk lamp", 15),
    ("alice", "Hiking map of the Alps", 8),
    ("bob", "Blue bicycle", 60),
    ("bob", "Chess set", 25),
    ("carol", "Noodle cookbook", 12),
    ("carol", "Acoustic guitar", 90),
    ("dave", "Alarm clock, hardly used", 5),
    ("dave", "Very small chair", 20),
    ("erin", "Mechanical keyboard", 45),
    ("frank", "Crime novel without its last chapter", 3),
)

#: (text, URL name) of the notifications that all users start with
NOTIFICATIONS = (
    ("Type @ and a name in a chat, such as @Bob Lindqvist, to notify a member, or @all.", "messaging:chats"),
    ("Order something: you are notified when it is confirmed, or if you don't pay in time.", "orders"),
    (
        "Buy something at the market. If two users buy the same item at once, only one of them gets it.",
        "market",
    ),
)


def titles() -> Iterator[str]:
    """Different titles of chats without end, always the same ones."""
    for number in itertools.count(1):
        for place, team in itertools.product(PLACES, TEAMS):
            yield f"{team} {place}" if number == 1 else f"{team} {place} {number}"
