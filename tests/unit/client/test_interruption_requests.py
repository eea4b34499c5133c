"""Whom an interruption strikes, and what of it is refused."""

import pytest

from spotelastic.aws.clusters import fault_injection
from spotelastic.client.interrupt import KINDS, InterruptionRequest, node_named
from spotelastic.errors import UsageError
from spotelastic.model.progress import NodeStatus, Status


def status(**ranks: tuple[int, ...]) -> Status:
    nodes = [NodeStatus(name, "worker", "training", "z", "", r) for name, r in ranks.items()]
    gone = NodeStatus("d", "worker", "draining", "z", "", (2,))
    return Status("demo", "running", 0.0, nodes=(*nodes, gone))


def test_a_node_is_named_drawn_or_found_by_its_rank() -> None:
    now = status(b=(1,), a=(0,), c=())
    assert {node_named("any", now) for _ in range(50)} == {"a", "b"}
    assert (node_named("rank 1", now), node_named("i-9", now)) == ("b", "i-9")
    with pytest.raises(UsageError, match="no node with rank 2 of demo trains now"):
        node_named("rank 2", now)
    with pytest.raises(UsageError, match="no node of demo trains now: its job is running"):
        node_named("any", status())


def test_what_reports_say_may_be_typed_as_well() -> None:
    for word in ("notice", "spot_interruption"):
        assert InterruptionRequest.asked("i-1", word, 120.0).kind is KINDS["notice"]


def test_an_interruption_of_no_known_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="--kind flood: expected notice, rebalance, loss"):
        InterruptionRequest.asked("i-1", "flood", 120.0)


def test_a_loss_that_is_to_be_announced_is_refused() -> None:
    with pytest.raises(UsageError, match="--kind loss --in 60: a loss comes without notice"):
        InterruptionRequest.asked("i-1", "loss", 60.0)
    for seconds in (0.0, fault_injection.WARNING):
        assert not InterruptionRequest.asked("i-1", "loss", seconds).warns
