"""Runs jobs of several agents on this machine, under `spotelastic run` and under torchrun."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from common.measuring import until

from spotelastic.store.etcd_server.process import free_ports

SCRIPT = Path(__file__).parent.parent / "jobs" / "allreduce.py"
HOST = "127.0.0.1"
START_WITHIN = 120.0


class Line(NamedTuple):
    what: str
    at: float
    pid: int
    world: int
    step: int = 0
    group: str = ""


class Job:
    """A job of several agents on this machine; `command` makes one node's command line, up to the
    script. `variables` are set for each node."""

    def __init__(
        self,
        folder: Path,
        command: Callable[[str], list[str]],
        script: Sequence[str] = (),
        variables: Callable[[str], Mapping[str, str]] = lambda node: {},
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self._command = command
        self._script = [*script] or [str(SCRIPT), str(folder)]
        self._variables = variables
        self._names = itertools.count()
        self._read: dict[str, _Read] = {}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}

    def add(self) -> str:
        name = f"node{next(self._names)}"
        env = {
            **os.environ,
            "NODE": name,
            "RECOVERY_NODE": f"{self.folder}/{name}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            # NCCL refuses two ranks on one GPU, unless they say that their machines differ.
            "NCCL_HOSTID": name,
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": "1",
            **self._variables(name),
        }
        with (self.folder / f"{name}.out").open("wb") as output:
            self.agents[name] = subprocess.Popen(
                [*self._command(name), *self._script],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env=env,
                start_new_session=True,
            )
        return name

    def lines(self, node: str) -> list[Line]:
        """Return all lines that the node's workers have written."""
        read = self._read.setdefault(node, _Read(self.folder / f"{node}.steps"))
        read.more()
        return read.lines

    def worker(self, node: str) -> int:
        return self.lines(node)[-1].pid

    def signal_all(self, node: str, sig: int) -> None:
        """Send a signal to everything that runs on the node, the agent first."""
        mark = f"RECOVERY_NODE={self.folder}/{node}\0".encode()
        agent = self.agents[node].pid
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        for pid in sorted(pids, key=lambda pid: pid != agent):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if mark in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, sig)

    def forget(self, node: str) -> None:
        self.signal_all(node, signal.SIGKILL)
        self.agents.pop(node).wait()

    def settle(self, steps: int) -> None:
        """Wait until every node has done this many further all-reduces."""
        done = {node: len(self.lines(node)) for node in self.agents}

        def settled() -> bool:
            return all(len(self.lines(node)) >= done[node] + steps for node in self.agents)

        until(settled, "training that goes on", within=START_WITHIN, every=0.2)

    def resume(self, nodes: Sequence[str], known: set[int], patience: float) -> dict[str, Line]:
        """Wait until these nodes do all-reduces in workers that are not `known`; return each one's
        first."""

        def first() -> dict[str, Line]:
            found = {}
            for node in nodes:
                for line in self.lines(node):
                    if (line.what, line.world) == ("step", len(nodes)) and line.pid not in known:
                        found[node] = line
                        break
            return found if len(found) == len(nodes) else {}

        # The times are the workers' own, so looking rarely does not matter.
        return until(first, f"a world of {len(nodes)}", within=patience)

    def last_words(self, node: str) -> str:
        """Return the last line that the node has printed."""
        lines = (self.folder / f"{node}.out").read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        agents = [*self.agents.values()]
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                agent.send_signal(signal.SIGTERM)
        for agent in agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(10)
        for node in [*self.agents]:
            self.forget(node)


class _Read:
    """What has been read of a file of lines so far."""

    def __init__(self, path: Path) -> None:
        self.lines: list[Line] = []
        self._path = path
        self._offset = 0

    def more(self) -> None:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.lines.extend(_line(*row.split()) for row in whole.decode().splitlines())


def _line(what: str, at: str, pid: str, world: str, step: str = "0", group: str = "") -> Line:
    return Line(what, float(at), int(pid), int(world), int(step), group)


@contextlib.contextmanager
def ours(
    folder: Path, size: int, endpoint: str, run: str, script: Sequence[str] = (), **variables: str
) -> Iterator[Job]:
    def command(node: str) -> list[str]:
        return [
            *(sys.executable, "-m", "spotelastic", "run", "--nnodes", f"1:{size}"),
            *("--rdzv-endpoint", endpoint, "--rdzv-id", run, "--max-restarts", "1000"),
            *("--node-id", node, "--local-addr", HOST, "--storage", str(folder / "store")),
        ]

    with contextlib.closing(Job(folder, command, script, lambda _: variables)) as job:
        yield job


@contextlib.contextmanager
def torchruns(
    folder: Path, size: int, script: Sequence[str] = (), **variables: str
) -> Iterator[Job]:
    (port,) = free_ports(1, HOST)
    run = uuid.uuid4().hex

    def command(node: str) -> list[str]:
        # The node that holds torchrun's state stays: without it training cannot go on.
        hosts = str(int(node == "node0"))
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes", f"1:{size}"),
            *("--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", run),
            *("--rdzv-endpoint", f"{HOST}:{port}", "--local-addr", HOST),
            *("--rdzv-conf", f"is_host={hosts}", "--max-restarts", "1000"),
        ]

    with contextlib.closing(Job(folder, command, script, lambda _: variables)) as job:
        yield job
