"""The agent's side of the connections to workers that can rest."""

import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.processes.patience import PATIENT

from spotelastic.agent.in_place.control import ControlEvent, WorkerControl
from spotelastic.agent.state.events import (
    WorkerDeaf,
    WorkerListens,
    WorkerPresent,
    WorkerRests,
)
from spotelastic.model.in_place import (
    Ask,
    Enter,
    FromWorker,
    Listening,
    Present,
    Rest,
    Resting,
    Standing,
    ToWorker,
)
from spotelastic.training.in_place.control import Control


class Agent:
    def __init__(self, path: Path) -> None:
        self.heard: queue.SimpleQueue[ControlEvent] = queue.SimpleQueue()
        self.control = WorkerControl(path, self.heard.put)

    def next(self) -> ControlEvent:
        return self.heard.get(timeout=PATIENT)


class Worker:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENT)
        self.socket.connect(str(path))

    def say(self, message: FromWorker) -> None:
        self.socket.send(msgspec.json.encode(message))

    def hear(self) -> ToWorker:
        return msgspec.json.decode(self.socket.recv(1 << 20), type=ToWorker)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path / "agent.sock")
    yield agent
    agent.control.close()
    assert not agent.control.path.exists()


def test_workers_are_heard_and_told_by_their_local_rank(agent: Agent) -> None:
    workers = [Worker(agent.control.path) for _ in range(2)]
    for rank, worker in enumerate(workers):
        worker.say(Listening("r1", rank))
        assert agent.next() == WorkerListens("r1", rank)
    assert agent.control.send(1, Rest())
    assert workers[1].hear() == Rest()
    workers[1].say(Resting("r1", Standing(7, "pending"), "a peer is gone", "trace"))
    pending = Standing(7, "pending")
    assert agent.next() == WorkerRests("r1", 1, pending, "a peer is gone", "trace")
    large = {f"VARIABLE_{number}": "x" * 1000 for number in range(300)}
    assert agent.control.send(1, Enter("r2", 8, False, large))
    assert workers[1].hear() == Enter("r2", 8, False, large)
    workers[0].socket.close()
    assert agent.next() == WorkerDeaf(0)
    assert not agent.control.send(0, Rest()), "it is not there any more"


def test_a_worker_answers_for_the_round_that_it_was_told_of_last(agent: Agent) -> None:
    """Its thread does, whatever its main thread waits for."""
    woken = threading.Event()
    worker = Control(str(agent.control.path), "r1", 1, woken.set)
    assert agent.next() == WorkerListens("r1", 1)
    assert agent.control.send(1, Ask())
    assert agent.next() == WorkerPresent("r1", 1)
    assert agent.control.send(1, Enter("r2", 8, False, {}))
    assert agent.next() == WorkerPresent("r2", 1)
    assert worker.rest(Standing(8)).round == "r2"
    worker.close()
    stranger = Worker(agent.control.path)
    stranger.say(Present("r1"))
    stranger.say(Listening("r3", 0))
    heard = [agent.next(), agent.next(), agent.next()]
    assert {type(each) for each in heard} == {WorkerRests, WorkerDeaf, WorkerListens}


def test_a_worker_that_reads_nothing_does_not_hold_up_its_agent(agent: Agent) -> None:
    worker = Worker(agent.control.path)
    worker.say(Listening("r1", 0))
    agent.next()
    large = Enter("r2", 8, False, {"VARIABLE": "x" * 100_000})
    told = [agent.control.send(0, large) for _ in range(100)]
    assert told[0] and not told[-1]


def test_a_successor_takes_the_place_of_a_worker_whose_end_is_noticed_late(agent: Agent) -> None:
    first = Worker(agent.control.path)
    first.say(Listening("r1", 0))
    second = Worker(agent.control.path)
    assert agent.next() == WorkerListens("r1", 0)
    second.say(Listening("r2", 0))
    assert agent.next() == WorkerListens("r2", 0)
    first.socket.close()
    assert agent.control.send(0, Rest())
    assert second.hear() == Rest()
    second.socket.close()
    assert agent.next() == WorkerDeaf(0), "and the end of the first one is no news"


@pytest.mark.parametrize("said", [b"{", b'{"type": "Nonsense"}', b"[]"])
def test_what_is_no_message_ends_the_connection(agent: Agent, said: bytes) -> None:
    worker = Worker(agent.control.path)
    worker.say(Listening("r1", 0))
    agent.next()
    worker.socket.send(said)
    assert agent.next() == WorkerDeaf(0)
    assert worker.socket.recv(1) == b""
