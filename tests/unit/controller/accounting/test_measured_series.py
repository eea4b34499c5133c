"""What scripts log and GPUs do over a run's time, as a leader puts it together."""

import random
from collections.abc import Iterator
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.types import TimedValue
from support.store.memory_store import MemoryStore

from spotelastic.controller.accounting.status import Account, status
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.model.measured import GPU_MEMORY, GPU_USE, MOST, MOST_NAMES, Series, extended
from spotelastic.model.progress import GpuUse, Progress
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys

KEYS = Keys("demo")


class Run:
    """A run's keys, and the mirror that follows them."""

    def __init__(self) -> None:
        self.store = MemoryStore(lambda: 0.0)
        self.mirror = Mirror(KEYS, lambda: None)

    def logs(self, node: str, at: float, **values: float | None) -> None:
        told = {name: TimedValue(at, value) for name, value in values.items()}
        self.store.put(KEYS.progress(node), encode(Progress(node, 1, 1, at, logged=told)))

    def uses(self, node: str, at: float, busy: float, memory: int) -> None:
        use = GpuUse(8, busy, memory, 100)
        self.store.put(KEYS.progress(node), encode(Progress(node, 1, 1, at, gpu=use)))

    def series(self, name: str) -> list[tuple[float, float | None]]:
        return [(at, value) for at, value in self.mirror.records().measured[name]]


@pytest.fixture
def run() -> Iterator[Run]:
    run = Run()
    watch = run.store.watch(KEYS.root, run.mirror)
    yield run
    watch.close()
    run.store.close()


def test_logged_values_go_on_from_what_the_leader_before_wrote(run: Run) -> None:
    run.logs("a", 10.0, lr=0.5, norm=None)
    run.logs("a", 10.0, lr=0.5, norm=None)  # told with each report until there is a newer one
    run.logs("b", 9.0)
    run.store.delete(KEYS.progress("a"))
    run.logs("b", 30.0, lr=0.25)
    run.mirror.remember([], {"lr": (TimedValue(5.0, 1.0), TimedValue(10.0, 0.5)), "none": ()})
    assert run.series("lr") == [(5.0, 1.0), (10.0, 0.5), (30.0, 0.25)]
    assert run.series("norm") == [(10.0, None)]
    told = status("demo", Account(run.mirror.records(), {}), "", 31.0)
    assert told.logged == {"lr": 0.25, "norm": None}


def test_scripts_that_log_ever_other_names_fill_no_bucket(run: Run) -> None:
    for number in range(MOST_NAMES + 10):
        run.logs("a", 10.0 + number, **{f"lr{number}": 0.5, "lr": number})
    assert len(run.mirror.records().measured) == MOST_NAMES
    assert run.series("lr")[-1] == (19.0 + MOST_NAMES, MOST_NAMES + 9.0)


def test_gpus_are_the_mean_of_the_nodes_that_are_there(run: Run) -> None:
    run.uses("a", 10.0, 0.5, 20)
    run.uses("b", 10.1, 1.0, 60)  # so soon that it counts with the next
    run.uses("a", 20.0, 0.6, 20)
    run.store.delete(KEYS.progress("a"))
    run.uses("b", 40.0, 0.9, 50)
    run.logs("c", 60.0)  # it has no GPU
    assert run.series(GPU_USE) == [(10.0, 50.0), (20.0, 80.0), (40.0, 90.0)]
    assert run.series(GPU_MEMORY) == [(10.0, 20.0), (20.0, 40.0), (40.0, 50.0)]
    assert status("demo", Account(run.mirror.records(), {}), "", 61.0).logged == {}


@given(st.integers(0, 2000), st.integers())
def test_a_series_of_any_length_is_short_and_covers_its_time(length: int, seed: int) -> None:
    dice = random.Random(seed)
    kinds = dice.sample((0.01, 0.3, 10.0, 500.0), k=dice.randint(1, 4))
    gaps = [dice.uniform(0.5, 1.0) * dice.choice(kinds) for _ in range(length)]
    times = [1e9 + at for at in accumulate(gaps)]
    series: Series = ()
    for at in times:
        series = extended(series, TimedValue(at, 1.0))
        if dice.random() < 0.1:
            assert extended(series, TimedValue(dice.uniform(0.0, at), -1.0)) == series, "too late"
    kept = [at for at, _ in series]
    assert kept == sorted(set(kept)) and set(kept) <= set(times) and len(kept) <= MOST
    if times:
        assert (kept[0], kept[-1]) == (times[0], times[-1])
        allowed = 16 * (times[-1] - times[0]) / MOST + 4 * max(gaps)
        assert all(b - a <= allowed for a, b in pairwise(kept))
    if length <= 10 and len(kinds) == 1:
        assert kept == times, "few are all kept"
