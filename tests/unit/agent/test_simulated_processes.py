"""Simulated processes of a node do all that the real ones do, so that no simulation lags behind."""

import re
from pathlib import Path

import pytest

from spotelastic.agent import actions
from spotelastic.agent.executor import AgentExecutor
from spotelastic.agent.node_processes import NodeProcesses

ROOT = Path(__file__).parents[3]


FILES = ("tests/support/simulation/virtual_processes.py", "benchmarks/light/agent.py")


def performed(owner: type, method: str) -> set[str]:
    """The actions for which a method has a handler."""
    registry = vars(owner)[method].dispatcher.registry
    return {kind.__name__ for kind in registry if kind is not object}


REAL = performed(NodeProcesses, "do")
ON_ETCD = performed(AgentExecutor, "_do")
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
    handled = set(re.findall(r"case actions\.(\w+)", (ROOT / file).read_text()))
    assert handled == REAL
