"""Whatever a worker writes, and wherever it goes: it is read on, and nothing hangs."""

import io
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from support.processes.patience import PATIENT

from spotelastic.agent.workers.logs import LONGEST, STUCK_AFTER, Logs
from spotelastic.agent.workers.output import LineSink, Output, Unfinished, WholeLines
from spotelastic.launcher import run, terminal
from spotelastic.launcher.flags import parse


@contextmanager
def worker(folder: Path, sink: LineSink, *, stuck_after: float = STUCK_AFTER) -> Iterator[int]:
    """What a worker writes to; all of it is read at the end of the block."""
    logs = Logs(sink, stuck_after=stuck_after)
    streams = logs.open(folder, 0, 0)
    try:
        yield streams[0]
    finally:
        for stream in streams:
            os.close(stream)
        logs.close()


def shown(folder: Path, data: bytes) -> list[str]:
    told: list[str] = []
    with worker(folder, lambda _rank, _local, line: told.append(line)) as stream:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(stream, rest) :]
    (log,) = folder.glob("rank-0*.log")
    assert log.read_bytes() == data
    return told


def test_a_long_line_is_told_in_pieces_that_cut_no_character(tmp_path: Path) -> None:
    text = "xé" * (3 * LONGEST)
    told = shown(tmp_path, text.encode())
    assert "".join(told) == text
    assert max(len(piece.encode()) for piece in told) <= 2 * LONGEST


def test_bytes_that_are_no_text_are_told_in_pieces_too(tmp_path: Path) -> None:
    told = shown(tmp_path, b"\x80" * (4 * LONGEST) + b"\x00\xff")
    assert sum(map(len, told)) == 4 * LONGEST + 2


def test_updates_are_told_as_they_come(tmp_path: Path) -> None:
    updates = b"".join(b"\r%d%%" % number for number in range(16_000))
    told = shown(tmp_path, updates + b"\nend\r\nlast")
    assert told[:2] == ["0%\r", "1%\r"]
    assert told[-3:] == ["15999%", "end", "last"]
    assert len(told) == 16_002


def test_an_update_appears_before_its_line_ends(tmp_path: Path) -> None:
    seen = threading.Event()
    with worker(tmp_path, lambda _rank, _local, line: seen.set()) as stream:
        os.write(stream, b"\r10%\r")
        assert seen.wait(PATIENT)


@pytest.mark.parametrize(
    ("written", "told", "then"),
    [
        (b"a\n(Pdb) ", "(Pdb) ", "42"),
        (b"\r10%\r20%", "20%\r", "20%42"),
        ("né".encode()[:-1], "n", "é42"),
        (b"\r  0%|   | 0/100", "  0%|   | 0/100\r", "  0%|   | 0/10042"),
    ],
)
def test_what_has_no_end_appears_at_once_and_the_rest_of_the_line_later(
    written: bytes, told: str, then: str, tmp_path: Path
) -> None:
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    sink: LineSink = lambda _rank, _local, line: lines.put(line)  # noqa: E731
    with worker(tmp_path, sink) as stream:
        os.write(stream, written)
        while (line := lines.get(timeout=PATIENT)) != told:
            pass
        assert isinstance(line, Unfinished) == (not told.endswith("\r"))
        os.write(stream, "é".encode()[1:] + b"42\n" if told == "n" else b"42\n")
        assert lines.get(timeout=PATIENT) == then


def test_a_line_that_a_filter_wants_is_whole_though_it_was_shown_in_pieces(tmp_path: Path) -> None:
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    output = Output(filters={"stdout": ("ab",)})
    logs = Logs(lambda _rank, _local, line: lines.put(line), output=output)
    stream, errors = logs.open(tmp_path, 3, 0)
    for piece in (b"xa", b"by"):
        os.write(stream, piece)
        assert lines.get(timeout=PATIENT) == piece.decode()
    os.write(stream, b"\nb\n")
    os.close(stream)
    os.close(errors)
    logs.close()
    assert (tmp_path / "filtered_stdout.log").read_text() == "[3] xaby\n"


