"""Errors of NCCL end a step or a process, and torch ends neither.

There is no GPU here: what torch notes of a collective is handed in.
"""

import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from spotelastic.training.in_place import nccl, watching
from spotelastic.training.in_place.groups import Groups, Options

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


def in_a_fork(does: Callable[[], Any]) -> tuple[int, str]:
    """Return how a forked process ended that does it, and what it wrote to standard error."""
    reads, writes = os.pipe()
    if not (child := os.fork()):
        faulthandler.disable()
        try:
            sys.stderr = os.fdopen(writes, "w")
            does()
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as stream:
        told = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def probe(variables: Mapping[str, str]) -> None:
    """Write what torch finds when groups are made, and what processes of the script find."""

    def made(*given: Any) -> Any:
        sys.stderr.write(f"{os.environ.get(HANDLING)} ")
        return dist.ProcessGroupGloo(*given)

    os.environ.update(variables)
    watching.watch()
    dist.Backend.register_backend("probe", made, devices=["cpu"])
    dist.init_process_group("probe", store=dist.HashStore(), rank=0, world_size=1)
    dist.new_group([0], backend="probe")
    sys.stderr.write(f"{os.environ.get(HANDLING)}")


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
    variables: dict[str, str], while_made: str, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the script starts itself is not looked at, so that torch has to end it."""
    monkeypatch.delenv(HANDLING, raising=False)
    assert in_a_fork(lambda: probe(variables)) == (0, f"{while_made} {while_made} {later}")


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


def test_any_other_process_ends_as_torch_would_have_ended_it() -> None:
    assert in_a_fork(lambda: Groups().failed("a collective of NCCL failed: TIMEOUT")) == (
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
    variables: dict[str, str], line: str
) -> None:
    """A backend of the tests has NCCL's name, as there is none here."""

    def asked() -> None:
        os.environ.update(variables)
        told = dist.get_backend_config
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.get_backend_config = lambda: told() + ",cuda:nccl"  # type: ignore[assignment]
        sys.stderr.write(Groups(Options("nccl")).problem(dist.group.WORLD))

    assert in_a_fork(asked) == (0, line)
