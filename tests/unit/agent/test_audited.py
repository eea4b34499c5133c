"""A node whose results differ in an audit leaves as one whose GPU is sick."""

from spotelastic_checkpoints.messages import Rehearsed
from test_agent_decide import NOW, local

from spotelastic.agent.observe import observe
from spotelastic.agent.state.events import XidSeen
from spotelastic.model.gpu import GpuFault
from spotelastic.model.in_place import AUDITED, SICK


def test_the_node_that_is_named_falls_ill_and_no_other() -> None:
    line = "rank 2 computes other results than the rest (--audit, step 40)"
    ill = observe(local(), Rehearsed(40, 3, SICK, line, AUDITED), NOW)
    assert ill == observe(local(), XidSeen(GpuFault(line, "audit", "audit"), "sick"), NOW)
    assert ill.health.fault is not None
    assert ill.departure.notice is not None
    for outcome, kind in (("different", AUDITED), ("different", "rehearsed"), (SICK, "rehearsed")):
        told = Rehearsed(40, 3, outcome, line, kind)
        assert observe(local(), told, NOW) == observe(local(), Rehearsed(1, 1, "equal", ""), 7.0)
