"""A helper thread of an agent that ends by an error ends the agent, in one line."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.store.memory_store import MemoryStore
from test_worker_environment import CONFIG

from spotelastic.agent.agent_loop import AgentLoop, HelperEnded, minding
from spotelastic.clock import unbroken
from spotelastic.errors import EnvironmentFailure

UNHANDLED = "ignore::pytest.PytestUnhandledThreadExceptionWarning"


def ends_by_an_error(name: str) -> None:
    ended = threading.Thread(target=Path.lstat, args=(Path("/nonexistent"),), name=name)
    ended.start()
    ended.join()


@pytest.mark.parametrize("name", ["watch /runs/a/", "session", "zygote", "notices"])
@pytest.mark.filterwarnings(UNHANDLED)
def test_a_helper_that_ends_by_an_error_is_told_of(name: str) -> None:
    before, told = threading.excepthook, list[HelperEnded]()
    with minding(told.append):
        ends_by_an_error(name)
    assert threading.excepthook is before
    assert [event.name for event in told] == [name]
    assert told[0].error.startswith("FileNotFoundError")


@pytest.mark.filterwarnings(UNHANDLED)
def test_threads_that_are_not_the_agents_own_are_nobodys_business() -> None:
    told = list[HelperEnded]()
    with minding(told.append):
        ends_by_an_error("user")
    assert told == []


class Odd:
    """A source of notices that is none: what it returns cannot even be gone through."""

    def poll(self) -> Any:
        return 7


@pytest.mark.filterwarnings(UNHANDLED)
def test_an_agent_ends_whose_helper_has_ended(tmp_path: Path) -> None:
    """And with it what it has started by then."""
    config = replace(
        CONFIG,
        address="127.0.0.1",
        workdir=tmp_path,
        state=tmp_path,
        shm=tmp_path / "shm",
        logs=tmp_path,
        storage=str(tmp_path / "store"),
        notices=Odd(),
    )
    agent = AgentLoop(config, MemoryStore(unbroken))
    with pytest.raises(EnvironmentFailure, match="“notices” of this node ended: TypeError: 'int'"):
        agent.serve()
