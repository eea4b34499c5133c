"""Copies tensors into a slot while training goes on, and detects writes that would spoil it.

Forward and backward only read what optimizers change, so the copy runs beside them. A slot must
never be sealed with something in it that training wrote after the save's step. Three things prevent
it.

1. Only tensors that an optimizer of the state has are copied this way. Every optimizer's step waits
until they are, in a hook of torch that runs before anything changes.

2. torch counts in-place writes to a tensor. Counts that changed before the copy was complete reveal
a writer that called no hook.

3. Some writes are not counted: `.data`, kernels that were given an address, a CUDA graph that is
replayed. So a few bytes of each block are taken at the save's step, and compared with the slot
before it is sealed.

A slot that fails is not sealed, and the run copies no other save this way.
"""

import contextlib
import ctypes
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from spotelastic_checkpoints.threads import step_back

from spotelastic.torch_names import copy_all, write_counts
from spotelastic.training.state.derived import storage_of
from spotelastic.training.state.tensors import is_raw

SAMPLE = 64
"""Bytes compared of each block."""
PIECE = 4 << 20
"""Bytes copied in one call. A thread that waits for the copy takes over pieces of it."""
_DEVICES = ("cpu", "cuda")
move_bytes = ctypes.memmove
"""Copies a piece: target and source address, and number of bytes."""


@dataclass(frozen=True)
class OverlapSizes:
    """What is worth to be copied beside training, in bytes."""

    block: int = 64 << 10
    """The part of each tensor of which `SAMPLE` bytes are compared. No smaller tensor is copied."""
    least: int = 1 << 20
    """Nothing is copied this way if it is less: that is faster than to start a thread."""


SIZES = OverlapSizes()


class WrittenTo(Exception):
    """The state changed before its copy was complete. The message says how that was detected."""


def samples_of(tensor: torch.Tensor, block: int = SIZES.block) -> torch.Tensor:
    """Return a view of the first bytes of each whole block. The tensor is contiguous."""
    flat = tensor.view(-1).view(torch.uint8)
    shape = tensor.nbytes // block, SAMPLE
    return flat.as_strided(shape, (block, 1), flat.storage_offset())


class Samples:
    """Samples of tensors on one device, as they were at one time."""

    def __init__(self, views: list[torch.Tensor]) -> None:
        self._views = views
        self._taken, self._parts = _buffer(views, views[0].device)
        self._found, self._found_parts = _buffer(views, torch.device("cpu"))

    def take(self) -> None:
        """Take the samples now."""
        copy_all(self._parts, self._views)

    def match(self, copies: list[torch.Tensor]) -> bool:
        """Return whether samples of the copies, as `samples_of` returns them, are the same."""
        copy_all(self._found_parts, copies)
        return torch.equal(self._found, self._taken.cpu())


