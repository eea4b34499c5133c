"""Records what each step of a script leaves, for `spotelastic rehearse`, and lets faults strike.

The command sets `SPOTELASTIC_REHEARSAL`, and the Checkpointer calls this module then. Each process
writes a file of JSON lines: what it has restored, and a fingerprint of each step. The command reads
and compares them (`spotelastic/client/rehearsal/`).
"""

import json
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from spotelastic.training.data import randomness
from spotelastic.training.data.sampler import ElasticSampler
from spotelastic.training.rehearsal import fingerprint, outside
from spotelastic.training.restore.loops import Loops
from spotelastic.training.state.state import State

VARIABLE = "SPOTELASTIC_REHEARSAL"
STAGES = ("forward", "backward", "vote", "optimizer", "end")
"""Where in a step a worker can be killed, in the order in which they are reached."""
NUMBERS = 64
"""Elements of a tensor that are written down."""
LOOK = 0.01
_SERVERS = "spotelastic.training.parameter_server."


@dataclass(frozen=True, slots=True)
class Orders:
    """What a process of a rehearsal is to do besides its script."""

    folder: str
    """Where records go."""
    steps: int = 0
    """The step after which it waits to be ended."""
    dies: tuple[tuple[int, str], ...] = ()
    """Steps and stages in which the last rank kills itself, once."""
    gates: tuple[int, ...] = ()
    """Steps after which all ranks wait until the file `open-<step>` is there, or a node is about to
    come or go.
    """
    pace: float = 0.0
    """Least seconds between two steps of ranks that cannot rest. They agree on a step that is a
    second ahead, which would else come after the end.
    """
    keeps: bool = False
    """Whether random numbers are kept, for other runs of the rehearsal."""
    draws: str = ""
    """A folder with random numbers that were kept. What vanished with the memory of its process
    comes from there, so that the steps after it can be compared.
    """


class NoRecording:
    """What a Checkpointer is told outside of a rehearsal."""

    def begins(self) -> None:
        """Note that the state is about to be restored, if there is one."""

    def restored(self, step: int) -> None:
        """Note that the state was restored."""

    def stepped(self, step: int, loss: Any, page: Any, *, holds: bool) -> None:
        """Note that a step counts, and was saved if a save was due and nothing `holds` it.

        May wait, and may end the process.

        The `page` says whether a node is about to come or go.
        """

    def ended(self, page: Any) -> None:
        """Note that what stands after a loop is done, and was saved if a save was held for it.

        May wait, and may end the process.
        """


