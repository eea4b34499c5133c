"""Wraps Linux process facilities: prctl, signals, /proc, waiting for processes to end.

Needs Linux; imports nothing but the standard library, process_environment.py and signals.py. What
also runs on macOS does not import it.
"""

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

from spotelastic.process_environment import environment_of
from spotelastic.signals import send

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PF_EXITING = 4
_PR_SET_CHILD_SUBREAPER = 36
_SIOCGIFADDR = 0x8915
STACKS = signal.SIGRTMAX - 2
"""The signal that asks a worker for the stacks of its threads. A real-time signal: training scripts
leave these alone."""
FAILING = signal.SIGRTMAX - 3
"""The signal that tells the zygote that a worker has recorded its failure and is about to end."""
LOOK_AGAIN = 0.1
"""Seconds after which processes are looked for again whose end nothing tells."""
END_WITHIN = 10.0
"""Seconds within which a process that got SIGKILL ends, unless it is stuck in the kernel."""
CLEAN_WITHIN = 5.0
"""Seconds that cleaner processes get after the processes they clean up after have ended. torch's
takes two."""

_libc = ctypes.CDLL(None, use_errno=True)


def gpu_models(folder: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """Return the models of this machine's NVIDIA GPUs, as their driver names them."""
    texts = [each.read_text() for each in folder.glob("*/information")]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("Model:")]
    return ", ".join(sorted({line.partition(":")[2].strip() for line in lines})) or "none"


def name_process(name: str) -> None:
    """Set the process name that `ps -o comm` shows, cut to 15 characters."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the parent thread that created it ends.

    If the parent has already ended, this process dies at once.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def survive_parent() -> None:
    """Undo `die_with_parent`: this process outlives its parent."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def interface_of(address: str) -> str:
    """Return the name of the network interface that has this address, or "" if none has."""
    if ":" in address:
        return _interface_of_ipv6(address)
    if address.startswith("127."):
        return "lo"  # has every 127.* address, but reports only one of them
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                request = struct.pack("256s", name.encode())
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""


def _interface_of_ipv6(address: str) -> str:
    bare, _, scope = address.partition("%")
    wanted = socket.inet_pton(socket.AF_INET6, bare).hex()
    with contextlib.suppress(OSError):  # this machine has no IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found, *_, name = line.split()
            if found == wanted and scope in ("", name):
                return name
    return ""


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """Return the children of all threads of `pid`, including ended ones that were not reaped."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def is_ending(pid: int) -> bool:
    """Whether a process has ended, or a signal has killed it and the kernel is taking it apart."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return state in "ZX" or bool(int(others[5]) & _PF_EXITING)


def family(pid: int) -> list[int]:
    """Return `pid` and all its descendants, parents first."""
    found = [pid]
    for each in found:  # the list grows while it is walked
        found += children(each)
    return found


def reaped() -> Iterator[tuple[int, int]]:
    """Yield the pid and exit code (or minus the signal) of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


@contextlib.contextmanager
def handled(
    signals: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle these signals inside the block, except those that this process was started to ignore.

    nohup and a shell's `&` start a process with signals ignored.
    """
    heeded = [sig for sig in signals if signal.getsignal(sig) is not signal.SIG_IGN]
    before = {sig: signal.signal(sig, handler) for sig in heeded}
    try:
        yield
    finally:
        for sig, earlier in before.items():
            signal.signal(sig, earlier)


def mark(state: Path) -> dict[str, str]:
    """Return the environment variable that marks every process an agent's workers start."""
    return {"SPOTELASTIC_STATE": str(state)}


def cleans(pid: int) -> bool | None:
    """Tell whether a process removes the shared memory of ended processes and then ends by itself.

    These are torch's `torch_shm_manager` and the resource trackers of multiprocessing and loky.
    They notice an end when a pipe or socket closes. If they are killed sooner, the memory stays.

    Returns None while the system is still loading the process's program and the answer is not
    known.
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


def marked(variable: Mapping[str, str]) -> Iterator[int]:
    """Yield the pids of living processes whose environment holds this variable."""
    ((name, value),) = variable.items()
    wanted = f"{name}={value}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if wanted in environment_of(int(entry.name)).split(b"\0"):
                    yield int(entry.name)


def end_marked(variable: Mapping[str, str], within: float) -> list[int]:
    """SIGKILL the marked processes until none is left; return those that outlive `within` seconds.

    Cleaners (see `cleans`) are left to end by themselves. A process that ends loses its environment
    before its files, among them its GPU, so each that was killed is waited for.
    """
    deadline = time.monotonic() + within
    with contextlib.ExitStack() as stack:
        ending, poll = dict[int, int](), select.poll()
        while True:
            found = [pid for pid in marked(variable) if not cleans(pid)]
            for pid in found:
                fd = -1 if pid in ending.values() else _opened(pid)
                send(pid, signal.SIGKILL)
                if fd >= 0:
                    stack.callback(os.close, fd)
                    poll.register(fd, select.POLLIN)
                    ending[fd] = pid
            left = deadline - time.monotonic()
            if left <= 0 or not (found or ending):
                return sorted({*found, *ending.values()})
            # Without a descriptor for each of them it has to look again soon.
            unseen = not {*found} <= {*ending.values()}
            for fd, _ in poll.poll(1000 * (min(left, LOOK_AGAIN) if unseen else left)):
                poll.unregister(fd)
                del ending[fd]


def _opened(pid: int) -> int:
    """Return a descriptor that tells when the process has ended; -1 if there is none."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # it has ended, or no descriptor is free
        return -1


def await_cleaners(variable: Mapping[str, str], within: float) -> None:
    """Wait until the marked cleaners have ended; kill those left after `within` seconds."""
    deadline = time.monotonic() + within
    while found := [pid for pid in marked(variable) if cleans(pid)]:
        if time.monotonic() >= deadline:
            for pid in found:
                send(pid, signal.SIGKILL)
            return
        time.sleep(LOOK_AGAIN)
