"""Loops as people write them come back as they were, or their rehearsal names what does not."""

from collections.abc import Iterable
from typing import Any

import pytest
from support.in_place import resting_kinds
from support.in_place.resting_kinds import CASES, LOST_AT, VICTIM
from support.in_place.told_cases import Told, told_in
from support.training import loop_kinds

OFTEN = {
    *("Plain", "FusedWithScaler", "EvaluatesForGood", "Samples", "Plain-lost-in-2", "Grown"),
    *("LateBuffer", "CommunicationHook", "KeptGenerators", "DecidesLater", "LeavesActivations"),
    *("OwnGenerator", "OwnCounter", "AccumulatesOverBlocks", "Prefetched"),
}
"""Kinds that every run of the tests tries; the others take `make soak`."""


def often(names: Iterable[str]) -> list[Any]:
    return [pytest.param(n, marks=() if n in OFTEN else pytest.mark.soak) for n in names]


RIGHT = [kind.__name__ for kind in resting_kinds.RIGHT]
EQUAL = [kind.__name__ for kind in loop_kinds.EQUAL]
COST_A_RESTORE = {"TwoFrequencies", "LargeBufferThroughData", "OwnOptimizer"}
"""Kinds whose step cannot be put back, so that they go on from the last save."""
CARRY = "TwoFrequencies"
"""Its gradients are in no save, which is named. Until a rank is lost, it trains as it would."""
TOLD = {
    "OwnGenerator": "model.",
    "OwnIterator": "kind.rows (list_iterator) may hand out something else each time",
    "OwnCounter": "optimizer.param_groups.0.lr is 0.002, was 0.005",
    "ModuleCounter": "model.calls is",
    "PrivateCounter": "model.module._calls is",
    "OtherName": "the block changes kind.losses, which was in the state until that was put back",
    "AccumulatesOverBlocks": "gradients are kept from one block to the next",
    "SchedulerAfterBlock": "scheduler.last_epoch changes between two blocks",
    "SchedulerNotSaved": "a StepLR that is not in the state is stepped",
}

WARNED = {
    "Prefetched": "in new processes when the nodes change, not in place: a batch is taken before",
    "DecidesLater": "the block changes kind.losses (deque), which is not in the state",
    "Streamed": "the data set is an IterableDataset. What a lost rank would have read of it",
}


@pytest.fixture(scope="module")
def cases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Told]:
    """What workers have told in each case. All run from one process that has imported torch."""
    folder = tmp_path_factory.mktemp("cases")
    chosen = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = {
        value
        for item in chosen
        if item.path == request.path and hasattr(item, "callspec")
        for value in item.callspec.params.values()
    }
    return told_in(folder, ["alone-kinds", *(case for case in CASES if case in wanted)])


@pytest.mark.parametrize("kind", often(kind for kind in RIGHT if kind != CARRY))
def test_the_loss_of_a_rank_changes_no_parameter(cases: dict[str, Told], kind: str) -> None:
    alone = dict(cases["alone-kinds"]["told"]["0"])[kind]
    for rank in "0", "1":
        assert cases[kind]["told"][rank][-1] == pytest.approx(alone, rel=1e-9, abs=1e-12)
    changes = {change for _, change, _ in cases[kind]["rested"][0]}
    assert changes <= ({"dirty"} if kind in COST_A_RESTORE else {"clean", "pending"})


@pytest.mark.parametrize("case", often(case for case in CASES if "-lost-in-" in case))
def test_a_loss_in_an_attempt_of_a_rehearsal_changes_no_parameter(
    cases: dict[str, Told], case: str
) -> None:
    alone = dict(cases["alone-kinds"]["told"]["0"])[case.partition("-")[0]]
    for rank in "0", "1":
        assert cases[case]["told"][rank][-1] == pytest.approx(alone, rel=1e-9, abs=1e-12)
    [line] = [each for each in cases[case]["heard"] if "rehearsed at step" in each]
    assert "on 2 ranks" in line and "bit-identical" in line


@pytest.mark.parametrize("case", often(case for case in CASES if "-asked-after-" in case))
def test_a_planned_change_between_attempts_of_a_rehearsal_changes_no_parameter(
    cases: dict[str, Told], case: str
) -> None:
    alone = dict(cases["alone-kinds"]["told"]["0"])[case.partition("-")[0]]
    for rank in "0", "1", "2":
        assert cases[case]["told"][rank][-1] == pytest.approx(alone, rel=1e-9, abs=1e-12)
    [line] = [each for each in cases[case]["heard"] if "rehearsed at step" in each]
    assert "on 3 ranks" in line and "bit-identical" in line


