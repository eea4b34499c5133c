"""What an agent does about an end of its node that lies hours or days ahead."""

from dataclasses import replace
from itertools import count

import pytest
from support.simulation.node_state import changed, node_state

from spotelastic.agent import actions as do
from spotelastic.agent.decide import decide
from spotelastic.agent.observe import observe
from spotelastic.agent.state.events import Noticed, NoticeTold
from spotelastic.agent.state.values import NodeState
from spotelastic.model.interruption_kind import DRAINS_AHEAD, InterruptionKind
from spotelastic.model.job import Settings
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.notice import Notice
from spotelastic.rendezvous.view import RunState

NOW = 1000.0
DAY = 86_400.0
NODE = Node("b", "inc-b", "10.0.0.2", "", Fingerprint("3.11", "2.13"), "10.0.0.2:1")
REBOOT = Notice(
    InterruptionKind.MAINTENANCE, "b", "imds", NOW, NOW, NOW + 10 * DAY, "system-reboot", "event-1"
)
IDS = count()


def local(*notices: Notice) -> NodeState:
    state = node_state(
        node=NODE, fingerprint=NODE.fingerprint, zygote=True, daemon=NODE.daemon, registered=True
    )
    for notice in notices:
        state = observe(state, Noticed(notice), NOW)
    return state


def actions(state: NodeState, now: float) -> tuple[list[do.Action], float]:
    """The node's own actions about notices, and when it looks again."""
    decision = decide(state, RunState(settings=Settings(1, 2)), now, lambda: f"n{next(IDS)}")
    kinds = do.TellNotice, do.BeginDeparture, do.WriteDrain
    return [each for each in decision.actions if isinstance(each, kinds)], decision.wake_at


def departures(state: NodeState, now: float) -> list[do.Action]:
    return [each for each in actions(state, now)[0] if isinstance(each, do.BeginDeparture)]


def test_what_is_days_ahead_is_told_and_drains_nothing() -> None:
    state = local(REBOOT)
    assert state.departure.notice is None
    told, wake_at = actions(state, NOW)
    assert told == [do.TellNotice(REBOOT)]
    assert wake_at <= NOW + 10 * DAY - DRAINS_AHEAD
    told_of = observe(state, NoticeTold(REBOOT), NOW)
    assert actions(told_of, NOW)[0] == [], "once"
    before = NOW + 10 * DAY - DRAINS_AHEAD - 0.001
    assert actions(told_of, before)[0] == []


def test_it_drains_shortly_before() -> None:
    state = observe(local(REBOOT), NoticeTold(REBOOT), NOW)
    due = NOW + 10 * DAY - DRAINS_AHEAD
    begins = replace(REBOOT, seen_at=due)
    assert actions(state, due)[0] == [do.BeginDeparture(begins)]
    begun = observe(state, Noticed(begins), due)
    assert begun.departure.scheduled == ()
    assert begun.departure.notice is not None and not begun.departure.notice.is_announcement
    assert actions(begun, due)[0] == [do.WriteDrain()]


def test_a_node_that_is_told_too_late_for_calm_drains_at_once() -> None:
    soon = replace(REBOOT, deadline=NOW + DRAINS_AHEAD)
    assert local(soon).departure.notice == soon
    assert actions(local(soon), NOW)[0] == [do.WriteDrain()]


def test_another_time_takes_the_place_of_the_first() -> None:
    later = replace(REBOOT, deadline=NOW + 20 * DAY)
    state = local(REBOOT, later)
    assert state.departure.scheduled == (later,)
    assert [each for each in actions(state, NOW + 11 * DAY)[0] if each == do.WriteDrain()] == []


def test_what_is_called_off_is_told_and_waited_for_no_more() -> None:
    over = replace(REBOOT, called_off=True)
    state = local(REBOOT, over)
    assert state.departure.scheduled == ()
    assert actions(state, NOW)[0] == [do.TellNotice(REBOOT), do.TellNotice(over)]
    assert not departures(state, NOW + 10 * DAY)


def test_what_is_called_off_calls_nothing_else_off() -> None:
    other = replace(REBOOT, id="event-2")
    assert local(REBOOT, other, replace(REBOOT, called_off=True)).departure.scheduled == (other,)


def test_a_spot_notice_comes_before_what_is_days_ahead() -> None:
    spot = Notice(InterruptionKind.SPOT_INTERRUPTION, "b", "imds", NOW, NOW, NOW + 120.0)
    for notices in ((REBOOT, spot), (spot, REBOOT)):
        state = local(*notices)
        assert state.departure.notice == spot
        assert do.WriteDrain() in actions(state, NOW)[0]


def test_a_second_hint_is_told_as_the_first_one_is() -> None:
    hint = Notice(InterruptionKind.REBALANCE, "b", "imds", NOW, NOW)
    again = replace(hint, at=NOW + 1.0)
    told, _ = actions(local(hint, again), NOW)
    assert told == [do.TellNotice(again), do.WriteDrain()], "the first is recorded as a notice"


def test_a_node_that_is_not_registered_yet_tells_later_and_leaves_all_the_same() -> None:
    state = changed(local(REBOOT), registered=False)
    assert actions(state, NOW)[0] == []
    assert departures(state, NOW + 10 * DAY)


@pytest.mark.parametrize("kind", list(InterruptionKind))
def test_only_what_drains_by_a_deadline_is_ahead_of_anything(kind: InterruptionKind) -> None:
    traits = kind.traits
    is_ahead = Notice(kind, "b", "imds", NOW, NOW, NOW + 10 * DAY).is_ahead(NOW)
    assert is_ahead == (traits.ahead < 10 * DAY)
    assert not is_ahead or (traits.drains and traits.has_deadline)
    assert not traits.is_replaced_ahead or is_ahead
