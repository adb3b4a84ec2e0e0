"""All services are used while primaries are killed, frozen or cut off, or change roles, and slots move."""

from __future__ import annotations

import os

import pytest
from redis.crc import key_slot

from django_redis_messaging import DelayQueue, OutcomeUnknown, Unavailable, conf
from django_redis_messaging.services.jobs.keys import JobKeys
from tests.support.clusters import NODE_TIMEOUT, until

from ..support.aliases import entry, leading_to
from ..support.programs import program
from ..support.server_faults import FAULTS, Fault, divided_cluster, divided_sentinel
from ..support.topologies import Servers

pytestmark = pytest.mark.promise
#: s: the service is back this long after the servers count the primary as dead
BACK = 4.0
#: at most so many jobs and timers are created and claimed at a primary that is lost before any replica has
#: them; the repeat of a creation whose reply was lost creates them once more
ON_THEIR_WAY = 4


def parameter(fault: Fault) -> object:
    return pytest.param(
        fault,
        id=f"{fault.start.__name__}, {fault.name}, {fault.confirmed_by} confirm",
        marks=() if fault.is_short else pytest.mark.long,
    )


@pytest.mark.parametrize("fault", [parameter(fault) for fault in FAULTS])
def test_services_keep_their_promises(fault: Fault, servers: Servers) -> None:
    if fault.start in (divided_cluster, divided_sentinel):
        program("ip")
        if os.geteuid() != 0 and "CI" not in os.environ:
            pytest.skip("only root may create network namespaces")
    shard, report = fault.run(servers)
    assert report.violations == []
    assert report.doubled <= (0 if fault.loses is False else ON_THEIR_WAY)
    assert report.outage <= shard.detection + BACK
    if fault.is_unnoticed:
        assert (report.reported, report.repeated, any(report.errors.values())) == (0, 0, False)
    if fault.loses:
        assert report.lost["messages"] and report.lost["events"] and report.lost["timers"]
        assert report.reported >= 2  # readers of chats and of broadcasts
    if fault.loses is False:
        assert not any(report.lost.values())


@pytest.mark.long
def test_claims_find_the_replica_of_a_frozen_primary(servers: Servers, own_prefix: str) -> None:
    """A claim is not repeated after a lost reply, and a worker may send nothing else."""
    queue: DelayQueue[str] = DelayQueue("mail")

    def popped_nothing() -> bool:
        """Whether a claim was answered."""
        try:
            return queue.pop() == []
        except (OutcomeUnknown, Unavailable):  # the latter: the greeting of a new connection had no reply
            return False

    with servers.cluster() as cluster:
        cluster.set_timeout(NODE_TIMEOUT)
        at = cluster.owner(key_slot(JobKeys(conf.prefix(), "queue", "mail").jobs.encode()))
        with leading_to(entry(cluster.url(0)), PREFIX=own_prefix, COMMAND_DEADLINE=1.0):
            assert queue.pop() == []
            cluster.servers[at].freeze()
            try:
                until(popped_nothing)
            finally:
                cluster.servers[at].thaw()
        until(lambda: cluster.clients[at].info("replication")["role"] == "slave")
