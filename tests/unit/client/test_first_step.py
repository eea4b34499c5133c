"""The time to the first step, as `up` tells it while it shows a job."""

import pytest

from spotelastic.client.progress import STEP_WITHIN, Beginning, FirstStepTimer
from spotelastic.model.progress import NodeStatus, Status

NODE = NodeStatus("i-1", "worker", "training", "us-east-1a", "10.0.0.1", (0,))


def seen(step: int, loss: float | None = None, step_time: float = 0.0) -> Status:
    """Of a job that trains."""
    return Status(
        "train", "running", 0.0, round=1, step=step, loss=loss, step_time=step_time, nodes=(NODE,)
    )


PENDING = Status("train", "pending", 0.0)


@pytest.mark.parametrize(
    ("statuses", "told_at"),
    [
        ((PENDING, seen(0), seen(1), seen(2)), 2),
        ((PENDING, seen(3, loss=2.5)), 1),
        ((PENDING, seen(3, step_time=0.1)), 1),
        ((PENDING, seen(4000), seen(4000), seen(4001), seen(4002)), 3),
        ((PENDING, seen(4000), seen(4000, loss=0.5)), 2),
        ((PENDING, seen(0), Status("train", "succeeded", 0.0, round=1, step=2)), 2),
        ((PENDING, seen(0), seen(0)), None),
    ],
)
def test_it_is_told_once_when_this_cluster_has_made_one(
    statuses: tuple[Status, ...], told_at: int | None
) -> None:
    timer = FirstStepTimer(4.0, clock=lambda: 100.0)
    told = [timer.feed(status) for status in statuses]
    at = [number for number, step in enumerate(told) if step is not None]
    assert at == ([] if told_at is None else [told_at])
    assert {str(told[number]) for number in at} <= {"first step 96 s after the command"}
    assert timer.is_over == bool(at)


def test_a_job_is_left_to_itself_once_it_has_made_a_step_or_has_had_time_for_one() -> None:
    now = [100.0]
    timer = FirstStepTimer(4.0, clock=lambda: now[0])
    left = Beginning(timer, clock=lambda: now[0])

    def over(status: Status) -> bool:
        timer.feed(status)
        return left.is_over(status)

    now[0] += 2 * STEP_WITHIN  # nodes may take their time
    assert [over(PENDING), over(seen(0)), over(seen(0)), over(seen(1))] == [False] * 3 + [True]
    slow = Beginning(FirstStepTimer(4.0), clock=lambda: now[0])
    assert not slow.is_over(seen(0))
    now[0] += STEP_WITHIN
    assert slow.is_over(seen(0))
    assert Beginning(FirstStepTimer(4.0)).is_over(Status("train", "failed", 0.0))
    assert Beginning(None).is_over(seen(4000)), "it was up before"
