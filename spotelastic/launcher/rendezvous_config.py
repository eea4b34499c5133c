"""Parses the rendezvous flags of `spotelastic run`: which etcd the nodes use, and who runs it.

`etcd_bootstrap.py` carries it out. No files are read but certificates.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spotelastic_checkpoints.addresses import bare, is_loopback, join, split

from spotelastic.errors import UsageError
from spotelastic.store.endpoints import endpoints_of, is_encrypted, is_port
from spotelastic.store.tls import TlsFiles, daemon_tls_of, tls_of

PORT = 29400
"""Default port of endpoints, as torchrun's."""
MASTER_PORT = 29500
"""Default port of the workers' store for static, as torchrun's."""
ETCD_ABOVE = 1000
"""How far the etcd's port is above the store's for static, so that further jobs can use the ports
between (below, if there is none above)."""
PORTS = {"etcd": 2379, "etcd-v2": 2379, "static": MASTER_PORT}
"""Default ports of endpoints, by backend."""
JOIN_WITHIN = 600.0
"""Default seconds to wait for enough etcd members."""
SIZES = (1, 3, 5)
"""Numbers of etcd members that nodes may run: each survives one loss more than the one before."""

EXISTING = ("etcd", "etcd-v2", "spotelastic")
"""Backends that use an existing etcd."""
EMBEDDED = ("c10d", "embedded")
"""Backends whose nodes run the etcd members."""
Role = Literal["alone", "client", "either", "host", "guest"]


@dataclass(frozen=True, slots=True)
class RendezvousConfig:
    """How this node reaches the etcd of its run.

    The roles: `alone` has an etcd of its own. `client` uses an existing one. `host` and `guest` use
    one that nodes run. `either` is a host if one of the endpoints is a free address of this
    machine.
    """

    role: Role
    endpoints: tuple[str, ...] = ()
    flag: str = "--rdzv-endpoint"
    """The flag that gave the endpoint."""
    join_within: float = JOIN_WITHIN
    tls: TlsFiles | None = None
    own_tls: bool = False
    """Whether the run has made these files itself."""
    plain: bool = False
    """Whether the user asks for an etcd without TLS."""
    daemon_tls: TlsFiles | None = None
    """Certificates of the checkpoint daemons among each other."""
    peer_port: int = 0
    """Port of etcd members among each other; 0: one above each member's own."""
    near: str = ""
    """The value of --local-addr, which picks one of several endpoints on this machine."""
    await_names: bool = False
    """Whether the hosts' names may have no address yet, as those of pods.

    A node then knows itself by its own name, and waits for the others' addresses.
    """
    run: str = "default"
    master: str = ""
    """For static: host:port of the workers' store, as the flag gives it."""
    master_port: int = 0
    """Port of each round's store on the node of rank 0; 0: a new port each time."""

    @property
    def where(self) -> str:
        """The flag and its value, for messages."""
        told = f"{self.flag} {self.master or ','.join(self.endpoints)}"
        if not self.master:
            return told
        return f"{told} (etcd at {self.endpoints[0]}, or --rdzv-conf etcd_port=…)"

    @property
    def peers(self) -> dict[str, str]:
        """For each etcd member's host:port for clients, its host:port among members."""
        pairs = (split(endpoint) for endpoint in self.endpoints)
        return {join(host, port): join(host, self.peer_port or port + 1) for host, port in pairs}


def meeting(options: argparse.Namespace, smallest: int, largest: int) -> RendezvousConfig:
    """Return the configuration that the flags ask for. Raises `UsageError`."""
    backend = options.rdzv_backend
    if backend not in ("", "static", *EXISTING, *EMBEDDED):
        known = ", ".join(("static", *EXISTING, *EMBEDDED))
        raise UsageError(f"--rdzv-backend {backend}: give one of {known}")
    conf, port = _conf(options.rdzv_conf), _master_port(options)
    if options.standalone:
        if smallest > 1:
            raise UsageError(f"--nnodes {options.nnodes}: --standalone is for one node")
        return RendezvousConfig("alone", master_port=port)
    endpoints = endpoints_of(options.rdzv_endpoint, PORTS.get(backend, PORT))
    tls = tls_of(conf, wanted=is_encrypted(options.rdzv_endpoint, conf))
    daemon_tls = daemon_tls_of(conf, tls)
    plain = conf.get("protocol") == "http" or "http://" in options.rdzv_endpoint
    if is_static(options):
        told = _static(options, endpoints, smallest, largest, conf)
        if told.role == "alone":
            return told
        return _checked(replace(told, tls=tls, daemon_tls=daemon_tls, plain=plain))
    free = backend in EMBEDDED and len(endpoints) == 1 and endpoints[0].endswith(":0")
    if not endpoints or free:
        if largest > 1:
            raise UsageError(
                "--rdzv-endpoint is missing: give the host:port at which the nodes meet"
            )
        return RendezvousConfig("alone", master_port=port)
    told = RendezvousConfig(
        _role(conf) if backend in EMBEDDED else "client",
        endpoints,
        join_within=_join(conf),
        tls=tls,
        plain=plain,
        daemon_tls=daemon_tls,
        peer_port=_port_in(conf, "peer_port"),
        near=options.local_addr,
        await_names=_is_true(conf.get("await_names", "")),
        run=options.rdzv_id,
        master_port=port,
    )
    return _checked(told) if backend in EMBEDDED else told


