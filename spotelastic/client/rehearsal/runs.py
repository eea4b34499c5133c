"""Runs a script for a rehearsal: each time in a copy of its folder, and with records of its own."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import CheckpointsError
from spotelastic_checkpoints.storage.open import open_storage

from spotelastic.client.rehearsal import copies, rehearsal_plan
from spotelastic.client.rehearsal.nodes import Launch, Nodes, RehearsalNode, failure
from spotelastic.client.rehearsal.records import SeenSteps, StepRecord, read
from spotelastic.model.counting import counted

SNAPSHOTS = 4
"""Steps between two snapshots, so that most faults strike between them."""
CHECKPOINTS = 7
KEPT = "1000"
"""Checkpoints that are kept: the one that torch reads later is among them."""
TORCH_WITHIN = 300.0
"""Seconds within which torch has to read a checkpoint."""

Until = Callable[[SeenSteps], bool]


@dataclass(frozen=True, slots=True)
class RehearsedScript:
    """What is rehearsed."""

    folder: Path
    """The folder in which the script runs."""
    script: str
    args: tuple[str, ...]
    source: str
    """Its text."""
    steps: int
    """How many are made; 0: as many as reach past the first epoch, where that costs little."""
    ranks: int
    """How many ranks; 0: as many as it can have."""
    more: str = ""
    """Arguments that make it longer."""
    gpus: int = 0
    only: tuple[str, ...] = ()
    """The acts that are wanted (`plan.ACTS`); empty: all."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of one run of the script."""

    record: StepRecord
    failed: str = ""
    """How the script failed; empty if it did not."""
    ended: bool = False
    """Whether it came to its own end."""
    files: tuple[str, ...] = ()
    """What it has written in its folder."""
    since: float = 0.0
    """When it was started."""
    folder: Path = Path()
    workdir: Path = Path()
    last_line: str = ""
    """The last line that the script has printed."""


class Runs:
    """Starts the script in the ways that the acts need. `say` is told of each."""

    def __init__(
        self, job: RehearsedScript, nodes: Nodes, base: Path, say: Callable[[str], None]
    ) -> None:
        self.job, self.nodes, self.base, self.say = job, nodes, base, say
        self.ranks = rehearsal_plan.ranks(job.source, job.gpus, job.ranks)
        self._stamps: dict[Path, copies.Stamps] = {}

    def has_gpus_for(self, ranks: int) -> bool:
        """Return whether so many ranks can have a GPU each, if there are any."""
        return self.job.gpus == 0 or self.job.gpus >= ranks

    def launch(
        self,
        name: str,
        *,
        args: Sequence[str] | None = None,
        storage: str = "",
        every: int = 0,
        restarts: int = 0,
        workdir: Path | None = None,
        **more: Any,
    ) -> Launch:
        """Return how a run is started, with a copy of the script's folder for it.

        `storage` is the run whose storage it has, `every` the steps between two checkpoints.
        """
        if workdir is None:
            workdir = self.base / name / "folder"
            self._stamps[workdir] = copies.copy(self.job.folder, workdir)
        more.setdefault("workers", self.ranks)
        intervals = f"--snapshot-every={SNAPSHOTS}", f"--checkpoint-every={every or CHECKPOINTS}"
        return Launch(
            run=storage or name,
            folder=self.base / name,
            storage=self.base / (storage or name) / "storage",
            workdir=workdir,
            command=(self.job.script, *(self.job.args if args is None else args)),
            flags=(*intervals, "--keep-last", KEPT, "--max-restarts", str(restarts)),
            **more,
        )

    def plain(
        self, name: str, ranks: int, *, args: Sequence[str] | None = None, **orders: Any
    ) -> Played:
        """Run the script without interruptions."""
        self.say(f"the script without interruptions, on {counted(ranks, 'rank')}")
        orders = {"steps": self.job.steps or rehearsal_plan.STEPS, **orders}
        return self.run(self.launch(name, args=args, workers=ranks, orders=orders))

    def run(self, launch: Launch, until: Until | None = None, nodes: int = 1) -> Played:
        """Run nodes until something is so, or the script has ended. They are ended then.

        Without `until`, that is when all ranks have made their steps.
        """
        ranks = nodes * launch.workers
        progress = SeenSteps(launch.folder)
        running = [self.nodes.start(launch, f"node{place}", place) for place in range(nodes)]

        def is_over() -> bool:
            if any(node.code is not None for node in running):
                return True
            seen = progress.look()
            return until(seen) if until else seen.waits(ranks)

        try:
            self.nodes.wait(is_over, "the script's steps")
        finally:
            codes = [node.code for node in running]
            self.nodes.end(*running)
        return self.played(launch, running, codes)

    def played(
        self, launch: Launch, nodes: Sequence[RehearsalNode], codes: Sequence[int | None]
    ) -> Played:
        """Return what came of a run, from the exit codes that its nodes had by themselves."""
        printed = [
            line.partition("] ")[2]
            for node in nodes
            for line in node.text().splitlines()
            if line.startswith("[") and not line.startswith("[spotelastic]")
        ]
        return Played(
            read([launch.folder]),
            failure(nodes, launch.workdir) if any(codes) else "",
            0 in codes,
            tuple(copies.written(self._stamps[launch.workdir], launch.workdir)),
            min(node.since for node in nodes),
            launch.folder,
            launch.workdir,
            printed[-1] if printed else "",
        )


def committed(launch: Launch) -> int:
    """Return the newest step in the storage."""
    try:
        found = Commits(open_storage(str(launch.storage)), launch.run).latest()
    except CheckpointsError:
        return 0
    return found.step if found else 0


def read_by_torch(paths: Sequence[Path]) -> dict[str, Any]:
    """Return what stock torch reads, by path: digests, or the error."""
    module = "spotelastic.training.rehearsal.stored"
    command = [sys.executable, "-m", module, *map(str, paths)]
    told = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=TORCH_WITHIN
    )
    if told.returncode:
        words = told.stderr.strip().splitlines() or ["no answer"]
        return {str(path): {"error": words[-1]} for path in paths}
    return dict(json.loads(told.stdout))
