"""Starts etcd members for a benchmark."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spotelastic.certificates import MEMBER_NAME, WORKER_NAME, Subject, issue, make_authority
from spotelastic.store.etcd_server.process import EtcdMember, MemberConfig, free_ports
from spotelastic.store.tls import TlsFiles, files_in

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Identities:
    """The certificates of a cluster's etcd."""

    member: TlsFiles
    worker: TlsFiles

    @classmethod
    def made(cls, folder: Path) -> "Identities":
        now = datetime.now(UTC)
        authority = make_authority("bench", now)
        issue(authority, Subject(MEMBER_NAME, (HOST,)), now).write(folder / "member")
        issue(authority, Subject(WORKER_NAME), now).write(folder / "worker")
        return cls(files_in(folder / "member"), files_in(folder / "worker"))


@contextlib.contextmanager
def etcd(count: int, tls: TlsFiles | None = None) -> Iterator[list[EtcdMember]]:
    """Yield members configured as a cluster's own: default timers, every write on disk."""
    names = "abc"[:count]
    ports = free_ports(2 * count, HOST)
    peers = {name: f"{HOST}:{port}" for name, port in zip(names, ports[count:], strict=True)}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spotelastic-etcd-")))
        members = []
        for name, port in zip(names, ports, strict=False):
            at = f"{HOST}:{port}"
            config = MemberConfig(name, folder / name, at, peers[name], cluster=peers, tls=tls)
            member = stack.enter_context(EtcdMember(config, log=folder / f"{name}.log"))
            member.start()
            members.append(member)
        for member in members:
            member.await_service(30)
        yield members
