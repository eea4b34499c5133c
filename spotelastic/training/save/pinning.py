"""Page-locks slots for a GPU, so that copies into them run at the speed of the bus.

The driver locks memory that another process has allocated. Where it refuses, because of the limit
of locked memory or the kernel, copies go through the driver's own buffers. That is slower, and as
correct.
"""

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_PORTABLE = 1
"""Flag of cudaHostRegister: locked for all devices of the process."""


class Pinned:
    """Memory that is locked until `release`, which has to come before it is unmapped.

    It is locked in one call, because one copy may not cross from one locked range into another.
    """

    def __init__(self, memory: memoryview, runtime: Any) -> None:
        """`runtime` is what `torch.cuda.cudart()` returns. Its calls return 0 on success."""
        self._memory = memory
        self._runtime = runtime
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.locked = not int(runtime.cudaHostRegister(self._address, len(memory), _PORTABLE))

    def release(self) -> None:
        """Unlock the memory."""
        if self.locked:
            self._runtime.cudaHostUnregister(self._address)
            self.locked = False


class Pins:
    """The slots that are locked for one layout.

    Its calls are slow: do not use the training thread.
    """

    def __init__(self, lock: Callable[[memoryview], Pinned]) -> None:
        self._lock_memory = lock
        self._pinned: dict[str, tuple[memoryview, Pinned]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def add(self, path: str, memory: memoryview) -> None:
        """Lock a slot, and unlock what was mapped for it before and is no longer used."""
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
        """Unlock all slots."""
        self._closed = True  # This is set first, so that a thread that waits for the lock finds it.
        with self._lock:
            for _, pinned in self._pinned.values():
                apart(pinned.release)
            self._pinned.clear()


def pins(device: torch.device) -> Pins:
    """Return the locked slots for this GPU."""

    def lock(memory: memoryview) -> Pinned:
        with torch.cuda.device(device):
            return Pinned(memory, torch.cuda.cudart())  # type: ignore[no-untyped-call]

    return Pins(lock)


def apart(call: Callable[[], T]) -> T:
    """Call in a thread of its own and return the result.

    CUDA remembers what it refused for the thread that asked, and fails the next kernel launched
    there.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="pinning") as pool:
        return pool.submit(call).result()
