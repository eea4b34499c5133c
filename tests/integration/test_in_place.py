"""Workers outlive a round: ranks are lost at each place of a step, and nothing of it is left."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
STEPS, AT = 6, 3

Told = dict[str, Any]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """What workers have told in each case. All run from one process that has imported torch."""
    folder = tmp_path_factory.mktemp("cases")
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.resting_cases", folder],
        cwd=TESTS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=220,
    )
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


def steps_of(told: list[Any]) -> list[tuple[int, bool]]:
    return [(number, finished) for number, finished, *_ in told[:-1]]


AGAIN = [(1, True), (2, True), (3, False), *((step, True) for step in range(3, STEPS + 1))]
LATER = [*((step, True) for step in range(1, 4)), (4, False), *((s, True) for s in range(4, 7))]
ON = [(step, True) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("place", ["forward", "backward", "frozen"])
def test_a_step_in_which_a_rank_is_lost_is_made_again(cases: dict[str, Told], place: str) -> None:
    found = cases[place]
    for number in "0", "1":
        assert steps_of(found["told"][number]) == AGAIN
        assert found["told"][number][-1] == cases["reference-2"]["told"][number][-1]
    assert [standing[:2] for standing in found["rested"][0]] == [[2, "clean"]] * 2
    if place == "backward":  # nobody has asked them
        assert all("loo" in broken or "peer" in broken for *_, broken in found["rested"][0])


def test_gradients_that_all_have_are_not_lost(cases: dict[str, Told]) -> None:
    found = cases["before-vote"]
    assert [standing[:2] for standing in found["rested"][0]] == [[2, "pending"]] * 2
    for number in "0", "1":
        assert steps_of(found["told"][number]) == ON
        assert found["told"][number][-1] == cases["reference-3"]["told"][number][-1]


@pytest.mark.parametrize("place", ["after-vote", "after-step"])
def test_a_rank_that_is_lost_after_the_vote_has_given_its_gradients(
    cases: dict[str, Told], place: str
) -> None:
    for number in "0", "1":
        assert (3, True) in steps_of(cases[place]["told"][number])
        assert cases[place]["told"][number][-1] == cases["reference-3"]["told"][number][-1]


def test_a_rank_that_is_a_step_behind_makes_it_up(cases: dict[str, Told]) -> None:
    found = cases["behind"]
    assert [standing[:2] for standing in found["rested"][0]] == [[3, "clean"], [2, "pending"]]
    assert steps_of(found["told"]["0"]) == LATER
    assert steps_of(found["told"]["1"]) == ON
    for number in "0", "1":
        assert found["told"][number][-1] == cases["reference-3"]["told"][number][-1]


@pytest.mark.parametrize("compiled", ["within", "around"])
def test_many_rounds_leave_nothing_behind(cases: dict[str, Told], compiled: str) -> None:
    """No descriptor, no thread, and nothing is compiled again for as many ranks."""
    found = cases[compiled]
    assert found["rounds"] > 8
    for number in "0", "1":
        told = found["told"][number]
        assert [step for step, *_ in told] == list(range(1, len(told) + 1))
        descriptors, threads, graphs = zip(*((each[1:4]) for each in told), strict=True)
        assert max(descriptors[-5:]) <= max(descriptors[2:7]) + 2
        assert max(threads[-5:]) <= max(threads[:5]) + 1
        assert graphs[-1] == graphs[0]
        assert graphs[0] or compiled == "around"  # of which torch itself may compile nothing
    parameters = [[each[4] for each in found["told"][number]] for number in ("0", "1")]
    assert parameters[0] == parameters[1]


def test_what_scripts_use_is_undone_and_samples_come_once(cases: dict[str, Told]) -> None:
    """Two optimizers, a scaler, clipping, an average of the weights, microbatches, a loader."""
    told = cases["idioms"]["told"]
    assert [number for number, *_ in told["0"]] == [1, 2, 3, 3, 4, 5, 6, 7, 8]
    for one, other in zip(told["0"], told["1"], strict=True):
        assert one[2:] == other[2:]  # the scale, all weights, and the place in the data
    failed = [share for number, share, *_ in told["0"] if not share]
    assert len(failed) == 1
    before, after = told["0"][1:3]
    assert before[2:] == after[2:]
    epochs: dict[bool, list[int]] = {True: [], False: []}
    for number, share, *_ in (each for rank in told.values() for each in rank):
        epochs[number <= 4] += share
    assert all(sorted(samples) == list(range(32)) for samples in epochs.values())


def test_a_state_that_changed_in_part_is_restored_in_the_same_process(
    cases: dict[str, Told],
) -> None:
    told = cases["dirty"]["told"]
    for number in "0", "1":
        steps = [(step, finished) for step, finished, _ in told[number][:-1]]
        again = [(step, True) for step in range(3, 7)]
        assert steps == [(1, True), (2, True), (3, True), (4, False), *again]
    assert told["0"] == told["1"]
    assert told["0"][2] == told["0"][4], "the same third step, with the same random numbers"


def test_a_rank_that_arrives_restores_while_the_others_keep_their_state(
    cases: dict[str, Told],
) -> None:
    """What its script does before its loop, it does alone: the others take no part in it."""
    told = cases["arrival"]["told"]
    assert told["0"][-1] == told["1"][-1] == [2, 2, 2, 2, 3, 3, 3]
    assert told["2"][-1] == [1, 3, 3, 3]
    kept = [counted(told[number][:-1]) for number in ("0", "1")]
    assert kept[0] == kept[1]
    assert list(kept[0]) == list(range(1, 7))
    assert {step: kept[0][step] for step in (4, 5, 6)} == counted(told["2"][:-1])


def counted(told: list[Any]) -> dict[int, str]:
    """Return the parameters after each step that counts.

    A worker may have begun the next step when it hears that it is to rest. Nothing is left of it.
    """
    found: dict[int, str] = {}
    for step, finished, parameters in told:
        if finished:
            assert step not in found
            found[step] = parameters
        else:
            assert parameters == found[step - 1]
    return found
