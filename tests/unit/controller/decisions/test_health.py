"""How many sick nodes are replaced, and which node is blamed for failures."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters.observations import NOW, POLICY, drain, healthy, only

from spotelastic.controller.decisions import health
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.decisions.housekeeping import (
    ClusterState,
    HousekeepingPolicy,
    upkeep,
)
from spotelastic.controller.model.observation import (
    DrainNode,
    EndJobAtOnce,
    Observation,
    Replace,
    Tell,
)
from spotelastic.model.gpu import GpuFault
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Event

LOST = GpuFault("Xid 79, the GPU has fallen off the bus", "kernel", "xid 79", "0000:1b:00", 79)
ERRORS = GpuFault("3 uncorrected memory errors", "nvidia-smi", "uncorrected errors", "0")
UPKEEP = HousekeepingPolicy()


def ill(*names: str, fault: GpuFault = LOST, at: float = NOW - 60.0) -> tuple[Event, ...]:
    return tuple(fault.event(name, at, joined=True) for name in names)


def leaving(name: str) -> Drain:
    return Drain(name, Notice(InterruptionKind.UNHEALTHY, name, "health", NOW - 1, NOW - 1))


def failure(node: str, round_: str, at: float, rank: int = 0) -> Event:
    return Event(at, "failure", "rank 0: x", node, {"round": round_, "rank": rank})


def kept(seen: Observation, minimum: int = 1, asked_at: float = 0.0) -> tuple[int, list[str]]:
    """The number of nodes to have, and what people are told."""
    done = upkeep(seen, ClusterState(minimum, asked_at=asked_at), NOW, UPKEEP)
    ends = [a.job.reason for a in done.actions if isinstance(a, EndJobAtOnce)]
    told = [a.event.message for a in done.actions if isinstance(a, Tell)]
    return done.desired, ends or told


def test_a_sick_node_is_replaced() -> None:
    seen = replace(healthy("i-1", "i-2"), drains={"i-1": leaving("i-1")}, events=ill("i-1"))
    (goes,) = only(decide(seen, NOW, POLICY), Replace)
    assert goes == Replace("i-1", "it is sick")
    assert kept(seen) == (2, [])


def test_a_few_are_replaced_and_further_ones_make_the_job_smaller() -> None:
    names = [f"i-{n}" for n in range(8)]
    three = replace(healthy(*names), events=ill("a", "b", "c"))
    assert kept(three) == (8, [])
    seen = replace(
        healthy(*names), events=ill("a", "b", "c", "i-0"), drains={"i-0": leaving("i-0")}
    )
    desired, told = kept(seen, minimum=4)
    assert desired == 7
    assert told == [
        "not every sick node is replaced: 4 nodes fell ill within an hour, and 3 at most are "
        "replaced for that; the last one: i-0 leaves: GPU 0000:1b:00: Xid 79, the GPU has fallen "
        "off the bus. All had the same: look for the cause in the driver or the script"
    ]


def test_the_job_fails_with_the_cause_when_min_cannot_be_reached() -> None:
    seen = replace(
        healthy("i-1", "i-2"),
        events=ill("a", "b", "i-1") + ill("i-2", fault=ERRORS),
        drains={name: leaving(name) for name in ("i-1", "i-2")},
    )
    _, told = kept(seen, minimum=2)
    assert told == [
        "4 nodes fell ill within an hour, and 3 at most are replaced for that; the last one: "
        "i-2 leaves: GPU 0: 3 uncorrected memory errors"
    ]


def test_what_was_before_the_job_or_an_hour_ago_or_before_up_ran_again_does_not_count() -> None:
    names = "a", "b", "c", "d", "e"
    seen = replace(healthy("i-1"), events=ill(*names, at=599.0))
    assert kept(seen) == (1, []), "before this life of the job"
    late = replace(healthy("i-1"), events=ill(*names, at=700.0))
    assert kept(late, minimum=2)[1], "they count otherwise"
    assert kept(late, minimum=2, asked_at=701.0) == (1, [])
    found = health.sick(ill(*names, at=700.0), 1, 0.0, 700.0 + health.WITHIN)
    assert found.events == ()


def test_one_node_counts_once_however_often_it_is_told() -> None:
    seen = replace(healthy("i-1"), events=ill(*["a"] * 9))
    assert kept(seen, minimum=2) == (1, [])


@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(0, 30), st.floats(0.0, 7200.0)), max_size=40),
)
def test_no_more_are_replaced_within_an_hour_than_may_be(
    desired: int, told: list[tuple[int, float]]
) -> None:
    events = [LOST.event(f"i-{n}", at, joined=True) for n, at in told]
    found = health.sick(events, desired, 0.0, 7200.0)
    replaced = len(found.events) - found.too_many
    assert 0 <= replaced <= health.replaceable(desired)
    assert found.again_at > 7200.0
    assert health.replaceable(desired) <= max(health.REPLACED, desired)


# -- the node that always fails first -----------------------------------------------------------


def failing(*failures: Event, nodes: tuple[str, ...] = ("i-1", "i-2", "i-3")) -> Observation:
    return replace(healthy(*nodes), events=failures)


TWICE = (
    failure("i-2", "r1", 700.0),
    failure("i-1", "r1", 700.5, rank=1),
    failure("i-2", "r2", 900.0),
    failure("i-3", "r2", 900.1, rank=2),
)


def test_a_node_that_fails_first_twice_in_a_row_is_replaced() -> None:
    decision = decide(failing(*TWICE), NOW, POLICY)
    (drained,) = only(decision, DrainNode)
    (told,) = only(decision, Tell)
    assert isinstance(drained, DrainNode) and isinstance(told, Tell)
    assert drained.drain.node == "i-2"
    assert drained.drain.notice.kind is InterruptionKind.UNHEALTHY
    assert told.event.message == (
        "i-2 leaves: its worker was the first to fail 2 times in a row, and no other node's was"
    )
    assert told.after == (drained,)
    assert Replace("i-2", "it is sick") in decision.actions, "in the same breath"


def test_it_is_done_once_in_a_life_of_the_job() -> None:
    (told,) = only(decide(failing(*TWICE), NOW, POLICY), Tell)
    assert isinstance(told, Tell)
    again = replace(failing(*TWICE), events=(told.event,))
    assert only(decide(again, NOW, POLICY), DrainNode) == []


def test_nobody_is_blamed_without_others_or_for_what_others_do_as_well() -> None:
    blamed = [
        failing(*TWICE, failure("i-1", "r3", 950.0)),
        failing(*TWICE[:2]),
        failing(*TWICE, nodes=("i-2",)),
        failing(*TWICE, nodes=("i-1", "i-3")),
        failing(failure("i-2", "r1", 1.0), failure("i-2", "r2", 2.0)),
        failing(failure("i-2", "r1", 700.0), failure("i-2", "r2", 900.0, rank=-1)),
        replace(failing(*TWICE), drains={"i-2": drain("i-2")}),
    ]
    for seen in blamed:
        assert only(decide(seen, NOW, POLICY), DrainNode) == []


@pytest.mark.parametrize(
    "symptom",
    [
        "rank 1: RuntimeError: Connection closed by peer [127.0.0.1]:921",
        "rank 1: RuntimeError: Read error [127.0.0.1]:21384: Connection reset by peer",
        "rank 0: DistBackendError: NCCL error: remote process exited or there was a network error",
        "rank 0: RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
    ],
)
def test_who_only_noticed_that_a_peer_has_gone_is_not_to_blame(symptom: str) -> None:
    """A node was lost, and later a worker was killed: both times the same peer told it first."""
    noticed = [
        replace(failure("i-2", round_, at), message=symptom)
        for round_, at in (("r1", 700.0), ("r2", 900.0))
    ]
    died = replace(failure("i-1", "r2", 900.1, rank=1), message="rank 1: ended by SIGKILL")
    assert health.first_in_a_row([*noticed, died]) == ""
    again = replace(died, at=950.0, data={**died.data, "round": "r3"})
    assert health.first_in_a_row([*noticed, died, again]) == "i-1"


@pytest.mark.parametrize("mistake", ["UsageError: total is not the same", "NameError: name 'x'"])
def test_no_node_is_to_blame_for_a_mistake_in_the_script(mistake: str) -> None:
    """All ranks raise it whenever there are two, and by chance the same one is first."""
    told = [replace(each, message=f"rank 0: {mistake}") for each in TWICE]
    assert health.first_in_a_row(told) == ""
    assert health.first_in_a_row([*TWICE, *(replace(e, at=e.at + 300) for e in told)]) == "i-2"


@given(  # of two failures at one time nobody knows which was first
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 5), st.floats(0, 1e6)),
        max_size=20,
        unique_by=lambda each: each[2],
    )
)
def test_who_is_blamed_was_first_in_the_last_two_rounds_that_failed(
    told: list[tuple[int, int, float]],
) -> None:
    events = [failure(f"n{n}", f"r{r}", at) for n, r, at in told]
    node = health.first_in_a_row(events)
    if not node:
        return
    rounds: dict[str, list[Event]] = {}
    for event in events:
        rounds.setdefault(event.data["round"], []).append(event)
    last = sorted(rounds.values(), key=lambda each: min(e.at for e in each))[-2:]
    assert len(last) == 2
    for each in last:
        assert node in {e.node for e in each if e.at == min(e.at for e in each)}
