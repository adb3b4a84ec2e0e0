"""The users, chats, notifications and items that the demo starts with."""

from __future__ import annotations

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
