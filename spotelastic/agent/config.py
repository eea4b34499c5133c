"""What an agent is told at its start."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotelastic.model.job import Settings


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """One node of one run. Folders are made by the agent; `shm` and `state` are its own."""

    run: str
    endpoints: tuple[str, ...]
    """host:port of each etcd member."""
    node: str
    address: str
    """This node's address as its peers reach it; a name is never advertised."""
    zone: str
    settings: Settings
    """Written to the store by whoever comes first; what is stored there is what counts."""
    command: tuple[str, ...]
    """The script and its arguments."""
    workdir: Path
    state: Path
    """Sockets and logs."""
    shm: Path
    """In shared memory: the daemon's slots."""
    storage: str
    """fsspec URL or path that checkpoints are committed to."""
    imds: str = ""
    """Base URL of the instance metadata service; empty where there is none."""
    spot: bool = False
    code: str = ""
    token: str = ""
    """Shared by the daemons of a cluster; keeps strangers from reading slots."""
    node_rank: int | None = None
    preload: tuple[str, ...] = ()
    grace: float = 10.0
    """Seconds from SIGTERM to SIGKILL where an end is planned."""
    keep_daemon: bool = False
    """The daemon and its slots outlive this process, for the agent that is started again here."""
    take_over: bool = False
    """Continue a store that belongs to another run."""
    say: Callable[[str], None] = print
    """Lines for people about what happens to the run."""
    line: Callable[[int, str], None] | None = None
    """Each line that a worker prints: (rank, line)."""