def test_a_line_goes_on_unless_another_rank_writes() -> None:
    text = io.StringIO()
    show = prints(text)
    show(0, 0, Unfinished("saving..."))
    show(0, 0, Unfinished(".."))
    show(0, 0, " done")
    show(1, 1, Unfinished("asks? "))
    show(0, 0, "step 1")
    show(1, 1, "yes")
    assert text.getvalue() == "[0] saving..... done\n[1] asks? \n[0] step 1\n[1] yes\n"


def test_what_is_typed_ends_the_line_of_a_prompt() -> None:
    text = io.StringIO()
    show = terminal.printer(lambda rank, _: f"[{rank}] ", text, answers=True)
    for written in ("(Pdb) ", "name: ", "go on? [y/n] ", ">>> ", "sure?", "saving... "):
        show(0, 0, Unfinished(written))
        show(0, 0, "x")
    lines = text.getvalue().splitlines()
    assert lines[:4] == ["[0] (Pdb) ", "[0] x", "[0] name: ", "[0] x"]
    assert len(lines) == 11 and lines[-1] == "[0] saving... x"


def test_where_there_are_only_lines_each_piece_is_one_and_dots_are_gathered() -> None:
    told: list[str] = []
    now = [0.0]
    lines = WholeLines(lambda rank, _local, text: told.append(f"{rank} {text}"), lambda: now[0])
    lines(0, 0, Unfinished("saving..."))
    lines(0, 0, Unfinished("uploading..."))
    lines(0, 0, "")
    assert told == ["0 saving...", "0 uploading..."]
    lines(1, 1, "")
    for _ in range(25):
        lines(0, 0, Unfinished("."))
        now[0] += 1.0
    lines(0, 0, " done")
    assert told[2:] == ["1 ", "0 .", "0 ..........", "0 ..........", "0 .... done"]


def test_a_sink_that_fails_is_told_of_once_and_the_worker_is_read_on(
    tmp_path: Path, said: list[str]
) -> None:
    def fails(_rank: int, _local: int, line: str) -> None:
        raise UnicodeEncodeError("ascii", line, 0, 1, "no such character")

    with worker(tmp_path, fails) as stream:
        for _ in range(4):
            os.write(stream, b"x" * 60_000 + b"\n")
    assert len(said) == 1 and "rank 0 is shown: UnicodeEncodeError" in said[0]
    (log,) = tmp_path.glob("rank-0*.log")
    assert log.stat().st_size == 240_004


def test_a_reader_that_takes_no_more_is_told_of_at_the_end(tmp_path: Path, said: list[str]) -> None:
    go_on = threading.Event()

    def show(_rank: int, _local_rank: int, _line: str) -> None:
        go_on.wait(30.0)

    with worker(tmp_path, show, stuck_after=0.05) as stream:
        os.write(stream, b"line\n")
    go_on.set()
    assert said == ["the workers' last output is lost: nobody reads this command's output any more"]


def prints(to: TextIO) -> Callable[[int, int, str], None]:
    return terminal.printer(lambda rank, _: f"[{rank}] ", to)


def test_a_character_that_the_terminal_lacks_is_escaped() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w", encoding="ascii") as terminal:
        prints(terminal)(0, 0, "é\r")
        prints(terminal)(0, 0, "e")
    with os.fdopen(read, "rb") as reader:
        assert reader.read() == b"[0] \\xe9\r[0] e\n"


def test_all_is_written_to_a_pipe_that_does_not_wait() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    found: list[bytes] = []
    with os.fdopen(read, "rb") as reader:
        reading = threading.Thread(target=lambda: found.append(reader.read()))
        with os.fdopen(write, "w") as pipe:
            pipe.write("before ")
            show = prints(pipe)
            started = False
            for number in range(100):
                if number == 1:
                    reading.start()
                    started = True
                show(number, 0, "x" * 50_000)
            assert started
        reading.join()
    lines = found[0].decode().removeprefix("before ").splitlines()
    assert lines == [f"[{number}] " + "x" * 50_000 for number in range(100)]


def test_a_stream_that_is_closed_or_none_ends_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "file").open("w") as closed:
        pass
    prints(closed)(0, 0, "lost")
    monkeypatch.setattr(sys, "stderr", None)
    with run.logging_of(parse(["train.py"], {})):
        run.logger.info("nobody hears this")


def test_a_stream_without_a_descriptor_is_written_to() -> None:
    text = io.StringIO()
    terminal.print_line("é", text)
    assert text.getvalue() == "é\n"
