"""`AgentConfig`: all that an agent, the supervising process of a node, is told at its start."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spotelastic_checkpoints.files.looking import is_shared

from spotelastic.agent.workers.output import Output
from spotelastic.cloud.port import NoticeSource
from spotelastic.model.job import Settings
from spotelastic.store.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """Which checks of this machine's devices there are."""

    gpus: bool = False
    """Whether GPUs are checked before the node joins, and watched while it trains."""
    promised: int = 0
    """How many GPUs this machine should have, by its type; 0: not known."""
    network: bool = False
    """Whether EFA devices are looked for."""
    kernel_log: Path = Path("/dev/kmsg")


Entry = Literal["script", "module", "program", "path", "function"]
"""What the first word of a command names: a Python file, run as `python FILE`; a module, as `python
-m`; an executable; a file for `runpy.run_path`; or what `workers/function.py` has packed.
"""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The configuration of one node in one run.

    The agent creates the folders; `shm` and `state` are its own.
    """

    run: str
    endpoints: tuple[str, ...]
    """host:port of each etcd member."""
    node: str
    address: str
    """This node's IP address, as its peers reach it. A host name is never advertised."""
    zone: str
    settings: Settings
    """Settings that are written to etcd unless some are stored there. The stored ones count."""
    command: tuple[str, ...]
    """The script and its arguments. `${local_rank}` in an argument is filled in."""
    workdir: Path
    state: Path
    """Folder for sockets, and for logs if `logs` is None. Its path must be short: Unix sockets
    require that.
    """
    shm: Path
    """Folder in shared memory for the daemon's slots."""
    storage: str
    """fsspec URL or path that checkpoints are committed to."""
    tls: TlsFiles | None = None
    """Files for connections to the etcd members."""
    daemon_tls: TlsFiles | None = None
    """Files for connections between daemons, all three of them; None: plain text."""
    daemon_name: str = ""
    """Common name in the daemons' certificates; empty: any that the authority has signed."""
    notices: NoticeSource | None = None
    """Where the node learns that it will be taken away; None: from other nodes alone."""
    spot: bool = False
    type: str = ""
    """The instance type; empty on machines of the user's own."""
    code: str = ""
    token: str = ""
    """Secret that the daemons of a cluster share, so that no other process reads slots."""
    logs: Path | None = None
    """Folder for the workers' logs, one folder per round, and for the daemon's log."""
    master_port: int = 0
    """Port of each round's store, on the node of rank 0; 0: a new port each time."""
    entry: Entry = "script"
    role: str = "default"
    env: Mapping[str, str] = field(default_factory=dict)
    """Further variables of the workers. `${master_addr}` in a value becomes the address of rank
    0.
    """
    python: str = sys.executable
    """The interpreter that workers run on. It must have spotelastic and torch installed."""
    secrets: tuple[str, ...] = ()
    """Secret values of `env`, which are redacted from all reports."""
    health: HealthChecks = HealthChecks()
    efa: bool = False
    """Whether workers reach those of other nodes through EFA."""
    virtual_local_rank: bool = False
    """Whether each worker sees only its own GPU, as device 0, with LOCAL_RANK 0."""
    numa: str = ""
    """How to bind workers to the cores near their GPU: one of torch's affinity modes; empty: not at
    all.
    """
    output: Output = Output()
    signals: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    """Signals that ask the agent to leave."""
    node_rank: int | None = None
    warm: bool = True
    """Whether to fork workers from a process that has imported torch and what `preload` names."""
    stays: bool = False
    """Whether this node must stay until the job has ended, because it runs the others' etcd."""
    preload: tuple[str, ...] = ()
    grace: float = 10.0
    """Seconds from SIGTERM to SIGKILL for workers whose end is planned."""
    killed_after: float = 0.0
    """Seconds after one of `signals` at which this node itself is killed; 0: it is not."""
    keep_daemon: bool = False
    """Whether the daemon and its slots outlive this process, for the agent that is started again
    here.
    """
    in_cluster: bool = False
    """Whether the node is a cluster's, and not a machine of the user's."""
    take_over: bool = False
    """Whether to continue a storage that belongs to another run."""
    line: Callable[[int, int, str], None] | None = None
    """Receives each line that a worker prints: (rank, local rank, line)."""
    error_line: Callable[[int, int, str], None] | None = None
    """Receives the lines of a teed standard error, instead of `line`."""
    metrics: tuple[str, int] | None = None
    """The address and the port at which metrics are served; None: they are not."""

    @property
    def may_lose_files(self) -> bool:
        """Whether files that this node alone has may be lost with it.

        A job that is alone on a machine of the user's leaves them there.
        """
        is_ours = self.in_cluster or "KUBERNETES_SERVICE_HOST" in os.environ
        return is_ours or (self.settings.max_nodes > 1 and not is_shared(self.workdir))

    def round_logs(self, number: int) -> Path:
        """Return the folder of the logs of a round's workers."""
        return (self.logs or self.state / "logs") / f"{number:04d}"
