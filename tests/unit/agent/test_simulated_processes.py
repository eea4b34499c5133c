"""Simulated processes of a node do all that the real ones do, so that no simulation lags behind."""

import re
from pathlib import Path

import pytest

from spotelastic.agent import actions
from spotelastic.agent.executor import AgentExecutor

ROOT = Path(__file__).parents[3]


FILES = ("tests/support/simulation/virtual_processes.py", "benchmarks/light/agent.py")


def performed(file: str) -> set[str]:
    """The actions for which a file has a case."""
    return set(re.findall(r"case actions\.(\w+)", (ROOT / file).read_text()))


REAL = performed("spotelastic/agent/node_processes.py")
DISPATCHER = vars(AgentExecutor)["_do"].dispatcher
ON_ETCD = {kind.__name__ for kind in DISPATCHER.registry if kind is not object}
BASES = (actions.Action, actions.LocalAction, actions.DaemonAction)
ALL = {kind.__name__ for base in BASES for kind in base.__subclasses__() if kind not in BASES}


def test_each_action_is_performed_by_the_executor_or_by_the_processes() -> None:
    """Two are on both sides: etcd is asked before a claim, and may be told of a start."""
    assert {"ClaimStorage", "StartWorkers"} == REAL & ON_ETCD
    assert ALL - {"Exit"} == REAL | ON_ETCD


@pytest.mark.parametrize(
    "file", ["tests/support/simulation/virtual_processes.py", "benchmarks/light/agent.py"]
)
def test_simulated_processes_perform_what_the_real_ones_do(file: str) -> None:
    assert performed(file) == REAL
