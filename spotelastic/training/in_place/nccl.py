"""Looks at the errors of NCCL's collectives, so that torch does not end the process for them.

torch has a thread for each group of NCCL ("watchdog"). When a collective fails, as when a peer is
lost, or takes longer than the group's timeout, that thread ends the process, unless
TORCH_NCCL_ASYNC_ERROR_HANDLING was 0 when the group was made. Then it only notes the error. So
groups of this process are made with 0, and what is noted is looked at here: a worker that can rest
does so, and any other is ended, as torch would have done.

Before it handles an error, the watchdog has what all ranks did written to files (the "flight
recorder"), and sleeps for a minute meanwhile. It holds a lock then that the next collective needs,
and a second thread ends the process some minutes later. So that is left out too. Where a collective
took too long, this process writes the file.

Must never happen: a collective waits for ever that torch would have ended. So groups are made
that way only in a process that looks, and not in those that its script starts.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from spotelastic import torch_names

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
OURS = "SPOTELASTIC_NCCL_ERRORS"
"""Variable that is not empty where the user leaves the errors of NCCL to spotelastic."""
_DESYNC = ("TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG")
_NOTING = {
    HANDLING: "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""What has a watchdog note errors, and do nothing else."""
_RECORD, _RECORDS = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/tmp/nccl_trace_rank_"
"""Variable with the beginning of the file's name, which the rank ends, and what it is without."""
LOOK_EVERY = 0.1
"""Seconds: as often as torch."""
Dump = Callable[[], bytes]
"""Returns what torch's flight recorder has."""


def is_ours() -> bool:
    """Whether errors are looked at here, and neither user nor script has said that torch does."""
    there = getattr(dist, "ProcessGroupNCCL", None)
    can_look = there is None or hasattr(there, "get_error")
    unset = os.environ.get(HANDLING, "1") in ("0", "1")
    return bool(os.environ.get(OURS)) and unset and can_look and not finds_desync()


def finds_desync() -> bool:
    """Whether torch is to find ranks that are out of step.

    Then it handles errors, whatever the variable says.
    """
    asked = any(os.environ.get(name, "0") not in ("", "0") for name in _DESYNC)
    return asked or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"


@contextlib.contextmanager
def noting_only() -> Iterator[None]:
    """Have torch only note the errors of the groups that are made in the block."""
    before = {name: os.environ.get(name) for name in _NOTING}
    os.environ.update(_NOTING)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def backends() -> list[Any]:
    """Return those of NCCL, of all groups of this process."""
    found = map(torch_names.nccl_backend_of, torch_names.groups_of_process())
    return [backend for backend in found if backend is not None]


def error_of(found: Iterable[Any]) -> str:
    """Return the first error that torch has noted; empty if there is none.

    `get_error()` returns an enumeration, of which one is SUCCESS.
    """
    told = (str(backend.get_error()).rpartition(".")[2] for backend in found)
    return next((error for error in told if error != "SUCCESS"), "")


def look(
    told: Callable[[str], None],
    found: Callable[[], Iterable[Any]],
    wait: Callable[[], bool],
    dump: Dump | None = None,
) -> None:
    """Tell of errors for as long as `wait` returns False. It waits until the next look.

    A group may end while it is looked at. Whatever that raises, the next look comes.
    """
    known = ""
    while not wait():
        with contextlib.suppress(Exception):
            error = error_of(found())
            where = recorded(error, dump) if error != known else ""  # once
            known = error
            if error:
                told(f"a collective of NCCL failed: {error}{where}")


def recorded(error: str, dump: Dump | None) -> str:
    """Write what this rank did where a collective took too long, and return where it is."""
    if error != "TIMEOUT" or dump is None:
        return ""
    path = os.environ.get(_RECORD, _RECORDS) + os.environ.get("RANK", "0")
    try:
        Path(path).write_bytes(dump())
    except (OSError, RuntimeError) as problem:
        return f" (what this rank did could not be written to {path}: {problem})"
    return f" (what this rank did is in {path}: read it with torchfrtrace)"


def start(told: Callable[[str], None]) -> None:
    """Begin to look, for as long as the process lives."""
    never = threading.Event()
    dump = torch_names.flight_recorder(of_nccl=True)
    arguments = (told, backends, lambda: never.wait(LOOK_EVERY), dump)
    threading.Thread(target=look, args=arguments, name="nccl-errors", daemon=True).start()


def end(error: str) -> None:
    """End this process, as torch does where it is not asked to note errors only."""
    sys.stderr.write(f"[spotelastic] {error}. This process ends, as its data may be incomplete.\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGABRT)
