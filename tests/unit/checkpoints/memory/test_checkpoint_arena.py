"""Slots that go while other threads look at them, and restores that a moment's lack had failed."""

import asyncio
import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError, RestoreFailed
from spotelastic_checkpoints.memory import worker_page as pages
from spotelastic_checkpoints.memory.arena import HEADER, Arena, Slot, SlotState, encode_index
from spotelastic_checkpoints.memory.worker_page import WorkerPage
from spotelastic_checkpoints.restore import sources
from spotelastic_checkpoints.restore.contents import Contents
from spotelastic_checkpoints.restore.fetcher import Fetcher
from spotelastic_checkpoints.restore.shared_restores import Restores
from spotelastic_checkpoints.restore.sources import OpenSource
from spotelastic_checkpoints.types import RestoreSet, Resume, TimedValue
from support.saving.small_disk import small_disk
from support.saving.upload_pipeline import sealed

SIZE = 2 * HEADER


def test_a_slot_that_is_discarded_during_a_look_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(tmp_path, 1)
    paths = [arena.slot_path(0, number) for number in range(3)]
    for path in paths[:2]:
        arena.furnish(path, SIZE)
    # The third one was found in the folder, and never looked at.
    paths[2].write_bytes(bytes(SIZE))
    listed = Path.glob

    def glob(self: Path, pattern: str) -> Iterator[Path]:
        found = list(listed(self, pattern))
        for path in paths[1:]:
            arena.discard(path)
        return iter(found)

    monkeypatch.setattr(Path, "glob", glob)
    assert [slot.path for slot in arena.slots()] == paths[:1]
    assert [path.exists() for path in paths] == [True, False, False]
    assert arena.view(paths[1]).state is SlotState.EMPTY


def test_a_slot_that_was_made_anew_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 1)
    path = arena.slot_path(0, 0)
    arena.furnish(path, SIZE)
    path.unlink()
    arena.furnish(path, SIZE)
    Slot(path).open()
    assert arena.view(path).state is SlotState.WRITING


@pytest.mark.parametrize("have", [0, SIZE])
def test_a_slot_that_finds_no_room_is_what_it_was_for_whoever_looks_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, have: int
) -> None:
    arena = Arena(tmp_path, 1)
    path = arena.slot_path(0, 0)
    if have:
        arena.furnish(path, have)
    seen: list[tuple[SlotState, list[int]]] = []

    def look() -> None:
        seen.append((arena.view(path).state, [slot.size for slot in arena.slots()]))

    def fallocate(descriptor: int, offset: int, size: int) -> None:
        os.ftruncate(descriptor, size - 1)  # as far as there was room
        look()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("spotelastic_checkpoints.memory.arena.os.posix_fallocate", fallocate)
    with pytest.raises(ArenaFull, match="No space left"):
        arena.furnish(path, 4 * SIZE)
    look()
    assert seen == [(SlotState.EMPTY, [have] if have else [])] * 2


def test_an_index_that_was_written_over_is_none(tmp_path: Path) -> None:
    """By another layout's, which has values where there were none."""
    [(slot, header)] = sealed(tmp_path / "slot", tensors=4).slots
    items = slot.items(header)
    value = replace(items[0], dtype="")
    at = HEADER + header.data_bytes
    others = [encode_index([*items[1:], value]), b"\xff" * header.index_bytes]
    for other in others:
        slot.memory[at : at + len(other)] = other
        with pytest.raises(CheckpointsError, match="index"):
            slot.items(replace(header, index_bytes=len(other)))


def test_slots_that_were_given_up_cannot_be_restored(tmp_path: Path) -> None:
    gone = str(tmp_path / "slot-0-0")
    with pytest.raises(RestoreFailed, match="slot-0-0 no longer exists"):
        Contents(RestoreSet(1, 5, 1, (gone,), str(tmp_path / "restore-1"), ()))


def test_an_error_of_this_machine_is_not_kept_for_those_who_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [OSError(24, "Too many open files")]
    there = RestoreSet(1, 5, 1, (), "", ())

    def open_source(*_: object) -> OpenSource:
        if errors:
            raise errors.pop()
        return OpenSource(there, Fetcher(tmp_path / "restore-1", (), ()))

    monkeypatch.setattr(sources, "open_source", open_source)
    surroundings: Any = object

    async def main() -> None:
        restores = Restores(1, surroundings)
        with pytest.raises(OSError, match="Too many"):
            await restores.open(Resume("store", 5, epoch=1), 0)
        assert await restores.open(Resume("store", 5, epoch=1), 0) == there

    asyncio.run(main())


