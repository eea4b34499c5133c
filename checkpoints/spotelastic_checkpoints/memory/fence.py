"""Issues a memory fence in all workers at once, so that their steps need no fence of their own.

A worker writes its step, then reads the target. The daemon writes the target, then reads the steps.
One of the two must see the other's write (docs/explanation/protocols.md, Agreement on a step). That
takes a fence between write and read on both sides. `membarrier(2)` puts one into every process that
asked for it. So the daemon pays, and a worker's step costs no system call.
"""

import ctypes
import platform

_NUMBER = {"x86_64": 324, "aarch64": 283}
_GLOBAL_EXPEDITED = 1 << 1
_REGISTER_GLOBAL_EXPEDITED = 1 << 2

_libc = ctypes.CDLL(None, use_errno=True)


def accept() -> None:
    """Let this process take part in fences from now on."""
    _membarrier(_REGISTER_GLOBAL_EXPEDITED)


def raise_everywhere() -> None:
    """Make every process that called `accept` pass a full fence before this returns."""
    _membarrier(_GLOBAL_EXPEDITED)


def _membarrier(command: int) -> None:
    number = _NUMBER.get(platform.machine())
    if number is not None:
        # Kernels without it (before 4.16) leave the margin of two steps to do the work.
        # Kernels before 4.16 do not have it. There the margin of two steps has to suffice.
        _libc.syscall(number, command, 0, 0)
