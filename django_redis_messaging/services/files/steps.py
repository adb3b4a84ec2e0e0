"""The steps of a file channel, which its publisher and its consumers send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ... import conf
from ...core.keys import name as checked
from ...core.operations import BulkCommand, Command, Listen, Script, Service, Steps, asynchronous, operation
from ...errors import FileChannelError, LeaseLost, UnknownConsumer
from ..locks import Lock
from .keys import FileChannelKeys, FileKeys, file_name, lease_name
from .values import Description, parse_description

#: seconds that a consumer or publisher waits before it checks whether it has to stop
WAIT = 1.0
#: ms after which the blocks of a file that was not announced expire
WRITING_TTL = 3_600_000
#: number of source files that a channel remembers as published
REMEMBERED = 100_000


class Announced(NamedTuple):
    """An announced file."""

    id: int
    description: Description


class Full(NamedTuple):
    """There is no space, or not all files are freed: wait for an entry after this one in `space`."""

    entry: int


class ChannelSteps(Service):
    """The steps of one channel. Scripts are described in lua/files_*.lua."""

    def __init__(self, channel: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.channel = checked(channel, "channel")
        self._keys = FileChannelKeys(self._prefix, channel)

    def _lease(self, consumer: str, seconds: float, on_lost: Any) -> Lock:
        """The lease of a consumer, or of the publisher: ''. A predecessor that was killed holds it until its
        lease ends, so acquiring it waits a little longer than that."""
        return Lock(
            lease_name(self.channel, consumer), timeout=seconds, renew=True, on_lost=on_lost,
            blocking_timeout=seconds + 1, thread_local=False, raise_on_release_error=False,
            using=self._using,
        )  # fmt: skip

    def _begin(self, fence: int, names: Sequence[str], number: int) -> Steps[None]:
        status, *rest = yield Script("files_begin", self._keys.announcing, [fence, number, *names])
        if status == b"consumers":
            known = ", ".join(repr(name.decode()) for name in rest)
            raise FileChannelError(
                f"The channel {self.channel!r} has the consumers {known}: name them too, or release them if "
                "they have vanished."
            )
        self._check_lease(status)
        yield from self._sweep(rest)

    def _reserve(self, fence: int, identity: str, size: int, limit: int) -> Steps[int | Full | None]:
        """Reserve space for a file; returns its id, or None if it was published before."""
        args = (fence, identity, size, limit, conf.current().FILES_MAX_WAITING)
        status, *rest = yield Script("files_reserve", self._keys.reserving, args)
        while status == b"wait" and (yield from self._sweep(rest[1:])):  # the space may be sufficient now
            status, *rest = yield Script("files_reserve", self._keys.reserving, args)
        self._check_lease(status)
        if status == b"final":
            raise FileChannelError(
                f"The last file of the channel {self.channel!r} has been published: wait until its consumers "
                "have received all files, or use another channel."
            )
        if status == b"wait":
            return Full(int(rest[0]))
        return None if status == b"known" else int(rest[0])

    def _open(self, fence: int, blocks: str) -> Steps[None]:
        """Begin to store a file. If a successor has discarded it already, nothing else would delete it."""
        yield [Command("HSET", blocks, "", ""), _expire(blocks)]
        if not (yield from self._is_latest("", fence)):
            yield Command("UNLINK", blocks)
            self._check_lease(b"stale")

    def _write(self, blocks: str, number: int, block: bytes) -> Steps[None]:
        """Store a block. If a successor has discarded the file, the block is deleted again."""
        *_, is_open = yield [
            BulkCommand("HSET", blocks, number, data=block),
            _expire(blocks),
            Command("HEXISTS", blocks, "", reads=True),
        ]
        if not is_open:
            yield Command("UNLINK", blocks)
            self._check_lease(b"stale")

    def _announce(self, fence: int, file_id: int, description: Description, identity: str) -> Steps[None]:
        """Announce a complete file. From here on its blocks don't expire."""
        blocks = self._blocks(file_id)
        _, stored, _ = yield [
            Command("HDEL", blocks, ""), Command("HLEN", blocks, reads=True), Command("PERSIST", blocks)
        ]  # fmt: skip
        if stored != description.blocks:
            self._check_lease(b"ok" if (yield from self._is_latest("", fence)) else b"stale")
            raise FileChannelError(
                f"Redis has lost blocks of {description.name!r} while it was published; publish it again."
            )
        args = (fence, file_id, description.dump(), identity, REMEMBERED)
        reply = yield Script("files_announce", self._keys.announcing, args)
        if reply != 1:
            yield Command("UNLINK", blocks)
        self._check_lease(b"stale" if reply < 0 else b"ok")
        if not reply:
            raise FileChannelError(
                f"The channel {self.channel!r} was deleted while {description.name!r} was published; publish "
                "it again."
            )

    @operation
    def _abandon(self, fence: int) -> Steps[None]:
        """Discard the file that is being written."""
        keys = self._keys
        trash = yield Script("files_abandon", [keys.state, keys.consumers, keys.trash], [fence])
        yield from self._sweep(trash)

    _aabandon = asynchronous(_abandon)

    def _close(self, fence: int) -> Steps[Full | None]:
        """Declare the last file published. Returns None when all files are freed."""
        status, *rest = yield Script("files_close", self._keys.all, [fence])
        while status == b"wait" and (yield from self._sweep(rest[1:])):
            status, *rest = yield Script("files_close", self._keys.all, [fence])
        self._check_lease(status)
        return None if status == b"closed" else Full(int(rest[0]))

    @operation
    def _next(self, consumer: str, fence: int) -> Steps[Announced | bool]:
        """The first file that the consumer has not acked; waits for it up to WAIT seconds. True: none yet;
        False: there will be none."""
        status, *rest = yield Script("files_next", self._keys.consuming, [consumer, fence])
        self._check_lease(status)
        if status == b"unknown":
            known = ", ".join(repr(name.decode()) for name in rest) or "no consumers"
            raise UnknownConsumer(
                f"The channel {self.channel!r} has no consumer {consumer!r}, but {known}: name it when "
                "publishing."
            )
        if status == b"file":
            return Announced(int(rest[0]), parse_description(rest[1]))
        if status == b"end":
            yield from self._leave(consumer)
            return False
        if not (yield from self._sweep(rest[1:])):
            yield Listen(self._keys.news, int(rest[0]), seconds=WAIT)
        return True

    _anext = asynchronous(_next)

    @operation
    def _ack(self, consumer: str, fence: int, file_id: int) -> Steps[bool]:
        """Ack a file; returns False if it was the last one of a final channel."""
        status, *trash = yield Script("files_ack", self._keys.consuming, [consumer, fence, file_id])
        self._check_lease(status)
        if status == b"order":
            raise FileChannelError(
                f"An earlier file of the channel {self.channel!r} was not acked: ack the files in order."
            )
        yield from self._sweep(trash)
        if status == b"end":
            yield from self._leave(consumer)
        return bool(status != b"end")

    _aack = asynchronous(_ack)

    def _leave(self, consumer: str) -> Steps[None]:
        yield Script("files_leave", self._keys.leaving, [consumer])

    def _sweep(self, trash: Sequence[bytes]) -> Steps[bool]:
        """Delete the blocks of freed files, then give their space back; returns whether there were any. Other
        clients may do it at the same time."""
        has_trash = bool(trash)
        while trash:
            yield [Command("UNLINK", self._blocks(int(member.split()[0]))) for member in trash]
            trash = yield Script("files_purge", self._keys.all, trash)
        return has_trash

    def _is_latest(self, consumer: str, fence: int) -> Steps[bool]:
        """Whether no other process has since received files as this consumer, or, for '', begun to publish;
        False also for a consumer that was released."""
        found = yield Command("HGET", self._keys.consumers, f"f{consumer}", reads=True)
        return bool(found == b"%d" % fence)

    def _blocks(self, file_id: int) -> str:
        return FileKeys(self._prefix, file_name(self.channel, file_id)).blocks

    def _check_lease(self, status: bytes) -> None:
        if status == b"stale":
            raise LeaseLost(
                f"The lease on the channel {self.channel!r} was lost: another process may have taken over."
            )


def _expire(blocks: str) -> Command:
    """Counts as a read: if the server is full, it refuses only the write beside it, and nothing is stored."""
    return Command("PEXPIRE", blocks, WRITING_TTL, reads=True)
