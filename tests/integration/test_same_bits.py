"""Virtual ranks: a run has the same bits for any number of ranks, whatever happens to these."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.draws import soaked
from support.in_place.resting_drawn import KILLED, RANKS, VIRTUAL, flipped_kind
from support.in_place.told_cases import Told, told_in
from support.processes.patience import DRAWN_WITHIN
from support.processes.warm_python import WarmPython
from support.training.virtual_loops import KINDS, Throttled

Run = tuple[str, int, int, str]
"""Kind, number of ranks, pieces that a rank has computed, and digest and losses."""


def trained(
    folder: Path, python: WarmPython, kinds: Sequence[str], worlds: Sequence[int]
) -> list[Run]:
    script = "-m", "support.scripts.virtual_ranks"
    told = python.run(*script, folder, ",".join(kinds), *map(str, worlds))
    assert told.returncode == 0, told.stderr
    found = list[Run]()
    for line in told.stdout.splitlines():
        name, world, computed, digest_and_losses = line.split(" ", 3)
        found.append((name, int(world), int(computed), digest_and_losses))
    ran = [(name, world) for name, world, *_ in found]
    assert sorted(ran) == sorted(
        (k, world) for k in kinds for world in worlds for _ in range(world)
    )
    return found


@pytest.mark.parametrize("worlds", [(1, 3), *soaked([(1, 2, 4, 7)])])
def test_any_number_of_ranks_computes_the_same_bits(
    tmp_path: Path, warm_torch: WarmPython, worlds: tuple[int, ...]
) -> None:
    """With dropout, batch norms, layers that some samples leave out, augmentation in a loader's
    workers, clipping, a scaler, and an epoch's small last batch. There are six virtual ranks.
    """
    found = defaultdict[str, set[str]](set)
    for name, _, _, digest in trained(tmp_path, warm_torch, [*KINDS], worlds):
        found[name].add(digest)
    assert {name: len(each) for name, each in found.items()} == dict.fromkeys(KINDS, 1)
    assert found["Virtual"] == found["Wrapped"] == found["WrappedWithoutNoSync"]


@pytest.mark.soak
def test_slow_ranks_compute_fewer_pieces_and_the_bits_stay(
    tmp_path: Path, warm_torch: WarmPython
) -> None:
    found = trained(tmp_path, warm_torch, [Throttled.__name__], (1, 3))
    assert len({digest for *_, digest in found}) == 1
    computed = [pieces for _, world, pieces, _ in found if world == 3]
    assert max(computed) > 1.5 * min(computed)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """What each kind comes to in one process to which nothing happens."""
    names = [f"virtual-alone-{number}" for number in range(len(VIRTUAL))]
    found = told_in(tmp_path_factory.mktemp("alone"), names)
    return [found[name]["told"]["0"][-1]["parameters"] for name in names]


@pytest.mark.soak
@pytest.mark.timeout(DRAWN_WITHIN + 20)
@pytest.mark.parametrize("seed", range(8))
def test_losses_and_planned_changes_at_any_moment_change_no_bit(
    alone: list[Told], tmp_path: Path, seed: int
) -> None:
    case = f"virtual-{seed}"
    found = told_in(tmp_path, [case], DRAWN_WITHIN)[case]
    ended = parameters(found)
    assert len(ended) >= RANKS - KILLED
    assert all(each == alone[seed % len(VIRTUAL)] for each in ended)
    assert not [each for each in found["heard"] if "made twice" in each]


@pytest.mark.parametrize("worlds", [(1, 3), *soaked([(2, 4)])])
def test_a_guarded_run_ends_as_one_whose_data_lack_the_bad_batches(
    tmp_path: Path, warm_torch: WarmPython, worlds: tuple[int, ...]
) -> None:
    """Three of them come in a row, so that the run goes back, and leaves them out."""
    found = trained(tmp_path, warm_torch, ["Poisoned", "LeavesOut"], worlds)
    assert len({digest.split()[0] for *_, digest in found}) == 1  # their losses differ


@pytest.mark.soak
@pytest.mark.timeout(DRAWN_WITHIN + 20)
@pytest.mark.parametrize("seed", range(5))
def test_a_guarded_run_does_so_through_losses_and_planned_changes(
    tmp_path: Path, seed: int
) -> None:
    """With a seed of 0 nothing happens but what the guard does."""
    names = ["left-out-alone", f"guarded-{seed}"]
    found = told_in(tmp_path, names, DRAWN_WITHIN)
    [expected], ended = (parameters(found[name]) for name in names)
    assert len(ended) >= RANKS - KILLED
    assert all(each == expected for each in ended)
    told = "\n".join(found[names[1]]["heard"])
    assert "NaN or infinite" in told
    assert "goes back to a save" in told


@pytest.mark.soak
@pytest.mark.timeout(DRAWN_WITHIN + 20)
@pytest.mark.parametrize("seed", range(9))
def test_a_rank_with_a_flipped_bit_is_named_and_what_it_did_is_undone(
    alone: list[Told], tmp_path: Path, seed: int
) -> None:
    """In a gradient, a weight or a moment, by turns."""
    case, kind = f"flipped-{seed}", flipped_kind(seed)
    found = told_in(tmp_path, [case], DRAWN_WITHIN)[case]
    ended = parameters(found)
    assert len(ended) == 3
    assert all(each == alone[0] for each in ended)
    told = [each for each in found["heard"] if each.startswith(("sick:", "different:"))]
    assert sorted(each.partition(":")[0] for each in told) == ["different", "sick"]
    assert all(f"rank {kind.rank} " in each for each in told)
    assert kind.audits > 1 or all(f"step {kind.at}" in each for each in told)


def parameters(found: Told) -> list[Told]:
    """What those ranks came to that were there at the end."""
    last = [told[-1] for told in found["told"].values() if told]
    return [each["parameters"] for each in last if isinstance(each, dict)]
