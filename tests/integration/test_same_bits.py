"""Virtual ranks: a run has the same bits for any number of ranks, whatever happens to these."""

from collections import defaultdict
from pathlib import Path

import pytest
from support.draws import soaked
from support.in_place.resting_drawn import KILLED, RANKS, VIRTUAL
from support.in_place.told_cases import Told, told_in
from support.processes.warm_python import WarmPython
from support.training.virtual_loops import KINDS


@pytest.mark.parametrize("worlds", [(1, 3), *soaked([(1, 2, 4, 7)])])
def test_any_number_of_ranks_computes_the_same_bits(
    tmp_path: Path, warm_torch: WarmPython, worlds: tuple[int, ...]
) -> None:
    """With dropout, batch norms, layers that some samples leave out, augmentation in a loader's
    workers, clipping, a scaler, and an epoch's small last batch. There are six virtual ranks.
    """
    told = warm_torch.run("-m", "support.scripts.virtual_ranks", tmp_path, *map(str, worlds))
    assert told.returncode == 0, told.stderr
    found, ran = defaultdict(set), defaultdict(list)
    shares = defaultdict(list)
    for line in told.stdout.splitlines():
        name, world, computed, digest_and_losses = line.split(" ", 3)
        found[name].add(digest_and_losses)
        ran[name].append(int(world))
        shares[name, int(world)].append(int(computed))
    assert ran == {name: [n for n in worlds for _ in range(n)] for name in KINDS}
    assert {name: len(each) for name, each in found.items()} == dict.fromkeys(KINDS, 1)
    assert found["Virtual"] == found["Wrapped"] == found["WrappedWithoutNoSync"]
    for world in set(worlds) & {2, 3}:  # the slow ones have been given less, once that was seen
        computed = shares["Throttled", world]
        assert max(computed) > 1.5 * min(computed)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """What each kind comes to in one process to which nothing happens."""
    names = [f"virtual-alone-{number}" for number in range(len(VIRTUAL))]
    found = told_in(tmp_path_factory.mktemp("alone"), names)
    return [found[name]["told"]["0"][-1]["parameters"] for name in names]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_losses_and_planned_changes_at_any_moment_change_no_bit(
    alone: list[Told], tmp_path: Path, seed: int
) -> None:
    case = f"virtual-{seed}"
    found = told_in(tmp_path, [case])[case]
    last = [told[-1] for told in found["told"].values() if told]
    ended = [each["parameters"] for each in last if isinstance(each, dict)]
    assert len(ended) >= RANKS - KILLED
    assert all(parameters == alone[seed % len(VIRTUAL)] for parameters in ended)
    assert not [each for each in found["heard"] if "made twice" in each]
