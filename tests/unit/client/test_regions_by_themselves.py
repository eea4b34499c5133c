"""What a job that moves between regions by itself goes by, and what it takes along."""

from dataclasses import replace
from typing import Any, Literal, cast

import pytest

from spotelastic.client.moving.move import carry_on
from spotelastic.client.moving.move_decision import MoveSeen, MoveStep, RegionSide
from spotelastic.client.moving.region_offers import given, promised
from spotelastic.client.moving.sleeping import carried
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.progress import NodeStatus, Status

EAST = JobSpec(
    cluster="demo",
    run="demo",
    script="train.py",
    args=("--fast",),
    code="c0de",
    settings=Settings(2, 4),
    storage="s3://east/demo/checkpoints",
    etcd=("10.64.0.4:2379",),
    setup="make data",
    secrets={"TOKEN": 3},
)


def test_a_region_takes_over_the_job_and_keeps_what_is_its_own() -> None:
    west = replace(
        EAST,
        args=(),
        code="01d",
        settings=Settings(1, 2),
        storage="s3://west/demo/checkpoints",
        etcd=("10.65.0.4:2379",),
        setup="",
        secrets={"TOKEN": 1},
    )
    there = carried(west, EAST)
    assert (there.storage, there.etcd, there.secrets) == (west.storage, west.etcd, west.secrets)
    assert (there.args, there.code, there.setup) == (EAST.args, EAST.code, EAST.setup)
    assert there.settings == replace(EAST.settings, code=there.release)


@pytest.mark.parametrize(
    ("score", "nodes"), [(None, None), (1, 0), (3, 0), (4, 2), (6, 2), (7, 8), (10, 8)]
)
def test_a_placement_score_promises_nodes(score: int | None, nodes: int | None) -> None:
    assert promised(score, 2, 8) == nodes


@pytest.mark.parametrize(
    ("score", "nodes"), [(None, None), (1, None), (3, None), (4, 2), (7, 8), (10, 8)]
)
def test_a_low_score_of_a_single_type_says_nothing(score: int | None, nodes: int | None) -> None:
    """Else a job would never try a region when it has no other."""
    assert promised(score, 2, 8, types=1) == nodes


def test_nodes_count_that_are_here_to_stay() -> None:
    def node(
        state: str, role: Literal["worker", "control"] = "worker", leaves_at: float | None = None
    ) -> NodeStatus:
        return NodeStatus("i", role, state, "us-east-1a", "10.64.0.9", leaves_at=leaves_at)

    nodes = (
        node("training"),
        node("pending"),
        node("training", leaves_at=100.0),
        node("draining"),
        node("gone"),
        node("leading", role="control"),
    )
    assert given(Status("demo", "running", 0.0, nodes=nodes)) == 2


def test_a_move_ends_before_the_next_step_once_somebody_undoes_it() -> None:
    source, target = RegionSide("us-east-1", cluster="up", state="running"), RegionSide("us-west-2")
    taken: list[MoveStep] = []

    class Both:
        def look(self) -> MoveSeen:
            return MoveSeen("demo", source, replace(target, cluster="asleep"), copied=False)

        def carry_out(self, step: MoveStep, seen: MoveSeen) -> None:
            taken.append(step)

    both = cast(Any, Both())
    carry_on(both, both, led=True, goes_on=lambda: not taken)
    assert taken == [MoveStep.STOP]
