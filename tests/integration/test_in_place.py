"""Workers outlive a round: ranks are lost at each place of a step, and nothing of it is left."""

import re
from typing import Any

import pytest
from support.draws import soaked
from support.in_place.resting_cases import CASES
from support.in_place.told_cases import Told, told_in

STEPS, AT = 6, 3


RARE = {
    *("frozen", "after-step", "in-vote", "connecting", "votes without connections", "around"),
    *("alone", "variants", "device-alone", "device", "late", "kept"),
    *("arrival-in-epoch", "arrival-plain-epochs"),
}
"""Cases of the tests that only `make soak` takes."""


@pytest.fixture(scope="module")
def cases(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Told]:
    """What workers have told in each case. All run from one process that has imported torch."""
    folder = tmp_path_factory.mktemp("cases")
    mine = [item for item in request.session.items if item.path == request.path]
    soaks = any(item.get_closest_marker("soak") for item in mine)
    tried = [case for case in CASES if soaks or case not in RARE]
    return told_in(folder, tried)


def steps_of(told: list[Any]) -> list[tuple[int, bool]]:
    return [(number, finished) for number, finished, *_ in told[:-1]]


AGAIN = [(1, True), (2, True), (3, False), *((step, True) for step in range(3, STEPS + 1))]
LATER = [*((step, True) for step in range(1, 4)), (4, False), *((s, True) for s in range(4, 7))]
ON = [(step, True) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("place", ["forward", "backward", *soaked(["frozen"])])
def test_a_step_in_which_a_rank_is_lost_is_made_again(cases: dict[str, Told], place: str) -> None:
    found = cases[place]
    for number in "0", "1":
        steps = steps_of(found["told"][number])
        assert steps == AGAIN or (place == "frozen" and steps == ON)  # it was asked before
        assert found["told"][number][-1] == cases["reference-2"]["told"][number][-1]
    assert [standing[:2] for standing in found["rested"][0]] == [[2, "clean"]] * 2
    if place == "backward":  # nobody has asked them
        told = re.compile("gloo|peer|NCCL")
        assert all(told.search(broken) for *_, broken in found["rested"][0])


def test_gradients_that_all_have_are_not_lost(cases: dict[str, Told]) -> None:
    found = cases["before-vote"]
    assert [standing[:2] for standing in found["rested"][0]] == [[2, "pending"]] * 2
    for number in "0", "1":
        assert steps_of(found["told"][number]) == ON
        assert found["told"][number][-1] == cases["reference-3"]["told"][number][-1]


@pytest.mark.parametrize("place", ["after-vote", *soaked(["after-step"])])
def test_a_rank_that_is_lost_after_the_vote_has_given_its_gradients(
    cases: dict[str, Told], place: str
) -> None:
    for number in "0", "1":
        assert (3, True) in steps_of(cases[place]["told"][number])
        assert cases[place]["told"][number][-1] == cases["reference-3"]["told"][number][-1]


@pytest.mark.parametrize("place", ["behind", *soaked(["in-vote"])])
def test_a_rank_that_is_a_step_behind_makes_it_up(cases: dict[str, Told], place: str) -> None:
    """Its vote has failed, and not that of its peer: a rank ended that had told one of them."""
    found = cases[place]
    assert [standing[:2] for standing in found["rested"][0]] == [[3, "clean"], [2, "pending"]]
    assert steps_of(found["told"]["0"]) == LATER
    assert steps_of(found["told"]["1"]) == ON
    for number in "0", "1":
        assert found["told"][number][-1] == cases["reference-3"]["told"][number][-1]


@pytest.mark.soak
def test_a_rank_that_is_lost_while_ranks_connect_for_votes_has_given_its_gradients(
    cases: dict[str, Told],
) -> None:
    found = cases["connecting"]
    assert [standing[:2] for standing in found["rested"][0]] == [[1, "pending"]] * 2
    for number in "0", "1":
        assert steps_of(found["told"][number]) == ON
        assert found["told"][number][-1] == cases["reference-2"]["told"][number][-1]


@pytest.mark.parametrize("case", ["votes", *soaked(["votes without connections"])])
def test_no_vote_is_over_before_all_ranks_have_begun_it(cases: dict[str, Told], case: str) -> None:
    """Six ranks, whose votes have two stages."""
    found = cases[case]
    connected = 0 if case == "votes without connections" else 4 * 2
    for number in "012345":
        assert found["told"][number] == [[*range(1, 9)], connected]


@pytest.mark.parametrize("compiled", ["within", *soaked(["around"])])
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


def test_loops_may_be_left_wrapped_and_followed_by_others(cases: dict[str, Told]) -> None:
    """`continue` and `break` in a block, errors that are caught there, a profiler, two loops."""
    found = cases["loops"]
    assert found["rounds"] > 1  # steps are short: one round may be enough for several
    assert found["told"]["0"] == found["told"]["1"]
    assert [step for step, *_ in found["told"]["0"]] == [1, 3, 4, 5, 6, 7, 8, 9]
    averages = [average for _, average, _ in found["told"]["0"]]
    assert averages == pytest.approx([0.1, 0.19, *[0.271] * 6])


def test_groups_have_the_same_name_on_all_ranks(cases: dict[str, Told]) -> None:
    """Also on those that have begun to make one in vain. Otherwise they would never meet."""
    assert cases["unfinished"]["told"]["0"] == ["0"]


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
    """What its script does before its loop, it does alone: the others take no part in it.

    And it takes no part in what they do after the block of the step from which it goes on.
    """
    told = cases["arrival"]["told"]
    assert told["0"][-1] == told["1"][-1] == [2, 2, 2, 2, 3, 3, 3]
    assert told["2"][-1] == [1, 3, 3, 3]
    kept = [counted(told[number][:-1]) for number in ("0", "1")]
    assert kept[0] == kept[1]
    assert list(kept[0]) == list(range(1, 7))
    assert {step: kept[0][step] for step in (4, 5, 6)} == counted(told["2"][:-1])


@pytest.mark.parametrize(
    ("name", "steps"), [("epoch-ends", 3), pytest.param("in-epoch", 2, marks=pytest.mark.soak)]
)
def test_a_rank_that_arrives_takes_part_in_what_is_done_at_the_end_of_each_epoch(
    cases: dict[str, Told], name: str, steps: int
) -> None:
    """Also at the end of the epoch whose last step the others have just finished."""
    told = cases[f"arrival-{name}"]["told"]
    assert told["0"] == told["1"]
    assert told["2"] == told["0"][-len(told["2"]) :]
    made = [each[:-1] if isinstance(each[0], str) else each for each in told["0"]]
    expected: list[list[Any]] = []
    for epoch in range(STEPS // steps):
        numbers = range(epoch * steps + 1, (epoch + 1) * steps + 1)
        expected += [[step, True, 2 if step <= AT else 3, epoch] for step in numbers]
        together = 2 if (epoch + 1) * steps < AT else 3
        expected.append([f"end of {epoch}", together, 0.1 * 0.5 ** (epoch + 1)])
    assert made == expected
    arrived = AT if steps == AT else expected.index([AT + 1, True, 3, 1])
    assert len(told["2"]) == len(expected) - arrived


@pytest.mark.soak
def test_a_rank_that_arrives_does_not_evaluate_alone(cases: dict[str, Told]) -> None:
    """Its script would go through the loops of the epochs that are over."""
    told = cases["arrival-plain-epochs"]["told"]
    assert len(told["2"]) == 1
    assert "came to the others at step 3" in told["2"][0]
    assert "checkpoint.epochs(epochs, steps_per_epoch)" in told["2"][0]
    assert told["0"] == told["1"]
    assert [each[0] for each in told["0"]] == [1, 2, "end of 0", 3, 4, "end of 1", 5, 6, "end of 2"]


def test_a_rank_that_grows_from_round_to_round_is_replaced_where_its_step_is_saved(
    cases: dict[str, Told],
) -> None:
    """The other one keeps its process, and loses no step."""
    found = cases["grown"]
    assert found["rounds"] > 6
    assert [len(round_) for round_ in found["rested"]] == [2] * (found["rounds"] - 2) + [1]
    kept, replaced = found["told"]["0"], found["told"]["1"]
    assert [step for step, finished, *_ in kept if finished] == list(range(1, 41))
    assert kept[-1][2] == 1
    assert replaced[-1][2] == 2


@pytest.mark.soak
def test_a_step_that_was_left_is_the_same_when_it_comes_again(cases: dict[str, Told]) -> None:
    """With mixed precision, a scaler, dropout and a fused optimizer. The same runs on a GPU."""
    assert cases["device"]["rounds"] > cases["device-alone"]["rounds"] == 1
    assert finished_in(cases["device"]) == finished_in(cases["device-alone"])


def finished_in(found: Told) -> dict[str, list[Any]]:
    return {
        number: [each for each in told if isinstance(each, list)]
        for number, told in found["told"].items()
    }


def test_ranks_leave_a_loop_together_that_ends_early(cases: dict[str, Told]) -> None:
    """Though one of them is a step behind when the others leave."""
    found = cases["early"]
    assert [standing[:2] for standing in found["rested"][0]] == [[4, "clean"], [3, "pending"]]
    told = found["told"]
    assert told["0"] == told["1"]
    assert list(counted(told["0"][:-1])) == [1, 2, 3, 4]


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


@pytest.mark.soak
def test_what_scripts_make_of_ddp_goes_on_exactly(cases: dict[str, Told]) -> None:
    """On three ranks, once more on three, and on two: the weights of one process alone.

    Compiled code that has taken in the number of ranks is compiled again where that changes.
    """
    [expected] = cases["alone"]["told"]["0"]
    assert cases["variants"]["rounds"] == 3
    for number in "0", "1":
        told = cases["variants"]["told"][number]
        assert [step for step, *_ in told[:-1]] == list(range(1, 8))
        assert [compiled for _, _, compiled in told[:-1]] == [1, 1, 1, 1, 2, 2, 2]
        for name, weights in told[-1].items():
            assert weights == expected, name


@pytest.mark.soak
def test_a_group_that_the_script_makes_later_takes_new_processes(cases: dict[str, Told]) -> None:
    """The worker says that it can rest no more, and the agent ends it."""
    found = cases["late"]
    assert found["rested"] == []
    for told in found["told"].values():
        assert steps_of([*told, None]) == ON[: len(told)]
    assert set(found["heard"]) == {TOLD + OTHERS}


@pytest.mark.soak
def test_a_group_that_was_kept_in_a_variable_fails_with_what_to_do(cases: dict[str, Told]) -> None:
    for told in cases["kept"]["told"].values():
        assert told[-1] == {
            "notes": [
                "The step used a process group of a round that is over: ask for "
                "torch.distributed.group.WORLD where you use it, and keep no group in a variable."
            ]
        }


def test_a_collective_that_torch_has_given_up_ends_the_step_and_no_process(
    cases: dict[str, Told],
) -> None:
    found = cases["failing"]
    steps = [(1, True), (2, True), (3, False), *((step, True) for step in range(3, 8))]
    assert found["rounds"] == 2
    assert steps_of([*found["told"]["0"], None]) == steps_of([*found["told"]["1"], None]) == steps


TOLD = "steps go on in new processes when the nodes change, not in place: "
OTHERS = (
    "the script has made a process group of its own, which is bound to these ranks: use the "
    "default group, or make it in the function that is given as build="
)
LEAVE_OUT = "with a group or a mesh of its own: leave it out, so that the default group is used"
SHARED_OUT = (
    "optimizer shares its work out among these ranks: give DistributedDataParallel an optimizer "
    "that holds everything"
)
DEALT_OUT = "deals out samples to the ranks that there are when it is made: use se.ElasticSampler"
LINES = {
    "no group": "there is no process group: call init_process_group() with one rank, too",
    "fake": "ranks that wait in a group of fake cannot be woken: use nccl or gloo",
    "per rank": "seen is kept per rank: keep what is the same on all ranks",
    "named ranks": (
        "data was given a rank or a number of ranks: leave both out, or give functions"
    ),
    "shared out": SHARED_OUT,
    "local steps": SHARED_OUT,
    "layer's group": f"model has a Layer {LEAVE_OUT}",
    "helper's group": f"model has a Helper {LEAVE_OUT}",
    "batch norm's group": f"model has a SyncBatchNorm {LEAVE_OUT}",
    "wrapper's group": f"a DistributedDataParallel has {LEAVE_OUT[5:]}",
    "wrapper's mesh": f"a DistributedDataParallel has {LEAVE_OUT[5:]}",
    "mixed precision": (
        "DistributedDataParallel(mixed_precision=...) cannot be given other ranks: use "
        "torch.autocast"
    ),
    "delayed": (
        "a DistributedDataParallel without torch's own reducer cannot be given other ranks: "
        "leave out delay_all_reduce_named_params and torch._dynamo.config.optimize_ddp"
    ),
    "power": (
        "a communication hook of DistributedDataParallel has state of its own: use one whose "
        "state is None, as those of torch's default_hooks"
    ),
    "in backward": "an optimizer steps during backward: let it step after it",
    "join": (
        "a join() context waits for the ranks that there are when it begins: use "
        "se.ElasticSampler, which gives all ranks as many batches"
    ),
    "distributed sampler": f"a DistributedSampler {DEALT_OUT}",
    "split data": f"a Split {DEALT_OUT}",
    "kept elsewhere": (
        "a Helper keeps the process group: ask for torch.distributed.group.WORLD where it is used"
    ),
    "another group": OTHERS,
    "late gloo": "gloo connects late: unset TORCH_GLOO_LAZY_INIT",
    "unknown group": (
        "the process group was made before spotelastic was imported: import "
        "spotelastic.training.checkpointer first"
    ),
    "address": "init_process_group() was given an address: leave out store and init_method",
}


def test_what_stands_in_the_way_is_told_with_what_to_do(cases: dict[str, Told]) -> None:
    [found] = cases["lines"]["told"]["0"]
    told = {name: line.removeprefix(TOLD) for name, line in found.items() if line}
    sharded = told.pop("sharded")
    assert "is sharded over these ranks: make it in a function that you give" in sharded
    assert told == LINES
    assert all(line.startswith(TOLD) for line in found.values() if line)
    works = {name for name, line in found.items() if not line}
    assert works == {
        "ddp",
        "options",
        "hook of the group",
        "hook without state",
        "batch norm",
        "layer of the group",
        "layer with a helper",
        "elastic sampler",
    }
