"""Every public operation takes user objects where it takes member ids.

The operations are found by their signatures: a parameter that is named like one for users must be annotated
with UserOrId, and each parameter with this annotation gets user objects and other values.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import is_dataclass
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.utils.functional import SimpleLazyObject

import django_redis_messaging as messaging
from django_redis_messaging import Chat, Mailbox, live

from ..support.server import all_keys, server

pytestmark = [pytest.mark.one_server, pytest.mark.versions]

#: names of parameters for users
NAMES = {"author", "by", "contact", "member", "members", "mentions", "other", "owner", "people", "person"} | {
    "recipient",
    "recipients",
    "sender",
    "user",
    "users",
}
#: also the primary keys of the users
ANN, BOB, CAT = "ann", "bob", "cat"
#: the members that are passed, by the name of the parameter; ann is the owner of a chat with bob
MEMBERS: dict[str, Any] = {
    "after": ANN,
    "by": ANN,
    "contact": BOB,
    "member": BOB,
    "members": [BOB, CAT],
    "mentions": [BOB],
    "other": BOB,
    "pairs": [(BOB, "Bob"), (CAT, "Cat")],
    "recipients": [BOB, CAT],
    "sender": ANN,
    "tokens": {"token": ANN},
    "user": ANN,
    "users": [ANN, BOB],
}
#: those of other operations, and other arguments that they need
SPECIAL: dict[str, dict[str, Any]] = {
    "Chat.add": {"users": [BOB, CAT]},
    "Chat.changes": {"after": 0},
    "Chat.changes_for": {"after": 0},
    "Chat.edit": {"message_id": 1},
    "Chat.history": {"after": None},
    "Chat.join": {"user": CAT},
    "Chat.leave": {"user": BOB},
    "Mailbox.send": {"sender": BOB},
}
#: all other arguments that have no default
OTHERS: dict[str, Any] = {
    "body": "Hi",
    "ids": [1],
    "label": "Ann",
    "message_id": 1,
    "payload": "Hi",
    "role": "owner",
    "text": "Hi",
    "title": "Trip",
    "token": "token",
    "until": None,
    "up_to": 1,
}
#: how the objects are made whose operations are called
OWNERS: dict[str, Callable[[], Any]] = {
    "Chat": lambda: Chat("club"),
    "Blocks": lambda: messaging.Blocks("eve"),
    "Choices": messaging.Choices,
    "Directory": lambda: messaging.Directory("staff"),
    "Mailbox": lambda: Mailbox("eve"),
    "Presence": live.Presence,
    "RecentContacts": lambda: messaging.RecentContacts("eve"),
}


class Operation(NamedTuple):
    """A public callable, and its parameters for users."""

    path: str
    find: Callable[[], Callable[..., Any]]
    parameters: dict[str, inspect.Parameter]

    @property
    def users(self) -> list[str]:
        return [name for name, one in self.parameters.items() if "UserOrId" in str(one.annotation)]

    def arguments(self) -> dict[str, Any]:
        """Valid arguments, with member ids for all users."""
        path = re.sub(r"\.a(?=[a-z])", ".", self.path) if self.is_async else self.path
        known = OTHERS | {name: MEMBERS[name] for name in self.users} | SPECIAL.get(path, {})
        needed = {name for name, one in self.parameters.items() if one.default is one.empty}
        return {name: known[name] for name in known if name in {*needed, *self.users}}

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.find())

    async def __call__(self, **arguments: Any) -> Any:
        found = self.find()(**arguments)
        if isinstance(found, AsyncGenerator):
            async with aclosing(found) as events:
                return await anext(event async for event in events if isinstance(event, live.ChatsChanged))
        return await found if inspect.isawaitable(found) else found


def public_values() -> dict[str, Any]:
    return {name: getattr(module, name) for module in (messaging, live) for name in module.__all__}


def public_callables() -> Iterator[tuple[str, Callable[[], Callable[..., Any]], Callable[..., Any]]]:
    """Each public function, constructor and method: its path, how to find it for a call, and itself."""
    for name, value in public_values().items():
        if inspect.isfunction(value):
            yield name, lambda value=value: value, value
        if inspect.isclass(value) and not issubclass(value, tuple | BaseException):
            yield name, lambda value=value: value, value.__init__
            for attribute, method in inspect.getmembers(value, inspect.isroutine):
                if not attribute.startswith("_"):
                    yield f"{name}.{attribute}", lambda n=name, a=attribute: getattr(OWNERS[n](), a), method


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(function).parameters)
    found.pop("self", None)
    return found


FOUND = [Operation(path, find, parameters_of(function)) for path, find, function in public_callables()]
OPERATIONS = {one.path: one for one in FOUND if one.users}


def test_all_parameters_for_users_are_annotated() -> None:
    values = {name for name, value in public_values().items() if is_dataclass(value)}
    forgotten = {
        (one.path, name)
        for one in FOUND
        for name in one.parameters
        if name in NAMES and name not in one.users and one.path not in values
    }
    # `by` is a text, as a terminal shows it
    assert forgotten == {("DelayQueue.pause", "by"), ("DelayQueue.apause", "by")}
    assert {"Chat.create", "Chat.acreate", "anotify_many", "Inbox", "forget", "events"} <= OPERATIONS.keys()
    assert len(OPERATIONS) > 60


def user_of(member: str, style: str) -> Any:
    user = User(pk=member)
    return SimpleLazyObject(lambda: user) if style == "lazy" else user


def users_of(members: Any, style: str) -> Any:
    """The same with user objects in the place of member ids."""
    if isinstance(members, str):
        return user_of(members, style)
    if isinstance(members, dict):
        return {key: user_of(member, style) for key, member in members.items()}
    pairs = [(user_of(one[0], style), one[1]) if isinstance(one, tuple) else one for one in members]
    return [user_of(one, style) if isinstance(one, str) else one for one in pairs]


def begin() -> None:
    """Two members with messages, in an empty database."""
    for key in all_keys():
        server().delete(key)
    chat = Chat.create(ANN, [BOB], "One", chat_id="club")
    chat.send(BOB, "Two")
    messaging.Directory("staff").add(BOB, "Bob")
    messaging.RecentContacts("eve").touch(BOB)


def masked(value: object) -> str:
    """Without what differs in each call: numbers, cursors and tokens. What remains are names."""
    text = re.sub(r"[0-9a-f]+(-[0-9a-f]+)+|[0-9a-f]*[0-9][0-9a-f]*", "#", repr(value))
    return re.sub(r"datetime\((#, )+", "datetime(#, ", text)  # without microseconds, if they are 0


def stored() -> dict[str, list[str]]:
    """What Redis contains, without the order of hashes and the scores of sorted sets."""
    read: dict[bytes, Callable[[str], Iterable[Any]]] = {
        b"string": lambda key: [server().get(key)],
        b"list": lambda key: server().lrange(key, 0, -1),
        b"hash": lambda key: server().hgetall(key).items(),
        b"zset": lambda key: server().zrange(key, 0, -1),
    }
    found = defaultdict(list)  # the two keys of request ids have one masked name
    for key in all_keys():
        found[masked(key)] += map(masked, read[server().type(key)](key))
    return {key: sorted(values) for key, values in found.items()}


@pytest.mark.parametrize("path", OPERATIONS)
async def test_user_objects_have_the_effect_of_their_member_ids(path: str, closing: None) -> None:
    operation, seen = OPERATIONS[path], {}
    for style in ("str", "user", "lazy"):
        begin()
        arguments = operation.arguments()
        if style != "str":
            arguments |= {
                name: users_of(arguments[name], style) for name in operation.users if arguments.get(name)
            }
        seen[style] = masked(await operation(**arguments)), stored()
    assert seen["user"] == seen["lazy"] == seen["str"]
    assert set(operation.users) <= {name for name, value in operation.arguments().items() if value}


ONE = {
    "int": 17,
    "UUID": UUID(int=17),
    "bytes": b"17",
    "another model": Group(pk=17),
    "class": User,
    "list": [User(pk=17)],
    "anonymous": AnonymousUser(),
    "lazy anonymous": SimpleLazyObject(AnonymousUser),
    "not saved": User(username="ann"),
}
#: in place of several users: a value, and the end of the message
SEVERAL = [
    (User(pk=17), "not User: wrap it in a list."),
    (SimpleLazyObject(lambda: User(pk=17)), "not SimpleLazyObject: wrap it in a list."),
    ("17", "not str: wrap it in a list."),
    (17, "not int."),
    (User, "not ModelBase."),
    (User.objects, "not UserManager: call .all()."),
]
#: a part of the message for each
REMEDIES = {
    "class": "not the class User: pass an instance",
    "list": "not list: pass one user",
    "anonymous": "login_required",
    "lazy anonymous": "login_required",
    "not saved": "save the user first",
}


def wrong_arguments(operation: Operation) -> Iterator[tuple[str, Any, str]]:
    """A parameter, a wrong value of it, and a part of the message."""
    for name in operation.users:
        valid, remedy = operation.arguments()[name], "str(user.pk)"
        if isinstance(valid, list) and name != "pairs":
            yield from ((name, value, f"{name} must be a list of users, {end}") for value, end in SEVERAL)
        for kind, value in ONE.items():
            item: Any = {"list": [value], "tuple": [(value, "Ann")], "dict": {"token": value}}
            shape = "tuple" if name == "pairs" else type(valid).__name__
            yield name, item.get(shape, value), REMEDIES.get(kind, remedy)
        if isinstance(valid, str) and operation.parameters[name].default is not None:
            yield name, None, "not NoneType"


@pytest.mark.parametrize("path", OPERATIONS)
async def test_other_values_are_refused_and_change_nothing(path: str, closing: None) -> None:
    operation = OPERATIONS[path]
    begin()
    before = stored()
    for name, value, words in wrong_arguments(operation):
        with pytest.raises(TypeError, match=re.escape(words)):
            await operation(**(operation.arguments() | {name: value}))
    assert stored() == before
