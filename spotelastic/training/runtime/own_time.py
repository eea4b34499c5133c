"""Measures how much of a step this rank works, and how much it waits for the other ranks.

All ranks of a job have the same step time, because they wait for each other. Only these two parts
tell which one the others wait for. Nothing is asked of the script, and no step is stopped for it:

- where collectives block the host (gloo), the end of a wait is seen in Python, or, for those that
  DDP makes in C++, is the beginning of the optimizer's step. Their beginning stands in torch's
  flight recorder, which notes each collective in any case.
- where they run on a GPU (NCCL), the flight recorder has how long each took, if timing is on
  (`TORCH_NCCL_ENABLE_TIMING`). The rank that comes last waits for nobody in them.

Reading the recorder takes milliseconds. So it is read seldom, and by all ranks at one step: at
steps of their own they would keep each other waiting.

Must never happen: a measurement fails a script. What goes wrong here ends the measuring.
"""

import contextlib
import logging
import math
import os
import pickle
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from spotelastic_checkpoints.memory.worker_page import WorkerPage
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from spotelastic import torch_names

logger = logging.getLogger(__name__)

MEASURE_EVERY = "SPOTELASTIC_MEASURE_EVERY"
"""Variable with the seconds between two measurements; 0: none are made."""
FIRST = 8
"""Steps of a round after which their length is known well enough to say when to measure."""
LEAST = 2
"""Binary logarithm of the fewest steps between two measurements."""
STEPS = 512
"""Most steps of one measurement."""
OPTIMIZERS = 4096
"""Most steps of optimizers that one step of the script may have."""
SECOND = 1e9
"""Nanoseconds."""

Entry = Mapping[str, Any]
"""A collective, as torch's flight recorder tells of it."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When things happened in one step of this process, in nanoseconds since the epoch."""

    begin: int
    end: int
    waited: int
    """How long Python waited for collectives."""
    optimizers: tuple[tuple[int, int], ...]
    """When each optimizer began its step, and when the last wait in Python before that began."""


@dataclass(frozen=True, slots=True)
class OwnTime:
    """Seconds of an average step in which a rank works, and in which it waits for others."""

    own: float
    waiting: float


def own_time(steps: Sequence[StepTimes], entries: Sequence[Entry]) -> OwnTime | None:
    """Return how these steps were spent, from the collectives on record; None: that is not known.

    Ranks that send to single others (pipelines) do unlike work, so that comparing them says
    nothing.
    """
    if not entries or any(entry.get("is_p2p") for entry in entries):
        return None
    on_gpu = any(str(entry["profiling_name"]).startswith("nccl:") for entry in entries)
    return _on_gpu(steps, entries) if on_gpu else _on_cpu(steps, entries)


def _on_cpu(steps: Sequence[StepTimes], entries: Sequence[Entry]) -> OwnTime | None:
    """Sum up the waits of the host."""
    begun = sorted(int(entry["time_created_ns"]) for entry in entries)
    steps = [step for step in steps if step.begin >= begun[0]]
    waited = 0
    for step in steps:
        waited += step.waited
        since = step.begin
        for optimizer, python_waited_at in step.optimizers:
            place = bisect_left(begun, optimizer) - 1
            last = begun[place] if place >= 0 else 0
            if last >= since and last > python_waited_at:
                waited += optimizer - last
            since = optimizer
    return _average(steps, waited)


def _on_gpu(steps: Sequence[StepTimes], entries: Sequence[Entry]) -> OwnTime | None:
    """Sum up what collectives took on the GPU. The newest ones may not have been timed yet."""
    timed = sorted(entries, key=lambda entry: int(entry["time_created_ns"]))
    unknown = (e["time_created_ns"] for e in timed if e.get("duration_ms") is None)
    first, until = int(timed[0]["time_created_ns"]), next(unknown, math.inf)
    steps = [step for step in steps if step.begin >= first and step.end <= until]
    waited = 0.0
    for entry in timed:
        created = int(entry["time_created_ns"])
        if steps and steps[0].begin <= created < steps[-1].end:
            waited += float(entry["duration_ms"]) * 1e6
    return _average(steps, waited)


def _average(steps: Sequence[StepTimes], waited: float) -> OwnTime | None:
    if not steps:
        return None
    took = sum(step.end - step.begin for step in steps)
    waiting = min(max(waited, 0.0), took)
    return OwnTime((took - waiting) / len(steps) / SECOND, waiting / len(steps) / SECOND)


def recorded(*, on_gpu: bool) -> Sequence[Entry]:
    """Return what torch's flight recorder has; nothing where it is off, or there is none."""
    dump = torch_names.flight_recorder(of_nccl=on_gpu)
    if dump is None:
        return ()
    entries: Sequence[Entry] = pickle.loads(dump(True, False, False)).get("entries", ())
    return entries


