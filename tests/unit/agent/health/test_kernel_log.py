"""The watch on the kernel's log, on files and pipes in its place."""

import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes.patience import PATIENT, eventually

from spotelastic.agent.health.kernel_log import KernelLog
from spotelastic.agent.health.xids import KernelReport

LOST = "3,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"
OLD = "3,0,1,-;NVRM: Xid (PCI:0000:1b:00): 48, DBE\n"


class Heard:
    def __init__(self) -> None:
        self.reports: queue.Queue[KernelReport] = queue.Queue()
        self.said: queue.Queue[str] = queue.Queue()

    def xid(self) -> int:
        return self.reports.get(timeout=PATIENT).fault.xid


@contextmanager
def following(path: Path, again_after: float = 30.0) -> Iterator[Heard]:
    heard = Heard()
    log = KernelLog(path, heard.reports.put, heard.said.put, again_after)
    try:
        yield heard
    finally:
        log.close()


def test_messages_of_a_pipe_are_heard_in_pieces_and_together(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    with following(pipe) as heard, pipe.open("w", buffering=1) as kernel:
        kernel.write(LOST[:30])
        kernel.flush()
        kernel.write(LOST[30:] + "usb 1-1: new device\n" + LOST.replace("79", "74"))
        kernel.flush()
        assert [heard.xid(), heard.xid()] == [79, 74]
    assert heard.said.empty()


def test_a_pipe_without_a_writer_is_followed_when_one_comes_again(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    with following(pipe) as heard:
        for xid in (79, 95):
            with pipe.open("w") as kernel:
                kernel.write(LOST.replace("79", str(xid)))
            assert heard.xid() == xid


def test_of_a_file_only_what_is_new_counts(tmp_path: Path) -> None:
    file = tmp_path / "messages"
    file.write_text(OLD)
    with following(file) as heard:

        def is_heard() -> bool:  # not before the watch has begun: that is old, too
            with file.open("a") as kernel:
                kernel.write(LOST)
            return not heard.reports.empty()

        eventually(is_heard)
    assert {report.fault.xid for report in heard.reports.queue} == {79}


def test_a_log_that_cannot_be_read_is_told_once_and_tried_again(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    with following(pipe, again_after=0.01) as heard:
        said = heard.said.get(timeout=PATIENT)
        assert said == f"{pipe}: No such file or directory: Xid errors of GPUs are not seen"
        os.mkfifo(pipe)
        with pipe.open("w") as kernel:
            kernel.write(LOST)
        assert heard.xid() == 79
    assert heard.said.empty()


def test_an_absent_right_is_told_with_what_gives_it(tmp_path: Path) -> None:
    """A folder stands for it, where tests run as root."""
    with following(tmp_path) as heard:
        assert "Xid errors of GPUs are not seen" in heard.said.get(timeout=PATIENT)
