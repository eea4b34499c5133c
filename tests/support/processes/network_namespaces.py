"""Makes network namespaces for tests: one per host, and a router between them that can drop
packets.

Each host is `10.99.<n>.2`. Everything between two hosts passes through the router's namespace,
where a policy rule silently drops what one sends to the other, like a broken switch. Processes of a
host start inside `Host.entered()`. The machine's own network is not touched. Names contain the pid
of the test process, so that leftovers of an interrupted one are found.
"""

import contextlib
import ctypes
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.processes.patience import PATIENT

NAMESPACES = Path("/run/netns")
PREFIX = "spotelastic-test"
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    namespace: str
    address: str

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and the processes that it starts meanwhile, are on this host."""
        with Path("/proc/thread-self/ns/net").open("rb") as home:
            with (NAMESPACES / self.namespace).open("rb") as there:
                _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())


class Network:
    """Hosts that reach each other until they are cut off; `close` after their processes ended."""

    def __init__(self) -> None:
        self._router = self._namespace("router")
        self._hosts: dict[str, Host] = {}
        self._cuts: set[tuple[str, str]] = set()
        with self._inside(self._router):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def host(self, name: str) -> Host:
        """A new one."""
        subnet = f"10.99.{len(self._hosts) + 1}"
        host = Host(name, self._namespace(name), f"{subnet}.2")
        port = f"to-{len(self._hosts) + 1}"
        peer = ("peer", "name", "eth0", "netns", host.namespace)
        _ip("-n", self._router, "link", "add", port, "type", "veth", *peer)
        for namespace, link, end in ((self._router, port, 1), (host.namespace, "eth0", 2)):
            _ip("-n", namespace, "address", "add", f"{subnet}.{end}/24", "dev", link)
            _ip("-n", namespace, "link", "set", link, "up")
        # Not by default: what looks for a name server fails at once.
        _ip("-n", host.namespace, "route", "add", "10.99.0.0/16", "via", f"{subnet}.1")
        self._hosts[name] = host
        return host

    def cut(self, some: list[str], others: list[str]) -> None:
        """Nothing passes any more between `some` and `others`, in neither direction."""
        for one, other in self._between(some, others):
            if (one, other) not in self._cuts:
                self._cuts.add((one, other))
                self._rule("add", one, other)

    def heal(self) -> None:
        for one, other in self._cuts:
            self._rule("del", one, other)
        self._cuts.clear()

    def close(self) -> None:
        for namespace in (*(host.namespace for host in self._hosts.values()), self._router):
            _ip("netns", "del", namespace)

    def _between(self, some: list[str], others: list[str]) -> Iterator[tuple[str, str]]:
        for one in some:
            for other in others:
                yield one, other
                yield other, one

    def _rule(self, verb: str, source: str, target: str) -> None:
        ends = (self._hosts[source].address, self._hosts[target].address)
        _ip("-n", self._router, "rule", verb, "from", ends[0], "to", ends[1], "blackhole")

    def _namespace(self, name: str) -> str:
        namespace = f"{PREFIX}-{os.getpid()}-{threading.get_native_id()}-{name}"
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        return namespace

    def _inside(self, namespace: str) -> contextlib.AbstractContextManager[None]:
        return Host("", namespace, "").entered()


@contextlib.contextmanager
def network() -> Iterator[Network]:
    made = Network()
    try:
        yield made
    finally:
        made.close()


def why_not() -> str:
    """Why there can be no network namespaces here; empty where there can."""
    try:
        with network() as probe:
            probe.host("probe")
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        return f"network namespaces cannot be made here: {told.strip()}"
    return ""


def sweep() -> None:
    """Remove what test processes left behind that no longer live."""
    for entry in NAMESPACES.glob(f"{PREFIX}-*") if NAMESPACES.exists() else ():
        owner = re.match(rf"{PREFIX}-(\d+)-", entry.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", entry.name)


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=PATIENT)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
