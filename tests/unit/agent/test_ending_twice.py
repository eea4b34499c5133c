"""A second signal ends an agent at once, whatever the first one has interrupted."""

import signal
import threading
from types import FrameType

from support.processes.patience import PATIENT

from spotelastic.agent.ending import AgentEnding
from spotelastic.linux import handled


def test_a_second_signal_in_the_middle_of_the_end_waits_for_nothing() -> None:
    held, closed, left = threading.Lock(), list[str](), list[int]()

    def close() -> None:
        with held:  # as subprocess has one while it looks whether a process has ended
            signal.raise_signal(signal.SIGUSR1)
        closed.append("all")

    def second(number: int, frame: FrameType | None) -> None:
        ending.at_once(128 + number)

    ending = AgentEnding(close, left.append)
    with handled([signal.SIGUSR1], second):
        ending.close()
    assert (closed, left) == (["all"], [])


def test_a_second_signal_before_that_closes_once_and_ends_the_process() -> None:
    closed, left = list[str](), threading.Event()
    codes = list[int]()

    def leave(code: int) -> None:
        codes.append(code)
        left.set()

    ending = AgentEnding(lambda: closed.append(threading.current_thread().name), leave)
    ending.at_once(130)
    ending.at_once(143)
    assert left.wait(PATIENT)
    assert codes == [130]
    assert len(closed) == 1 and closed != [threading.main_thread().name]
