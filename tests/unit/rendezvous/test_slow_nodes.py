"""Which nodes are named as slow: those that keep the others waiting for long, and no others."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Drain, Notice
from spotelastic.model.progress import Progress, SlowNode
from spotelastic.model.round import Member, Round
from spotelastic.rendezvous.decision import ClearSlow, NameSlow
from spotelastic.rendezvous.slowness import slow_nodes
from spotelastic.rendezvous.slowness.paces import WINDOW, after
from spotelastic.rendezvous.slowness.slow_nodes import cleared, decide, lines, named
from spotelastic.rendezvous.view import LiveNode, RunState, fold
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, StoredValue

KEYS = Keys("run")
NOW = 1000.0
COMMUNICATION = 0.02
"""Seconds of a step for which nobody works."""


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def job(nodes: Sequence[str], types: Callable[[str], str] = lambda name: "g5") -> RunState:
    """A round of these nodes that trains, of which nothing has been measured."""
    live = {
        name: LiveNode(Node(name, f"{name}-1", "a", "z", Fingerprint(), type=types(name)), 1, 0.0)
        for name in nodes
    }
    members = tuple(Member(name, f"{name}-1", slot, "a", "z", 1) for slot, name in enumerate(nodes))
    round_ = Round(3, "inc", "started", members, "start", "")
    return RunState(Settings(1, 99), round=round_, nodes=live)


def told(seen: RunState, own: dict[str, float], step: int, round_: int = 3) -> RunState:
    """All nodes report a measurement: they wait for the one whose own time is the longest."""
    step_time = max(own.values()) + COMMUNICATION
    for name, seconds in own.items():
        seen = reported(seen, name, step, seconds, step_time - seconds, round_)
    return seen


def reported(
    seen: RunState, name: str, step: int, own: float, waiting: float = 0.0, round_: int = 3
) -> RunState:
    progress = Progress(name, round_, step, NOW, measured=step, own_time=own)
    pace = after(seen.paces.get(name), replace(progress, waiting_time=waiting))
    return replace(seen, paces={**seen.paces, name: pace}) if pace is not None else seen


def trained(seen: RunState, *measured: dict[str, float], at: int = 0) -> RunState:
    for number, own in enumerate(measured, 1):
        seen = told(seen, own, at + number * 8)
    return seen


def performed(seen: RunState) -> RunState:
    """What is seen once the decision has been written."""
    slow = dict(seen.slow)
    for action in decide(seen, NOW):
        match action:
            case NameSlow(who):
                slow[who.node] = who
            case ClearSlow(who):
                del slow[who.node]
    return replace(seen, slow=slow)


def slow(seen: RunState) -> set[str]:
    return {action.slow.node for action in decide(seen, NOW) if isinstance(action, NameSlow)}


def steady(nodes: Sequence[str], **own: float) -> dict[str, float]:
    return {name: own.get(name, 0.2) for name in nodes}


# -- a slow node is named, and what is said of it -------------------------------------------------


def test_a_node_that_keeps_three_others_waiting_is_named_with_what_it_costs() -> None:
    nodes = names(4)
    seen = trained(job(nodes), *[steady(nodes, n2=0.36)] * WINDOW)
    (name,) = decide(seen, NOW)
    assert isinstance(name, NameSlow)
    assert (name.slow.node, name.slow.factor) == ("n2", 1.8)
    assert name.slow.line == (
        "node n2 is 1.8 times slower than the others: the job trains at 58% of its speed"
    )
    assert named(name.slow).kind == "slow"
    assert list(lines([name, ClearSlow(name.slow, "it has left")])) == [
        name.slow.line,
        "node n2 is slow no longer: it has left",
    ]
    assert decide(performed(seen), NOW) == (), "it is told once"


def test_it_is_named_within_its_window_and_not_before() -> None:
    nodes = names(3)
    seen = trained(job(nodes), *[steady(nodes, n0=0.4)] * (WINDOW - 1))
    assert slow(seen) == set()
    assert slow(trained(seen, steady(nodes, n0=0.4), at=800)) == {"n0"}


def test_the_same_measurement_counts_once_however_often_it_is_reported() -> None:
    nodes, seen = names(3), job(names(3))
    for _ in range(3 * WINDOW):
        seen = told(seen, steady(nodes, n0=0.4), 8)
    assert slow(seen) == set()


def test_several_slow_nodes_are_named_as_long_as_they_are_not_most() -> None:
    nodes = names(6)
    seen = trained(job(nodes), *[steady(nodes, n0=0.4, n5=0.5)] * WINDOW)
    assert slow(seen) == {"n0", "n5"}


def test_of_two_nodes_one_has_to_be_slower_by_half() -> None:
    nodes = names(2)
    assert slow(trained(job(nodes), *[steady(nodes, n1=0.29)] * WINDOW)) == set()
    assert slow(trained(job(nodes), *[steady(nodes, n1=0.35)] * WINDOW)) == {"n1"}


def test_when_it_keeps_up_again_that_is_told_once() -> None:
    nodes = names(4)
    seen = performed(trained(job(nodes), *[steady(nodes, n2=0.36)] * WINDOW))
    half = trained(seen, *[steady(nodes)] * (WINDOW // 2), at=100)
    assert decide(half, NOW) == ()
    seen = trained(half, *[steady(nodes)] * WINDOW, at=200)
    (over,) = decide(seen, NOW)
    assert isinstance(over, ClearSlow) and over.slow.node == "n2"
    assert "n2 is slow no longer: it keeps up again" in cleared(over.slow, over.reason, NOW).message
    assert decide(performed(seen), NOW) == ()


def test_a_slow_node_that_has_left_or_was_started_anew_is_slow_no_longer() -> None:
    nodes = names(3)
    before = performed(trained(job(nodes), *[steady(nodes, n2=0.4)] * WINDOW))
    live = before.nodes["n2"]
    anew = replace(live, node=replace(live.node, incarnation="other"))
    gone = {name: each for name, each in before.nodes.items() if name != "n2"}
    for seen in (replace(before, nodes=gone), replace(before, nodes={**gone, "n2": anew})):
        (over,) = decide(seen, NOW)
        assert isinstance(over, ClearSlow) and over.reason == "it has left"


def test_a_slow_node_that_trains_alone_keeps_nobody_waiting() -> None:
    nodes = names(2)
    seen = performed(trained(job(nodes), *[steady(nodes, n1=0.5)] * WINDOW))
    assert seen.slow.keys() == {"n1"} and seen.round is not None
    alone = replace(seen.round, number=4, members=seen.round.members[1:])
    seen = replace(seen, round=alone, nodes={"n1": seen.nodes["n1"]})
    for number in range(1, WINDOW + 1):
        seen = told(seen, {"n1": 0.5}, 100 + number, round_=4)
    (over,) = decide(seen, NOW)
    assert isinstance(over, ClearSlow) and over.reason == "no other node waits for it"


# -- what is not slow -----------------------------------------------------------------------------


def test_unlike_types_are_not_compared_but_each_with_its_own() -> None:
    nodes = names(6)
    seen = job(nodes, lambda name: "g4dn" if name in ("n0", "n1", "n2") else "g5")
    slower = steady(nodes, n0=0.4, n1=0.4, n2=0.4)
    assert slow(trained(seen, *[slower] * WINDOW)) == set()
    assert slow(trained(seen, *[{**slower, "n2": 0.8}] * WINDOW)) == {"n2"}


def test_what_is_not_felt_in_a_step_is_not_told() -> None:
    """Communication is most of the step: twice as slow in the rest costs next to nothing."""
    nodes, seen = names(4), job(names(4))
    for step in range(1, WINDOW + 1):
        for name in nodes:
            own = 0.02 if name == "n1" else 0.01
            seen = reported(seen, name, step, own, 0.5 - own)
    assert slow(seen) == set()


def test_nodes_that_do_not_wait_for_each_other_are_not_compared() -> None:
    nodes, seen = names(3), job(names(3))
    for step in range(1, WINDOW + 1):
        for name in nodes:
            seen = reported(seen, name, step, 0.6 if name == "n1" else 0.2)
    assert slow(seen) == set()


def test_measurements_of_an_earlier_round_do_not_count() -> None:
    nodes = names(3)
    seen = trained(job(nodes), *[steady(nodes, n1=0.5)] * WINDOW)
    assert seen.round is not None
    assert slow(replace(seen, round=replace(seen.round, number=4))) == set()
    assert slow(replace(seen, round=replace(seen.round, phase="proposed"))) == set()


def test_a_node_that_leaves_is_not_named_any_more() -> None:
    nodes = names(3)
    seen = trained(job(nodes), *[steady(nodes, n1=0.5)] * WINDOW)
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "n1", "imds", NOW, NOW, NOW + 120)
    assert slow(replace(seen, drains={"n1": Drain("n1", notice)})) == set()


def test_nothing_is_decided_where_that_is_turned_off() -> None:
    nodes = names(3)
    seen = trained(job(nodes), *[steady(nodes, n1=0.5)] * WINDOW)
    assert slow(replace(seen, settings=Settings(1, 9, slow_after=0.0))) == set()
    assert slow(replace(seen, settings=None)) == set()


def test_what_nodes_report_is_kept_as_long_as_they_report() -> None:
    """And longer than a watch, which may have to be read anew."""
    key = KEYS.progress("n0")
    seen = job(names(2))
    for step in (8, 8, 16):
        progress = Progress("n0", 3, step, NOW, measured=step, own_time=0.2, waiting_time=0.1)
        value = StoredValue(key, encode(progress), step, step)
        seen = fold(seen, [Change(key, value, step)], KEYS, NOW, KEYS.nodes)
    assert [each.number for each in seen.paces["n0"].measurements] == [8, 16]
    again = fold(seen, [Reset((value,), 20)], KEYS, NOW, KEYS.nodes)
    assert again.paces == seen.paces
    assert fold(seen, [Reset((), 20)], KEYS, NOW, KEYS.nodes).paces == {}
    assert fold(seen, [Change(key, None, 21)], KEYS, NOW, KEYS.nodes).paces == {}


# -- whatever happens -----------------------------------------------------------------------------

NOISE = st.floats(0.85, 1.15)


@st.composite
def noisy(draw: st.DrawFn, extra: Callable[[str], float] = lambda name: 1.0) -> RunState:
    """A job whose nodes are equally fast but for noise and, once in a window, something else."""
    nodes = names(draw(st.integers(2, 12)))
    seen = job(nodes)
    for number in range(1, 2 * WINDOW + 1):
        own = {name: 0.2 * extra(name) * draw(NOISE) for name in nodes}
        if number % WINDOW == 0 and draw(st.booleans()):
            own[draw(st.sampled_from(nodes))] *= draw(st.floats(1.0, 50.0))
        seen = told(seen, own, number * 8)
    return seen


@settings(max_examples=40)
@given(noisy())
def test_noise_never_names_a_node(seen: RunState) -> None:
    assert slow(seen) == set()


@settings(max_examples=40)
@given(noisy(lambda name: 2.2 if name == "n1" else 1.0))
def test_a_node_that_takes_twice_as_long_is_named_through_the_noise(seen: RunState) -> None:
    assert slow(seen) == {"n1"}


@st.composite
def uneven(draw: st.DrawFn) -> RunState:
    """A job whose nodes are fast and slow in any mixture."""
    nodes = names(draw(st.integers(2, 12)))
    pace = {name: draw(st.sampled_from([0.2, 0.2, 0.22, 0.26, 0.3, 0.4])) for name in nodes}
    seen = job(nodes)
    for number in range(1, WINDOW + 1):
        own = {name: pace[name] * draw(NOISE) for name in nodes}
        seen = told(seen, own, number * 8)
    return seen


@settings(max_examples=100)
@given(uneven())
def test_each_node_is_compared_with_all_the_others(seen: RunState) -> None:
    expected = set[str]()
    for name, pace in seen.paces.items():
        others = [each.usual for node, each in seen.paces.items() if node != name]
        middle = median(others)
        spread = slow_nodes.SIGMA * median(abs(each - middle) for each in others)
        room = max(
            (slow_nodes.FLOOR if len(others) > 1 else slow_nodes.FLOOR_OF_TWO) * middle,
            slow_nodes.DEVIATIONS * max(spread, slow_nodes.SCATTER * middle),
            slow_nodes.FELT * pace.step_time,
        )
        expected |= {name} if pace.least > middle + room else set()
    assert slow(seen) == expected


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["n0", "n1", "n2"]), st.floats(0.1, 2.0)), max_size=60))
def test_a_node_is_named_and_cleared_in_turns(changes: list[tuple[str, float]]) -> None:
    """Nothing is said twice, whatever nodes report."""
    nodes, seen = names(3), job(names(3))
    own, known = steady(nodes), dict[str, SlowNode]()
    for number, (name, seconds) in enumerate(changes, 1):
        own[name] = seconds
        seen = told(seen, own, number * 8)
        for action in decide(seen, NOW):
            if isinstance(action, NameSlow):
                assert action.slow.node not in known
                known[action.slow.node] = action.slow
            elif isinstance(action, ClearSlow):
                del known[action.slow.node]
        seen = replace(seen, slow=known.copy())
        assert decide(seen, NOW) == ()
