"""How much of a step a rank works and how much it waits, from what torch has on record."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.memory.worker_page import WorkerPage

from spotelastic.training.runtime.own_time import (
    Measuring,
    OwnTimeMeter,
    StepTimes,
    own_time,
    period,
)

MS = 1_000_000


def gloo(at: int) -> dict[str, Any]:
    return {"profiling_name": "gloo:all_reduce", "time_created_ns": at * MS, "is_p2p": False}


def nccl(at: int, took: float | None) -> dict[str, Any]:
    name = {"profiling_name": "nccl:all_reduce", "is_p2p": False}
    return {**name, "time_created_ns": at * MS, "duration_ms": took}


def step(begin: int, end: int, waited: int = 0, *optimizers: tuple[int, int]) -> StepTimes:
    told = tuple((at * MS, before * MS) for at, before in optimizers)
    return StepTimes(begin * MS, end * MS, waited * MS, told)


def spent(steps: list[StepTimes], entries: list[dict[str, Any]]) -> tuple[float, float] | None:
    """Milliseconds of own time, and of waiting."""
    found = own_time(steps, entries)
    return None if found is None else (found.own * 1000, found.waiting * 1000)


def test_ddp_waits_from_its_last_collective_to_the_optimizers_step() -> None:
    entries = [gloo(1), gloo(30), gloo(40)]
    assert spent([step(2, 100, 0, (90, 0))], entries) == pytest.approx((48.0, 50.0))


def test_what_python_has_waited_for_is_not_counted_twice() -> None:
    """FSDP waits in Python for its last collective, too."""
    entries = [gloo(1), gloo(30), gloo(40)]
    assert spent([step(2, 100, 20, (90, 41))], entries) == pytest.approx((78.0, 20.0))


def test_each_of_several_optimizers_has_its_own_wait() -> None:
    entries = [gloo(1), gloo(10), gloo(60)]
    times = step(2, 100, 0, (30, 0), (40, 0), (70, 0))
    assert spent([times], entries) == pytest.approx((68.0, 30.0))


def test_steps_that_the_record_no_longer_has_do_not_count() -> None:
    entries = [gloo(100), gloo(140)]
    steps = [step(0, 90, 0, (80, 0)), step(101, 200, 0, (180, 0))]
    assert spent(steps, entries) == pytest.approx((59.0, 40.0))
    assert spent(steps[:1], entries) is None


def test_on_a_gpu_the_collectives_own_times_count() -> None:
    entries = [nccl(1, 5.0), nccl(10, 30.0), nccl(50, 10.0), nccl(101, 30.0), nccl(150, 10.0)]
    steps = [step(2, 100), step(100, 200)]
    assert spent(steps, entries) == pytest.approx((59.0, 40.0))


def test_collectives_that_are_not_timed_yet_end_what_is_known() -> None:
    entries = [nccl(1, 5.0), nccl(10, 30.0), nccl(101, None), nccl(150, 10.0)]
    assert spent([step(2, 100), step(100, 200)], entries) == pytest.approx((68.0, 30.0))
    untimed = [nccl(1, None), nccl(10, None)]
    assert spent([step(2, 100)], untimed) is None, "timing is off"


def test_nothing_is_said_without_a_record_or_of_pipelines() -> None:
    assert spent([step(2, 100)], []) is None
    assert spent([step(2, 100)], [gloo(1), {**gloo(10), "is_p2p": True}]) is None


@given(st.floats(1e-5, 1e4), st.floats(0.98, 1.02), st.floats(0.1, 600.0))
def test_ranks_measure_at_common_steps(step_time: float, differs: float, every: float) -> None:
    """Also where their steps seem to take a little longer or shorter."""
    mine, theirs = period(step_time, every), period(step_time * differs, every)
    assert mine.bit_count() == 1 and mine >= 4
    assert max(mine, theirs) % min(mine, theirs) == 0
    assert mine * step_time >= every * 0.99 or mine == 4


# -- the meter ------------------------------------------------------------------------------------


class Rank:
    """A rank whose steps take ten milliseconds, of which it works six."""

    def __init__(self, folder: Path, *, hooks: bool = True) -> None:
        self.hooks = hooks
        self.page = WorkerPage(folder / "page")
        self.page.reset("r1", 0)
        self.now, self.step = 1000, 0
        self.entries: list[dict[str, Any]] = [gloo(999)]
        self.reads: list[int] = []
        self.meter = OwnTimeMeter(self.page, 0.1, self.record, lambda: self.now * MS)

    def record(self) -> list[dict[str, Any]]:
        self.reads.append(self.step)
        return self.entries

    def trains(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            self.meter.step_begins()
            self.now += 4
            self.entries.append(gloo(self.now))
            self.now += 4
            if self.hooks:
                self.meter.optimizer_begins()
            self.now += 2
            self.meter.step_ends(self.step)
            self.now += 5  # a save


def test_a_rank_publishes_its_own_time_now_and_then(tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.trains(7)
    assert rank.page.read(0).measured == 0 and rank.reads == []
    rank.trains(57)
    assert rank.reads == [16, 24, 32, 40, 48, 56, 64], "at steps that all ranks have in common"
    read = rank.page.read(0)
    assert read.measured == 7
    assert (read.own_time, read.waiting_time) == pytest.approx((0.006, 0.004), rel=0.01)


def test_an_optimizer_of_another_library_hides_no_wait(tmp_path: Path) -> None:
    """It calls no hook of torch's, and what it takes counts as waiting for all ranks alike."""
    rank = Rank(tmp_path, hooks=False)
    rank.trains(64)
    read = rank.page.read(0)
    assert (read.own_time, read.waiting_time) == pytest.approx((0.004, 0.006), rel=0.01)


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[tuple[Measuring, list[int]]]:
    """Measures with a record that cannot be read. Tells how often that was tried."""
    tries: list[int] = []

    def record() -> list[dict[str, Any]]:
        tries.append(1)
        raise KeyError("profiling_name")

    page = WorkerPage(tmp_path / "page")
    page.reset("r1", 0)
    measuring = Measuring(OwnTimeMeter(page, 1e-9, record), on_gpu=False)
    yield measuring, tries
    measuring.close()


def test_what_goes_wrong_ends_the_measuring_and_not_the_script(
    measured: tuple[Measuring, list[int]],
) -> None:
    measuring, tries = measured
    for number in range(1, 100):
        measuring.step_begins()
        measuring.step_ends(number)
    assert tries == [1]


@pytest.mark.parametrize("hook_first", [True, False])
def test_a_vote_is_a_wait_besides_that_of_ddp(tmp_path: Path, hook_first: bool) -> None:
    """Its optimizer's hook is called first or later, depending on how the round was entered."""
    page, entries, now = WorkerPage(tmp_path / "page"), [gloo(1)], [100]
    page.reset("r1", 0)
    measuring = Measuring(
        meter := OwnTimeMeter(page, 1e-9, lambda: entries, lambda: now[0] * MS), on_gpu=False
    )
    for number in range(1, 13):
        measuring.step_begins()
        entries.append(gloo(now[0] + 10))
        now[0] += 40
        if hook_first:
            meter.optimizer_begins()
        with measuring.voting():
            now[0] += 20
        if not hook_first:
            meter.optimizer_begins()
        now[0] += 5
        measuring.step_ends(number)
    measuring.close()
    found = page.read(0)
    assert (found.own_time, found.waiting_time) == pytest.approx((0.015, 0.05), rel=0.01)
