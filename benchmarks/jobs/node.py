"""Runs a checkpoint daemon for a benchmark, with the commands that an agent would send it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from spotelastic_checkpoints.protocol.agent_client import DaemonClient
from spotelastic_checkpoints.protocol.launch import start_daemon
from spotelastic_checkpoints.types import (
    Branch,
    Commit,
    EpochClaim,
    MemberRanks,
    Resume,
    RoundInfo,
    Schedule,
)

import spotelastic as se

DEADLINE = 600.0


class Node:
    """A node with its own arena."""

    def __init__(
        self,
        storage: str,
        name: str = "n0",
        slot: int = 0,
        workers: int = 1,
        slots: int = 3,
        **daemon: Any,
    ) -> None:
        os.environ["SPOTELASTIC_SLOTS"] = str(slots)
        self.name, self.slot, self.workers = name, slot, workers
        self._folder = tempfile.TemporaryDirectory(prefix="spotelastic-bench-", dir="/dev/shm")
        self.socket = Path(self._folder.name) / "daemon.sock"
        self.process = start_daemon(
            socket=self.socket,
            arena=Path(self._folder.name) / "arena",
            storage=storage,
            owner="bench",
            node=name,
            workers=workers,
            token="bench",
            **daemon,
        )
        self.client = DaemonClient(str(self.socket))

    def begin(
        self, round_: str, nodes: int = 1, resume: Resume | None = None, epoch: int = 0
    ) -> dict[str, str]:
        """Begin a round; return, and set, the environment of a worker in it."""
        resume = resume or Resume()
        schedule = Schedule(1, 1)
        self.client.begin(
            RoundInfo(
                incarnation=round_,
                number=1,
                world_size=nodes * self.workers,
                slot=self.slot,
                members=tuple(
                    MemberRanks(slot, f"n{slot}", self._ranks(slot)) for slot in range(nodes)
                ),
                epoch=epoch,
                schedule=schedule,
                resume=resume,
                lineage=(Branch(resume.incarnation, resume.step),),
            )
        )
        environment = {
            "SPOTELASTIC_DAEMON": str(self.socket),
            "SPOTELASTIC_ROUND": round_,
            "SPOTELASTIC_NODE": self.name,
            "SPOTELASTIC_RESUME": msgspec.json.encode(resume).decode(),
        }
        os.environ.update(environment)
        return environment

    def _ranks(self, slot: int) -> tuple[int, ...]:
        return tuple(range(slot * self.workers, (slot + 1) * self.workers))

    def claim(self) -> EpochClaim:
        return self.client.claim("bench", timeout=30)

    def make_ready(self, checkpoint: se.Checkpointer) -> None:
        """Make the layout known by a first step that saves nothing, and wait for the slots."""
        assert checkpoint._client is not None
        page = checkpoint._client.page
        schedule = page.schedule
        page.set_schedule(Schedule(0, 0))
        checkpoint.step(1)
        page.set_schedule(schedule)
        if not checkpoint._client.ready.wait(DEADLINE):
            raise RuntimeError("the arena never became ready")

    def flush(self) -> None:
        if not self.client.flush(DEADLINE):
            raise RuntimeError(f"not committed: {self.client.status().error}")

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes of the daemon's own memory, without shared memory: slots are counted separately."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        sizes = {line.split()[0]: int(line.split()[1]) << 10 for line in lines if "kB" in line}
        return sizes["RssAnon:"] + sizes["RssFile:"]

    def shared_memory(self) -> int:
        """Bytes of the daemon's folder: slots, and copies that are being restored."""
        return sum(path.stat().st_blocks * 512 for path in Path(self._folder.name).rglob("*"))

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(30)
        self._folder.cleanup()


@contextlib.contextmanager
def node(storage: str, **options: Any) -> Iterator[Node]:
    opened = Node(storage, **options)
    try:
        yield opened
    finally:
        opened.close()


def from_store(commit: Commit) -> Resume:
    return Resume("store", commit.step, epoch=commit.epoch)


class Crash(Exception):
    """A crash of a worker: nothing is saved on the way out."""
