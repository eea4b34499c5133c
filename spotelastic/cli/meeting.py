"""Where the nodes of a run meet: an etcd that is there, or one that this or another node runs.

`meeting` is pure: what the flags ask for. `meet` does it: starts the member where this node is the
one to run it, and otherwise waits until it answers.
"""

import argparse
import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spotelastic.clock import steady
from spotelastic.errors import EnvironmentFailure, Unavailable, UsageError

PORT = 29400
ETCD_PORT = 2379
MASTER_PORT = 29500
ANSWER_WITHIN = 8.0
JOIN_WITHIN = 600.0
LEAVE_WITHIN = 30.0
"""Seconds that the node with the etcd waits for others to leave once the job has ended."""

EXISTING = ("etcd", "etcd-v2", "spotelastic")
EMBEDDED = ("c10d", "embedded")
Role = Literal["alone", "client", "either", "host", "guest"]


@dataclass(frozen=True, slots=True)
class Meeting:
    """`role`: alone, this node has an etcd of its own; client, of one that is there; host and
    guest, of one that a node runs; either, the host if the endpoint is an address of this machine
    and nobody runs it yet."""

    role: Role
    endpoints: tuple[str, ...] = ()
    flag: str = "--rdzv-endpoint"
    """That the endpoint came by."""
    join_within: float = JOIN_WITHIN


def meeting(options: argparse.Namespace, smallest: int, largest: int) -> Meeting:
    """Raises `UsageError`."""
    backend = options.rdzv_backend
    if backend not in ("", "static", *EXISTING, *EMBEDDED):
        known = ", ".join(("static", *EXISTING, *EMBEDDED))
        raise UsageError(f"--rdzv-backend {backend}: give one of {known}")
    conf = _conf(options.rdzv_conf)
    if options.standalone:
        if smallest > 1:
            raise UsageError(f"--nnodes {options.nnodes}: --standalone is for one node")
        return Meeting("alone")
    default = ETCD_PORT if backend in ("etcd", "etcd-v2") else PORT
    endpoints = endpoints_of(options.rdzv_endpoint, default)
    if is_static(options):
        return _static(options, endpoints, smallest, largest, _join(conf))
    free = backend in EMBEDDED and len(endpoints) == 1 and endpoints[0].endswith(":0")
    if not endpoints or free:
        if largest > 1:
            raise UsageError("--rdzv-endpoint is missing: where the nodes meet (host:port of etcd)")
        return Meeting("alone")
    if backend in EMBEDDED:
        if len(endpoints) > 1:
            asked = f"--rdzv-endpoint {options.rdzv_endpoint}"
            raise UsageError(f"{asked}: --rdzv-backend {backend} takes one host, not several yet")
        return Meeting(_role(conf), endpoints, join_within=_join(conf))
    return Meeting("client", endpoints)


def is_static(options: argparse.Namespace) -> bool:
    """Node 0 is where the others come to: asked for, or meant where nothing else is said."""
    master = (options.master_addr, options.master_port, options.node_rank) != ("", None, None)
    implied = not options.rdzv_backend and not options.rdzv_endpoint and not options.standalone
    return options.rdzv_backend == "static" or (implied and master)


def endpoints_of(text: str, port: int = PORT) -> tuple[str, ...]:
    """host:port of each; an IPv6 address stands in brackets."""
    endpoints = []
    for part in text.split(",") if text else ():
        host, given = (part, "") if part.endswith("]") else _split(part)
        bare = ":" in host and not host.startswith("[")
        if "/" in part or not host or bare or (given and not _is_port(given)):
            raise UsageError(f"--rdzv-endpoint {part}: give HOST:PORT, several with commas")
        endpoints.append(f"{host}:{given or port}")
    return tuple(endpoints)


def _split(part: str) -> tuple[str, str]:
    host, colon, port = part.rpartition(":")
    return (host, port) if colon else (part, "")


def _is_port(text: str) -> bool:
    return text.isdigit() and int(text) < 65536


def _static(
    options: argparse.Namespace,
    endpoints: Sequence[str],
    smallest: int,
    largest: int,
    join_within: float,
) -> Meeting:
    """As torchrun's: fixed size, and the node of rank 0 is where the others come to."""
    rank = options.node_rank or 0
    if smallest != largest:
        raise UsageError(f"--nnodes {options.nnodes}: --rdzv-backend static is of one size")
    if not 0 <= rank < largest:
        raise UsageError(f"--node-rank {rank}: needs to be from 0 to {largest - 1}")
    if largest == 1 and not endpoints and options.master_port is None:
        return Meeting("alone")
    if len(endpoints) > 1:
        raise UsageError(f"--rdzv-endpoint {options.rdzv_endpoint}: static takes one")
    addr, port = options.master_addr or "127.0.0.1", options.master_port
    if port is not None and not 0 < port < 65536:
        raise UsageError(f"--master-port {port}: not a port")
    chosen = tuple(endpoints) or (f"{addr}:{port or MASTER_PORT}",)
    flag = "--rdzv-endpoint" if endpoints else "--master-addr"
    return Meeting("host" if rank == 0 else "guest", chosen, flag, join_within)


