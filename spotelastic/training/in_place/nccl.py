"""Looks at the errors of NCCL's collectives, so that torch does not end the process for them.

torch has a thread for each group of NCCL ("watchdog"). When a collective fails, as when a peer is
lost, or takes longer than the group's timeout, that thread ends the process, unless
TORCH_NCCL_ASYNC_ERROR_HANDLING was 0 when the group was made. Then it only notes the error. So
groups of this process are made with 0, and what is noted is looked at here: a worker that can rest
does so, and any other is ended, as torch would have done.

Must never happen: a collective waits for ever that torch would have ended. So groups are made
that way only in a process that looks, and not in those that its script starts.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
OURS = "SPOTELASTIC_NCCL_ERRORS"
"""Variable that is not empty where the user leaves the errors of NCCL to spotelastic."""
_DESYNC = ("TORCH_NCCL_DESYNC_DEBUG", "NCCL_DESYNC_DEBUG")
LOOK_EVERY = 0.5
"""Seconds. torch itself looks ten times a second; a peer that is lost is told by the agent too."""


class HasErrors(Protocol):
    """A backend of a process group."""

    def get_error(self) -> Any:
        """Return what torch has noted: an enumeration, of which one is SUCCESS."""


def is_ours() -> bool:
    """Whether errors are looked at here, and neither user nor script has said that torch does."""
    can_look = hasattr(getattr(dist, "ProcessGroupNCCL", HasErrors), "get_error")
    unset = os.environ.get(HANDLING, "1") in ("0", "1")
    return bool(os.environ.get(OURS)) and unset and can_look and not finds_desync()


def finds_desync() -> bool:
    """Whether torch is to find ranks that are out of step. Then it handles errors, whatever the
    variable says.
    """
    asked = any(os.environ.get(name, "0") not in ("", "0") for name in _DESYNC)
    return asked or os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"


@contextlib.contextmanager
def noting_only() -> Iterator[None]:
    """Have torch only note the errors of the groups that are made in the block."""
    before = os.environ.get(HANDLING)
    os.environ[HANDLING] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[HANDLING]
        else:
            os.environ[HANDLING] = before


def backends() -> list[HasErrors]:
    """Return those of NCCL, of all groups of this process."""
    found: list[HasErrors] = []
    for group in [*c10d._world.pg_map]:
        with contextlib.suppress(RuntimeError):
            backend: Any = group._get_backend(torch.device("cuda"))
            if backend.name() == "nccl":
                found.append(backend)
    return found


def error_of(found: Iterable[HasErrors]) -> str:
    """Return the first error that torch has noted; empty if there is none."""
    told = (str(backend.get_error()).rpartition(".")[2] for backend in found)
    return next((error for error in told if error != "SUCCESS"), "")


def look(
    told: Callable[[str], None],
    found: Callable[[], Iterable[HasErrors]],
    wait: Callable[[], bool],
) -> None:
    """Tell of errors for as long as `wait` returns False. It waits until the next look.

    A group may end while it is looked at. Whatever that raises, the next look comes.
    """
    while not wait():
        with contextlib.suppress(Exception):
            if error := error_of(found()):
                told(f"a collective of NCCL failed: {error}")


def start(told: Callable[[str], None]) -> None:
    """Begin to look, for as long as the process lives."""
    never = threading.Event()
    arguments = (told, backends, lambda: never.wait(LOOK_EVERY))
    threading.Thread(target=look, args=arguments, name="nccl-errors", daemon=True).start()


def end(error: str) -> None:
    """End this process, as torch does where it is not asked to note errors only."""
    sys.stderr.write(f"[spotelastic] {error}. This process ends, as its data may be incomplete.\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGABRT)
