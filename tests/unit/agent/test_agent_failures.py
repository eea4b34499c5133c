"""What an agent writes of a worker that failed."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.simulation.node_state import node_state
from support.store.memory_store import MemoryStore
from test_worker_environment import CONFIG, ROUND

from spotelastic.agent import actions
from spotelastic.agent.executor import AgentExecutor
from spotelastic.agent.node_processes import NodeProcesses
from spotelastic.agent.state.values import WorkerExit, Workers
from spotelastic.clock import unbroken
from spotelastic.model.job import MOST_TEXT, Failure
from spotelastic.model.progress import Event
from spotelastic.rendezvous.view import RunState
from spotelastic.store.codec import decode
from spotelastic.store.keys import Keys
from spotelastic.store.session import Session

WORKERS = Workers("r3", 3, 2, 1, 0.0, frozenset(), exits=(WorkerExit(1, 1, 5.0),))
MEGABYTES = 3 << 20


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(unbroken)


@pytest.fixture
def actor(tmp_path: Path, store: MemoryStore) -> Iterator[AgentExecutor]:
    session = Session(store, 2.0, lambda reason: None)
    config = replace(CONFIG, state=tmp_path, logs=tmp_path, secrets=("hunter2",))
    processes = NodeProcesses(config, lambda event: None)
    actor = AgentExecutor(config, store, session, processes)
    yield actor
    actor.close()
    session.close()


def reported(actor: AgentExecutor, store: MemoryStore, message: str, trace: str) -> Failure:
    """The failure as it is in the store, after a worker has left this in its error file."""
    folder = actor.config.round_logs(WORKERS.number)
    folder.mkdir(parents=True)
    content = {"message": message, "extraInfo": {"py_callstack": trace}}
    (folder / "error-3.json").write_text(json.dumps({"message": content}))
    actor.perform(node_state(workers=WORKERS), RunState(), actions.ReportFailure(ROUND))
    found = store.get(Keys(CONFIG.run).failure(CONFIG.node))
    assert found is not None
    return decode(found.data, Failure)


def test_of_a_failure_of_megabytes_so_much_is_told_as_etcd_takes(
    actor: AgentExecutor, store: MemoryStore
) -> None:
    message = "ValueError: " + "x" * (MOST_TEXT - 14) + "hunter2" + "x" * MEGABYTES
    failure = reported(actor, store, message, "y" * MEGABYTES + "  line 7\n")
    assert failure.message.startswith("ValueError: xxx")
    assert failure.message.endswith(f"x** [{MEGABYTES + 1} characters more]")
    assert failure.traceback.startswith(f"[{MEGABYTES + 9 - MOST_TEXT} characters before]\nyyy")
    assert failure.traceback.endswith("yyy  line 7\n")
    (event,) = store.range(Keys(CONFIG.run).event())[0]
    assert len(decode(event.data, Event).message) < MOST_TEXT + 40


def test_the_users_own_files_have_their_paths_in_the_scripts_folder(
    actor: AgentExecutor, store: MemoryStore
) -> None:
    folder = actor.config.workdir.absolute()
    trace = f'  File "{folder}/data/rows.py", line 7, in read\n  File "/usr/lib/x.py", line 1\n'
    failure = reported(actor, store, "ValueError: no rows", trace)
    assert failure.traceback == trace.replace(f"{folder}/", "")


def test_a_message_that_is_no_utf8_is_told(actor: AgentExecutor, store: MemoryStore) -> None:
    failure = reported(actor, store, "no such file: \udcff.csv", "")
    assert failure.message == "no such file: \\udcff.csv"


def test_of_a_worker_that_ended_without_an_error_the_exit_code_is_told(
    actor: AgentExecutor, store: MemoryStore
) -> None:
    """Its neighbour on this node, which lost it, is not to blame."""
    exits = WorkerExit(0, 0, 4.0), WorkerExit(1, 1, 5.0)
    workers = replace(WORKERS, attached=True, exits=exits)
    actor.perform(node_state(workers=workers), RunState(), actions.ReportFailure(ROUND))
    (told,) = store.range(Keys(CONFIG.run).event())[0]
    event = decode(told.data, Event)
    assert event.message == "rank 2: ended with exit code 0 before its Checkpointer was closed"
    assert (event.node, event.data["exit_code"], event.data["lost_peer"]) == (CONFIG.node, 0, False)