def _conf(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")] if text else []
    for key, equals, _ in pairs:
        if not key.strip() or not equals:
            raise UsageError(f"--rdzv-conf {text}: give KEY=VALUE, several with commas")
    conf = {key.strip(): value.strip() for key, _, value in pairs}
    if conf.get("protocol", "http") != "http":
        raise UsageError(f"--rdzv-conf protocol={conf['protocol']}: only http is spoken yet")
    return conf


def _join(conf: dict[str, str]) -> float:
    text = conf.get("join_timeout") or conf.get("timeout") or str(JOIN_WITHIN)
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--rdzv-conf join_timeout={text}: not a number of seconds") from None


def _role(conf: dict[str, str]) -> Role:
    told = conf.get("is_host", "").lower()
    if told in ("1", "true", "t", "yes", "y"):
        return "host"
    return "guest" if told else "either"


# -- doing it -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node has arrived: `address` is its own, as the others reach it."""

    endpoints: tuple[str, ...]
    address: str
    host: bool = False
    """The etcd of others runs here: they must be gone before it ends."""


@contextlib.contextmanager
def meet(asked: Meeting, folder: Path) -> Iterator[Place]:
    """An etcd that answers, until the end of the block. Raises `EnvironmentFailure`."""
    if asked.role == "alone":
        from spotelastic.store.server import standalone

        with standalone(folder) as member:
            yield Place((member.endpoint,), "127.0.0.1")
    elif asked.role == "client":
        _await(asked, ANSWER_WITHIN)
        yield Place(asked.endpoints, "")
    else:
        with _host_or_wait(asked, folder) as place:
            yield place


@contextlib.contextmanager
def _host_or_wait(asked: Meeting, folder: Path) -> Iterator[Place]:
    host, port = _split(asked.endpoints[0])
    with contextlib.ExitStack() as stack:
        hosts = False
        if asked.role != "guest":
            address = _resolve(asked.flag, host)
            if asked.role == "host" or (_is_ours(address) and not _taken(address, int(port))):
                hosts = _serve(asked, address, int(port), folder, stack)
        if not hosts:
            _await(asked, asked.join_within)
        yield Place(asked.endpoints, _own_address(host, int(port)), hosts)


def _serve(
    asked: Meeting, address: str, port: int, folder: Path, stack: contextlib.ExitStack
) -> bool:
    """False when another node of this machine was faster."""
    from spotelastic.store.server import EtcdMember, MemberConfig, free_ports

    where = f"{asked.flag} {asked.endpoints[0]}"
    if not _is_ours(address):
        raise UsageError(f"{where}: node 0 runs the etcd there, but that is not this machine")
    (peer,) = free_ports(1, address)
    config = MemberConfig(
        "embedded", folder / "data", f"{address}:{port}", f"{address}:{peer}", fsync=False
    )
    member = stack.enter_context(EtcdMember(config, log=folder / "etcd.log"))
    member.start()
    try:
        member.wait(20.0)
    except EnvironmentFailure as error:
        if "address already in use" not in str(error):
            raise
        if asked.role == "host":
            raise UsageError(f"{where}: the port is in use on this machine") from error
        return False
    return True


def _await(asked: Meeting, within: float) -> None:
    """Until one of them answers as etcd 3 does."""
    from spotelastic.store.server import status

    deadline, pause = steady() + within, threading.Event()
    while True:
        for endpoint in asked.endpoints:
            try:
                status(endpoint)
            except Unavailable as error:
                reason = error
                continue
            return
        if steady() >= deadline:
            where = f"{asked.flag} {','.join(asked.endpoints)}"
            raise EnvironmentFailure(f"{where}: no etcd 3 answered within {within:g} s ({reason})")
        pause.wait(0.2)


def see_off(endpoint: str, run: str) -> None:
    """Wait until no node of the run is left, so that each has heard how the job ended."""
    from spotelastic.store.etcd import EtcdStore
    from spotelastic.store.keys import Keys
    from spotelastic.store.port import Change, Reset, WatchItem

    here: set[str] = set()
    empty = threading.Event()

    def fold(items: Sequence[WatchItem]) -> None:
        for item in items:
            if isinstance(item, Reset):
                here.clear()
                here.update(value.key for value in item.values)
            elif isinstance(item, Change):
                (here.discard if item.value is None else here.add)(item.key)
        if not here:
            empty.set()

    store = EtcdStore((endpoint,))
    try:
        watch = store.watch(Keys(run).live(), fold)
        empty.wait(LEAVE_WITHIN)
        watch.close()
    finally:
        store.close()


def _resolve(flag: str, host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise UsageError(f"{flag} {host}: no address is known for it") from error


def _is_ours(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _taken(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1.0):
            return True
    except OSError:
        return False


def own_address() -> str:
    """The address that packets to the outside leave from; nothing is sent."""
    return _own_address("192.0.2.1", 9)


def _own_address(host: str, port: int) -> str:
    """That of this machine by which it reaches the host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
        except OSError as error:
            raise EnvironmentFailure("this machine has no route: give --local-addr") from error


def local_address(text: str) -> str:
    """--local-addr as an IP address, because a name is never advertised."""
    return _resolve("--local-addr", text)