def _buffer(
    views: Sequence[torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    sizes = [view.numel() for view in views]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    parts = torch.split(buffer, sizes)
    return buffer, [part.view(view.shape) for part, view in zip(parts, views, strict=True)]


class InMemory:
    """A copy from memory to memory, which any thread can take part in."""

    def __init__(
        self,
        targets: Sequence[torch.Tensor],
        sources: Sequence[torch.Tensor],
        match: Callable[[], bool],
    ) -> None:
        self._held = targets, sources  # Keeps alive what lies at the addresses.
        pieces = [*_pieces(targets, sources)]
        self._pieces, self._left = iter(pieces), len(pieces)
        self._lock, self._done = threading.Lock(), threading.Event()
        self.match = match
        """Returns whether the copy is what was there when it began."""
        self._interrupted = False
        """Whether some piece may not have been copied."""
        self.effort = 0.0

    def guard(self) -> None:
        """Complete the copy."""
        self.work()

    def work(self) -> None:
        """Copy pieces until all are done, and wait for those that other threads copy."""
        try:
            # The iterator gives each piece to one of the threads.
            for target, source, size in self._pieces:
                if self._interrupted:
                    break
                self._piece(target, source, size)
        except BaseException:  # Ctrl-C may come anywhere.
            self._interrupted = True
            self._done.set()
            raise
        self._done.wait()
        if self._interrupted:
            raise RuntimeError("the copy was interrupted")

    def _piece(self, target: int, source: int, size: int) -> None:
        begun = time.thread_time()
        move_bytes(target, source, size)
        with self._lock:
            self.effort += time.thread_time() - begun
            self._left -= 1
            if not self._left:
                self._done.set()


def _pieces(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> Iterator[tuple[int, int, int]]:
    """Yield target, source and size of each piece. torch's own copies would start threads."""
    for target, source in zip(targets, sources, strict=True):
        to, of = target.data_ptr(), source.data_ptr()
        for start in range(0, source.nbytes, PIECE):
            yield to + start, of + start, min(PIECE, source.nbytes - start)


class FromDevice:
    """A copy by a GPU's copy engine, on a stream of its own. No thread of the host waits."""

    def __init__(
        self,
        device: torch.device,
        targets: list[torch.Tensor],
        sources: list[torch.Tensor],
        match: Callable[[], bool],
    ) -> None:
        self._held = targets, sources
        self._device, self._match = device, match
        self._module: Any = torch.get_device_module(device)
        self._stream = self._module.Stream(device)
        self._stream.wait_stream(self._module.current_stream(device))
        with self._module.stream(self._stream):
            self._begun = self._event()
            copy_all(targets, sources, non_blocking=True)
            self._done = self._event()

    def _event(self) -> Any:
        event = self._module.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def guard(self) -> None:
        """Make the current stream wait for the copy."""
        self._module.current_stream(self._device).wait_event(self._done)

    def work(self) -> None:
        """Wait for the copy."""
        self._done.synchronize()

    def match(self) -> bool:
        """Return whether the copy is what was there when it began."""
        # The stream that trains may have much to do by now, so this uses the copy's own.
        with self._module.stream(self._stream):
            return self._match()

    @property
    def effort(self) -> float:
        """Seconds that the copy took on the GPU."""
        milliseconds: float = self._begun.elapsed_time(self._done)
        return milliseconds / 1000


DeviceCopy = InMemory | FromDevice
"""A copy of the tensors of one device that is under way.

The training thread calls `guard()` before it changes anything. `work()` and `match()` are called
beside training; `effort` are the seconds that the copy takes by itself.
"""


class Overlap:
    """The tensors of a state that may be copied beside training. `at` are their numbers."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        optimized: Collection[torch.Tensor],
        sizes: OverlapSizes = SIZES,
    ) -> None:
        self._optimized = optimized
        self._groups: dict[torch.device, list[int]] = defaultdict(list)
        self.at = _deferrable(tensors, optimized, sizes)
        for number in self.at:
            self._groups[tensors[number].device].append(number)
        self._tensors = tensors
        self._samples = {
            device: Samples([samples_of(tensors[number], sizes.block) for number in numbers])
            for device, numbers in self._groups.items()
        }

    def begin(
        self,
        targets: Sequence[torch.Tensor],
        samples: Mapping[int, torch.Tensor],
        complete: Callable[[], None],
    ) -> "Copying":
        """Begin to copy into a slot's tensors. `samples` are views of them, by number.

        `complete` seals the slot. It is called in another thread.
        """
        for taken in self._samples.values():
            taken.take()
        parts = [
            self._part(device, numbers, targets, samples)
            for device, numbers in self._groups.items()
        ]
        return Copying(parts, self._optimized, complete)

    def _part(
        self,
        device: torch.device,
        numbers: Sequence[int],
        targets: Sequence[torch.Tensor],
        samples: Mapping[int, torch.Tensor],
    ) -> DeviceCopy:
        into = [targets[number] for number in numbers]
        of = [self._tensors[number] for number in numbers]
        taken, seen = self._samples[device], [samples[number] for number in numbers]

        def match() -> bool:
            return taken.match(seen)

        if device.type == "cpu":
            return InMemory(into, of, match)
        return FromDevice(device, into, of, match)


def _deferrable(
    tensors: Sequence[torch.Tensor], optimized: Collection[torch.Tensor], sizes: OverlapSizes
) -> tuple[int, ...]:
    """Return the numbers of the tensors that may be copied beside training.

    There are none if they are small altogether.
    """
    storages = set(map(storage_of, optimized)) - {0}
    found = [
        number
        for number, tensor in enumerate(tensors)
        if tensor.nbytes >= sizes.block
        and tensor.device.type in _DEVICES
        and is_raw(tensor)
        and storage_of(tensor) in storages
    ]
    return tuple(found) if sum(tensors[number].nbytes for number in found) >= sizes.least else ()


class Copying:
    """A save that is being copied into its slot."""

    def __init__(
        self,
        parts: Sequence[DeviceCopy],
        optimized: Collection[torch.Tensor],
        complete: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._optimized = optimized
        self._versions = write_counts(optimized)
        self._compared, self._lock = False, threading.Lock()
        self._complete = complete
        self.error: Exception | None = None
        """Why the slot is not sealed, once the copy is over; None if it is."""
        self._passed = False
        self._thread = threading.Thread(target=self._run_beside, name="snapshot", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # No further thread can be started, so training waits.
            self._run()

    @property
    def is_over(self) -> bool:
        """Whether the slot is sealed or the save has failed."""
        return not self._thread.is_alive()

    @property
    def effort(self) -> float:
        """Seconds that the copy takes by itself, for which training would have waited."""
        return sum(part.effort for part in self._parts)

    def guard(self) -> None:
        """Protect the copy before the training thread changes anything."""
        if self._passed:
            return
        for part in self._parts:
            part.guard()
        self._compare()
        self._passed = True

    def settle(self) -> None:
        """Wait until the slot is sealed or the save has failed."""
        # The error is the copying thread's as well, which records it.
        with contextlib.suppress(Exception):
            for part in self._parts:
                part.work()
        if self._thread.ident is not None:
            self._thread.join()

    def _run_beside(self) -> None:
        with contextlib.suppress(OSError):
            step_back()
        self._run()

    def _run(self) -> None:
        try:
            with torch.no_grad():
                self._copy()
        except Exception as error:
            self.error = error

    def _copy(self) -> None:
        for part in self._parts:
            part.work()
        self._compare()
        if self.error is None and not all(part.match() for part in self._parts):
            self.error = WrittenTo("the copy is not what the state was at that step")
        if self.error is None:
            self._complete()

    def _compare(self) -> None:
        """Look for writes, once.

        That is before training changes anything, or when all was copied before that.
        """
        with self._lock:
            if not self._compared and write_counts(self._optimized) != self._versions:
                self.error = WrittenTo(
                    "something other than an optimizer's step wrote to the state"
                )
            self._compared = True
