"""Makes the secrets of a run on one machine: TLS for its etcd, and a token for its daemons.

Every user of a machine reaches its loopback interface. Without secrets they could end a job there,
and read what it trains. A node that is alone makes its own secrets. Nodes that meet at loopback
addresses find them in the user's home. Nodes on several machines have those that the user gives.
"""

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spotelastic_checkpoints.addresses import is_loopback, split

from spotelastic.clock import wall
from spotelastic.launcher.rendezvous_config import RendezvousConfig
from spotelastic.store.tls import TlsFiles, files_in, make_files

KEPT = 90 * 86400.0
"""Seconds after which the secrets of a run are removed."""
OPEN = (
    "anyone who can reach the ports of this run's nodes can read its state and end it: add "
    "--rdzv-conf protocol=https,cacert=FILE,cert=FILE,key=FILE,daemon_tls=true, or let nobody else "
    "into this network"
)


@dataclass(frozen=True, slots=True)
class RunSecrets:
    """What a run's nodes prove themselves with to each other."""

    tls: TlsFiles | None = None
    token: str = ""
    warning: str = ""
    """What others can do without them."""


def made_in(folder: Path, hosts: Collection[str] = ()) -> RunSecrets:
    """Make secrets in a folder that nobody else can read. `hosts` are further ones of etcd."""
    make_files(folder, hosts)
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    return _read(folder)


def shared_on(asked: RendezvousConfig) -> RunSecrets:
    """Return the secrets of nodes that meet at loopback addresses; the first of them makes them.

    Raises `OSError` where the user's home cannot be written.
    """
    home = Path(os.environ.get("SPOTELASTIC_HOME") or Path.home() / ".spotelastic")
    runs = home / "runs"
    for each in (home, runs):  # whoever may write to the one replaces the other
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    meeting = "\n".join((asked.run, *sorted(asked.endpoints)))
    folder = runs / hashlib.sha256(meeting.encode()).hexdigest()[:20]
    if not folder.exists():
        _sweep(runs)
        making = Path(tempfile.mkdtemp(dir=runs))
        made_in(making, [split(endpoint)[0] for endpoint in asked.endpoints])
        try:
            making.rename(folder)
        except OSError:  # another node was faster
            shutil.rmtree(making)
    return _read(folder)


def _sweep(runs: Path) -> None:
    """Remove the secrets of runs that are long over."""
    for each in runs.iterdir():
        with suppress(FileNotFoundError):  # another node may just be making its own
            if each.stat().st_mtime < wall() - KEPT:
                shutil.rmtree(each, ignore_errors=True)


def is_on_one_machine(asked: RendezvousConfig) -> bool:
    """Whether all nodes of a run are on this machine, as the addresses say at which they meet."""
    return all(is_loopback(split(endpoint)[0]) for endpoint in asked.endpoints)


def _read(folder: Path) -> RunSecrets:
    return RunSecrets(files_in(folder), (folder / "token").read_text())
