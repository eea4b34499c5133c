"""Page-locks slots where there is a GPU: copies to them then run at the speed of the bus.

The driver locks memory that somebody else has allocated in ranges. Where it refuses (the limit of
locked memory, a kernel that does not let it), copies go through the driver's own buffers: slower,
and as right.
"""

import ctypes
from typing import Any, Protocol

import torch

RANGE = 256 << 20
"""Bytes that are locked in one call: others may call the driver in between."""
_PORTABLE = 1
"""For all devices of the process."""


class Runtime(Protocol):
    """Of the CUDA runtime, what `torch.cuda.cudart()` offers; 0 is success."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> Any: ...

    def cudaHostUnregister(self, address: int) -> Any: ...


class Pinned:
    """Memory that is locked until it is released, which must be before it is unmapped."""

    def __init__(self, memory: memoryview, runtime: Runtime) -> None:
        self._memory = memory
        self._runtime = runtime
        self._addresses: list[int] = []
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for offset in range(0, len(memory), RANGE):
            size = min(RANGE, len(memory) - offset)
            if int(runtime.cudaHostRegister(start + offset, size, _PORTABLE)):
                # A copy must not find one half locked and the other not.
                self.release()
                return
            self._addresses.append(start + offset)

    @property
    def whole(self) -> bool:
        return bool(self._addresses)

    def release(self) -> None:
        for address in self._addresses:
            self._runtime.cudaHostUnregister(address)
        self._addresses.clear()


def pinned(memory: memoryview, device: torch.device) -> Pinned:
    """From any thread; takes a while."""
    with torch.cuda.device(device):
        return Pinned(memory, torch.cuda.cudart())  # type: ignore[no-untyped-call]
