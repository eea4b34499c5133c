"""What a drill tells others of what it will interrupt: as long as it is under way."""

import msgspec
from support.memory_bucket import MemoryBucket

from spotelastic.client.interruptions.drill_plan import PlannedInterruption, due
from spotelastic.client.interruptions.drill_publisher import EVERY, DrillPublisher
from spotelastic.cloud.bucket import DRILL
from spotelastic.errors import Unavailable
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import DRILL_STALE, DueInterruption, RemainingDrill

NEXT = DueInterruption(InterruptionKind.LOSS, "any node", step=40)
LAST = DueInterruption(InterruptionKind.ETCD, "the leading etcd member")


def test_a_plan_is_told_by_steps_and_times() -> None:
    plan = (
        PlannedInterruption(None, 100, InterruptionKind.LOSS, "any", 0),
        PlannedInterruption(90.0, 0, InterruptionKind.SPOT_INTERRUPTION, "rank 1", 15),
    )
    assert due(plan, began=1000.0) == (
        DueInterruption(InterruptionKind.LOSS, "any node", step=100),
        DueInterruption(InterruptionKind.SPOT_INTERRUPTION, "rank 1", at=1090.0),
    )


def test_it_is_read_back_until_the_drill_ends() -> None:
    bucket, now = MemoryBucket("demo"), [1000.0]
    publisher = DrillPublisher(bucket, lambda: now[0])
    publisher.publish(1, [NEXT, LAST])
    told = bucket.drill()
    assert told == RemainingDrill(1000.0, 1, (NEXT, LAST))
    assert told.is_under_way(1000.0 + DRILL_STALE - 1)
    publisher.close()
    assert bucket.drill() is None


def test_it_is_written_when_it_changes_and_now_and_then() -> None:
    bucket, now = MemoryBucket("demo"), [1000.0]
    publisher = DrillPublisher(bucket, lambda: now[0])

    def written(caused: int, *ahead: DueInterruption) -> float:
        publisher.publish(caused, ahead)
        told = bucket.drill()
        assert told is not None
        assert (told.caused, told.due) == (caused, ahead)
        return told.at

    assert written(1, NEXT, LAST) == 1000.0
    now[0] += 1
    assert written(1, NEXT, LAST) == 1000.0
    assert written(2, LAST) == 1001.0
    now[0] += EVERY
    assert written(2, LAST) == now[0]


def test_a_drill_whose_process_was_killed_is_told_no_longer() -> None:
    assert not RemainingDrill(1000.0, 1, (NEXT,)).is_under_way(1000.0 + DRILL_STALE)
    assert not RemainingDrill(1000.0, 4, ()).is_under_way(1000.0)


def test_a_drill_goes_on_without_the_bucket() -> None:
    class Away(MemoryBucket):
        def put(self, name: str, data: object) -> None:
            raise Unavailable("no route to host")

        def delete(self, name: str) -> None:
            raise Unavailable("no route to host")

    publisher = DrillPublisher(Away("demo"))
    publisher.publish(0, [NEXT])
    publisher.close()


def test_one_of_a_later_version_is_read_without_what_is_new() -> None:
    bucket = MemoryBucket("demo")
    told = RemainingDrill(1000.0, 1, (NEXT,))
    bucket.put(DRILL, msgspec.json.encode(msgspec.to_builtins(told) | {"new": 1}))
    assert bucket.drill() == told
