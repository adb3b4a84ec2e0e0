"""The keys of jobs, queues and workers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from zlib import crc32

from ...core.commands import Hint
from ...core.encoding import FORMAT, encoded, tag

#: pairs of hashes over which the request ids of pushes are spread: to delete one hash of a million ids in one
#: go would delay other clients by half a second
REQUEST_SHARDS = 64


class JobKeys:
    """The keys of the jobs of one slot: of one delay queue `{queue:NAME}`, of all queues of a task backend
    `{tasks:ALIAS}`, or of all timers `{expiry:timers}`."""

    def __init__(self, prefix: str, kind: str, value: str) -> None:
        self.tag = tag(prefix, kind, value)
        self._queues: dict[str, QueueKeys] = {}
        self._for_requests: dict[tuple[str, int], list[str]] = {}

    @functools.cached_property
    def jobs(self) -> str:
        """HASH job id → payload, opaque. A field is deleted with its job: acked, cancelled, purged; or when
        the job has a result, whose state includes the payload."""
        return self.tag + ":jobs"

    @functools.cached_property
    def states(self) -> str:
        """HASH job id → state: a status and named fields, for example "waiting attempts=0/5
        pushed=1764170000000 due=1764170060000"; _records.lua describes them. The payload and the log of a job
        with a result follow, each after a newline. A field is deleted with its job, or when the result
        expires."""
        return self.tag + ":states"

    @functools.cached_property
    def outcomes(self) -> str:
        """HASH job id → its log: lines with the results and errors of its attempts, opaque. Deleted with the
        payload."""
        return self.tag + ":outcomes"

    @functools.cached_property
    def finished(self) -> str:
        """ZSET job id → ms until which its result is kept. Each insertion deletes some that have expired, or
        are over the limit."""
        return self.tag + ":finished"

    @functools.cached_property
    def uniques(self) -> str:
        """HASH unique key → id of the job that has it. A field is deleted when its job ends."""
        return self.tag + ":uniques"

    @functools.cached_property
    def aliases(self) -> str:
        """HASH a + id → id of the job that it stands for; n + job id → how many ids stand for it; the
        number of one of them, a space and the job id → that id. Deleted with the job."""
        return self.tag + ":aliases"

    @functools.cached_property
    def held(self) -> str:
        """ZSET NEED JOB: a lock or a permit that a leased job holds, for example "permit:exports 0a5d…". All
        scores are 0. A member is deleted when the lease ends."""
        return self.tag + ":held"

    @functools.cached_property
    def lines(self) -> str:
        """ZSET NEED QUEUE: jobs of this queue are parked on this need, or were recently. All scores are 0.
        A member is deleted when a promotion finds no further job."""
        return self.tag + ":lines"

    @functools.cached_property
    def rates(self) -> str:
        """ZSET rate:NAME/COUNT/PERIOD → µs at which all its tokens will be free. Each lease that takes one
        deletes some that are in the past."""
        return self.tag + ":rates"

    @functools.cached_property
    def tokens(self) -> str:
        """ZSET rate:NAME/COUNT/PERIOD → ms at which jobs that are parked on this rate can be promoted.
        Deleted then."""
        return self.tag + ":tokens"

    @functools.cached_property
    def limits(self) -> str:
        """HASH permit:NAME → the number of permits that set_concurrency has set. It deletes a field when it
        is called with None."""
        return self.tag + ":limits"

    @functools.cached_property
    def paused(self) -> str:
        """HASH queue:NAME or task:NAME → since when it is paused (ms), by whom and why, for example
        "since=1764170000000 by=ann reason=deploy", values percent-encoded. A field is deleted when the
        queue or the task is resumed; at most 1,000."""
        return self.tag + ":paused"

    @functools.cached_property
    def tags(self) -> str:
        """ZSET TAG QUEUE JOB: a job that waits or runs has this tag. All scores are 0. A member is deleted
        when the job ends."""
        return self.tag + ":tags"

    @functools.cached_property
    def requests(self) -> list[str]:
        """HASH request id → first answer: two keys, used in turn, one window each. Each expires when its next
        turn begins."""
        return [self.tag + ":requests:0", self.tag + ":requests:1"]

    def requests_of(self, shard: int) -> list[str]:
        """HASH request id → first answer, of the pushes whose request ids are of this shard: two keys, used
        as `requests`. Each expires when its next turn begins."""
        return [f"{self.tag}:requests:{shard}:{turn}" for turn in (0, 1)]

    @functools.cached_property
    def workers(self) -> str:
        """HASH worker id → heartbeat, with the rate at which its jobs end in each queue, in the format of
        workers_beat.lua. A worker removes its own; each
        heartbeat removes those that are too old."""
        return self.tag + ":workers"

    def ended(self, job_id: str) -> str:
        """STREAM of one entry: the job has ended; or the batch, with `batch:` and its encoded id. The script
        that ends a job for which clients wait, or a batch, computes the key (_ended.lua). Expires ten seconds
        later."""
        return f"{self.tag}:ended:{job_id}"

    def batch(self, batch_id: str) -> str:
        """HASH of a batch: total, pending, failed and cancelled jobs, and the callbacks that are not enqueued
        yet; _batches.lua describes the fields. The scripts that end its jobs compute the key. Expires when
        its results do, or if jobs of it failed, when these are no longer dead letters; 30 days after the
        latest page if its creator never ended it."""
        return f"{self.tag}:batch:{encoded(batch_id)}"

    @functools.cached_property
    def queues(self) -> str:
        """ZSET name → ms of a recent push, or of the last due time: the queues of a backend that allows any.
        The poller removes old names of empty queues."""
        return self.tag + ":queues"

    @functools.cached_property
    def periodic(self) -> str:
        """HASH name of a periodic task, or schedule: and the encoded name of a stored schedule → how far its
        occurrences are handled, and since when it is paused; "polled" → when a poller looked; "changed" → a
        number that grows with each change of `schedules`; in the format of tasks/_periodic.lua. A field is
        deleted with its schedule; it stays when a task is removed from the code: about 100 bytes."""
        return self.tag + ":periodic"

    @functools.cached_property
    def schedules(self) -> str:
        """HASH encoded name → a schedule that was added at run time, for example {"task":"shop.tasks.report",
        "cron":"0 6 * * mon","tz":"Europe/Berlin","missed":"once","queue_name":"default","priority":0,
        "args":[],"kwargs":{"customer":7}}. At most 500 of 8 KiB each. Removed by clients."""
        return self.tag + ":schedules"

    @functools.cached_property
    def records(self) -> list[str]:
        """The records of the jobs, in the order of _records.lua: the first KEYS of every script."""
        return self._with_requests(self.requests)

    def _with_requests(self, requests: list[str]) -> list[str]:
        own = [self.jobs, self.states, self.outcomes, self.finished, self.uniques, self.aliases]
        waiting = [self.held, self.lines, self.rates, self.tokens, self.limits, self.paused]
        return [*own, *waiting, self.tags, *requests]

    def with_queues(self, values: Sequence[str]) -> list[str]:
        """The KEYS of a script about several queues: the records, then each queue."""
        if len(values) == 1:
            return self.queue(values[0]).with_records
        found = [*self.records]
        for value in values:
            found += self.queue(value).all
        return found

    def for_request(self, shard: int, value: str) -> list[str]:
        """The KEYS of a script about one queue that records the answer to a push."""
        found = self._for_requests.get((value, shard))
        if found is None:
            found = [*self._with_requests(self.requests_of(shard)), *self.queue(value).all]
            self._for_requests[value, shard] = found
        return found

    def queue(self, value: str) -> QueueKeys:
        """The keys of one of its queues."""
        found = self._queues.get(value)
        if found is None:
            found = self._queues[value] = QueueKeys(self, value)
        return found


class QueueKeys:
    """The jobs of one queue, by where they are. Redis deletes each key with its last member."""

    def __init__(self, jobs: JobKeys, value: str) -> None:
        self.tag = f"{jobs.tag}:queue:{encoded(value)}"
        #: the KEYS of a script about one queue: the records, then the queue
        self.with_records = [*jobs.records, *self.all]

    @functools.cached_property
    def ready(self) -> str:
        """ZSET job id → place: (100 - priority) * 2^45 + order, see _places.lua. Capped on push."""
        return self.tag + ":ready"

    @functools.cached_property
    def delayed(self) -> str:
        """ZSET job id → ms at which it is due. Capped on push, together with `ready` and `parked`. The member
        "\\0tokens" is no job: at its score, parked jobs may be promoted."""
        return self.tag + ":delayed"

    @functools.cached_property
    def leased(self) -> str:
        """ZSET job id → ms at which its lease ends. The next claim of any client requeues expired ones."""
        return self.tag + ":leased"

    @functools.cached_property
    def dead(self) -> str:
        """ZSET job id → ms at which it died. Capped, and pruned by age, with each dead job that is added."""
        return self.tag + ":dead"

    @functools.cached_property
    def bell(self) -> Hint:
        """ZSET of at most one marker: the queue may have a job. One waiting worker takes the marker."""
        return Hint(self.tag + ":bell")

    @functools.cached_property
    def parked(self) -> str:
        """ZSET NEED PLACE JOB: a job that waits for what it needs, for example a permit, and its place
        among them, 20 digits. All scores are 0. Capped on push, together with `ready`."""
        return self.tag + ":parked"

    @functools.cached_property
    def groups(self) -> str:
        """HASH jobs PRIORITY GROUP → how many jobs of the group are ready, and last PRIORITY GROUP → the last
        place that they have got; "last PRIORITY" for jobs without a group. The fields of a group are deleted
        when the last of its jobs is claimed, all others when no job is ready then."""
        return self.tag + ":groups"

    @functools.cached_property
    def all(self) -> list[str]:
        """The keys of the queue, in the order of _queue.lua."""
        return [self.ready, self.delayed, self.leased, self.dead, self.bell, self.parked, self.groups]


def request_shard(request: str) -> int:
    """The number of the pair of hashes for this request id."""
    return crc32(request.encode()) % REQUEST_SHARDS


def request_offset(shard: int, window: int) -> int:
    """How much earlier than the first one the windows of a pair begin: ms."""
    return shard * window // REQUEST_SHARDS


def queues_key(prefix: str) -> str:
    """ZSET name → ms of a recent push, or of the last due time: the delay queues. The poller removes old
    names of empty queues."""
    return f"{prefix}:{FORMAT}:{{queues}}"
