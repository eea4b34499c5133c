"""Copies into a slot while training goes on: forward and backward only read what optimizers change.

Must never happen: a slot is sealed with something in it that training wrote after the save's step.
Three things prevent it.

1. Only tensors that an optimizer of the state has are copied so, and every optimizer's step waits
   until they are: a hook of torch's, which comes before anything changes.
2. torch counts what is written into a tensor in place. Counts that moved before the copy was done
   tell of writers that called no hook.
3. Not everything is counted: `.data`, kernels that were handed an address, a CUDA graph that is
   replayed. So a few bytes of each block are taken at the save's step, and looked up in the slot
   before it is sealed.

A slot that fails is not sealed, and the run copies no other save so.
"""

import contextlib
import ctypes
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from spotelastic.training.state.derived import storage_of
from spotelastic.training.state.tensors import is_raw

BLOCK, SAMPLE = 64 << 10, 64
"""Bytes: so many are looked at of so many."""
LEAST = 1 << 20
"""Bytes; less is copied sooner than a thread begins."""
PIECE = 4 << 20
"""Bytes, copied at once: who waits for the copy takes a hand in it, a piece at a time."""
NICENESS = 10
"""Training goes first."""
_DEVICES = ("cpu", "cuda")
_move = ctypes.memmove


class WrittenTo(Exception):
    """The state changed before the copy of it was done; the message says how that is known."""