@pytest.mark.parametrize("case", often(case for case in CASES if "-knows-more-" in case))
def test_ranks_rehearse_together_also_where_one_has_heard_more_than_another(
    cases: dict[str, Told], case: str
) -> None:
    """A rank may be lost when it has told the outcome of a rehearsal to some of the others."""
    alone = dict(cases["alone-kinds"]["told"]["0"])["Plain"]
    for rank in "0", "1":
        assert cases[case]["told"][rank][-1] == pytest.approx(alone, rel=1e-9, abs=1e-12)
    assert [each for each in cases[case]["heard"] if "on 3 ranks: bit-identical" in each]


@pytest.mark.parametrize("case", often(case for case in CASES if "-unlike-" in case))
def test_ranks_of_a_version_that_knows_of_no_rehearsals_meet_nobody_in_one(
    cases: dict[str, Told], case: str
) -> None:
    alone = dict(cases["alone-kinds"]["told"]["0"])["Plain"]
    for rank in "0", "1":
        assert cases[case]["told"][rank][-1] == pytest.approx(alone, rel=1e-9, abs=1e-12)
    rehearsed = {step for step, _, rehearses in cases[case]["told"]["0"][:-1] if rehearses}
    heard = cases[case]["heard"]
    if case == f"Plain-unlike-{VICTIM}":  # when it is gone, the others can
        assert min(rehearsed) > LOST_AT
        assert heard and all("on 2 ranks: bit-identical" in each for each in heard)
    else:
        assert not rehearsed and not heard
    assert [len(each) for each in cases[case]["rested"]] == [2]  # a loss finds them at one step


@pytest.mark.parametrize("kind", often([*RIGHT, *EQUAL]))
def test_a_step_that_comes_back_is_told_in_a_line(cases: dict[str, Told], kind: str) -> None:
    told = ("rehearsed at step 2 on ", "step 2 was made twice on ")
    [line] = [each for each in cases[kind]["heard"] if each.startswith(told)]
    if kind == CARRY:
        assert "gradients are kept from one block to the next" in line
    else:
        assert line.startswith("rehearsed at step 2 on ") and "bit-identical" in line
    assert ("costs the steps since the last save" in line) == (
        kind in COST_A_RESTORE | {"ReducedLoss", "Closures", "StepsBetweenPasses"}
    )
    assert not [each for each in cases[kind]["heard"] if "in new processes" in each]


@pytest.mark.parametrize("kind", often(RIGHT))
def test_attempts_of_a_rehearsal_say_so_and_do_not_count(cases: dict[str, Told], kind: str) -> None:
    told = cases[kind]["told"]["0"][:-1]
    # A later loss may send the run back to before this step.
    steps = [each for each in told[: told.index([2, True, False])] if each[0] == 2]
    assert steps and all(not finished for _, finished, _ in steps)
    assert steps[0] == [2, False, True]


@pytest.mark.parametrize("kind", often(TOLD))
def test_what_does_not_come_back_is_named(cases: dict[str, Told], kind: str) -> None:
    [line] = [each for each in cases[kind]["heard"] if each.startswith("step 2 was made twice")]
    assert TOLD[kind] in line


@pytest.mark.parametrize("kind", often(WARNED))
def test_what_a_lost_rank_costs_is_told_before_one_is_lost(
    cases: dict[str, Told], kind: str
) -> None:
    [line] = [each for each in cases[kind]["heard"] if WARNED[kind] in each]
    differ = [each for each in cases[kind]["heard"] if "differs" in each]
    assert line and not differ


@pytest.mark.parametrize("kind", often(["LeavesActivations"]))
def test_a_block_that_fails_when_it_is_made_again_fails_with_the_reason(
    cases: dict[str, Told], kind: str
) -> None:
    [message, note] = cases[kind]["told"]["0"][-1]
    assert "backward through the graph a second time" in message
    assert "step 2 was made twice, and fails the second time: RuntimeError" in note
    assert [each for each in cases[kind]["heard"] if each in note]
