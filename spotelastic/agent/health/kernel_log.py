"""Follows the kernel's log for what NVIDIA's driver says, on a thread of its own.

Only messages from its start on count: older ones are about what came before the node joined.
"""

import contextlib
import os
import selectors
import threading
from collections.abc import Callable
from pathlib import Path

from spotelastic.agent.health.xids import KernelReport, read

PATH = Path("/dev/kmsg")
VARIABLE = "SPOTELASTIC_KERNEL_LOG"
"""Another file with the kernel's messages, one a line."""
LOOK_EVERY = 0.5
"""Seconds between two looks at a file that cannot be waited for."""
AGAIN_AFTER = 30.0
"""Seconds until a log that has failed is opened again."""
_MOST = 65536


class KernelLog:
    """Calls `sink` with each report on a GPU, and `say` once if the log cannot be read."""

    def __init__(
        self,
        path: Path,
        sink: Callable[[KernelReport], None],
        say: Callable[[str], None],
        again_after: float = AGAIN_AFTER,
    ) -> None:
        self._path, self._sink, self._say = path, sink, say
        self._again_after = again_after
        self._said = False
        self._stop = threading.Event()
        self._wakes, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="kernel-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        os.write(self._waker, b".")
        self._thread.join(timeout=5)
        os.close(self._waker)
        os.close(self._wakes)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except OSError as error:
                self._complain(error)
            self._stop.wait(self._again_after)

    def _complain(self, error: OSError) -> None:
        if self._said:  # once, however often it is tried again
            return
        self._said = True
        told = f"{self._path}: {error.strerror or error}: Xid errors of GPUs are not seen"
        if isinstance(error, PermissionError):
            told += "; run as root, or set kernel.dmesg_restrict=0"
        self._say(told)

    def _follow(self) -> None:
        """Read until the end of the watch. Raises `OSError`."""
        fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a pipe, which has no past
                os.lseek(fd, 0, os.SEEK_END)
            with selectors.DefaultSelector() as selector:
                selector.register(self._wakes, selectors.EVENT_READ)
                waits, rest = False, b""
                with contextlib.suppress(PermissionError):  # a regular file is always ready
                    selector.register(fd, selectors.EVENT_READ)
                    waits = True
                while not self._stop.is_set():
                    selector.select(None if waits else 0)
                    data = _read(fd)
                    if not data:  # the end of a file, or of a pipe to which nobody writes now
                        self._stop.wait(LOOK_EVERY)
                        continue
                    *lines, rest = (rest + data).split(b"\n")
                    rest = rest[-_MOST:]
                    for line in lines:
                        if (report := read(line.decode(errors="replace"))) is not None:
                            self._sink(report)
        finally:
            os.close(fd)


def _read(fd: int) -> bytes:
    """Return what is there; empty: nothing is. A read of /dev/kmsg returns one message."""
    try:
        return os.read(fd, 8192)
    except BlockingIOError:
        return b""
    except BrokenPipeError:  # messages were overwritten before they were read: the next ones count
        return b"\n"