def samples_of(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the first bytes of each whole block; the tensor is contiguous."""
    flat = tensor.view(-1).view(torch.uint8)
    shape = tensor.nbytes // BLOCK, SAMPLE
    return flat.as_strided(shape, (BLOCK, 1), flat.storage_offset())


class Samples:
    """Of tensors on one device, as they are at one moment."""

    def __init__(self, views: list[torch.Tensor]) -> None:
        self._views = views
        self._taken, self._parts = _buffer(views, views[0].device)
        self._found, self._found_parts = _buffer(views, torch.device("cpu"))

    def take(self) -> None:
        torch._foreach_copy_(self._parts, self._views)

    def match(self, copies: list[torch.Tensor]) -> bool:
        """Whether the copies, given by views like ours, are of that moment."""
        torch._foreach_copy_(self._found_parts, copies)
        return torch.equal(self._found, self._taken.cpu())


def _buffer(
    views: Sequence[torch.Tensor], device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    sizes = [view.numel() for view in views]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    parts = torch.split(buffer, sizes)
    return buffer, [part.view(view.shape) for part, view in zip(parts, views, strict=True)]


class DeviceCopy(Protocol):
    """One device's share of a copy that is on its way."""

    def guard(self) -> None:
        """Called by the thread that trains: what it does after this, the copy does not see."""

    def work(self) -> None:
        """Called beside training. Returns when all is there."""

    def match(self) -> bool:
        """Whether it is what there was when the copy began."""

    @property
    def effort(self) -> float:
        """Seconds that this takes alone."""


class InMemory:
    """A copy from memory to memory, by whoever has time."""

    def __init__(
        self,
        targets: Sequence[torch.Tensor],
        sources: Sequence[torch.Tensor],
        match: Callable[[], bool],
    ) -> None:
        self._held = targets, sources  # what lies at the addresses
        pieces = [*_pieces(targets, sources)]
        self._pieces, self._left = iter(pieces), len(pieces)
        self._lock, self._done = threading.Lock(), threading.Event()
        self._match = match
        self._interrupted = False
        """Some piece may not have been copied."""
        self.effort = 0.0

    def guard(self) -> None:
        self.work()

    def work(self) -> None:
        try:
            for target, source, size in self._pieces:  # each goes to one of the threads
                if self._interrupted:
                    break
                self._piece(target, source, size)
        except BaseException:  # Ctrl-C comes anywhere
            self._interrupted = True
            self._done.set()
            raise
        self._done.wait()
        if self._interrupted:
            raise RuntimeError("the copy was interrupted")

    def _piece(self, target: int, source: int, size: int) -> None:
        begun = time.thread_time()
        _move(target, source, size)
        with self._lock:
            self.effort += time.thread_time() - begun
            self._left -= 1
            if not self._left:
                self._done.set()

    def match(self) -> bool:
        return self._match()


def _pieces(
    targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> Iterator[tuple[int, int, int]]:
    """Addresses and sizes. torch's own copies would start threads of their own."""
    for target, source in zip(targets, sources, strict=True):
        to, of = target.data_ptr(), source.data_ptr()
        for start in range(0, source.nbytes, PIECE):
            yield to + start, of + start, min(PIECE, source.nbytes - start)


class FromDevice:
    """A copy by a GPU's copy engine, on a stream of its own; nothing waits on the host."""

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
            torch._foreach_copy_(targets, sources, non_blocking=True)
            self._done = self._event()

    def _event(self) -> Any:
        event = self._module.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def guard(self) -> None:
        self._module.current_stream(self._device).wait_event(self._done)

    def work(self) -> None:
        self._done.synchronize()

    def match(self) -> bool:
        # Not on the stream that trains, which may have much to do by now.
        with self._module.stream(self._stream):
            return self._match()

    @property
    def effort(self) -> float:
        milliseconds: float = self._begun.elapsed_time(self._done)
        return milliseconds / 1000


class Overlap:
    """What of a source may be copied beside training; `at`: which of its tensors."""

    def __init__(
        self, tensors: Sequence[torch.Tensor], optimized: Collection[torch.Tensor]
    ) -> None:
        self._optimized = optimized
        self._groups: dict[torch.device, list[int]] = defaultdict(list)
        self.at = _deferrable(tensors, optimized)
        for number in self.at:
            self._groups[tensors[number].device].append(number)
        self._tensors = tensors
        self._samples = {
            device: Samples([samples_of(tensors[number]) for number in numbers])
            for device, numbers in self._groups.items()
        }

    def begin(
        self,
        targets: Sequence[torch.Tensor],
        samples: Mapping[int, torch.Tensor],
        complete: Callable[[], None],
    ) -> "Copying":
        """Into a slot's tensors, of which `samples` are views by number; `complete` seals it, from
        another thread."""
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
    tensors: Sequence[torch.Tensor], optimized: Collection[torch.Tensor]
) -> tuple[int, ...]:
    storages = set(map(storage_of, optimized)) - {0}
    found = [
        number
        for number, tensor in enumerate(tensors)
        if tensor.nbytes >= BLOCK
        and tensor.device.type in _DEVICES
        and is_raw(tensor)
        and storage_of(tensor) in storages
    ]
    return tuple(found) if sum(tensors[number].nbytes for number in found) >= LEAST else ()


class Copying:
    """A save that is on its way into its slot."""

    def __init__(
        self,
        parts: Sequence[DeviceCopy],
        optimized: Collection[torch.Tensor],
        complete: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._optimized = optimized
        self._versions = _versions(optimized)
        self._compared, self._lock = False, threading.Lock()
        self._complete = complete
        self.error: Exception | None = None
        """Why it is not sealed, once it has settled."""
        self._passed = False
        self._thread = threading.Thread(target=self._run_beside, name="snapshot", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no further thread is to be had: training waits
            self._run()

    @property
    def is_over(self) -> bool:
        """Sealed, or failed."""
        return not self._thread.is_alive()

    @property
    def effort(self) -> float:
        """Seconds that the copy takes alone, which training would have waited."""
        return sum(part.effort for part in self._parts)

    def guard(self) -> None:
        """Before the thread that trains changes anything."""
        if self._passed:
            return
        for part in self._parts:
            part.guard()
        self._compare()
        self._passed = True

    def settle(self) -> None:
        """Until it is sealed, or has failed."""
        with contextlib.suppress(Exception):  # which is the other thread's, too
            for part in self._parts:
                part.work()
        if self._thread.ident is not None:
            self._thread.join()

    def _run_beside(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
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
            self.error = WrittenTo("what was copied of it is not what it was at that step")
        if self.error is None:
            self._complete()

    def _compare(self) -> None:
        """Once: before training goes on to change something, or when all was copied before that."""
        with self._lock:
            if not self._compared and _versions(self._optimized) != self._versions:
                self.error = WrittenTo("something wrote to it that is no step of an optimizer")
            self._compared = True


def _versions(tensors: Collection[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]