def is_static(options: argparse.Namespace) -> bool:
    """Whether node 0 is the rendezvous: if asked for, or if nothing else is given."""
    master = (options.master_addr, options.master_port, options.node_rank) != ("", None, None)
    implied = not options.rdzv_backend and not options.rdzv_endpoint and not options.standalone
    return options.rdzv_backend == "static" or (implied and master)


def _checked(asked: RendezvousConfig) -> RendezvousConfig:
    """Check that nodes can run etcd members at these endpoints."""
    count, hosts = len(asked.endpoints), [split(each)[0] for each in asked.endpoints]
    if count not in SIZES:
        why = "an even number survives no more losses than one fewer" if count % 2 == 0 else "many"
        raise UsageError(f"{asked.where}: {count} etcd members, {why}: name 1, 3 or 5 hosts")
    ports = [*asked.endpoints, *(asked.peers.values() if count > 1 else ())]
    twice = sorted({port for port in ports if ports.count(port) > 1})
    if twice:
        raise UsageError(
            f"{asked.where}: {twice[0]} is needed twice (among each other the etcd members use "
            f"{', '.join(asked.peers.values())}): give --rdzv-conf peer_port=… on all hosts"
        )
    local = [is_loopback(host) for host in hosts]
    if any(local) and not all(local):
        raise UsageError(
            f"{asked.where}: {hosts[local.index(True)]} means a different machine on each machine"
        )
    if asked.tls is not None and None in (asked.tls.cacert, asked.tls.cert, asked.tls.key):
        raise UsageError(f"--rdzv-conf {asked.tls}: members run here need cacert, cert and key")
    return asked


def _port_in(conf: dict[str, str], key: str) -> int:
    """Return the port that a key gives; 0 if it is not given."""
    text = conf.get(key, "0")
    if not is_port(text):
        raise UsageError(f"--rdzv-conf {key}={text}: not a port")
    return int(text)


def _master_port(options: argparse.Namespace) -> int:
    """Return --master-port; 0 if it is not given."""
    port = options.master_port
    if port is not None and not 0 < port < 65536:
        raise UsageError(f"--master-port {port}: not a port")
    return port or 0


def _static(
    options: argparse.Namespace,
    endpoints: Sequence[str],
    smallest: int,
    largest: int,
    conf: dict[str, str],
) -> RendezvousConfig:
    """Return torchrun's static rendezvous: a fixed size, with the etcd on the node of rank 0.

    The workers' store has the port that is given, the etcd another one.
    """
    rank = options.node_rank or 0
    if smallest != largest:
        raise UsageError(
            f"--nnodes {options.nnodes}: --rdzv-backend static has a fixed size: give one number"
        )
    if not 0 <= rank < largest:
        raise UsageError(f"--node-rank {rank}: needs to be from 0 to {largest - 1}")
    if len(endpoints) > 1:
        raise UsageError(f"--rdzv-endpoint {options.rdzv_endpoint}: static takes one endpoint")
    if endpoints:
        host, port = split(endpoints[0])
    else:
        host = bare(options.master_addr or "127.0.0.1")
        port = _master_port(options) or (MASTER_PORT if largest > 1 else 0)
    if largest == 1:
        return RendezvousConfig("alone", master_port=port)
    etcd = _port_in(conf, "etcd_port") or _beside(port)
    if etcd == port:
        raise UsageError(f"--rdzv-conf etcd_port={etcd}: that port is the workers' store's")
    return RendezvousConfig(
        "host" if rank == 0 else "guest",
        (join(host, etcd),),
        "--rdzv-endpoint" if endpoints else "--master-addr",
        _join(conf),
        master=join(host, port),
        master_port=port,
    )


def _beside(port: int) -> int:
    return port + (ETCD_ABOVE if port + ETCD_ABOVE < 65536 else -ETCD_ABOVE)


def _conf(text: str) -> dict[str, str]:
    if quote := next((each for each in "'\"" if each in (text[:1], text[-1:])), ""):
        raise UsageError(
            f"--rdzv-conf {text}: the {quote} is part of it, as no shell removes it: leave it out"
        )
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
    told = conf.get("is_host", "")
    if _is_true(told):
        return "host"
    return "guest" if told else "either"


def _is_true(text: str) -> bool:
    return text.lower() in ("1", "true", "t", "yes", "y")
