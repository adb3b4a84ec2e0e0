"""A small service and its scripts, as the core's tests use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django_redis_messaging.core.commands import Hint
from django_redis_messaging.core.encoding import tag
from django_redis_messaging.core.operations import (
    Command,
    Fan,
    PopHint,
    Script,
    Service,
    Steps,
    asynchronous,
    operation,
)

#: name of a script → its text; see the fixture `scripts_of_things`
SCRIPTS = {
    "thing_add": "-- uses _thing.lua\nreturn add(KEYS[1], ARGV[1])",
    "_thing": "local function add(key, n) return redis.call('INCRBY', key, n) end",
    "thing_renew": "redis.call('DEL', KEYS[1])\nredis.call('SET', KEYS[1], ARGV[1])\nreturn #KEYS",
    "thing_later": (
        "if redis.call('DEL', KEYS[#KEYS]) == 1 then return redis.error_reply('TRYAGAIN not yet') end\n"
        "local found = {}\n"
        "for at = 1, #KEYS - 1 do found[at] = redis.call('INCR', KEYS[at]) end\n"
        "return found"
    ),
    "thing_add_some": (
        "local found = {}\n"
        "for at = 1, #KEYS, 2 do\n"
        "  local refusal = redis.call('GET', KEYS[at + 1])\n"
        "  if refusal then return redis.error_reply(refusal) end\n"
        "  found[#found + 1] = redis.call('INCR', KEYS[at])\n"
        "end\n"
        "return found"
    ),
    "thing_clear": "return redis.call('DEL', KEYS[1])",
    "thing_get": "-- reads only\nreturn redis.call('GET', KEYS[1])",
    "thing_add_all": (
        "local found = {}\n"
        "for at, key in ipairs(KEYS) do\n"
        "  found[at] = redis.call('INCRBY', key, ARGV[1] + ARGV[1 + at])\n"
        "end\n"
        "return found"
    ),
}


class Things(Service):
    """Counters, each in its own slot, all with one prefix."""

    def key(self, name: str) -> str:
        return f"{tag(self._prefix, 'thing', name)}:n"

    @operation
    def add(self, name: str, n: int = 1, *, once: bool = False) -> Steps[int]:
        """Add to a counter, by a script."""
        return int((yield Script("thing_add", [self.key(name)], [n], once=once)))

    aadd = asynchronous(add)

    @operation
    def renew(self, name: str, n: int) -> Steps[int]:
        """Remove a counter, and set it."""
        return int((yield Script("thing_renew", [self.key(name)], [n])))

    arenew = asynchronous(renew)

    @operation
    def get(self, name: str) -> Steps[bytes | None]:
        """Read a counter, by a script that is marked as read-only."""
        found: bytes | None = yield Script("thing_get", [self.key(name)])
        return found

    aget = asynchronous(get)

    @operation
    def add_each(self, names: Sequence[str]) -> Steps[list[int]]:
        """Add one to each counter, in a pipeline."""
        replies: list[int] = yield [Script("thing_add", [self.key(name)], [1]) for name in names]
        return replies

    aadd_each = asynchronous(add_each)

    @operation
    def add_each_once(self, names: Sequence[str]) -> Steps[list[int]]:
        """As `add_each`; no call is repeated after a lost reply."""
        replies: list[int] = yield [Script("thing_add", [self.key(name)], [1], once=True) for name in names]
        return replies

    aadd_each_once = asynchronous(add_each_once)

    @operation
    def add_all(self, names: Sequence[str], n: int = 1) -> Steps[list[int]]:
        """Add `n`, and the position, to each counter, by one script over all of them."""
        resources = [([self.key(name)], [at]) for at, name in enumerate(names)]
        replies: list[int] = yield Fan("thing_add_all", resources, [n])
        return replies

    aadd_all = asynchronous(add_all)

    @operation
    def add_some(self, names: Sequence[str], *, once: bool = True) -> Steps[list[Any]]:
        """Add one to each counter, by one script over all of them. The script refuses with
        the text of the key "refusal" of a name, and changes only the counters before that one."""
        resources = [([self.key(name), self.refusal(name)], []) for name in names]
        replies: list[Any] = yield Fan("thing_add_some", resources, once=once)
        return replies

    aadd_some = asynchronous(add_some)

    def refusal(self, name: str) -> str:
        """The key with the refusal of `add_some`."""
        return f"{self.key(name)}:refusal"

    @operation
    def clear(self, name: str) -> Steps[int | None]:
        """Remove a counter: 1, or 0 if it doesn't exist; None if that is unknown."""
        reply: int | None = yield Script("thing_clear", [self.key(name)], settles=True)
        return reply

    aclear = asynchronous(clear)

    @operation
    def clear_and_add(self, name: str, other: str) -> Steps[list[int]]:
        """Remove one counter, and add to another, in a pipeline."""
        clear, add = Script("thing_clear", [self.key(name)]), Script("thing_add", [self.key(other)], [1])
        replies: list[int] = yield [clear, add]
        return replies

    aclear_and_add = asynchronous(clear_and_add)

    @operation
    def get_and_add(self, name: str, other: str) -> Steps[list[Any]]:
        """Read one counter, and add to another, in a pipeline."""
        get, add = Script("thing_get", [self.key(name)]), Script("thing_add", [self.key(other)], [1])
        replies: list[Any] = yield [get, add]
        return replies

    aget_and_add = asynchronous(get_and_add)

    @operation
    def add_pages_once(self, pages: Sequence[Sequence[str]]) -> Steps[list[list[int]]]:
        """Add one to each counter, a script a page; a page is refused for now where the key "later" of its
        last name is there. None is sent again when its reply is lost."""
        replies: list[list[int]] = yield [
            Script("thing_later", [*map(self.key, page), self.key(f"later {page[-1]}")], once=True)
            for page in pages
        ]
        return replies

    aadd_pages_once = asynchronous(add_pages_once)

    @operation
    def do(self, *words: str | bytes | int, reads: bool = False) -> Steps[Any]:
        """Any command."""
        return (yield Command(*words, reads=reads))

    ado = asynchronous(do)

    @operation
    def wait(self, name: str, seconds: float) -> Steps[bytes | None]:
        """Wait for a hint and take it."""
        found = yield PopHint(Hint(self.key(name)), seconds=seconds)
        return None if found is None else found[1]

    await_ = asynchronous(wait)
    take, atake = wait, await_  # the names by which tests call both versions of an operation
