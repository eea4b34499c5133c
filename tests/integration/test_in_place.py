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


def run(script: str, folder: Path, *what: str) -> None:
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"support.{script}", folder, *what],
        cwd=TESTS,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=200,
    )


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    folder = tmp_path_factory.mktemp("lost")
    run("losing_ranks", folder)
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


def steps_of(told: list[Any]) -> list[tuple[int, bool]]:
    return [(number, finished) for number, finished, *_ in told[:-1]]


AGAIN = [(1, True), (2, True), (3, False), *((step, True) for step in range(3, STEPS + 1))]
LATER = [*((step, True) for step in range(1, 4)), (4, False), *((s, True) for s in range(4, 7))]
ON = [(step, True) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("place", ["forward", "backward", "frozen"])
def test_a_step_in_which_a_rank_is_lost_is_made_again(lost: dict[str, Told], place: str) -> None:
    found = lost[place]
    for number in "0", "1":
        assert steps_of(found["told"][number]) == AGAIN
        assert found["told"][number][-1] == lost["reference-2"]["told"][number][-1]
    assert [standing[:2] for standing in found["rested"][0]] == [[2, "clean"]] * 2
    if place == "backward":  # nobody has asked them
        assert all("loo" in broken or "peer" in broken for *_, broken in found["rested"][0])


def test_gradients_that_all_have_are_not_lost(lost: dict[str, Told]) -> None:
    found = lost["before-vote"]
    assert [standing[:2] for standing in found["rested"][0]] == [[2, "pending"]] * 2
    for number in "0", "1":
        assert steps_of(found["told"][number]) == ON
        assert found["told"][number][-1] == lost["reference-3"]["told"][number][-1]


@pytest.mark.parametrize("place", ["after-vote", "after-step"])
def test_a_rank_that_is_lost_after_the_vote_has_given_its_gradients(
    lost: dict[str, Told], place: str
) -> None:
    for number in "0", "1":
        assert (3, True) in steps_of(lost[place]["told"][number])
        assert lost[place]["told"][number][-1] == lost["reference-3"]["told"][number][-1]


def test_a_rank_that_is_a_step_behind_makes_it_up(lost: dict[str, Told]) -> None:
    found = lost["behind"]
    assert [standing[:2] for standing in found["rested"][0]] == [[3, "clean"], [2, "pending"]]
    assert steps_of(found["told"]["0"]) == LATER
    assert steps_of(found["told"]["1"]) == ON
    for number in "0", "1":
        assert found["told"][number][-1] == lost["reference-3"]["told"][number][-1]
