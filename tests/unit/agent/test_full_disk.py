"""Output that cannot be written is lost; it holds up nobody."""

import os
import queue
import sys
from pathlib import Path

import pytest
from support.processes.patience import PATIENT

from spotelastic.agent.workers.logs import Logs
from spotelastic.agent.workers.output import Output
from spotelastic.launcher import run, terminal
from spotelastic.launcher.flags import parse

FULL = Path("/dev/full")


def test_a_worker_is_read_on_when_its_file_takes_no_more(tmp_path: Path, said: list[str]) -> None:
    for name in ("rank-4.log", "filtered_stdout.log"):
        (tmp_path / name).symlink_to(FULL)
    shown: queue.SimpleQueue[tuple[int, int, str]] = queue.SimpleQueue()
    logs = Logs(lambda *shows: shown.put(shows), output=Output(filters={"stdout": ("o",)}))
    worker, errors = logs.open(tmp_path, 4, 0)
    try:
        for line in ("one", "two"):
            os.write(worker, f"{line}\n".encode())
            assert shown.get(timeout=PATIENT) == (4, 0, line)
    finally:
        os.close(worker)
        os.close(errors)
        logs.close()
    assert [line.partition(":")[0] for line in said] == [
        str(tmp_path / "rank-4.log"),
        str(tmp_path / "filtered_stdout.log"),
    ]


def test_what_shows_the_lines_goes_on_when_the_terminal_takes_no_more(said: list[str]) -> None:
    with FULL.open("w") as full:
        show = terminal.printer(lambda rank, _: f"[{rank}] ", full)
        show(0, 0, "one")
        show(0, 0, "two")
        assert Path(f"/proc/self/fd/{full.fileno()}").readlink() == Path(os.devnull)
    assert said == ["the output of workers is no longer shown: No space left on device"]


def test_what_is_said_on_a_full_disk_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with FULL.open("w") as full, run.logging_of(parse(["train.py"], {})):
        monkeypatch.setattr(sys, "stderr", full)
        run.logger.info("one")
        run.logger.info("two")
