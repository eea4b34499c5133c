"""Small Linux process facilities: names, ties between processes. Linux only, no dependencies."""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_SIOCGIFADDR = 0x8915
STACKS = signal.SIGRTMAX - 2
"""Asks a worker for the stacks of its threads; a real-time signal, which scripts leave alone."""
FAILING = signal.SIGRTMAX - 3
"""Tells the zygote that a worker has written of its failure, and ends by itself."""
END_WITHIN = 10.0
"""Seconds that what gets SIGKILL may take to end; longer only where it is stuck."""
CLEAN_WITHIN = 5.0
"""Seconds that cleaners may take when all that they clean up after is gone; torch's takes two."""

_libc = ctypes.CDLL(None, use_errno=True)


def name_process(name: str) -> None:
    """What `ps -o comm` shows; at most 15 characters."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent: int, sig: int = signal.SIGKILL) -> None:
    """Be killed when the thread that made this process ends; at once if it already has."""
    _libc.prctl(_PR_SET_PDEATHSIG, sig, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), sig)


def survive_parent() -> None:
    """No longer be killed when the parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def interface_of(address: str) -> str:
    """The network interface that has this address; "" if none has."""
    if ":" in address:
        return _interface_of_ipv6(address)
    if address.startswith("127."):
        return "lo"  # which has all of these, and names one
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                request = struct.pack("256s", name.encode())
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    bare, _, scope = address.partition("%")
    wanted = socket.inet_pton(socket.AF_INET6, bare).hex()
    with contextlib.suppress(OSError):  # no IPv6 here
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found, *_, name = line.split()
            if found == wanted and scope in ("", name):
                return name
    return ""


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Those of all threads of `pid`, ended ones that nobody has reaped yet too."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def family(pid: int) -> list[int]:
    """`pid` and all that descends from it, parents first."""
    found = [pid]
    for each in found:  # grows meanwhile
        found += children(each)
    return found


def reaped() -> Iterator[tuple[int, int]]:
    """Children of this process that have ended: pid and exit code, or minus the signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def send(pid: int, sig: int) -> bool:
    """A signal, unless the process has ended or is not ours to signal; whether it was sent."""
    try:
        os.kill(pid, sig)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@contextlib.contextmanager
def handled(
    signals: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle them, but for those that whoever started this process ignores (nohup, a shell's &)."""
    heeded = [sig for sig in signals if signal.getsignal(sig) is not signal.SIG_IGN]
    before = {sig: signal.signal(sig, handler) for sig in heeded}
    try:
        yield
    finally:
        for sig, earlier in before.items():
            signal.signal(sig, earlier)


def mark(state: Path) -> dict[str, str]:
    """The variable by which whatever the workers of an agent start is known to be its own."""
    return {"SPOTELASTIC_STATE": str(state)}


def cleans(pid: int) -> bool | None:
    """Whether it removes shared memory of processes that have ended, and then ends by itself.

    These are torch's `torch_shm_manager` and the resource trackers of multiprocessing and loky.
    They hear of an end by a pipe or a socket that closes. Ended sooner, they clean nothing.
    None: nobody can tell yet, because the system is still loading its program.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    begin, end = stat.index("("), stat.rindex(")")
    if stat[begin + 1 : end] == "torch_shm_manag":
        return True
    if not command:
        return False if stat[end + 2] == "Z" else None
    return b"resource_tracker import main" in command


def await_end(pids: Iterable[int], within: float) -> None:
    """Until one of them has ended, at most so many seconds."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            except OSError:  # no descriptor is free: the caller looks again
                within = min(within, 0.1)
                break
            stack.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
        poll.poll(within * 1000)


def marked(variable: Mapping[str, str]) -> Iterator[int]:
    """Living processes that were started with it."""
    ((name, value),) = variable.items()
    wanted = f"{name}={value}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def end_marked(variable: Mapping[str, str], within: float) -> list[int]:
    """SIGKILL them until none is left; those that are still there after so many seconds.

    Cleaners are left to end by themselves.
    """
    deadline = time.monotonic() + within
    while found := [pid for pid in marked(variable) if not cleans(pid)]:
        for pid in found:
            send(pid, signal.SIGKILL)
        left = deadline - time.monotonic()
        if left <= 0:
            return found
        await_end(found, left)
    return []


def await_cleaners(variable: Mapping[str, str], within: float) -> None:
    """Until those that carry the mark have ended; what is left after so many seconds is killed."""
    deadline = time.monotonic() + within
    while found := [pid for pid in marked(variable) if cleans(pid)]:
        left = deadline - time.monotonic()
        if left <= 0:
            for pid in found:
                send(pid, signal.SIGKILL)
            return
        await_end(found, left)
