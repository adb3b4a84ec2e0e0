"""Who may sign in, and what they have said before anybody looks."""

from __future__ import annotations

from typing import NamedTuple


class Person(NamedTuple):
    """Somebody with a card on the sign-in page."""

    username: str
    first_name: str
    last_name: str

    @property
    def full_name(self) -> str:
        return f"{self.first_name} {self.last_name}"


class Talk(NamedTuple):
    """A chat that exists when the demo starts; the first line's speaker made it."""

    chat_id: str
    title: str
    people: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]


#: the first is also allowed into the admin
CAST = (
    Person("alice", "Alice", "Moreau"),
    Person("bob", "Bob", "Lindqvist"),
    Person("carol", "Carol", "Okafor"),
    Person("dave", "Dave", "Marchetti"),
    Person("erin", "Erin", "Nakamura"),
    Person("frank", "Frank", "Oliveira"),
)

TALKS = (
    Talk(
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
    Talk(
        "demo-release",
        "Release",
        ("alice", "bob", "erin"),
        (
            ("erin", "All checks are green. Shall we ship it before the weekend?"),
            ("alice", "Monday morning, when everybody is there to look after it."),
            ("erin", "Monday it is. I'll write the notes until then."),
        ),
    ),
    Talk(
        "demo-books",
        "",
        ("carol", "frank"),
        (
            ("frank", "I have finished the book you lent me. The last chapter!"),
            ("carol", "I know. Don't say a word to Dave, he is only half way through."),
        ),
    ),
)

#: notifications that everybody has at first, and the names of the addresses they lead to
WELCOME = (
    ("Write @ and a user name in a chat, as in @bob, to notify somebody who is in it.", "messaging:chats"),
    ("Order something: you are notified when it is confirmed, and when you don't pay in time.", "orders"),
)
