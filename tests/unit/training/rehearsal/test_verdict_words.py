"""What people are told of a step that was made again."""

from spotelastic.training.rehearsal.verdict import RehearsalVerdict, line


def test_a_step_that_is_equal_is_one_line() -> None:
    assert line(RehearsalVerdict(), 2, 3) == "rehearsed at step 2 on 3 ranks: bit-identical"
    noise = line(RehearsalVerdict(noise=0.004), 2, 1)
    assert noise == (
        "rehearsed at step 2 on 1 rank: the same within the script's own noise "
        "(4e-03 of what it changes)"
    )


def test_each_difference_has_a_line_and_what_follows_comes_last() -> None:
    found = RehearsalVerdict(
        differs=("lr is 0.1, was 0.2", "the loss is 1, was 2"), costs=("it waits",)
    )
    head, first, second, cost, last = line(found, 2, 3).split("\n")
    assert head == "step 2 was made twice on 3 ranks, and differs:"
    assert (first, second, cost) == ("lr is 0.1, was 0.2;", "the loss is 1, was 2;", "it waits.")
    assert last.startswith("So interruptions change what this run computes")
    by_restores = line(RehearsalVerdict(restores=True, differs=("a buffer",)), 2, 3)
    on = "So from now on, a step in which a peer is lost is repeated from the last save"
    assert on in by_restores
