"""Reserves disk space for a file that is then written through a map.

Writing to a mapped page that the disk has no room for would end the process with SIGBUS.
"""

import os
import sys

_ZEROS = bytes(1 << 20)


def reserve(descriptor: int, size: int) -> None:
    """Allocate the first `size` bytes of a new file. Raises `OSError` where there is no room."""
    if sys.platform == "linux":
        if size:
            os.posix_fallocate(descriptor, 0, size)
        return
    written = 0  # macOS allocates what is written
    while written < size:
        written += os.pwrite(descriptor, _ZEROS[: size - written], written)
