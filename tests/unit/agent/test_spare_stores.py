"""The store that a node keeps for a round to come: when one is started, and what becomes of it."""

import math
from dataclasses import replace

import pytest
from support.simulation.node_state import changed
from test_agent_decide import MEMBERS, NOW, ROUND, decided, local, seen

from spotelastic.agent import actions as do
from spotelastic.agent.observe import SPARE_AGAIN, observe
from spotelastic.agent.round_duties import SETTLED
from spotelastic.agent.state.events import Exited, SpareStoreStarted, StoreOpened
from spotelastic.agent.state.values import NodeState, RoundStore, WorkerExit
from spotelastic.model.round import Member

SPARE = "store/spare-1"
LATER = NOW + SETTLED
ALONE = changed(local(), spare="", spare_at=0.0)


def starts(node: NodeState, now: float = LATER) -> bool:
    return do.StartSpareStore() in decided(node, seen(timeout=0), now).actions


def test_a_spare_is_started_once_the_round_has_settled() -> None:
    assert not starts(ALONE, NOW)
    assert decided(ALONE, seen(timeout=0), NOW).wake_at == LATER
    assert starts(ALONE)
    assert not starts(observe(ALONE, SpareStoreStarted(SPARE), LATER), LATER + 10 * SPARE_AGAIN)


def test_nodes_that_will_hardly_run_a_store_keep_none() -> None:
    third = (Member("c", "inc-c", 1, "10.0.0.3", "", 2), replace(MEMBERS[1], slot=2))
    round_ = replace(ROUND, members=(MEMBERS[0], *third))
    assert do.StartSpareStore() not in decided(ALONE, seen(round_, timeout=0), LATER).actions


@pytest.mark.parametrize("why", ["exit", "failed", "killed"])
def test_none_is_started_while_the_round_ends(why: str) -> None:
    exits = (WorkerExit(0, 1, NOW),) if why == "exit" else ()
    node = local(exits=exits, failed=why == "failed", killed=why == "killed")
    assert not starts(changed(node, spare="", spare_at=0.0))


def test_a_round_takes_it_and_another_one_is_started() -> None:
    opened = StoreOpened(RoundStore("r2", SPARE, "10.0.0.2:7"))
    used = observe(observe(ALONE, SpareStoreStarted(SPARE), NOW), opened, NOW)
    assert (used.store.spare, used.store.round_store) == ("", opened.store)
    assert starts(used), "at once: others may be lost soon"
    forked = StoreOpened(replace(opened.store, id="store/r2"))
    kept = observe(observe(ALONE, SpareStoreStarted(SPARE), NOW), forked, NOW)
    assert kept.store.spare == SPARE


def test_one_that_has_ended_is_replaced_after_a_while() -> None:
    node = observe(observe(ALONE, SpareStoreStarted(SPARE), NOW), Exited(SPARE, -9), LATER)
    assert node.store.spare == "" and not starts(node)
    assert starts(node, LATER + SPARE_AGAIN)
    taken = RoundStore("r1", SPARE, "10.0.0.2:7")
    dead = observe(observe(ALONE, StoreOpened(taken), NOW), Exited(SPARE, -9), LATER)
    assert dead.store.round_store is not None and dead.store.round_store.dead


def test_one_that_could_not_be_started_is_tried_again_after_a_while() -> None:
    node = observe(ALONE, SpareStoreStarted(""), LATER)
    assert not starts(node) and starts(node, LATER + SPARE_AGAIN)


def test_where_the_port_is_given_none_is_ever_started() -> None:
    node = observe(ALONE, SpareStoreStarted("", never=True), NOW)
    assert node.store.spare_at == math.inf and not starts(node, LATER + 10 * SPARE_AGAIN)


def test_a_proposal_takes_the_store_of_one_that_it_replaces_before_it_started() -> None:
    first = replace(ROUND, phase="proposed", members=(replace(MEMBERS[1], slot=0),))
    other = replace(first, incarnation="r1b")
    store = RoundStore("r1", SPARE, "10.0.0.2:7", number=1)
    node = changed(local(), workers=None, round_store=store)
    actions = decided(node, seen(other), NOW).actions
    assert do.KeepStore(other) in actions
    assert do.CloseStore() not in actions and do.OpenStore(other) not in actions
    kept = observe(node, StoreOpened(replace(store, round="r1b")), NOW)
    assert do.KeepStore(other) not in decided(kept, seen(other), NOW).actions
    # A round that has started has workers, which may come late. Its successor has a new store.
    later = replace(other, number=2, parent="r1")
    assert {do.CloseStore(), do.OpenStore(later)} <= {*decided(node, seen(later), NOW).actions}
    dead = changed(node, round_store=replace(store, dead=True))
    assert {do.CloseStore(), do.OpenStore(other)} <= {*decided(dead, seen(other), NOW).actions}
    second = replace(other, members=MEMBERS)  # another node has the first rank now
    assert do.CloseStore() in decided(node, seen(second), NOW).actions


def test_a_store_that_dies_before_its_round_is_ready_is_replaced_at_once() -> None:
    first = replace(ROUND, phase="proposed", members=(replace(MEMBERS[1], slot=0),))
    dead = RoundStore("r1", SPARE, "10.0.0.2:7", dead=True)
    node = changed(local(), workers=None, round_store=dead)
    actions = decided(node, seen(first), NOW).actions
    assert actions.index(do.CloseStore()) < actions.index(do.OpenStore(first))
    told = changed(node, acknowledged=("r1", "ready", 0))
    assert do.CloseStore() not in decided(told, seen(first), NOW).actions
