"""What `in_place.py` compares: the same job under spotelastic, torchrun, torchft and NVRx.

Each node is one worker on this machine. Nodes of torchft and NVRx are their workers' processes:
these have no agents, and whoever runs them starts lost ones again.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from common import agents
from common.agents import HOST, Job, torchruns
from common.measuring import until

from spotelastic.store.etcd_server.process import free_ports

JOBS = Path(__file__).parent.parent / "jobs" / "recovering"
HOW_TO_GET_PEERS = (
    "python -m venv V && V/bin/pip install torch==2.13.0 torchft nvidia-resiliency-ext, and then "
    "--peers V/bin/python"
)


@dataclass(frozen=True, slots=True)
class Setup:
    """The job that all systems run."""

    nodes: int
    build: float
    pause: float
    compiles: bool
    cache: Path
    """Folder of compiled code, which all share."""
    endpoint: str
    """Of etcd."""
    peers: str | None
    """The interpreter that has torchft and NVRx."""
    device: str = "cpu"
    """Where the model is. All workers share one GPU."""
    backend: str = "gloo"

    def script(self, name: str, folder: Path, *more: str) -> list[str]:
        given = ["--build", str(self.build), "--pause", str(self.pause), "--device", self.device]
        given += ["--backend", self.backend]
        compiles = ["--compile"] if self.compiles else []
        return [str(JOBS / name), str(folder), *given, *compiles, *more]

    @property
    def is_sharded_too(self) -> bool:
        """FSDP2 shards over gloo on a CPU alone."""
        return self.device == "cpu" or self.backend == "nccl"

    @property
    def variables(self) -> dict[str, str]:
        return {
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "fatal",
            "RUST_LOG": "error",
        }


Opens = Callable[[Path], AbstractContextManager[Job]]


@dataclass(frozen=True, slots=True)
class System:
    """A system, and how its job is opened in a folder that is not there yet."""

    name: str
    label: str
    opens: Opens
    has_agents: bool = True
    """Whether a node brings back its worker."""
    grows: bool = True
    """Whether a node can come to a job that runs."""
    has_rounds: bool = False
    """Whether its rounds can be followed."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Events that are not measured, and why."""


def spotelastic(setup: Setup, folder: Path, loop: str, *more: str) -> AbstractContextManager[Job]:
    """Open the job under `spotelastic run`, with one of its two loops. The folder's name is the
    run's.
    """
    script = setup.script("of_spotelastic.py", folder, "--loop", loop, *more)
    return agents.ours(folder, setup.nodes, setup.endpoint, folder.name, script, **setup.variables)


def _sharded(setup: Setup, folder: Path) -> AbstractContextManager[Job]:
    script = setup.script("of_built.py", folder)
    return agents.ours(folder, setup.nodes, setup.endpoint, folder.name, script, **setup.variables)


def _torchrun(setup: Setup, folder: Path) -> AbstractContextManager[Job]:
    script = setup.script("of_torchrun.py", folder)
    return torchruns(folder, setup.nodes, script, **setup.variables)


@contextlib.contextmanager
def _torchft(setup: Setup, folder: Path) -> Iterator[Job]:
    peers = _interpreter(setup)
    told = folder.with_suffix(".lighthouse")
    command = [peers, str(JOBS / "of_torchft.py"), "--lighthouse", str(told)]
    with folder.with_suffix(".out").open("wb") as output:
        lighthouse = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until(told.exists, "a lighthouse of torchft")
        variables = {**setup.variables, "TORCHFT_LIGHTHOUSE": told.read_text()}
        with _workers(peers, setup.script("of_torchft.py", folder), folder, variables) as job:
            yield job
    finally:
        lighthouse.kill()
        lighthouse.wait()


def _nvrx(setup: Setup, folder: Path) -> AbstractContextManager[Job]:
    (port,) = free_ports(1, HOST)
    variables = {
        **setup.variables,
        "WORLD_SIZE": str(setup.nodes),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
    }
    script = setup.script("of_nvrx.py", folder)
    return _workers(_interpreter(setup), script, folder, variables)


@contextlib.contextmanager
def _workers(
    python: str, script: Sequence[str], folder: Path, variables: Mapping[str, str]
) -> Iterator[Job]:
    """Open a job whose nodes are processes of its script, with a rank by their order."""

    def of(node: str) -> dict[str, str]:
        return {**variables, "RANK": node.removeprefix("node")}

    with contextlib.closing(Job(folder, lambda _: [python], script, of)) as job:
        yield job


def _interpreter(setup: Setup) -> str:
    assert setup.peers is not None
    return setup.peers


def systems(setup: Setup) -> list[System]:
    """Return all that can be measured: peers only where there is an interpreter for them."""
    in_place = partial(spotelastic, setup, loop="steps")
    processes = partial(spotelastic, setup, loop="restore")
    found = [
        System("in-place", "spotelastic, in place", in_place, has_rounds=True),
        System("processes", "spotelastic, new processes", processes, has_rounds=True),
        System(
            "torchrun",
            "torchrun (c10d)",
            partial(_torchrun, setup),
            missing={"freeze": "waits for gloo: 30 min"},
        ),
    ]
    if setup.is_sharded_too:
        sharded = System(
            "built",
            "spotelastic, in place, FSDP2",
            partial(_sharded, setup),
            has_rounds=True,
            missing={"freeze": "as a node that is killed"},
        )
        found.insert(1, sharded)
    if setup.peers is None:
        return found
    return [
        *found,
        System("torchft", "torchft", partial(_torchft, setup), has_agents=False),
        System(
            "nvrx",
            "NVRx",
            partial(_nvrx, setup),
            has_agents=False,
            grows=False,
            missing={"arrival": "cannot grow"},
        ),
    ]


def compile_once(setup: Setup) -> None:
    """Fill the folder of compiled code, so that the first job does not wait for its own workers."""
    command = [sys.executable, "work.py", str(setup.cache), "--compile", "--device", setup.device]
    environment = {**os.environ, **setup.variables, "NODE": "first", "OMP_NUM_THREADS": "1"}
    setup.cache.mkdir(exist_ok=True)
    subprocess.run(command, cwd=JOBS, env=environment, check=True)