@dataclass
class Recording(NoRecording):
    """What one process records."""

    orders: Orders
    state: State
    loops: Loops
    rests: Callable[[], bool]
    """Whether this process goes on when nodes come and go."""
    _watched: "WeakSet[torch.nn.Module]" = field(default_factory=WeakSet)
    _begun: bool = False
    _holds: bool = False
    """Whether the save of the last step waits for what stands after its loop."""

    def begins(self) -> None:
        if not self._begun:
            self._begun = True
            self._write("begin")
            if self.orders.dies:
                register_optimizer_step_pre_hook(lambda *_: self._reach("vote"))
                register_optimizer_step_post_hook(lambda *_: self._reach("optimizer"))
        self._watch()

    def restored(self, step: int) -> None:
        if self.orders.draws and (kept := self._random(self.orders.draws, step)).exists():
            randomness.apply(pickle.loads(kept.read_bytes()))
        self._holds = False
        self._write("restored", step=step, **self._told(fingerprint.take(self.state)))
        self._watch()

    def stepped(self, step: int, loss: Any, page: Any, *, holds: bool) -> None:
        found = fingerprint.take(self.state, loss)
        variables = outside.carried(sys._getframe(1), self.state.values)
        self._write(
            "step",
            step=step,
            **self._told(found),
            outside={
                name: (each.kind, each.digest, each.shown) for name, each in variables.items()
            },
            memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            gpu=torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
            epochs=self._epochs(),
        )
        self._holds = holds
        if not holds:
            self._passed(step, page)

    def ended(self, page: Any) -> None:
        holds, self._holds = self._holds, False
        if holds:
            step = self.loops.last_step()
            self._write("ended", step=step, **self._told(fingerprint.take(self.state)))
            self._passed(step, page)

    def _passed(self, step: int, page: Any) -> None:
        """Wait or die after a step, if that was ordered. Its save is made, if one was due."""
        if self.orders.keeps:
            kept = self._random(self.orders.folder, step)
            kept.write_bytes(pickle.dumps(self.loops.own.drawn(step)))
        self._reach("end", step)
        if not self.rests():
            time.sleep(self.orders.pace)
        if step in self.orders.gates:
            self._await(f"open-{step}", lambda: page.target >= step)
        if step >= self.orders.steps:
            self._write("done", step=step)
            self._await("end", lambda: False)
        self._watch()

    def _told(self, found: fingerprint.StepFingerprint) -> dict[str, Any]:
        # A parameter server counts the rounds of its ranks, which are others in each act.
        servers = {
            f"{name}.epoch"
            for name, value in self.state.values.items()
            if type(value).__module__.startswith(_SERVERS)
        }
        return {
            "digests": {
                name: digest.hex() for name, digest in found.digests.items() if name not in servers
            },
            "samples": {name: _some(each) for name, each in found.samples.items()},
            "shown": found.shown,
        }

    def _random(self, folder: str, step: int) -> Path:
        return Path(folder) / f"random-{self.state.rank}-of-{self.state.world_size}-{step}"

    def _epochs(self) -> dict[str, int]:
        """Return after how many steps epochs end: of each sampler, and of the script's loop."""
        values = self.state.values.items()
        found = {name: len(each) for name, each in values if isinstance(each, ElasticSampler)}
        return found | ({"": self.loops.total} if self.loops.total else {})

    def _write(self, kind: str, **more: Any) -> None:
        line = {
            "kind": kind,
            "at": time.time(),
            "rank": self.state.rank,
            "world": self.state.world_size,
            **more,
        }
        with (Path(self.orders.folder) / f"{os.getpid()}.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")

    def _await(self, file: str, or_if: Callable[[], bool]) -> None:
        while not ((Path(self.orders.folder) / file).exists() or or_if()):
            time.sleep(LOOK)

    # -- faults -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """See the forward passes of the modules that there are now."""
        for value in self.state.values.values() if self.orders.dies else ():
            if isinstance(value, torch.nn.Module) and value not in self._watched:
                self._watched.add(value)
                value.register_forward_hook(self._forward)

    def _forward(self, _module: torch.nn.Module, _given: Any, output: Any) -> None:
        self._reach("forward")
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(self._backward)  # type: ignore[no-untyped-call]
                return

    def _backward(self, _gradient: torch.Tensor) -> None:
        self._reach("backward")

    def _reach(self, stage: str, step: int | None = None) -> None:
        """Die if this was ordered for this stage, or for one before that the step does not have."""
        number = self.loops.last_step() + 1 if step is None else step
        for due, name in self.orders.dies:
            late = STAGES.index(stage) >= STAGES.index(name)
            if due == number and late and self.state.rank == self.state.world_size - 1:
                self._die(number, stage)

    def _die(self, step: int, stage: str) -> None:
        try:
            with (Path(self.orders.folder) / f"died-{step}").open("x") as out:
                out.write(stage)
        except FileExistsError:  # it has died in this step before
            return
        os.kill(os.getpid(), signal.SIGKILL)


def of_environment(
    state: State,
    loops: Loops,
    rests: Callable[[], bool],
    environ: Mapping[str, str] = os.environ,
) -> NoRecording:
    """Return the recording of a rehearsal. Outside of one it does nothing."""
    text = environ.get(VARIABLE)
    if not text:
        return NoRecording()
    return Recording(Orders(**json.loads(text)), state, loops, rests)


def _some(numbers: torch.Tensor) -> list[float]:
    few = numbers[:: max(1, -(-numbers.numel() // NUMBERS))]
    return [float(f"{each:.9g}") for each in few.tolist()]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
