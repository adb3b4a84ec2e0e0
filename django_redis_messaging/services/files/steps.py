"""The steps of a file channel, which its publisher and its consumers send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ... import conf
from ...core.keys import name as checked
from ...core.operations import BulkCommand, Command, Listen, Script, Service, Steps, asynchronous, operation
from ...errors import FileChannelError, LeaseLost, UnknownConsumer
from ..locks import Lock
from .keys import FileChannelKeys, FileKeys, file_name, lease_key
from .sources import REMEMBERED
from .values import Description, parse_description

#: seconds that a consumer or publisher waits before it checks whether it has to stop
MAX_WAIT = 1.0
#: ms after which the blocks of a file that was not announced expire
WRITING_TTL = 3_600_000


class Announced(NamedTuple):
    """An announced file."""

    id: int
    description: Description


class MustWait(NamedTuple):
    """There is no space, or not all files are freed: wait for an entry after this one in `space`."""

    entry: int


class Session:
    """The lease of a consumer, and what it has learned of its channel: one call of `consume`."""

    def __init__(self, consumer: str) -> None:
        self.consumer = consumer
        #: fence of the lease
        self.fence = 0
        #: run of the channel, see lua/_files.lua; empty until the first reply
        self.run = b""
        self.lost: LeaseLost | None = None
        #: whether there may be further files
        self.may_continue = True

    def lose_lease(self, error: LeaseLost) -> None:
        """Called, in another thread, if the lease is lost."""
        self.lost = error


class ChannelSteps(Service):
    """The steps of one channel. Scripts are described in lua/files_*.lua."""

    def __init__(self, channel: str, *, using: str | None = None) -> None:
        super().__init__(using=using)
        self.channel = checked(channel, "channel")
        self._keys = FileChannelKeys(self._prefix, channel)

    def _lease(self, consumer: str, seconds: float, on_lost: Callable[[LeaseLost], object]) -> Lock:
        """The lease of a consumer, or of the publisher: ''."""
        return Lock(
            f"files:{self.channel}", key=lease_key(self._prefix, self.channel, consumer), timeout=seconds,
            renew=True, on_lost=on_lost, thread_local=False, using=self._using,
        )  # fmt: skip

    def _begin(self, fence: int, names: Sequence[str], number: int, *, reopen: bool = False) -> Steps[None]:
        """Register the consumers. `reopen`: begin anew after the last file, if all files are freed."""
        status, *rest = yield Script(
            "files_begin", self._keys.announcing, [fence, number, int(reopen), *names]
        )
        if status == b"consumers":
            places, *known = rest
            others = [repr(name.decode()) for name in known] + ([f"{places} more"] if places else [])
            raise FileChannelError(
                f"The channel {self.channel!r} has the consumers {', '.join(others)}: name or count "
                "them too, or release those that have vanished."
            )
        self._check_lease(status)
        yield from self._sweep(rest)

    def _reserve(self, fence: int, identity: str, size: int, limit: int) -> Steps[int | MustWait | str]:
        """Reserve space for a file; returns its id; or "known" if it was published before, "finished" if the
        channel has ended."""
        args = (fence, identity, size, limit, conf.current().FILES_MAX_WAITING)
        status, *rest = yield Script("files_reserve", self._keys.reserving, args)
        while status == b"wait" and (yield from self._sweep(rest[1:])):  # the space may be sufficient now
            status, *rest = yield Script("files_reserve", self._keys.reserving, args)
        self._check_lease(status)
        if status == b"final":
            raise FileChannelError(
                f"The last file of the channel {self.channel!r} has been published: wait until its consumers "
                "have acked all files, release those that have vanished, or use another channel."
            )
        if status == b"wait":
            return MustWait(int(rest[0]))
        return int(rest[0]) if status == b"ok" else str(status, "ascii")

    def _open(self, fence: int, blocks: str) -> Steps[None]:
        """Begin to store a file. If a successor has discarded it already, nothing else would delete it."""
        yield [Command("HSET", blocks, "", ""), _expire(blocks)]
        if not (yield from self._is_latest("", fence)):
            yield Command("UNLINK", blocks)
            raise self._lease_lost()

    def _write(self, blocks: str, number: int, block: bytes) -> Steps[None]:
        """Store a block. If a successor has discarded the file, the block is deleted again."""
        *_, is_open = yield [
            BulkCommand("HSET", blocks, number, data=block),
            _expire(blocks),
            Command("HEXISTS", blocks, "", reads=True),
        ]
        if not is_open:
            yield Command("UNLINK", blocks)
            raise self._lease_lost()

    def _announce(self, fence: int, file_id: int, description: Description, identity: str) -> Steps[None]:
        """Announce a complete file. From here on its blocks don't expire."""
        blocks = self._blocks(file_id)
        _, stored, _ = yield [
            Command("HDEL", blocks, ""), Command("HLEN", blocks, reads=True), Command("PERSIST", blocks)
        ]  # fmt: skip
        if stored != description.blocks:
            if not (yield from self._is_latest("", fence)):
                raise self._lease_lost()
            raise FileChannelError(
                f"Redis has lost blocks of {description.name!r} while it was published; publish it again."
            )
        args = (fence, file_id, description.dump(), identity, REMEMBERED)
        reply = yield Script("files_announce", self._keys.announcing, args)
        if reply != 1:
            yield Command("UNLINK", blocks)
        if reply < 0:
            raise self._lease_lost()
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

    def _close(self, fence: int) -> Steps[MustWait | None]:
        """Declare the last file published. Returns None when all files are freed."""
        status, *rest = yield Script("files_close", self._keys.all, [fence])
        while status == b"wait" and (yield from self._sweep(rest[1:])):
            status, *rest = yield Script("files_close", self._keys.all, [fence])
        self._check_lease(status)
        return None if status == b"closed" else MustWait(int(rest[0]))

    @operation
    def _next(self, session: Session) -> Steps[Announced | None]:
        """The first file that the consumer has not acked; waits for it up to MAX_WAIT seconds. None: there is
        none yet, or, as the session then says, there will be none."""
        args = (session.consumer, session.fence, session.run)
        status, *rest = yield Script("files_next", self._keys.consuming, args)
        self._check_lease(status)
        if status == b"unknown":
            known = ", ".join(repr(name.decode()) for name in rest) or "no consumers"
            raise UnknownConsumer(
                f"The channel {self.channel!r} has no consumer {session.consumer!r}, but {known}: name it "
                "when publishing."
            )
        session.run, *rest = rest
        if status == b"end":
            yield from self._leave(session)
            return None
        if status == b"file":
            return Announced(int(rest[0]), parse_description(rest[1]))
        if not (yield from self._sweep(rest[1:])):
            yield Listen(self._keys.news, int(rest[0]), seconds=MAX_WAIT)
        return None

    _anext = asynchronous(_next)

    @operation
    def _ack(self, session: Session, file_id: int) -> Steps[None]:
        """Ack a file; ends the session if it was the last one of a final channel."""
        args = (session.consumer, session.fence, file_id)
        status, *trash = yield Script("files_ack", self._keys.consuming, args)
        self._check_lease(status)
        if status == b"order":
            raise FileChannelError(
                f"An earlier file of the channel {self.channel!r} was not acked: ack the files in order."
            )
        yield from self._sweep(trash)
        if status == b"end":
            yield from self._leave(session)

    _aack = asynchronous(_ack)

    def _leave(self, session: Session) -> Steps[None]:
        """End the session: the consumer has received all files."""
        session.may_continue = False
        if session.run:
            yield Script("files_leave", self._keys.leaving, [session.consumer, session.run])

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
            raise self._lease_lost()

    def _lease_lost(self) -> LeaseLost:
        return LeaseLost(
            f"The lease on the channel {self.channel!r} was lost: another process may have taken over. Stop; "
            "what was not acked is delivered again."
        )


def _expire(blocks: str) -> Command:
    """Counts as a read: if the server is full, it refuses only the write beside it, and nothing is stored."""
    return Command("PEXPIRE", blocks, WRITING_TTL, reads=True)
