"""Reads what `--mount` names, and mounts it on a node: file systems of EFS and FSx, or any of NFS.

fs-0123abcd:/data                            EFS, by its id
fs-0123.fsx.REGION.amazonaws.com@tcp:/NAME:/data    FSx for Lustre, with its mount name
HOST:/EXPORT:/data                           NFS: FSx for OpenZFS and ONTAP, and others
"""

import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotelastic.aws.base.partitions import partition_of
from spotelastic.errors import EnvironmentFailure, UsageError

WITHIN = 180.0
"""Seconds that one command may take."""
_TEXT = re.compile(r"([\w.@-]+)(:/[\w./-]*)?:(/[\w./-]*[\w-])", re.ASCII)
_EFS = re.compile(r"fs-[0-9a-f]{8,40}")
_TAKEN = ("/boot", "/dev", "/etc", "/opt/spotelastic", "/proc", "/run", "/sys", "/usr")
NFS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport"
"""Options that AWS recommends for EFS."""
LUSTRE = "relatime,flock"


@dataclass(frozen=True, slots=True)
class Mount:
    """One file system, and the folder of a node at which it is."""

    source: str
    kind: str
    options: str
    folder: str
    package: str
    """What Amazon Linux lacks for it, where it does."""


def read(text: str, region: str = "REGION") -> Mount:
    """Return what a text of `--mount` says (pure). Raises `UsageError`."""
    found = _TEXT.fullmatch(text)
    if found is None or (found[2] is None and not _EFS.fullmatch(found[1])):
        raise UsageError(
            f"--mount {text}: expected fs-ID:/FOLDER of EFS, DNS-NAME@tcp:/MOUNT-NAME:/FOLDER of "
            "Lustre, or HOST:/EXPORT:/FOLDER of NFS"
        )
    host, export, folder = found.groups()
    if any(folder == each or folder.startswith(f"{each}/") for each in _TAKEN):
        raise UsageError(f"--mount {text}: {folder} is the system's own: take another folder")
    if host.endswith("@tcp"):
        return Mount(f"{host}{export}", "lustre", LUSTRE, folder, "lustre-client")
    if _EFS.fullmatch(host):
        host = f"{host}.efs.{region}.{partition_of(region).domain}"
    return Mount(f"{host}{export or ':/'}", "nfs4", NFS, folder, "nfs-utils")


def read_all(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts if all are right, and no two have the same folder. Raises `UsageError`."""
    folders = [read(text).folder for text in texts]
    if twice := [each for each in folders if folders.count(each) > 1]:
        raise UsageError(f"--mount: two file systems cannot both be {twice[0]}")
    return tuple(texts)


def ensure(texts: Iterable[str], region: str) -> tuple[Path, ...]:
    """Mount what is not mounted yet, and return the folders. Raises `EnvironmentFailure`."""
    return tuple(_mounted(read(text, region)) for text in texts)


def _mounted(wanted: Mount) -> Path:
    folder = Path(wanted.folder)
    if folder.is_mount():
        return folder
    if shutil.which(f"mount.{wanted.kind}") is None and shutil.which("dnf") is not None:
        _run(wanted, "dnf", "-y", "-q", "install", wanted.package)
    folder.mkdir(parents=True, exist_ok=True)
    _run(wanted, "mount", "-t", wanted.kind, "-o", wanted.options, wanted.source, wanted.folder)
    return folder


def _run(wanted: Mount, *command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(f"--mount {wanted.source}: {error}") from error
    if done.returncode:
        told = " ".join(done.stderr.split()) or f"{command[0]} ended with {done.returncode}"
        raise EnvironmentFailure(
            f"--mount {wanted.source}: {told}; look whether its security group lets the nodes in"
        )
