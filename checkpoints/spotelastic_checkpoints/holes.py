"""Gives the memory of a part of a file back."""

import ctypes
import os

_KEEP_SIZE, _PUNCH_HOLE = 1, 2

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def punch(descriptor: int, start: int, end: int) -> None:
    """These bytes read as zeros then. Raises OSError, as where the file system cannot."""
    if end > start and _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, end - start):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
