"""Progress bars over the steps of a loop, with the tqdm that is installed."""

import io
import sys
from collections.abc import Iterator

import pytest
from tqdm import tqdm
from tqdm.auto import tqdm as automatic

from spotelastic.training.runtime.loop_steps import LoopSteps


class Loop:
    """A loop of 10 steps, of which some are begun again."""

    def __init__(self, last: int, again: tuple[int, ...] = (), back: int = 0) -> None:
        self.last, self._again, self._back = last, {*again}, back

    def _made(self) -> Iterator[int]:
        while self.last < 10:
            number = self.last + 1
            yield number
            if number not in self._again:
                self.last = number
            else:
                self._again.remove(number)
                self.last -= self._back

    def steps(self) -> LoopSteps[int]:
        return LoopSteps(self._made(), 10, lambda: self.last)


@pytest.mark.parametrize("bar", [tqdm, automatic], ids=["tqdm", "tqdm.auto"])
@pytest.mark.parametrize("last", [0, 7])
def test_a_bar_has_its_total_and_begins_at_the_restored_step(bar: type[tqdm], last: int) -> None:
    told = io.StringIO()
    over = bar(Loop(last).steps(), file=told, mininterval=0, ascii=True)
    seen = [(step, over.n) for step in over]
    assert seen == [(step, step - 1) for step in range(last + 1, 11)]
    assert (over.n, over.total) == (10, 10)
    shown = [each.strip() for each in told.getvalue().split("\r") if each.strip()]
    assert f"| {last}/10 " in shown[0]
    assert "100%" in shown[-1] and "| 10/10 " in shown[-1]


def test_steps_that_come_again_or_were_restored_are_counted_once() -> None:
    over = tqdm(Loop(2, again=(4, 8), back=3).steps(), file=io.StringIO())
    assert [over.n for _ in over][-1] == 9
    assert over.n == over.total == 10


def test_what_the_script_says_counts() -> None:
    over = tqdm(Loop(4).steps(), total=12, initial=0, file=io.StringIO(), desc="training")
    assert (over.n, over.total) == (0, 12)
    for _ in over:
        pass
    assert over.n == 6


def test_a_bar_that_is_left_closes_and_others_are_as_they_were() -> None:
    for step in tqdm(Loop(0).steps(), file=io.StringIO(), leave=False):
        if step == 3:
            break
    assert [*tqdm(range(3), file=io.StringIO())] == [0, 1, 2]
    assert [*tqdm(Loop(8).steps(), disable=True)] == [9, 10]


def test_the_length_is_what_is_left_and_no_bar_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tqdm.std")
    loop = Loop(7)
    steps = loop.steps()
    assert len(steps) == 3
    assert (next(steps), next(steps)) == (8, 9)
    assert len(steps) == 2, "the step that is being made is not finished"
