"""Slow nodes are replaced one by one, within bounds, and only where that is wanted."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clusters.observations import (
    GROUP,
    NOW,
    POLICY,
    drain,
    group,
    healthy,
    in_service,
    node,
    only,
)

from spotelastic.cloud.model import GroupMember
from spotelastic.controller.decisions.decide import decide
from spotelastic.controller.model.observation import (
    REPLACED,
    ControllerPolicy,
    LaunchFailures,
    Observation,
    Remove,
    Replace,
    SlowReplacement,
    Tell,
    account,
)
from spotelastic.model.job import Job, Settings
from spotelastic.model.progress import SlowNode

HOUR = 3600.0
NODES = ("i-1", "i-2", "i-3")
WANTED = Settings(2, 3, replace_slow=True)


def slow(name: str, factor: float = 1.8, incarnation: str = "") -> SlowNode:
    return SlowNode(name, incarnation or f"{name}-1", NOW - 60, factor, 0.55)


def job(*named: SlowNode) -> Observation:
    """Three nodes that train, of which two are needed."""
    return replace(
        healthy(*NODES),
        least=2,
        wanted=WANTED,
        settings=WANTED,
        slots={name: slot for slot, name in enumerate(NODES)},
        slow={each.node: each for each in named},
    )


def told(seen: Observation, now: float = NOW, policy: ControllerPolicy = POLICY) -> list[Tell]:
    return [
        each
        for each in decide(seen, now, policy).actions
        if isinstance(each, Tell) and each.event.kind == REPLACED
    ]


def replaced(seen: Observation, now: float = NOW) -> list[str]:
    return [
        each.instance for each in decide(seen, now, POLICY).actions if isinstance(each, Replace)
    ]


def on_record(seen: Observation, now: float = NOW) -> Observation:
    """What is seen once the events of the decision are on record."""
    for each in told(seen, now):
        data = each.event.data
        entry = SlowReplacement(each.event.node, data["incarnation"], now, data["slot"])
        seen = replace(seen, slow_replaced=(*seen.slow_replaced, entry))
        seen = replace(seen, told=seen.told | {account(each.event)})
    return seen


def test_the_slowest_is_replaced_once_that_is_on_record() -> None:
    seen = job(slow("i-1", 1.5), slow("i-3", 2.5))
    assert replaced(seen) == []
    (tell,) = told(seen)
    assert tell.event.message == (
        "node i-3 is 2.5 times slower than the others: the job trains at 55% of its speed: "
        "it is replaced (--replace-slow)"
    )
    seen = on_record(seen)
    assert replaced(seen) == ["i-3"] and told(seen) == []


def test_what_this_leader_has_just_recorded_is_not_told_again() -> None:
    """Its watch shows it a moment later."""
    seen = job(slow("i-1"))
    (tell,) = told(seen)
    assert not decide(replace(seen, told=frozenset({account(tell.event)})), NOW, POLICY).actions


def test_nothing_is_replaced_without_the_flag() -> None:
    seen = replace(job(slow("i-1")), wanted=Settings(2, 3), settings=Settings(2, 3))
    assert not decide(seen, NOW, POLICY).actions
    assert not decide(replace(seen, wanted=None, settings=None), NOW, POLICY).actions


def test_a_node_that_the_job_needs_stays() -> None:
    assert told(replace(job(slow("i-1")), least=3)) == []


LEAVING = replace(
    group(*in_service("i-1", "i-2"), GroupMember("i-3", "Terminating"), desired=3), name=GROUP
)


@pytest.mark.parametrize(
    "meanwhile",
    [
        {"group": LEAVING},
        {"drains": {"i-2": drain("i-2")}},
        {"nodes": {name: node(name) for name in ("i-1", "i-2")}},
        {"group": group(*in_service(*NODES), desired=4), "desired": 4},
        {"job": Job("succeeded", NOW)},
        {"failed": {(GROUP, ""): LaunchFailures(9, NOW - 1)}},
        {"slots": {"i-2": 0, "i-3": 1}},
        {"slow": {"i-1": slow("i-1", incarnation="earlier")}},
    ],
    ids=["leaves", "drains", "boots", "grows", "ended", "refused", "waits", "earlier"],
)
def test_a_node_stays_while_something_else_is_under_way(meanwhile: dict[str, Any]) -> None:
    seen = replace(job(slow("i-1")), **meanwhile)
    assert told(seen) == []
    begun = replace(seen, slow_replaced=(SlowReplacement("i-1", "i-1-1", NOW - 1, 0),))
    done = decide(begun, NOW, POLICY)
    gone = [each for each in only(done, Replace, Remove) if each.instance == "i-1"]  # type: ignore[union-attr]
    assert gone == [] or begun.ended


def test_a_rank_whose_successor_is_slow_as_well_is_left_alone_for_a_day() -> None:
    """The script gives it more work."""
    seen = job(slow("i-1"))
    before = SlowReplacement("i-0", "i-0-1", NOW - 2 * HOUR, 0)
    assert told(replace(seen, slow_replaced=(before,))) == []
    assert told(replace(seen, slow_replaced=(replace(before, slot=1),)))
    assert told(replace(seen, slow_replaced=(replace(before, at=NOW - 25 * HOUR),)))


def test_two_an_hour_are_replaced() -> None:
    seen = job(slow("i-1"))
    before = tuple(SlowReplacement(f"i-{n}", "x", NOW - 60 * n, n) for n in (7, 8))
    assert told(replace(seen, slow_replaced=before)) == []
    assert told(replace(seen, slow_replaced=before), NOW + HOUR)


# -- whatever is named ----------------------------------------------------------------------------


@dataclass
class Fleet:
    """A job whose nodes are replaced by others as the controller says, without faults."""

    seen: Observation
    now: float = NOW
    count: int = 3
    replacements: list[tuple[float, int]] = field(default_factory=list)

    def turn(self) -> None:
        seen = replace(self.seen, told=frozenset())
        gone = replaced(seen, self.now)
        assert len(gone) <= 1
        self.seen = on_record(seen, self.now)
        for name in gone:
            self._succeed(name)

    def _succeed(self, name: str) -> None:
        self.count += 1
        slot, new = self.seen.slots[name], f"i-{self.count}"
        self.replacements.append((self.now, slot))
        names = [new if each == name else each for each in sorted(self.seen.nodes)]
        fresh = healthy(*names)
        slots = {new if each == name else each: at for each, at in self.seen.slots.items()}
        kept = {each: told for each, told in self.seen.slow.items() if each != name}
        self.seen = replace(
            self.seen,
            group=fresh.group,
            machines=fresh.machines,
            nodes=fresh.nodes,
            slots=slots,
            slow=kept,
        )

    def name(self, slot: int) -> None:
        node = next(name for name, at in self.seen.slots.items() if at == slot)
        self.seen = replace(self.seen, slow={**self.seen.slow, node: slow(node)})


LONGEST, TURN = 120, 20.0
"""Minutes between two names at most, and seconds of each of its three turns for each minute."""


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, LONGEST)), max_size=20))
def test_however_often_nodes_are_named_a_fleet_is_not_churned(named: list[tuple[int, int]]) -> None:
    """Each entry: a rank whose node is named, and the minutes until the next one is."""
    fleet = Fleet(job())
    for slot, minutes in named:
        fleet.name(slot)
        for _ in range(3):  # recorded, replaced, and nothing more
            fleet.turn()
            fleet.now += minutes * TURN
    for at, slot in fleet.replacements:
        hour = [each for each, _ in fleet.replacements if at - HOUR < each <= at]
        assert len(hour) <= POLICY.slow_an_hour + 1  # one may have been begun an hour before
        day = [
            each
            for each, other in fleet.replacements
            # A day counts from when it was recorded, two turns before at most.
            if other == slot and at - POLICY.slow_again_after + 2 * LONGEST * TURN < each <= at
        ]
        assert len(day) == 1
