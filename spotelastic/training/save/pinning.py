"""Page-locks slots where there is a GPU: copies to them then run at the speed of the bus.

The driver locks memory that somebody else has allocated. Where it refuses (the limit of locked
memory, a kernel that does not let it), copies go through the driver's own buffers: slower, and as
right.
"""

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")

_PORTABLE = 1
"""For all devices of the process."""


class Runtime(Protocol):
    """Of the CUDA runtime, what `torch.cuda.cudart()` offers; 0 is success."""

    def cudaHostRegister(self, address: int, size: int, flags: int) -> Any: ...

    def cudaHostUnregister(self, address: int) -> Any: ...


class Pinned:
    """Memory that is locked until it is released, which must be before it is unmapped.

    It is locked in one call: one copy may not cross from one locked range into another.
    """

    def __init__(self, memory: memoryview, runtime: Runtime) -> None:
        self._memory = memory
        self._runtime = runtime
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.locked = not int(runtime.cudaHostRegister(self._address, len(memory), _PORTABLE))

    def release(self) -> None:
        if self.locked:
            self._runtime.cudaHostUnregister(self._address)
            self.locked = False


class Pins:
    """The slots that are locked for one layout. Takes its time: not for the thread that trains."""

    def __init__(self, lock: Callable[[memoryview], Pinned]) -> None:
        self._lock_memory = lock
        self._pinned: dict[str, tuple[memoryview, Pinned]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def add(self, path: str, memory: memoryview) -> None:
        """In place of what was mapped for that slot before, which nobody copies to any more."""
        with self._lock:
            before, pinned = self._pinned.pop(path, (None, None))
            if before is memory and pinned is not None:
                self._pinned[path] = memory, pinned
                return
            if pinned is not None:
                apart(pinned.release)
            if not self._closed:
                self._pinned[path] = memory, apart(lambda: self._lock_memory(memory))

    def close(self) -> None:
        self._closed = True  # whoever waits for the lock finds it so
        with self._lock:
            for _, pinned in self._pinned.values():
                apart(pinned.release)
            self._pinned.clear()


def pins(device: torch.device) -> Pins:
    def lock(memory: memoryview) -> Pinned:
        with torch.cuda.device(device):
            return Pinned(memory, torch.cuda.cudart())  # type: ignore[no-untyped-call]

    return Pins(lock)


def apart(call: Callable[[], T]) -> T:
    """In a thread of its own: CUDA remembers what it refused for the thread that asked, and fails
    the next kernel that this one launches."""
    with ThreadPoolExecutor(1, thread_name_prefix="pinning") as pool:
        return pool.submit(call).result()