def test_what_a_save_takes_is_known_from_the_last_round_until_the_first_save_of_the_next(
    tmp_path: Path,
) -> None:
    page = WorkerPage(tmp_path / "page")
    page.reset("one", 0)
    assert page.read(0).stall == 0.0
    page.saved(8.0)
    for round_ in ("two", "three"):
        page.reset(round_, 0)
        assert page.read(0).stall == 8.0
    page.saved(2.0)
    assert page.read(0).stall == 2.0


def test_a_page_has_all_its_memory_from_the_beginning(tmp_path: Path) -> None:
    WorkerPage(tmp_path / "page")
    assert (tmp_path / "page").stat().st_blocks * 512 >= pages.SIZE


def test_a_page_has_the_newest_measurement_until_the_next_round(tmp_path: Path) -> None:
    page = WorkerPage(tmp_path / "page")
    page.reset("r1", 0)
    assert (page.read(0).measured, page.read(0).own_time, page.read(0).waiting_time) == (0, 0, 0)
    for number in (1, 2, 65535, 65536):
        page.measured(number, 0.25, 0.75)
        read = page.read(0)
        assert read.measured == (number - 1) % 65535 + 1
        assert (read.own_time, read.waiting_time) == pytest.approx((0.25, 0.75), rel=1e-4)
    page.measured(3, 0.5, 0.0)
    assert (page.read(0).own_time, page.read(0).waiting_time) == (0.5, 0.0)
    page.measured(4, 0.0, 0.5)
    assert page.read(0).own_time == 0.0
    page.reset("r2", 0)
    assert page.read(0).measured == 0


def test_a_measurement_touches_no_point_of_the_curve(tmp_path: Path) -> None:
    page = WorkerPage(tmp_path / "page")
    page.reset("r1", 0)
    for step in range(1, 4000):  # more than the page has room for
        page.ready(page.publish(step, float(step), 1.0) + 1)
    page.measured(1, 0.25, 0.75)
    points = page.take_points(all_written=True)
    assert [point.loss for point in points] == [float(point.step) for point in points]
    page.publish(4000, 1.0, 2.0)
    assert page.read(0).measured == 1


def test_a_loss_that_is_no_number_is_another_one_than_none(tmp_path: Path) -> None:
    page = WorkerPage(tmp_path / "page")
    page.reset("r1", 0)
    losses = (0.5, None, math.nan, -math.nan, math.inf, -math.inf, 0.0)
    for step, loss in enumerate(losses, 1):
        page.publish(step, loss, 1.0)
    for number, loss in enumerate(losses):  # as they arrive from a GPU
        page.amend(
            page.publish(len(losses) + number + 1, None, 1.0), math.nan if loss is None else loss
        )
    at_once = [point.loss for point in page.take_points(all_written=True)]
    assert [repr(loss) for loss in at_once] == [
        *("0.5", "None", "nan", "nan", "inf", "-inf", "0.0"),
        *("0.5", "nan", "nan", "nan", "inf", "-inf", "0.0"),
    ]


def test_a_page_has_the_end_of_the_run_and_the_usual_samples(tmp_path: Path) -> None:
    page = WorkerPage(tmp_path / "page")
    page.reset("r1", 0)
    for step in range(1, 4):
        page.publish(step, None, float(step), 1500, 32.0)
    assert (page.read(0).total, page.read(0).samples) == (1500, 32.0)
    for step in range(4, 60):
        page.publish(step, None, float(step), 3000, 64.0)
    assert page.read(0).total == 3000 and page.read(0).samples == pytest.approx(64.0)
    page.reset("r2", 0)
    assert (page.read(0).total, page.read(0).samples) == (0, 0.0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, pages.MOST_LOGGED - 1),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(1.0, 2e9),
        ),
        max_size=60,
    )
)
def test_a_page_has_the_newest_value_of_each_name(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, float, float]]
) -> None:
    page = WorkerPage(tmp_path_factory.mktemp("page") / "page")
    page.reset("r1", 0)
    page.publish(7, 0.5, 3.0, 1500, 32.0)
    before = page.read(0)
    names = [f"{number:02}{'n' * 30}"[: 2 + 3 * number] for number in range(pages.MOST_LOGGED)]
    expected = {}
    for number, value, at in drawn:
        page.log(number, names[number], value, at)
        expected[names[number]] = TimedValue(at, value if math.isfinite(value) else None)
    assert page.read(0).logged == expected
    assert replace(page.read(0), logged={}) == before, "nothing else is touched"
    assert [point.step for point in page.take_points(all_written=True)] == [7]
    page.reset("r2", 0)
    assert page.read(0).logged == {}


def test_a_page_without_room_is_refused(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", pages.SIZE // 2048) as disk,
        pytest.raises(ArenaFull, match=r"no memory for .*/page: No space left on device"),
    ):
        WorkerPage(disk / "page")