class OwnTimeMeter:
    """Notes the times of this process's steps, and publishes now and then how they were spent."""

    def __init__(
        self,
        page: WorkerPage,
        every: float,
        record: Callable[[], Sequence[Entry]],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`every`: seconds between two measurements. `record` reads the collectives."""
        self._page, self._every, self._record, self._clock = page, every, record, clock
        self._steps: deque[StepTimes] = deque(maxlen=STEPS)
        self._count = self._measurements = 0
        self._period = 0
        """Steps between two measurements, a power of two; 0: not known yet."""
        self._begin = 0
        self._waited = self._waited_at = 0
        self._optimizers = deque[tuple[int, int]](maxlen=OPTIMIZERS)

    def optimizer_begins(self, *_: object) -> None:
        """Note that an optimizer has all gradients, and begins its step."""
        self._optimizers.append((self._clock(), self._waited_at))

    def waited(self, begin: int, end: int) -> None:
        """Python has waited for a collective."""
        self._waited += end - begin
        self._waited_at = begin

    @contextlib.contextmanager
    def voting(self) -> Iterator[None]:
        """Note that this rank has its gradients, and waits in the block.

        It waits until all others have their gradients.

        Where a round was entered in place, this comes before the hook of the optimizer.
        """
        self.optimizer_begins()
        begin = self._clock()
        try:
            yield
        finally:
            self.waited(begin, self._clock())

    def step_ends(self, step: int) -> None:
        """Note that the script has finished a step.

        What follows until `step_begins` is not its work.
        """
        if self._begin:
            end = self._clock()
            # One that is not torch's calls no hook: then it counts as waiting, for all ranks alike.
            begun = (*self._optimizers,) or ((end, self._waited_at),)
            self._steps.append(StepTimes(self._begin, end, self._waited, begun))
            self._count += 1
            self._measure(step)

    def step_begins(self) -> None:
        self._waited = 0
        self._optimizers.clear()
        self._begin = self._clock()

    def _measure(self, step: int) -> None:
        due = step % self._period == 0 if self._period else self._count == FIRST
        if not due or not self._steps:
            return
        if self._period:
            found = own_time(tuple(self._steps), self._record())
            if found is not None:
                self._measurements += 1
                self._page.measured(self._measurements, found.own, found.waiting)
        length = (self._steps[-1].end - self._steps[0].begin) / len(self._steps) / SECOND
        self._period = period(length, self._every)
        self._steps.clear()


def period(step_time: float, every: float) -> int:
    """Return the number of steps between two measurements.

    It is a power of two, so that all ranks, whose steps take about the same time, measure at the
    same steps.
    """
    return 1 << max(LEAST, math.ceil(math.log2(max(every / max(step_time, 1e-6), 1.0))))


class Measuring:
    """Has a meter told what it has to know, until it is closed. Without one nothing is measured."""

    def __init__(self, meter: OwnTimeMeter | None = None, *, on_gpu: bool = False) -> None:
        self._meter = meter
        self._hook: RemovableHandle | None = None
        self._wait: Any = None
        if meter is not None:
            begins = torch.compiler.disable(meter.optimizer_begins)  # type: ignore[no-untyped-call]
            self._hook = register_optimizer_step_pre_hook(begins)
            self._wait = None if on_gpu else _told_of_waits(meter)

    def step_ends(self, step: int) -> None:
        if self._meter is None:
            return
        try:
            self._meter.step_ends(step)
        except Exception as error:  # of torch's recorder, which other versions may have otherwise
            logger.debug(f"this rank's own time is not measured any more: {error!r}")
            self.close()

    def step_begins(self) -> None:
        if self._meter is not None:
            self._meter.step_begins()

    def voting(self) -> contextlib.AbstractContextManager[None]:
        """Return what a vote of the ranks is made in."""
        return contextlib.nullcontext() if self._meter is None else self._meter.voting()

    def close(self) -> None:
        self._meter = None
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._wait is not None:
            dist.Work.wait = self._wait  # type: ignore[method-assign]
            self._wait = None


def _told_of_waits(meter: OwnTimeMeter) -> Any:
    """Has the meter told of all waits for collectives in Python. Returns the function that waits.

    FSDP waits there, and whoever calls `torch.distributed` himself.
    """
    wait, clock = dist.Work.wait, time.time_ns

    def timed_wait(work: Any, *args: Any, **options: Any) -> Any:
        begin = clock()
        try:
            return wait(work, *args, **options)
        finally:
            meter.waited(begin, clock())

    dist.Work.wait = timed_wait  # type: ignore[method-assign, assignment]
    return wait


def measuring(page: WorkerPage, world_size: int) -> Measuring:
    """Begins to measure this rank's own time, where its agent wants that and there are others."""
    every = float(os.environ.get(MEASURE_EVERY) or 0.0)
    if every <= 0 or world_size < 2 or not dist.is_initialized():
        return Measuring()
    backends = str(dist.get_backend_config())
    on_gpu = "nccl" in backends and torch.cuda.is_available()
    if not on_gpu and "gloo" not in backends:
        return Measuring()
    meter = OwnTimeMeter(page, every, lambda: recorded(on_gpu=on_gpu))
    return Measuring(meter, on_gpu=on_gpu)
