"""A helper thread of an agent that ends by an error ends the agent, in one line."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from test_worker_environment import CONFIG

from spotelastic.agent.run import AgentLoop, HelperEnded, minding
from spotelastic.clock import unbroken
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.notice import Notice
from spotelastic.store.memory import MemoryStore

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
    """A source of notices that fails as nobody has foreseen."""

    def poll(self) -> Sequence[Notice]:
        raise KeyError("time")


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
    with pytest.raises(EnvironmentFailure, match="“notices” of this node ended: KeyError: 'time'"):
        agent.serve()
