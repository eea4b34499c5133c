"""What metrics tell of a node is what its agent knows."""

from pathlib import Path

import pytest
from support.simulation.node_state import node_state

from spotelastic.agent.agent_loop import node_facts
from spotelastic.agent.config import AgentConfig
from spotelastic.agent.state.values import RestingWorkers, Workers
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Settings
from spotelastic.model.notice import Notice
from spotelastic.model.progress import Progress

CONFIG = AgentConfig(
    run="demo",
    endpoints=(),
    node="i-a",
    address="127.0.0.1",
    zone="a",
    settings=Settings(1, 1),
    command=("train.py",),
    workdir=Path(),
    state=Path(),
    shm=Path(),
    storage="",
    type="g5.xlarge",
)
WORKERS = Workers("r", 1, 0, 1, 0.0, frozenset({"r/0", "r/1"}))


def test_a_node_that_has_just_started_has_nothing_yet() -> None:
    facts = node_facts(CONFIG, node_state(), None)
    assert (facts.node, facts.zone, facts.type) == ("i-a", "a", "g5.xlarge")
    assert (facts.registered, facts.workers, facts.daemon, facts.sick) == (False, 0, False, False)


@pytest.mark.parametrize("part", ["workers", "resting"])
def test_workers_that_live_count_whether_they_train_or_rest(part: str) -> None:
    value = WORKERS if part == "workers" else RestingWorkers(WORKERS)
    assert node_facts(CONFIG, node_state(**{part: value}), None).workers == 2


def test_what_the_agent_was_told_and_has_published_is_passed_on() -> None:
    notice = Notice(InterruptionKind.SPOT_INTERRUPTION, "i-a", "imds", 1.0, 2.0, 62.0)
    told = Progress("i-a", 1, 5, 1.0)
    local = node_state(notice=notice, registered=True, daemon="127.0.0.1:4100")
    facts = node_facts(CONFIG, local, told)
    assert (facts.registered, facts.daemon) == (True, True)
    assert (facts.notice, facts.progress) == (notice, told)
