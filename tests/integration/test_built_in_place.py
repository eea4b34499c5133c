"""Models that are sharded over the ranks are made anew in the same process, and restored."""

from pathlib import Path

import pytest
from support.in_place.told_cases import Told, told_in

STEPS, SAVED, AT, TARGET = 7, 2, 4, 3


def is_as_after_a_restore(found: Told, reference: Told, *, lost: str) -> None:
    """The ranks that were left have gone back to the last save, and trained on from that."""
    ranks = len(found["told"])
    again = [(step, True) for step in range(SAVED + 1, STEPS + 1)]
    for number in map(str, range(ranks - 1)):
        told = found["told"][number]
        steps = [(step, finished) for step, finished, *_ in told[:-1] if step != "built"]
        assert steps == [(1, True), (2, True), (3, True), (AT, False), *again]
        built = [each[1:] for each in told[:-1] if each[0] == "built"]
        assert built == [[ranks, 0], [ranks - 1, 0]], "what the script held has no memory"
        same = {key: told[-1][key] for key in ("digest", "lr")}
        assert same == reference["told"][number][-1]
    assert lost in found["told"] and found["told"][lost][-1] == [3, True, ranks]
    assert [standing for _, standing, _ in found["rested"][0]] == ["dirty"] * (ranks - 1)


def have_moved(found: Told, reference: Told) -> None:
    """The first rank was lost, and another one came: all others have another number in a mesh that
    is like the one before.
    """
    told, expected = found["told"], reference["told"]["0"][-1]
    assert told["0"][-1] == [3, True, len(reference["told"])]
    for rank in [*told][1:]:
        assert {key: told[rank][-1][key] for key in expected} == expected


@pytest.mark.soak
def test_a_sharded_model_is_restored_in_the_same_processes(tmp_path: Path) -> None:
    """A rank is lost in the backward pass; ranks come. All is as in plain torch, bit by bit. And
    the script of the how-to, to which a rank comes.
    """
    kinds = ("backward", "arrival", "moved", "example")
    references = ("reference-sharded", "reference-arrival", "reference-moved")
    cases = told_in(tmp_path, [*(f"built-{kind}" for kind in kinds), *references])
    have_moved(cases["built-moved"], cases["reference-moved"])
    ends = [told[-1] for told in cases["built-example"]["told"].values()]
    assert ends[0][:2] == [40, 3]
    assert ends[0] == ends[1] == ends[2]
    is_as_after_a_restore(cases["built-backward"], cases["reference-sharded"], lost="2")
    arrival, reference = cases["built-arrival"]["told"], cases["reference-arrival"]["told"]
    worlds = [[(step, world) for step, world, _ in arrival[rank][:-1]] for rank in "012"]
    kept = [(step, 2 if step <= TARGET else 3) for step in range(1, STEPS + 1)]
    assert worlds == [kept, kept, kept[TARGET:]], "no step is lost, and none made twice"
    for rank in "012":
        assert arrival[rank][-1] == reference[rank][-1]
    samples = [
        sample
        for told in arrival.values()
        for step, _, own in told[:-1]
        if step <= 4
        for sample in own
    ]
    assert sorted(samples) == list(range(24)), "an epoch's samples come once"


@pytest.mark.soak
def test_hybrid_sharding_and_tensor_parallelism_are_restored(tmp_path: Path) -> None:
    """2x2 ranks, of which one is lost; and a rank that is lost in the forward pass."""
    kinds = ("hybrid", "parallel")
    names = [f"{what}-{kind}" for kind in kinds for what in ("built", "reference")]
    names += ["built-moved-2d", "reference-moved-2d"]
    cases = told_in(tmp_path, [*names, "built-forward", "reference-sharded"])
    have_moved(cases["built-moved-2d"], cases["reference-moved-2d"])
    for kind in kinds:
        is_as_after_a_restore(cases[f"built-{kind}"], cases[f"reference-{kind}"], lost="3")
    is_as_after_a_restore(cases["built-forward"], cases["reference-sharded"], lost="2")


@pytest.mark.soak
def test_many_rounds_leave_nothing_of_earlier_models(tmp_path: Path) -> None:
    """No descriptor, thread, optimizer or tensor; and nothing is compiled again."""
    found = told_in(tmp_path, ["built-often"])["built-often"]
    assert found["rounds"] > 5
    for number in "0", "1":
        told = found["told"][number]
        descriptors, threads, optimizers, tensors, graphs = zip(
            *(each[1:6] for each in told), strict=True
        )
        assert max(descriptors[-4:]) <= min(descriptors[:5]) + 2
        assert max(threads[-4:]) <= max(threads[:5]) + 1
        assert {*optimizers} == {1}
        assert max(tensors[-4:]) <= min(tensors[:5]) + 10
        assert {*graphs} == {2}
    sums: dict[int, set[str]] = {}
    for step, *_, parameters in (each for told in found["told"].values() for each in told):
        sums.setdefault(step, set()).add(parameters)
    assert all(len(each) == 1 for each in sums.values())


@pytest.mark.soak
def test_mistakes_of_the_script_are_told_clearly(tmp_path: Path) -> None:
    cases = told_in(tmp_path, ["built-raises", "built-shapes", "built-former"])
    for number in "0", "1":
        kind, message, note = cases["built-raises"]["told"][number][-1]
        assert (kind, message) == ("KeyError", "'hidden_size'")
        assert "build=" in note
        kind, message = cases["built-shapes"]["told"][number][-1]
        assert kind == "UsageError"
        assert "build=" in message
        assert "model.0.weight is float64 [12, 6] there and float64 [12, 7] here" in message
        kind, message = cases["built-former"]["told"][number][-1]
        assert kind == "UsageError"
        assert 'state["model"]' in message
