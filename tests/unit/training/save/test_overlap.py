"""Copies beside training: what is copied so, who waits for it, and how a write to it is found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, current_thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support.processes.patience import PATIENT
from support.training.large_model import held
from torch import nn

from spotelastic.training.save import overlap
from spotelastic.training.save.overlap import (
    SAMPLE,
    SIZES,
    Copying,
    FromDevice,
    InMemory,
    Overlap,
    WrittenTo,
    samples_of,
)
from spotelastic.training.state.optimizers.optimizer_state import changed_by_steps

BLOCK, LEAST = SIZES.block, SIZES.least
SIDE = 700
"""Of a matrix: neither a whole number of blocks nor of pieces."""


class Run:
    """Three matrices that an optimizer has, and what is copied of them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.tensors = [nn.Parameter(torch.rand(SIDE, SIDE)) for _ in range(3)]
        self.optimizer = torch.optim.SGD(self.tensors, lr=0.1)
        self.before = [tensor.detach().clone() for tensor in self.tensors]
        self.copies = [torch.zeros(SIDE, SIDE) for _ in self.tensors]
        self.sealed = Event()

    def begin(self, seal: Callable[[], None] | None = None) -> Copying:
        sources = [tensor.detach() for tensor in self.tensors]
        found = Overlap(sources, tuple(changed_by_steps(self.optimizer)))
        assert found.at == (0, 1, 2)
        views = {number: samples_of(copy) for number, copy in enumerate(self.copies)}
        return found.begin(self.copies, views, seal or self.sealed.set)

    def is_as_before(self) -> bool:
        return all(map(torch.equal, self.copies, self.before))

    def step(self) -> None:
        for tensor in self.tensors:
            tensor.grad = torch.ones_like(tensor)
        self.optimizer.step()


