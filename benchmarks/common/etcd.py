"""Starts etcd members for a benchmark."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spotelastic.store.etcd_server.process import EtcdMember, MemberConfig, free_ports

HOST = "127.0.0.1"


@contextlib.contextmanager
def etcd(count: int) -> Iterator[list[EtcdMember]]:
    """Yield members configured as a cluster's own: default timers, every write on disk."""
    names = "abc"[:count]
    ports = free_ports(2 * count, HOST)
    peers = {name: f"{HOST}:{port}" for name, port in zip(names, ports[count:], strict=True)}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spotelastic-etcd-")))
        members = []
        for name, port in zip(names, ports, strict=False):
            config = MemberConfig(name, folder / name, f"{HOST}:{port}", peers[name], cluster=peers)
            member = stack.enter_context(EtcdMember(config, log=folder / f"{name}.log"))
            member.start()
            members.append(member)
        for member in members:
            member.wait(30)
        yield members
