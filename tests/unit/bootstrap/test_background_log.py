"""A node's log never holds up what the node does, however slowly it is taken."""

import logging
from collections.abc import Iterator
from threading import Event

import pytest
from spotelastic_checkpoints import log_records
from spotelastic_checkpoints.log_records import LogStyle
from support.processes.patience import PATIENT

from spotelastic.bootstrap.background_log import BackgroundLog

logger = logging.getLogger("spotelastic.test")


class Console:
    """Takes a line whenever a test lets it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.begun, self.may = Event(), Event()

    def write(self, line: str) -> None:
        self.begun.set()
        assert self.may.wait(PATIENT)
        self.lines.append(line)


@pytest.fixture
def console() -> Iterator[Console]:
    made = Console()
    yield made
    made.may.set()


def test_lines_are_written_in_order_and_flushed(console: Console) -> None:
    console.may.set()
    log = BackgroundLog(console.write)
    for number in range(100):
        log(f"line {number}")
    assert log.flush(PATIENT)
    assert console.lines == [f"line {number}" for number in range(100)]


def test_who_logs_never_waits_and_what_is_left_out_is_counted(console: Console) -> None:
    log = BackgroundLog(console.write, most=10)
    with log_records.logging_to("agent: ", LogStyle(), log):
        logger.info("first")
        assert console.begun.wait(PATIENT)
        for number in range(25):
            logger.info("line %d", number)
        assert not log.flush(0.0)
        console.may.set()
        assert log.flush(PATIENT)
        assert log.flush(PATIENT)
    kept = [f"agent: line {number}" for number in range(10)]
    told = "agent: 15 lines of this log are left out: they were too many"
    assert console.lines == ["agent: first", *kept, told]


def test_a_log_that_nobody_takes_any_more_is_no_error() -> None:
    def broken(line: str) -> None:
        raise BrokenPipeError

    log = BackgroundLog(broken)
    log("one")
    log("two")
    assert log.flush(PATIENT)