def deferred(tensors: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> tuple[int, ...]:
    return Overlap(tensors, tuple(changed_by_steps(optimizer))).at


def test_only_what_an_optimizer_has_is_copied_beside_training() -> None:
    large, small = nn.Parameter(torch.zeros(LEAST)), nn.Parameter(torch.zeros(BLOCK // 4 - 1))
    across = nn.Parameter(torch.zeros(SIDE, SIDE).t())
    optimizer = torch.optim.Adam([large, small, across])
    large.grad = torch.ones_like(large)
    optimizer.step()
    state = optimizer.state[large]
    elsewhere = torch.zeros(LEAST)
    tensors = [elsewhere, small.detach(), across.detach(), large.detach(), large.detach()[7:]]
    tensors += [state["exp_avg"], state["exp_avg_sq"], state["step"]]
    assert deferred(tensors, optimizer) == (3, 4, 5, 6)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.float64, torch.complex64]
)
def test_samples_are_the_first_bytes_of_each_whole_block(dtype: torch.dtype) -> None:
    """Also of a tensor that is a part of another."""
    tensor = torch.randint(0, 2, (SIDE, SIDE)).to(dtype)[5:]
    blocks = tensor.nbytes // BLOCK
    data = tensor.clone().view(-1).view(torch.uint8)[: blocks * BLOCK]
    assert torch.equal(samples_of(tensor), data.view(blocks, BLOCK)[:, :SAMPLE])


def test_what_is_small_as_a_whole_is_copied_at_once() -> None:
    tensor = nn.Parameter(torch.zeros(BLOCK // 4))
    assert deferred([tensor.detach()], torch.optim.SGD([tensor])) == ()


class Unasked(torch.optim.SGD):
    """Whose constructor is its own, so that torch calls none of its hooks."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.param_groups, self.state = [{"params": parameters}], {}  # type: ignore[assignment]

    def step(self, closure: Any = None) -> Any:
        pass


def test_optimizers_whose_steps_tell_nobody_are_waited_for() -> None:
    tensor = nn.Parameter(torch.zeros(LEAST))
    captured = torch.optim.Adam([tensor], capturable=True)
    assert deferred([tensor.detach()], captured) == ()
    assert deferred([tensor.detach()], Unasked([tensor])) == ()


def test_the_copy_is_of_its_moment_whatever_training_does_once_it_is_let_go_on() -> None:
    run = Run()
    copying = run.begin()
    copying.guard()
    run.step()
    copying.settle()
    assert copying.error is None and run.sealed.is_set() and run.is_as_before()
    assert copying.effort > 0


def test_a_step_waits_for_a_copy_that_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = Run(), Event()

    def step() -> None:
        asked.set()
        copying.guard()
        run.step()

    with held(monkeypatch) as copy:
        copying = run.begin()
        assert copy.begun.wait(PATIENT)
        stepping = Thread(target=step)
        stepping.start()
        assert asked.wait(PATIENT)
        stepping.join(0.2)  # more than a step takes
        assert all(map(torch.equal, run.tensors, run.before))
        copy.go_on.set()
        stepping.join(PATIENT)
    copying.settle()
    assert copying.error is None and run.is_as_before()
    assert not any(map(torch.equal, run.tensors, run.before))


@contextmanager
def written_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Run, Copying]]:
    """While the copy is held; it fails after that, and seals nothing."""
    run = Run()
    with held(monkeypatch) as copy:
        copying = run.begin()
        yield run, copying
        copy.go_on.set()
        copying.settle()
    assert isinstance(copying.error, WrittenTo)
    assert not run.sealed.is_set()


def test_what_torch_counts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with written_to(monkeypatch) as (run, _), torch.no_grad():
        run.tensors[1][3, 4] += 1.0


def test_what_an_optimizer_changes_unasked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose step was compiled."""
    with written_to(monkeypatch) as (run, _):
        run.step()


@pytest.mark.parametrize("number", range(3))
def test_what_torch_does_not_count_is_found(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with written_to(monkeypatch) as (run, _):
        versions = [tensor._version for tensor in run.tensors]
        run.tensors[number].data.mul_(1.5)
        assert [tensor._version for tensor in run.tensors] == versions


def test_what_is_put_back_before_the_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As averaged weights are, that a model is evaluated with."""
    run = Run()
    with held(monkeypatch) as copy:
        copying = run.begin()
        for tensor in run.tensors:
            tensor.data.neg_()
        copy.go_on.set()
        copying.settle()
        for tensor in run.tensors:
            tensor.data.neg_()
        copying.guard()
    assert isinstance(copying.error, WrittenTo)


def test_what_is_written_once_all_is_copied_does_no_harm() -> None:
    run = Run()
    copying = run.begin()
    copying.settle()
    with torch.no_grad():
        run.tensors[0].zero_()
    copying.guard()
    assert copying.error is None and run.sealed.is_set() and run.is_as_before()


def test_a_slot_that_cannot_be_sealed_is_told() -> None:
    def fails() -> None:
        raise OSError("no")

    copying = Run().begin(fails)
    copying.settle()
    assert str(copying.error) == "no"


def test_who_is_interrupted_while_it_takes_a_hand_leaves_no_save_and_no_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By Ctrl-C, which comes between any two instructions of the main thread."""
    run = Run()
    with held(monkeypatch) as copy:
        copying = run.begin()
        hold = overlap.move_bytes

        def interrupted(*arguments: int) -> None:
            if current_thread().name != "snapshot":
                raise KeyboardInterrupt
            hold(*arguments)

        monkeypatch.setattr(overlap, "move_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            copying.guard()
        copy.go_on.set()
        copying.settle()
    assert str(copying.error) == "the copy was interrupted"
    assert not run.sealed.is_set()


def test_what_a_broken_device_raises_is_told_and_ends_nothing() -> None:
    class Broken:
        effort = 0.0

        def guard(self) -> None:
            pass

        def work(self) -> None:
            raise RuntimeError("CUDA error")

        def match(self) -> bool:
            return True

    copying = Copying([cast(InMemory, Broken())], (), pytest.fail)
    copying.settle()
    assert str(copying.error) == "CUDA error"


def test_where_no_thread_can_be_started_training_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", fails)
    run = Run()
    copying = run.begin()
    assert copying.is_over and run.sealed.is_set() and run.is_as_before()
    copying.guard()
    copying.settle()
    assert copying.error is None


class Device:
    """Notes, in order, what a GPU's streams would have been told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def current_stream(self, _: torch.device) -> Any:
        return SimpleNamespace(wait_event=lambda event: self.told.append(f"training waits {event}"))

    def Stream(self, _: torch.device) -> Any:
        return SimpleNamespace(wait_stream=lambda _: self.told.append("copy waits for training"))

    @contextmanager
    def stream(self, _: Any) -> Iterator[None]:
        self.told.append("(")
        yield
        self.told.append(")")

    def Event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        return Noted(self.told, f"event {sum(t.startswith('event') for t in self.told)}")


class Noted:
    def __init__(self, told: list[str], name: str) -> None:
        self._told, self._name = told, name

    def __str__(self) -> str:
        return self._name

    def record(self, _: Any) -> None:
        self._told.append(self._name)

    def synchronize(self) -> None:
        self._told.append(f"host waits {self._name}")

    def elapsed_time(self, _: Any) -> float:
        return 1500.0


def test_a_gpu_copies_on_a_stream_of_its_own_and_only_its_streams_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    monkeypatch.setattr(torch, "get_device_module", lambda _: device)
    source, target = torch.rand(10), torch.zeros(10)
    copy = FromDevice(torch.device("cuda", 0), [target], [source], lambda: True)
    assert torch.equal(source, target)
    copy.guard()
    copy.work()
    assert copy.match()
    assert copy.effort == 1.5
    assert device.told == [
        "copy waits for training", "(", "event 0", "event 1", ")",
        "training waits event 1", "host waits event 1", "(", ")",
    ]  # fmt: skip
