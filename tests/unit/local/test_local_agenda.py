"""The thread that does what is due."""

import threading
import time
from collections.abc import Iterator

import pytest
from support.processes.patience import PATIENT

from spotelastic.local.base.agenda import Agenda


@pytest.fixture
def agenda() -> Iterator[Agenda]:
    agenda = Agenda(threading.RLock())
    agenda.start()
    yield agenda
    agenda.close()


def test_tasks_run_in_order_of_time_and_then_of_asking(agenda: Agenda) -> None:
    done: list[str] = []
    begun, go_on, over = (threading.Event() for _ in range(3))

    def wait() -> None:
        """So that all are asked for before the next one is chosen."""
        begun.set()
        assert go_on.wait(PATIENT)

    agenda.soon(wait)
    assert begun.wait(PATIENT)
    now = time.time()
    agenda.at(now + 0.2, over.set)
    agenda.at(now + 0.1, lambda: done.append("third"))
    agenda.at(now - 1, lambda: done.append("first"))
    agenda.at(now - 1, lambda: done.append("second"))
    go_on.set()
    assert over.wait(PATIENT)
    assert done == ["first", "second", "third"]


def test_a_task_that_fails_does_not_stop_the_others(
    agenda: Agenda, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()

    def fail() -> None:
        raise RuntimeError("broken group")

    agenda.soon(fail)
    agenda.soon(over.set)
    assert over.wait(PATIENT)
    assert "broken group" in caplog.text


def test_tasks_wait_for_the_lock() -> None:
    lock = threading.RLock()
    agenda = Agenda(lock)
    agenda.start()
    over = threading.Event()
    with lock:
        agenda.soon(over.set)
        assert not over.wait(0.05)
    assert over.wait(PATIENT)
    agenda.close()


def test_what_is_due_runs_at_once_with_what_it_makes_due() -> None:
    agenda = Agenda(threading.RLock())
    done: list[str] = []

    def first() -> None:
        done.append("first")
        agenda.soon(lambda: done.append("second"))

    agenda.soon(first)
    agenda.at(time.time() + 3600, lambda: pytest.fail("not due"))
    agenda.run_due()
    assert done == ["first", "second"]


def test_closing_leaves_what_is_not_due_undone() -> None:
    agenda = Agenda(threading.RLock())
    agenda.start()
    agenda.at(time.time() + 3600, lambda: pytest.fail("not due"))
    agenda.close()
