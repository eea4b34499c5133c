"""The configuration that an agent is started with."""

import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spotelastic.agent.workers.output import Output
from spotelastic.model.job import Settings
from spotelastic.store.tls import TlsFiles

Entry = Literal["script", "module", "program", "path", "function"]
"""What the first word of a command names: a Python file, run as `python FILE`; a module, as
`python -m`; an executable; a file for `runpy.run_path`; what `workers/function.py` has packed."""


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
    """The script and its arguments. `${local_rank}` in an argument is filled in."""
    workdir: Path
    state: Path
    """Sockets, and logs where `logs` names no other place. A short path: Unix sockets want that."""
    shm: Path
    """In shared memory: the daemon's slots."""
    storage: str
    """fsspec URL or path that checkpoints are committed to."""
    tls: TlsFiles | None = None
    """Of the etcd members."""
    daemon_tls: TlsFiles | None = None
    """Of the daemons among each other, with all three files; None: they speak in the clear."""
    daemon_name: str = ""
    """The common name in their certificates; empty: whatever the authority has signed."""
    imds: str = ""
    """Base URL of the instance metadata service; empty where there is none."""
    spot: bool = False
    code: str = ""
    token: str = ""
    """Shared by the daemons of a cluster; keeps strangers from reading slots."""
    logs: Path | None = None
    """Workers' logs, one folder per round, and the daemon's."""
    master_port: int = 0
    """Where the store of each round listens, on the node of rank 0; 0: at a new port each time."""
    entry: Entry = "script"
    role: str = "default"
    env: Mapping[str, str] = field(default_factory=dict)
    """Further variables of workers. `${master_addr}` in a value is where rank 0 runs."""
    python: str = sys.executable
    """What workers run on. It must find spotelastic and torch."""
    secrets: tuple[str, ...] = ()
    """Values in `env` that must appear nowhere: they are blotted out of what is reported."""
    virtual_local_rank: bool = False
    """Each worker sees only its own GPU, as device 0, and LOCAL_RANK is 0."""
    numa: str = ""
    """Bind workers to the cores near their GPU: one of torch's affinity modes."""
    output: Output = Output()
    signals: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    """Those that ask the agent to leave."""
    node_rank: int | None = None
    warm: bool = True
    """Fork workers from a process that has imported torch and what `preload` names."""
    stays: bool = False
    """Others need this node until the job has ended (it runs their etcd): it does not leave when
    only its own part is done."""
    preload: tuple[str, ...] = ()
    grace: float = 10.0
    """Seconds from SIGTERM to SIGKILL where an end is planned."""
    keep_daemon: bool = False
    """The daemon and its slots outlive this process, for the agent that is started again here."""
    take_over: bool = False
    """Continue a store that belongs to another run."""
    say: Callable[[str], None] = print
    """Lines for people about what happens to the run."""
    line: Callable[[int, int, str], None] | None = None
    """Each line that a worker prints: (rank, local rank, line)."""
    error_line: Callable[[int, int, str], None] | None = None
    """Instead of `line`: each line of a standard error that is teed apart."""

    def round_logs(self, number: int) -> Path:
        """Where the logs of a round's workers are."""
        return (self.logs or self.state / "logs") / f"{number:04d}"
