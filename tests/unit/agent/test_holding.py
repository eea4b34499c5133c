"""A registered node campaigns for the election, and decides about rounds while it holds it."""

import math
from dataclasses import replace

from support.simulation.node_state import changed, node_state

from spotelastic.agent import actions as do
from spotelastic.agent.decide import decide
from spotelastic.agent.state.values import NodeState
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.rendezvous.view import LiveNode, RunState
from spotelastic.store.port import Compare

NOW = 1000.0
NODE = Node("a", "1", "10.0.0.1", "z", Fingerprint("3.11"), "10.0.0.1:1")
OUTSIDE = node_state(
    node=NODE,
    fingerprint=NODE.fingerprint,
    zygote=True,
    daemon=NODE.daemon,
    registered=True,
    told_at=math.inf,
)
HOLDER = changed(OUTSIDE, leadership=Compare("holder", "created", 4), nodes_seen=True)


def run(holder: str = "a", **more: object) -> RunState:
    nodes = {"a": LiveNode(NODE, 1, NOW - 100)}
    settings = Settings(1, 1)
    return RunState(settings=settings, holder=holder, nodes=nodes, revision=5, **more)  # type: ignore[arg-type]


def kinds(local: NodeState, seen: RunState, now: float = NOW) -> set[type[do.Action]]:
    return {type(action) for action in decide(local, seen, now, lambda: "new").actions}


def test_a_node_campaigns_where_nobody_holds_the_election_or_it_does_itself() -> None:
    assert do.Campaign in kinds(OUTSIDE, run(""))
    assert do.Campaign in kinds(OUTSIDE, run()), "of a history that the store has gone back to"
    assert do.Campaign not in kinds(OUTSIDE, run("b"))


def test_a_holder_decides_when_it_knows_the_nodes() -> None:
    assert do.Lead in kinds(HOLDER, run())
    assert do.Lead not in kinds(changed(HOLDER, nodes_seen=False), run())


def test_a_holder_waits_for_what_it_wrote_itself() -> None:
    waits = changed(HOLDER, lead_after=6, lead_at=NOW + 0.5)
    assert do.Lead not in kinds(waits, run())
    assert decide(waits, run(), NOW, lambda: "new").wake_at == NOW + 0.5
    assert do.Lead in kinds(waits, replace(run(), revision=6))
    assert do.Lead in kinds(waits, run(), NOW + 0.5), "its watch is late"


def test_a_node_that_cannot_follow_the_run_decides_nothing() -> None:
    for seen in (replace(run(), settings=None), run(unreadable={"all/round": "a field"})):
        for local in (HOLDER, OUTSIDE):
            assert not {do.Lead, do.Campaign} & kinds(local, seen)
