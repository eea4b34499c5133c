"""Snapshots of a real etcd are taken every ten minutes, whoever leads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.clusters.memory_bucket import MemoryBucket
from support.store.etcd_members import wait_until

from spotelastic.controller.etcd.snapshots import EVERY, PREFIX, Snapshots
from spotelastic.store.etcd_server.process import EtcdMember


def times(bucket: MemoryBucket) -> list[int]:
    return [int(name.removeprefix(PREFIX).removesuffix(".db")) for name in bucket.names(PREFIX)]


class Watch:
    """A clock that the test sets."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextmanager
def of_a_leader(
    bucket: MemoryBucket, member: EtcdMember, watch: Watch
) -> Iterator[Callable[[], float]]:
    """What it does when it looks; its own thread looks once, and then waits for minutes."""
    made = Snapshots(bucket, [member.endpoint], None, clock=watch)
    try:
        yield made.turn
    finally:
        made.close()


def test_one_is_taken_every_ten_minutes_and_another_leaders_counts(
    etcd_member: EtcdMember,
) -> None:
    assert EVERY == 600.0
    bucket, watch = MemoryBucket("demo"), Watch(1000.5)
    with of_a_leader(bucket, etcd_member, watch) as turn:
        wait_until(lambda: times(bucket) == [1000], "the first is taken at once")
        watch.now = 1300.0
        assert turn() == 300.0
        watch.now = 1599.0
        assert turn() == 1.0
        assert times(bucket) == [1000]
        watch.now = 1600.0
        assert turn() == EVERY
        assert times(bucket) == [1000, 1600]
    watch.now = 1900.0
    with of_a_leader(bucket, etcd_member, watch) as turn:
        assert turn() == 300.0
        assert times(bucket) == [1000, 1600]
        watch.now = 2200.0
        assert turn() == EVERY
        assert times(bucket) == [1000, 1600, 2200]
        watch.now = 100.0  # a clock that was set back waits no longer than ever
        assert turn() == EVERY
    assert all(bucket.objects.values())
