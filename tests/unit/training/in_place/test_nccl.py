"""Errors of NCCL end a step or a process, and torch ends neither.

There is no GPU here: what torch notes of a collective is handed in. On a GPU,
`tests/support/training/devices.py` has the same as real losses.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.processes.warm_python import WarmPython, warm_torch
from support.scripts.nccl_probes import HANDLING
from torch._C._distributed_c10d import ErrorType

from spotelastic.training.in_place import nccl
from spotelastic.training.in_place.groups import Groups, abort_all

__all__ = ["warm_torch"]


Told = Callable[..., tuple[int, str]]


@pytest.fixture
def told(warm_torch: WarmPython, monkeypatch: pytest.MonkeyPatch) -> Told:
    """How a process ended that was given a function of `nccl_probes` and these variables, and what
    it wrote to standard error.
    """
    monkeypatch.delenv(HANDLING, raising=False)

    def run(name: str, **variables: str) -> tuple[int, str]:
        environ = os.environ | variables
        done = warm_torch.run("-m", "support.scripts.nccl_probes", name, environ=environ)
        return done.returncode, done.stderr

    return run


class Noted:
    """A backend of which torch has noted something."""

    def __init__(self, error: Any) -> None:
        self._error = error

    def get_error(self) -> Any:
        return self._error


@pytest.mark.parametrize(
    ("variables", "while_made", "later"),
    [
        ({"SPOTELASTIC_NCCL_ERRORS": "1", HANDLING: "1"}, "0", "1"),
        ({"SPOTELASTIC_NCCL_ERRORS": "1"}, "0", "None"),
        ({"SPOTELASTIC_NCCL_ERRORS": "", HANDLING: "1"}, "1", "1"),  # the user says so
        ({"SPOTELASTIC_NCCL_ERRORS": "1", HANDLING: "3"}, "3", "3"),  # the script says so
        (
            {"SPOTELASTIC_NCCL_ERRORS": "1", HANDLING: "1", "TORCH_NCCL_DESYNC_DEBUG": "1"},
            "1",
            "1",
        ),
        (
            {"SPOTELASTIC_NCCL_ERRORS": "1", HANDLING: "1", "TORCH_DISTRIBUTED_DEBUG": "detail"},
            "1",
            "1",
        ),
    ],
)
def test_torch_only_notes_errors_of_groups_that_are_looked_at(
    variables: dict[str, str], while_made: str, later: str, told: Told
) -> None:
    """What the script starts itself is not looked at, so that torch has to end it."""
    assert told("probe", **variables) == (0, f"{while_made} {while_made} {later}")


WAITS = ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC")


def test_torch_does_not_wait_for_a_record_while_others_wait_for_this_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread would sleep for a minute, with a lock that the next collective needs."""
    monkeypatch.delenv(WAITS[0], raising=False)
    monkeypatch.setenv(WAITS[1], "15000")
    with nccl.noting_only():
        assert [os.environ[name] for name in WAITS] == ["0", "0"]
    assert [os.environ.get(name) for name in WAITS] == [None, "15000"]


def test_what_a_rank_did_is_written_where_a_collective_took_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", f"{tmp_path}/rank_")
    told: list[str] = []
    for error in ErrorType.COMM_ERROR, ErrorType.TIMEOUT:
        left = iter([False, True])
        nccl.look(told.append, [Noted(error)].copy, left.__next__, lambda: b"steps")
    assert told[0] == "a collective of NCCL failed: COMM_ERROR"
    assert told[1].startswith("a collective of NCCL failed: TIMEOUT (what this rank did is in ")
    assert [*tmp_path.iterdir()] == [tmp_path / "rank_3"]
    assert (tmp_path / "rank_3").read_bytes() == b"steps"
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", f"{tmp_path}/gone/rank_")
    assert "could not be written" in nccl.recorded("TIMEOUT", lambda: b"steps")
    assert nccl.recorded("TIMEOUT", None) == ""  # a torch without NCCL


class Waits:
    """A group whose abort waits until all others have begun, as for kernels of theirs."""

    def __init__(self, others: threading.Barrier) -> None:
        self._others = others
        self.is_aborted = False

    def abort(self) -> None:
        self._others.wait(60)
        self.is_aborted = True


def test_communicators_are_aborted_at_once() -> None:
    """Aborted one after the other, the first waits for kernels of the second."""
    barrier = threading.Barrier(3)
    waiting = [Waits(barrier) for _ in range(3)]
    abort_all(waiting)
    assert all(group.is_aborted for group in waiting)


def test_what_torch_has_noted_is_told() -> None:
    fine, failed = Noted(ErrorType.SUCCESS), Noted(ErrorType.TIMEOUT)
    assert nccl.error_of([]) == nccl.error_of([fine, fine]) == ""
    assert nccl.error_of([fine, failed]) == "TIMEOUT"
    assert nccl.error_of([Noted(ErrorType.COMM_ERROR)]) == "COMM_ERROR"
    assert nccl.backends() == []  # there is no group


def test_errors_are_looked_at_until_the_process_ends() -> None:
    gone: Any = None  # a group that ends while it is looked at
    looks = [[Noted(ErrorType.SUCCESS)], [gone], [Noted(ErrorType.COMM_ERROR)], []]
    told: list[str] = []
    left = iter([False, False, False, False, True])
    nccl.look(told.append, lambda: looks.pop(0), lambda: next(left))
    assert told == ["a collective of NCCL failed: COMM_ERROR"]
    assert not looks


def test_a_worker_that_can_rest_is_woken_once() -> None:
    groups = Groups(rests=True)
    groups.failed("a collective of NCCL failed: TIMEOUT")
    assert (groups.is_closed, groups.broken) == (True, "a collective of NCCL failed: TIMEOUT")
    groups.failed("a collective of NCCL failed: COMM_ERROR")  # what it has aborted itself
    assert groups.broken == "a collective of NCCL failed: TIMEOUT"


def test_any_other_process_ends_as_torch_would_have_ended_it(told: Told) -> None:
    assert told("fail") == (
        -signal.SIGABRT,
        "[spotelastic] a collective of NCCL failed: TIMEOUT. This process ends, as its data may be "
        "incomplete.\n",
    )


def test_groups_without_nccl_have_no_errors_to_look_at() -> None:
    groups = Groups()
    groups.look_at_errors()
    assert not groups.looks


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({HANDLING: "1"}, f"torch ends a process whose peer is lost: do not set {HANDLING}"),
        ({HANDLING: "0"}, ""),
        (
            {HANDLING: "0", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
            "to find ranks that are out of step, torch ends a process whose peer is lost: unset "
            "TORCH_NCCL_DESYNC_DEBUG and TORCH_DISTRIBUTED_DEBUG",
        ),
    ],
)
def test_where_torch_ends_a_worker_whose_peer_is_lost_a_line_says_so(
    variables: dict[str, str], line: str, told: Told
) -> None:
    assert told("problem", **variables) == (0, line)
