"""Takes snapshots of an etcd cluster's data through a member, and restores them with `etcdutl`."""

import contextlib
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import IO

import grpc
from pyetcd import etcdrpc as rpc

from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.store.etcd_server.process import Binary, MemberConfig, run
from spotelastic.store.members import MemberChannel
from spotelastic.store.tls import TlsFiles

TIMEOUT = 120.0
"""Seconds for a snapshot, or for restoring one."""
DIGEST = hashlib.sha256().digest_size
"""Bytes of the SHA-256 digest at the end of a snapshot."""


def take(endpoint: str, file: IO[bytes], tls: TlsFiles | None = None) -> int:
    """Write the member's data to `file` and return the number of bytes. Raises `Unavailable`."""
    told, end, size = hashlib.sha256(), b"", 0
    with contextlib.closing(MemberChannel(endpoint, tls)) as member:
        try:
            for part in member.snapshot(rpc.SnapshotRequest(), timeout=TIMEOUT):
                file.write(part.blob)
                size += len(part.blob)
                end += part.blob
                told.update(end[:-DIGEST])
                end = end[-DIGEST:]
        except grpc.RpcError as error:
            raise Unavailable(f"etcd at {endpoint} gave no snapshot: {error.details()}") from error
    if told.digest() != end:
        raise Unavailable(f"the snapshot of etcd at {endpoint} is incomplete")
    return size


def restore(file: Path, config: MemberConfig, binary: Binary) -> None:
    """Make the data folder of a member of a new cluster, all of whose members restore `file`.

    The folder appears complete or not at all. Raises `EnvironmentFailure` for a damaged snapshot.
    """
    beside = config.data_dir.with_name(f".{config.data_dir.name}")
    shutil.rmtree(beside, ignore_errors=True)
    command = [str(binary.path.with_name("etcdutl")), "snapshot", "restore", str(file)]
    flags = [*config.identity(), f"--data-dir={beside}"]
    try:
        done = run(*command, *flags, within=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"cannot restore a snapshot of etcd: {error}") from error
    if done.returncode:
        told = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise EnvironmentFailure(f"cannot restore a snapshot of etcd: {told}")
    beside.rename(config.data_dir)
