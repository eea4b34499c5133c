"""A helper thread of an agent that ends by an error ends the agent, in one line."""

import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from spotelastic.agent.run import HelperEnded, _Agent
from spotelastic.errors import EnvironmentFailure


@pytest.fixture
def agent() -> Any:
    """Its queue alone: nothing is started."""
    bare: Any = _Agent.__new__(_Agent)
    bare._queue = queue.SimpleQueue()
    return bare


@pytest.mark.parametrize("name", ["watch /runs/a/", "session", "zygote", "notices"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_helper_that_ends_by_an_error_ends_the_agent(agent: Any, name: str) -> None:
    before = threading.excepthook
    with agent._minding_helpers():
        ended = threading.Thread(target=Path.lstat, args=(Path("/nonexistent"),), name=name)
        ended.start()
        ended.join()
    assert threading.excepthook is before
    event = agent._queue.get_nowait()
    assert isinstance(event, HelperEnded)
    with pytest.raises(EnvironmentFailure, match=f"{name}.* ended: FileNotFoundError"):
        agent._fold(event)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_are_not_the_agents_own_end_nothing(agent: Any) -> None:
    with agent._minding_helpers():
        ended = threading.Thread(target=Path.lstat, args=(Path("/nonexistent"),), name="user")
        ended.start()
        ended.join()
    assert agent._queue.empty()
