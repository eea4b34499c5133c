"""Where the nodes of a run meet: an etcd that is there, or members that nodes of the run run.

What the flags ask for; `meet.py` does it. Looks at no file but those of certificates.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spotelastic.errors import UsageError
from spotelastic.store.endpoints import endpoints_of, is_encrypted, is_port, split
from spotelastic.store.tls import Tls, daemon_tls_of, tls_of

PORT = 29400
ETCD_PORT = 2379
MASTER_PORT = 29500
JOIN_WITHIN = 600.0
SIZES = (1, 3, 5)
"""Members that nodes of a run may run: each of these survives one loss more than the one before."""

EXISTING = ("etcd", "etcd-v2", "spotelastic")
EMBEDDED = ("c10d", "embedded")
Role = Literal["alone", "client", "either", "host", "guest"]


@dataclass(frozen=True, slots=True)
class Meeting:
    """`role`: alone, this node has an etcd of its own; client, of one that is there; host and
    guest, of one that nodes run; either, a host if one of the endpoints is an address of this
    machine and nobody runs it yet."""

    role: Role
    endpoints: tuple[str, ...] = ()
    flag: str = "--rdzv-endpoint"
    """That the endpoint came by."""
    join_within: float = JOIN_WITHIN
    tls: Tls | None = None
    daemon_tls: Tls | None = None
    """Of the nodes' checkpoint daemons among each other."""
    peer_port: int = 0
    """Of members with each other; 0: the port above each member's own."""
    near: str = ""
    """--local-addr: of several endpoints on this machine, the one that is meant."""
    run: str = "default"

    @property
    def where(self) -> str:
        """The flag and its value."""
        return f"{self.flag} {','.join(self.endpoints)}"

    @property
    def peers(self) -> dict[str, str]:
        """By each member's host:port for clients: its host:port among members."""
        pairs = (split(endpoint) for endpoint in self.endpoints)
        return {f"{h}:{p}": f"{h}:{self.peer_port or int(p) + 1}" for h, p in pairs}


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
    tls = tls_of(conf, wanted=is_encrypted(options.rdzv_endpoint, conf))
    daemon_tls = daemon_tls_of(conf, tls)
    if is_static(options):
        told = _static(options, endpoints, smallest, largest, _join(conf))
        if told.role == "alone":
            return told
        return _checked(replace(told, tls=tls, daemon_tls=daemon_tls))
    free = backend in EMBEDDED and len(endpoints) == 1 and endpoints[0].endswith(":0")
    if not endpoints or free:
        if largest > 1:
            raise UsageError("--rdzv-endpoint is missing: where the nodes meet (host:port of etcd)")
        return Meeting("alone")
    told = Meeting(
        _role(conf) if backend in EMBEDDED else "client",
        endpoints,
        join_within=_join(conf),
        tls=tls,
        daemon_tls=daemon_tls,
        peer_port=_peer_port(conf),
        near=options.local_addr,
        run=options.rdzv_id,
    )
    return _checked(told) if backend in EMBEDDED else told


def is_static(options: argparse.Namespace) -> bool:
    """Node 0 is where the others come to: asked for, or meant where nothing else is said."""
    master = (options.master_addr, options.master_port, options.node_rank) != ("", None, None)
    implied = not options.rdzv_backend and not options.rdzv_endpoint and not options.standalone
    return options.rdzv_backend == "static" or (implied and master)


def _checked(asked: Meeting) -> Meeting:
    """Whether nodes can run members there."""
    count, hosts = len(asked.endpoints), [split(each)[0] for each in asked.endpoints]
    if count not in SIZES:
        why = "an even number survives no more losses than one fewer" if count % 2 == 0 else "many"
        raise UsageError(f"{asked.where}: {count} members, {why}: name 1, 3 or 5 hosts")
    ports = [*asked.endpoints, *(asked.peers.values() if count > 1 else ())]
    twice = sorted({port for port in ports if ports.count(port) > 1})
    if twice:
        raise UsageError(
            f"{asked.where}: {twice[0]} is needed twice (members speak with each other at "
            f"{', '.join(asked.peers.values())}; --rdzv-conf peer_port=… for all)"
        )
    local = [is_loopback(host) for host in hosts]
    if any(local) and not all(local):
        raise UsageError(
            f"{asked.where}: {hosts[local.index(True)]} is another machine on each machine"
        )
    if asked.tls is not None and None in (asked.tls.cacert, asked.tls.cert, asked.tls.key):
        raise UsageError(f"--rdzv-conf {asked.tls}: members run here need cacert, cert and key")
    return asked


def is_loopback(host: str) -> bool:
    return host in ("localhost", "[::1]") or host.startswith("127.")


def _peer_port(conf: dict[str, str]) -> int:
    text = conf.get("peer_port", "0")
    if not is_port(text):
        raise UsageError(f"--rdzv-conf peer_port={text}: not a port")
    return int(text)


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
    return {key.strip(): value.strip() for key, _, value in pairs}


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
