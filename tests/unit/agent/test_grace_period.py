"""A node that was asked to leave takes as long for it as it is left alive, and no longer."""

import pytest
from support.simulation.node_state import node_state

from spotelastic.agent.observe import LEAVE_WITHIN, observe
from spotelastic.agent.state.events import Signalled

NOW = 1000.0


@pytest.mark.parametrize(
    ("killed_after", "step_time", "within"),
    [
        (0.0, 0.0, LEAVE_WITHIN),
        (120.0, 0.0, 110.0),  # the rest is for uploads, and for its etcd member
        (120.0, 60.0, 110.0),  # long steps do not make it longer than it is
        (30.0, 0.0, 20.0),
        (8.0, 0.0, 4.0),
    ],
)
def test_a_signal_is_a_notice_with_the_time_that_is_left(
    killed_after: float, step_time: float, within: float
) -> None:
    state = node_state(step_time=step_time)
    notice = observe(state, Signalled(15, killed_after), NOW).departure.notice
    assert notice is not None
    assert notice.deadline == NOW + within
