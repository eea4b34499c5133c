"""What is told of two runs: equal, noise, rounding, or different, and since which step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from spotelastic.client.rehearsal import answer, compare
from spotelastic.client.rehearsal.answer import CauseFacts, Row
from spotelastic.client.rehearsal.records import RecordedLine, StepRecord

NOTHING: Mapping[str, str] = MappingProxyType({})


def line(
    step: int,
    weight: float,
    *,
    kind: str = "step",
    rank: int = 0,
    world: int = 2,
    lr: float = 0.1,
    more: Mapping[str, str] = NOTHING,
) -> RecordedLine:
    """A step of a model of one weight."""
    found = {
        "model.weight": f"{weight!r:*<34}float32(2,)",
        "optimizer.param_groups.0.lr": repr(lr),
        **more,
    }
    samples: Mapping[str, Sequence[float]] = {"model.weight": [weight, 1.0]}
    shown = {"optimizer.param_groups.0.lr": repr(lr)}
    return RecordedLine(kind, float(step), rank, world, step, found, samples, shown)


def run(*lines: RecordedLine) -> StepRecord:
    return StepRecord(lines)


PLAIN = run(line(1, 1.0), line(2, 2.0), line(3, 3.0))
NONE = compare.Noise()


def judge(
    found: Sequence[compare.StepDifference],
    steps: tuple[int, int] = (1, 3),
    variables: Sequence[compare.StepDifference] = (),
    facts: CauseFacts | None = None,
) -> Row:
    return answer.judged("act", found, steps, variables, facts or CauseFacts(), "equal")


def test_the_first_step_that_is_another_is_named_with_its_values_first() -> None:
    tried = run(line(1, 1.0), line(2, 2.5, lr=0.2), line(3, 9.0, lr=0.2))
    row = judge(compare.differences(PLAIN, tried.lines, NONE))
    assert (row.state, row.since) == ("different", 2)
    assert row.what == (
        "lr of group 0 is 0.2, was 0.1",
        "model.weight differs by 0.5 of its change",
    )


def test_a_state_that_was_restored_is_compared_and_gradients_in_it_are_not() -> None:
    wrong = line(2, 2.5, kind="restored", more={"gradient of model.weight": "other"})
    [found] = compare.differences(PLAIN, [wrong], NONE)
    assert (found.name, found.step) == ("model.weight", 3)


def test_a_rank_may_restore_what_the_first_one_had() -> None:
    """Torch copies buffers from it at each forward pass; until then each rank has its own."""
    plain = run(line(1, 1.0), line(1, 1.5, rank=1))
    restored = line(1, 1.0, kind="restored", rank=1)
    assert compare.differences(plain, [restored], NONE) == []


def test_what_differed_before_an_act_is_not_its_own() -> None:
    found = compare.differences(PLAIN, [line(1, 1.5)], NONE)
    assert judge(found, (2, 3)) == Row(
        "act", "not compared", what=("differed before, since step 1",)
    )


def test_noise_of_two_plain_runs_is_no_difference_and_more_than_it_is() -> None:
    noise = compare.noise(PLAIN, run(line(1, 1.0), line(2, 2.001), line(3, 3.001)))
    assert judge(compare.differences(PLAIN, [line(2, 2.002)], noise)).state == "equal"
    assert judge(compare.differences(PLAIN, [line(2, 2.1)], noise)).state == "different"
    assert judge(compare.differences(PLAIN, [line(2, 2.0, lr=0.2)], noise)).state == "different"


def test_what_no_number_tells_is_ignored_where_two_plain_runs_differ_in_it() -> None:
    plain, again = (run(line(1, 1.0, more={"random numbers of python": each})) for each in "ab")
    noise = compare.noise(plain, again)
    other = line(1, 1.0, more={"random numbers of python": "c"})
    assert compare.differences(plain, [other], noise) == []
    assert [str(each) for each in compare.differences(plain, [other], NONE)] == [
        "random numbers of python differs"
    ]


ALONE = run(line(1, 1.0, world=1), line(2, 2.00001, world=1), line(3, 3.00001, world=1))


def test_with_other_ranks_rounding_is_allowed_and_a_lost_step_is_not() -> None:
    allowed = compare.tolerance(PLAIN, ALONE)
    assert allowed is not None
    near, far = line(3, 3.0001, world=3), line(3, 2.7, world=3)
    assert compare.of_other_ranks(PLAIN, ALONE, [near], allowed) == []
    [found] = compare.of_other_ranks(PLAIN, ALONE, [far], allowed)
    assert found.name == "what is trained"


def test_with_other_ranks_values_are_the_same_exactly() -> None:
    allowed = compare.tolerance(PLAIN, ALONE)
    found = compare.of_other_ranks(PLAIN, ALONE, [line(2, 2.0, world=3, lr=0.2)], allowed)
    assert [str(each) for each in found] == ["lr of group 0 is 0.2, was 0.1"]


def test_with_other_ranks_a_value_may_be_rounded_and_a_hash_tells_nothing() -> None:
    allowed = compare.tolerance(PLAIN, ALONE)
    near = line(
        2, 2.0, world=3, lr=0.1 + 1e-9, more={"callbacks": "another text, with a loss in it"}
    )
    assert compare.of_other_ranks(PLAIN, ALONE, [near], allowed) == []


def test_with_other_ranks_a_trained_number_is_rounded_as_a_tensor_is() -> None:
    """Two plain runs may agree on it to the last bit by chance."""
    name = "optimizer.state.2.bias.exp_avg_sq"

    def trained(step: int, weight: float, value: float, world: int) -> RecordedLine:
        made = line(step, weight, world=world, more={name: f"{value!r:*<34}float32(1,)"})
        made.samples[name], made.shown[name] = [value], repr(value)  # type: ignore[index]
        return made

    plain = run(trained(1, 1.0, 1.0, 2), trained(2, 2.0, 2.0, 2))
    alone = run(trained(1, 1.0, 1.0, 1), trained(2, 2.00001, 2.0, 1))
    allowed = compare.tolerance(plain, alone)
    assert allowed is not None
    near, far = trained(2, 2.0, 2.0 + 1e-7, 3), trained(2, 2.0, 2.7, 3)
    assert compare.of_other_ranks(plain, alone, [near], allowed) == []
    [found] = compare.of_other_ranks(plain, alone, [far], allowed)
    assert found.name == name
    assert compare.of_other_ranks(plain, alone, [far], None) == []


def test_an_object_of_a_library_may_take_up_its_values_after_the_restore() -> None:
    late = line(2, 2.0, kind="restored", world=3, lr=0.7)
    allowed = compare.tolerance(PLAIN, ALONE)
    had = line(2, 2.0, world=3)
    for order in [late], [late, had], [had, late]:
        assert compare.of_other_ranks(PLAIN, ALONE, order, allowed) == []


def test_where_ranks_matter_only_what_is_restored_is_compared() -> None:
    """A script whose ranks have data of their own trains otherwise on another number of them."""
    alone = run(line(1, 1.0, world=1), line(2, 5.0, world=1), line(3, 8.0, world=1))
    assert compare.tolerance(PLAIN, alone) is None
    made, right = line(2, 4.0, world=1), line(2, 4.0, kind="restored", rank=1)
    wrong = line(2, 4.5, kind="restored", rank=1)
    assert compare.of_other_ranks(PLAIN, alone, [made, right], None) == []
    [found] = compare.of_other_ranks(PLAIN, alone, [made, wrong], None)
    assert found.name == "model.weight"


def outside(step: int, **values: str) -> RecordedLine:
    held = {name: ("int", value, value) for name, value in values.items()}
    return RecordedLine("step", float(step), 0, 2, step, {"model.weight": "same"}, outside=held)


def test_a_variable_that_changes_and_that_nobody_saves_is_named_as_the_cause() -> None:
    plain = run(outside(1, it="1", clock="5", fixed="3"), outside(2, it="2", clock="6", fixed="3"))
    again = run(outside(1, it="1", clock="7", fixed="3"), outside(2, it="2", clock="8", fixed="3"))
    carried = compare.carried(plain, again)
    assert carried == {"it": "int"}
    assert compare.counters(plain) == {"it"}, "which is no loss where it comes back"
    lost = compare.lost(plain, [outside(2, it="0", clock="9", fixed="3")], carried)
    row = judge([compare.StepDifference(2, 0, "model.weight", size=0.1)], variables=lost)
    assert row.cause == "the loop carries `it` from step to step, and nothing saves it"
    assert "state['it']" in row.advice
    assert list(map(str, answer.variables_told({**carried, "best": "float"}, lost))) == [
        "it (int) is another at step 2 after a restart: 0, was 2",
        "best (float)",
    ]


LR = compare.StepDifference(2, 0, "optimizer.param_groups.0.lr", "0.1", "0.2")
WEIGHT = compare.StepDifference(2, 0, "model.weight", size=0.1)


def test_causes_are_concluded_from_what_differs_and_what_the_state_has() -> None:
    assert "scheduler" in judge([LR]).advice
    has_one = CauseFacts(frozenset({"schedule.last_epoch"}))
    assert "scheduler" not in judge([LR], facts=has_one).advice
    assert "ElasticSampler" in judge([WEIGHT], facts=CauseFacts(loads=True)).advice
    wrote = CauseFacts(has_sampler=True, loads=True, files=("count.txt",))
    assert "count.txt" in judge([WEIGHT], facts=wrote).cause


def test_an_infinite_difference_is_told_without_a_number() -> None:
    assert (
        str(compare.StepDifference(1, 0, "model.weight", size=math.inf)) == "model.weight differs"
    )


def test_what_stands_after_a_loop_is_compared_and_belongs_to_its_last_step() -> None:
    plain = run(line(1, 1.0), line(2, 2.0), line(2, 2.0, kind="ended", lr=0.05))
    alike = run(line(2, 2.0), line(2, 2.0, kind="ended", lr=0.05), line(2, 2.0, kind="restored"))
    assert not compare.differences(plain, alike.lines, NONE)
    other = run(line(2, 2.0), line(2, 2.0, kind="ended", lr=0.1))
    [found] = compare.differences(plain, other.lines, NONE)
    assert (found.step, str(found)) == (2, "lr of group 0 is 0.1, was 0.05")


def test_what_is_restored_may_have_what_stands_after_a_loop_or_have_yet_to_do_it() -> None:
    plain = run(line(1, 1.0), line(2, 2.0), line(2, 2.5, kind="ended"))
    for weight, differs in ((2.0, False), (2.5, False), (9.0, True)):
        restored = run(line(2, weight, kind="restored"))
        assert bool(compare.differences(plain, restored.lines, NONE)) == differs


def test_a_variable_that_counts_epochs_comes_back_as_one_that_counts_steps_does() -> None:
    steps = [
        replace(outside(step, it=str(step), epoch=str((step - 1) // 3), best="1"), epochs={"": 3})
        for step in range(1, 9)
    ]
    assert compare.counters(run(*steps)) == {"it", "epoch"}
