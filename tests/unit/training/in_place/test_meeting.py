"""A process that cannot go on in place says so, and is replaced."""

import socket
from pathlib import Path
from typing import Any

import pytest

from spotelastic.model.in_place import Enter, Standing
from spotelastic.training.in_place.building import Builder
from spotelastic.training.in_place.control import Control
from spotelastic.training.in_place.groups import Groups
from spotelastic.training.in_place.meeting import LoopParts, Meeting
from spotelastic.training.in_place.memory import Memory
from spotelastic.training.restore.loops import Loops
from spotelastic.training.restore.own_values import OwnValues
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.state.state import State

MIB = 1 << 20


class Replaced(BaseException):
    """In place of the end of the process."""


class Rested(BaseException):
    """In place of the wait for a round."""


class Asked(Control):
    """A connection whose agent wants the worker to rest, or ends it at once."""

    @property
    def asked(self) -> bool:
        return True

    def give_up(self) -> Any:
        raise Replaced

    def rest(self, standing: Standing, broken: str = "", traceback: str = "") -> Any:
        raise Rested


def met(folder: Path, rounds: int, lines: list[str], floor: int = -1) -> Meeting:
    """Return the meeting of a worker that has grown for some rounds, and has saved step 7."""
    sizes = iter(range(1000 * MIB, 9000 * MIB, 100 * MIB))
    memory = Memory(lambda: {"memory": next(sizes)})
    for _ in range(rounds + 1):
        memory.note()
    unused: Any = None
    state, groups = State({}), Groups({"backend": "gloo"})
    loop = LoopParts(
        state=state,
        builder=Builder(None, state, groups),
        groups=groups,
        last_step=lambda: 7,
        saved_step=lambda: 7,
        ranks=lambda: Ranks(3, 4, 0, "n0"),
        count=unused,
        waits_after=lambda step: False,
        count_quietly=unused,
        save_alone=unused,
        leave=unused,
        enter=unused,
        restore=unused,
        resumed=unused,
        complain=lines.append,
        own=OwnValues(),
        keep=unused,
        go_back=unused,
        tell=unused,
        start_anew=unused,
        loops=Loops(OwnValues(), lambda: 7, unused, unused, floor=floor),
        save_held=unused,
        memory=memory,
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "agent"))
        listener.listen()
        return Meeting(loop, Asked(str(folder / "agent"), "r1", 0, lambda: None))


@pytest.mark.parametrize(
    ("rounds", "standing"),
    [(4, Standing(7)), (5, Standing(8)), (5, Standing(7, "pending")), (5, Standing(7, "dirty"))],
)
def test_a_process_is_not_replaced_before_it_has_grown_and_where_that_costs_a_step(
    tmp_path: Path, rounds: int, standing: Standing
) -> None:
    lines: list[str] = []
    with pytest.raises(Rested):
        met(tmp_path, rounds, lines).rest(standing, RuntimeError("gloo"))
    assert not lines


def test_a_process_that_has_grown_is_replaced_where_its_step_is_saved(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(Replaced):
        met(tmp_path, 5, lines).rest(Standing(7))
    assert lines == [
        "rank 3 goes on in a new process, not in place: its memory grew in 5 rounds, to 1.5 GiB"
    ]


@pytest.mark.parametrize("step", [0, 4])
def test_a_process_does_not_go_back_over_what_it_has_done_between_two_loops(
    tmp_path: Path, step: int
) -> None:
    """An epoch's end would not come again."""
    lines: list[str] = []
    meeting = met(tmp_path, 0, lines, floor=4)
    with pytest.raises(Replaced):
        meeting.enter(Enter("r2", step, True, {}), Standing(7, "dirty"))
    (line,) = lines
    assert f"between two loops since step {step} has to be done again" in line


def test_a_process_goes_back_within_its_loop() -> None:
    unused: Any = None
    assert not Loops(OwnValues(), lambda: 7, unused, unused, floor=4).problem(5)


@pytest.mark.parametrize(
    ("totals", "end"), [((100,), 100), ((100, 100), 100), ((100, 200), 0), ((100, 200, 300), 0)]
)
def test_the_end_of_a_run_is_that_of_its_only_loop(totals: tuple[int, ...], end: int) -> None:
    unused: Any = None
    loops = Loops(OwnValues(), lambda: 7, unused, unused)
    for total in totals:
        loops.begins(total)
    assert loops.end == end


def test_epochs_say_where_a_run_ends() -> None:
    unused: Any = None
    loops = Loops(OwnValues(), lambda: 0, unused, unused)
    for epoch in loops.epochs(3, 50, unused):
        assert loops.end == 150
        loops.begins((epoch + 1) * 50)
        assert loops.end == 150
        break
