"""Has the first commit of a run proven by a process of its own.

A checkpoint is written for a restart that may come days later, in another process. So the first one
is read back at once, by a process that knows nothing of the script's memory, with a low
priority. What must never happen: that this keeps training or a save waiting, or that a state is
called proven of which a byte was not read.
"""

import asyncio
import logging
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotelastic_checkpoints import isolated, messages
from spotelastic_checkpoints.commit import first_save
from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.types import Commit

logger = logging.getLogger(__name__)

PROVE = "SPOTELASTIC_PROVE"
"""Environment variable: "off" leaves it out."""
PROVEN = "proven"
"""Kind of the report."""
_PROVER = "spotelastic.training.rehearsal.reading_back"
_NICENESS = 10
"""Of the process: training goes first, and the result is there within a minute."""
_NAMED = 5
"""Problems that are told of many."""


class Proof(msgspec.Struct, frozen=True):
    """What the process prints when it is done."""

    world_size: int = 0
    tensors: int = 0
    values: int = 0
    wrong: tuple[str, ...] = ()
    """What is not as it was saved, or cannot be read: a line for each."""
    leads: bool = True
    """Whether it tells of a state that is as it was saved, for all nodes."""
    unavailable: str = ""
    """Why the store could not be read; empty where it could."""

    def report(self, step: int) -> messages.Rehearsed:
        """Return what is told of it."""
        if not self.wrong:
            parts = f"{self.tensors:,} tensors and {self.values:,} values"
            line = f"step {step}, the first commit, was read back: {parts} are as they were saved"
            return messages.Rehearsed(step, self.world_size, "equal", line, PROVEN)
        more = len(self.wrong) - _NAMED
        lines = [f"step {step}, the first commit, could not be restored as it was saved:"]
        lines += [*self.wrong[:_NAMED], *([f"and {more:,} more"] if more > 0 else [])]
        return messages.Rehearsed(step, self.world_size, "different", "\n".join(lines), PROVEN)


@dataclass(frozen=True, slots=True)
class ProofPatience:
    """How long a proof may take, in seconds."""

    within: float = 900.0
    again: float = 30.0
    """Until the next attempt, where the store does not answer or the process has died."""
    attempts: int = 4


class FirstCommit:
    """The proof of this node's part of a run's first commit."""

    def __init__(
        self,
        folder: Path,
        storage: str,
        tell: Callable[[messages.Rehearsed], None],
        patience: ProofPatience = ProofPatience(),
    ) -> None:
        """`folder` is the arena's, in which workers leave what they had."""
        self._folder, self._storage, self._tell, self._patience = folder, storage, tell, patience
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_read(self) -> bool:
        """Whether the first commit is being read at the moment."""
        return self._task is not None and not self._task.done()

    def committed(self, commit: Commit) -> None:
        """Begin, if workers have left something for this commit."""
        if self._task is not None or os.environ.get(PROVE) == "off":
            return
        if notes := first_save.left(self._folder, commit):
            self._task = asyncio.get_running_loop().create_task(self._prove(commit, notes))

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _prove(self, commit: Commit, notes: Sequence[Path]) -> None:
        problem = ""
        for _ in range(self._patience.attempts):
            found = await self._attempt(commit, notes)
            if not found.unavailable:
                for note in notes:
                    note.unlink(missing_ok=True)
                if found.wrong or found.leads:
                    self._tell(found.report(commit.step))
                return
            problem = found.unavailable
            await asyncio.sleep(self._patience.again)
        logger.warning(f"step {commit.step}, the first commit, could not be read back: {problem}")

    async def _attempt(self, commit: Commit, notes: Sequence[Path]) -> Proof:
        command = isolated.command(_PROVER, self._storage, str(commit.epoch), str(commit.step))
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            *map(str, notes),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=isolated.environment(CUDA_VISIBLE_DEVICES=""),
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:  # Its input is never written to: the process ends when the daemon dies.
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            async with asyncio.timeout(self._patience.within):
                told, said = await asyncio.gather(process.stdout.read(), process.stderr.read())
                await process.wait()
            return from_json(told, Proof)
        except TimeoutError:
            return Proof(unavailable=f"it took longer than {self._patience.within:g} s")
        except msgspec.MsgspecError:
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            return Proof(unavailable=last or f"its process ended with {process.returncode}")
        finally:
            self.end()
