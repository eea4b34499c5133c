"""A new cluster whose control nodes do not come is taken down, and says why."""

from types import SimpleNamespace
from typing import Any

import pytest

from spotelastic.client.cluster import Cluster
from spotelastic.client.progress import FirstStepTimer, ProgressMessage
from spotelastic.client.watch import ControlNodesMissing
from spotelastic.errors import Unavailable
from spotelastic.model.progress import Status

WHY = "no control node has reported for 3 min; 0 of 3 run. AWS says: the key may not be used"


class Target:
    """An account whose control nodes do not come."""

    where_to_look = "see the console"

    def __init__(self, why: str = WHY) -> None:
        self.why, self.ended, self.worked = why, list[str](), 0

    def check(self) -> None: ...

    def control_failure(self, name: str, waited: float) -> str:
        return self.why

    def note_worked(self, _: object) -> None:
        self.worked += 1

    def down(self, name: str, say: Any, **_: object) -> None:
        self.ended.append(name)
        say(f"{name} is gone")


def cluster(target: Any, *statuses: Status, new: bool = True) -> Cluster:
    left = [None, *statuses]

    def status() -> Status | None:
        return left.pop(0) if len(left) > 1 else left[0]

    objects = SimpleNamespace(events=list, status=status, moving=lambda: None)
    record: Any = SimpleNamespace(
        name="quokka", objects=objects, spec=SimpleNamespace(regions=None)
    )
    return Cluster(target, record, first=FirstStepTimer(0.0) if new else None)


def test_it_is_taken_down_with_what_aws_says() -> None:
    target, told = Target(), list[str]()
    with pytest.raises(ControlNodesMissing) as error:
        for update in cluster(target).updates():
            assert isinstance(update, ProgressMessage)
            told.append(update.text)
    assert str(error.value) == f"quokka: {WHY}"
    assert target.ended == ["quokka"] and not target.worked
    assert told[-2:] == [
        "the control nodes do not start: taking quokka down",
        "quokka is gone",
    ]


def test_what_could_not_be_deleted_is_told_and_tried_again_at_the_end_of_a_block() -> None:
    class Stuck(Target):
        def down(self, name: str, say: Any, **_: object) -> None:
            self.ended.append(name)
            if len(self.ended) == 1:
                raise Unavailable("AWS is busy")

    target, told = Stuck(), list[str]()
    with pytest.raises(ControlNodesMissing), cluster(target) as made:
        told.extend(str(update) for update in made.updates())
    assert target.ended == ["quokka", "quokka"]


def test_what_cannot_be_asked_is_waited_for() -> None:
    class Busy(Target):
        def control_failure(self, name: str, waited: float) -> str:
            raise Unavailable("busy")

    target = Busy()
    updates = [*cluster(target, Status("quokka", "stopped", 0.0)).updates()]
    assert isinstance(updates[-1], Status)
    assert not target.ended and target.worked == 1


def test_one_that_others_have_made_is_left_alone() -> None:
    target = Target()
    updates = [*cluster(target, Status("quokka", "stopped", 0.0), new=False).updates()]
    assert isinstance(updates[-1], Status)
    assert not target.ended and not target.worked
