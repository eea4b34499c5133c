"""A memory fence in other processes, so that they need none themselves.

The worker writes its step and then reads the target; the daemon writes the target and then reads
the steps (docs/explanation/protocols.md, Agreement on a step). One of the two must see the other's
write, which takes a fence between write and read on both sides. `membarrier(2)` puts one into
every process that asked for it: the daemon pays, the worker's step costs no system call.
"""

import ctypes
import platform

_NUMBER = {"x86_64": 324, "aarch64": 283}
_GLOBAL_EXPEDITED = 1 << 1
_REGISTER_GLOBAL_EXPEDITED = 1 << 2

_libc = ctypes.CDLL(None, use_errno=True)


def accept() -> None:
    """This process takes part in fences from now on."""
    _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def raise_everywhere() -> None:
    """On return every process that accepted has passed a full fence."""
    _membarrier(_GLOBAL_EXPEDITED)


def _membarrier(command: int) -> None:
    number = _NUMBER.get(platform.machine())
    if number is not None:
        # Kernels without it (before 4.16) leave the margin of two steps to do the work.
        _libc.syscall(number, command, 0, 0)
