"""Faults shared memory in ahead of its use, in steps, outside the interpreter's lock.

Fresh pages come at a few hundred MB/s (they are zeroed), and mapping pages that exist already still
costs four times what copying to them does. Neither is to be paid by a training step.
"""

import ctypes
import errno
import os

STEP = 32 << 20
"""Bytes at a time: the address space is locked for each."""
_HUGE, _POPULATE_WRITE = 14, 23

_libc = ctypes.CDLL(None, use_errno=True)


def populate(memory: memoryview) -> None:
    """Every page of `memory` is there and mapped; what it holds stays. Kernels before 5.14 leave
    it to the first use. Raises OSError where memory has run out."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    # Taken where /sys/kernel/mm/transparent_hugepage/shmem_enabled says "advise".
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(len(memory)), _HUGE)
    for offset in range(0, len(memory), STEP):
        length = min(STEP, len(memory) - offset)
        if _libc.madvise(ctypes.c_void_p(start + offset), ctypes.c_size_t(length), _POPULATE_WRITE):
            number = ctypes.get_errno()
            if number == errno.EINVAL:
                return
            raise OSError(number, os.strerror(number))
