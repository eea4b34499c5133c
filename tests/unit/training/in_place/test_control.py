"""What a worker answers its agent, over a real socket."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from support.processes.patience import PATIENT

from spotelastic.model.in_place import Ask, FromWorker, Listening, Present, ToWorker
from spotelastic.training.in_place.control import PACKET, Control


class Side:
    """The agent's side of a worker's connection."""

    def __init__(self, folder: Path) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(folder / "agent"))
            listener.listen()
            self.worker = Control(str(folder / "agent"), "r1", 0, lambda: None)
            self._socket, _ = listener.accept()
        self._socket.settimeout(PATIENT)

    def tell(self, message: ToWorker) -> None:
        self._socket.send(msgspec.json.encode(message))

    def hear(self) -> FromWorker:
        return msgspec.json.decode(self._socket.recv(PACKET), type=FromWorker)

    def close(self) -> None:
        self.worker.close()
        self._socket.close()


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    with closing(Side(tmp_path)) as made:
        assert made.hear() == Listening("r1", 0)
        yield made


def test_questions_are_answered_while_the_main_thread_does_something_else(side: Side) -> None:
    side.tell(Ask())
    assert side.hear() == Present("r1")


def test_nothing_is_answered_while_a_driver_may_hold_the_main_thread_for_ever(side: Side) -> None:
    """The agent replaces a worker that does not answer in time."""
    order: list[str] = []

    def hears() -> None:
        side.hear()
        order.append("an answer")

    agent = threading.Thread(target=hears)
    with side.worker.unanswered():
        side.tell(Ask())
        agent.start()
        agent.join(0.2)  # an answer that comes too early is seen, if not always
        order.append("the groups are left")
    agent.join(PATIENT)
    assert order == ["the groups are left", "an answer"]
