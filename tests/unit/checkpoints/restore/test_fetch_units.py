"""In which units a checkpoint is fetched, by whom, and what happens when one is lost."""

import itertools
from collections.abc import Iterable
from threading import Thread

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.format import encoding, manifest
from spotelastic_checkpoints.format.manifest import BLOCK, DIGITS
from spotelastic_checkpoints.peers.messages import Shelf
from spotelastic_checkpoints.restore import fetch_units
from spotelastic_checkpoints.restore import sources as restore_sources
from spotelastic_checkpoints.restore.fetch_queue import LATE, FetchQueue
from spotelastic_checkpoints.restore.fetch_units import CopyLocation, FetchUnit
from spotelastic_checkpoints.types import Item
from support.processes.patience import PATIENT
from support.saving.checkpoint_items import item


def requests(*who: Iterable[int]) -> list[fetch_units.FetchRequest]:
    """Of a byte each, which these sources have."""
    found = [
        FetchUnit(
            n, n + 1, "", "t", tuple(CopyLocation(source, "file", n * 9999) for source in sources)
        )
        for n, sources in enumerate(who)
    ]
    return fetch_units.requests(found, most=1)


def test_a_long_item_is_verified_by_the_block_and_a_short_one_as_a_whole() -> None:
    data = memoryview(bytes(range(256)) * (10 * BLOCK // 1024))
    long = manifest.checksummed(item("t", 0, len(data)), data)
    assert long.checksum == xxhash.xxh3_64_hexdigest(data)
    assert len(long.blocks) == 3 * DIGITS
    [placed] = fetch_units.placed([(long, (CopyLocation(0, "f", 77),))])
    found = list(fetch_units.units_of(placed))
    assert [unit.length for unit in found] == [BLOCK, BLOCK, BLOCK // 2]
    for unit in found:
        assert unit.checksum == xxhash.xxh3_64_hexdigest(data[unit.start : unit.end])
        assert unit.places[0].offset == 77 + unit.start
    short = manifest.checksummed(item("t", 0, 100), data[:100])
    assert short.blocks == ""
    # Of a manifest that was written before there were blocks.
    whole = item("t", 0, len(data), long.checksum)
    [placed] = fetch_units.placed([(whole, (CopyLocation(0, "f", 0),))])
    assert [unit.length for unit in fetch_units.units_of(placed)] == [len(data)]


def test_a_tensor_is_divided_from_its_first_element_on() -> None:
    prefix = len(encoding.tensor_prefix("uint8", (2 * BLOCK,)))
    length = prefix + 2 * BLOCK
    tensor = Item("t", ("t",), "uint8", (2 * BLOCK,), (0,), (2 * BLOCK,), -1, 0, length)
    assert list(manifest.blocks(tensor)) == [(0, prefix + BLOCK), (prefix + BLOCK, length)]


@given(
    lengths=st.lists(st.integers(1, 3 * BLOCK), min_size=1, max_size=8),
    ranges=st.lists(st.tuples(st.integers(0, 10 * BLOCK), st.integers(1, BLOCK)), max_size=5),
)
def test_exactly_the_cells_that_the_ranges_touch_are_fetched(
    lengths: list[int], ranges: list[tuple[int, int]]
) -> None:
    items = [(item(f"t{n}", 10 * n * BLOCK, size), ()) for n, size in enumerate(lengths)]
    placed = fetch_units.placed(items)
    every = [unit for found in placed for unit in fetch_units.units_of(found)]
    wanted = [(start, start + length) for start, length in ranges]
    expected = [
        unit
        for unit in every
        if any(start < unit.end and end > unit.start for start, end in wanted)
    ]
    assert list(fetch_units.touched(placed, wanted)) == expected
    for before, after in itertools.pairwise(every):
        assert before.end <= after.start


def test_neighbours_travel_together_and_never_more_than_one_request_takes() -> None:
    items = [(item(f"t{n}", n * 128, 100), (CopyLocation(0, "f", n * 128),)) for n in range(10)]
    far = (item("far", 1 << 20, 50), (CopyLocation(0, "f", 1 << 20),))
    every = [c for p in fetch_units.placed([*items, far]) for c in fetch_units.units_of(p)]
    found = fetch_units.requests(every, most=500)
    assert [[unit.fqn for unit in request.units] for request in found] == [
        ["t0", "t1", "t2", "t3"],
        ["t4", "t5", "t6", "t7"],
        ["t8", "t9"],
        ["far"],
    ]


def test_files_take_turns() -> None:
    items = [
        (item(f"{name}{n}", n * 100, 100), (CopyLocation(0, name, n * 100),))
        for name, count in (("a", 3), ("b", 1), ("c", 2))
        for n in range(count)
    ]
    every = [c for p in fetch_units.placed(items) for c in fetch_units.units_of(p)]
    found = fetch_units.requests(every, most=100)
    assert [request.units[0].fqn for request in found] == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_what_two_nodes_hold_can_come_from_either() -> None:
    def shelf(rank: int, numbers: Iterable[int], base: int = 0) -> Shelf:
        items = tuple(item(f"t{n}", base + n * 128, 100) for n in numbers)
        return Shelf(rank, 7, 2, 3, items)

    shelves = [(0, shelf(0, [0, 1])), (1, shelf(1, [1, 2], 64))]
    found = restore_sources.copies(shelves, have=[("t2", ())])
    assert [(i.fqn, places) for i, places in found] == [
        ("t0", (CopyLocation(0, (0, 7), 0),)),
        ("t1", (CopyLocation(0, (0, 7), 128), CopyLocation(1, (1, 7), 192))),
    ]


def begun(*who: Iterable[int]) -> tuple[FetchQueue, list[fetch_units.FetchRequest]]:
    """Two sources of one lane each, at work."""
    work, asked = FetchQueue([1, 1]), requests(*who)
    work.add(asked)
    return work, asked


def test_the_quicker_source_brings_more() -> None:
    work, asked = begun(*[(0, 1)] * 4)
    slow = work.take(0)
    for _ in range(3):
        quick = work.take(1)
        assert quick is not None
        assert quick is not slow
        work.done(quick)
    assert slow is not None
    work.done(slow)
    work.wait(asked)
    assert work.take(0) is None


def test_lanes_that_have_ended_begin_anew_for_what_is_added() -> None:
    work = FetchQueue([2, 3])
    first, second, third = requests((0, 1), (1,), (0,))
    assert work.add([first]) == [0, 1], "no more lanes than there is to do"
    assert work.add([second]) == [1, 1], "none has taken the first one yet"
    assert [work.take(0), work.take(1)] == [first, second]
    assert work.add([third]) == [0]
    for request in (first, second):
        work.done(request)
    work.wait([first, second])
    assert work.take(1) is None
    assert work.take(0) is third
    work.done(third)
    work.wait([third])


def test_what_a_lost_source_had_begun_is_done_by_the_next() -> None:
    work, asked = begun((0, 1), (0, 1))
    first = work.take(0)
    work.lost(0, RestoreFailed("gone"))
    assert work.take(0) is None
    taken = [work.take(1), work.take(1)]
    assert first in taken
    for request in taken:
        assert request is not None
        work.done(request)
    work.wait(asked)


def test_what_nobody_has_any_more_is_an_error_that_names_all_of_them() -> None:
    work, asked = begun((0, 1), (1,))
    work.take(0)
    work.lost(0, RestoreFailed("a is gone"))
    assert work.take(1) is not None
    work.lost(1, RestoreFailed("b is gone"))
    assert work.take(1) is None
    with pytest.raises(RestoreFailed, match="b is gone"):
        work.wait(asked)


def test_what_is_asked_of_those_that_were_lost_alone_is_an_error_at_once() -> None:
    work, _ = begun((0, 1))
    work.lost(0, RestoreFailed("a is gone"))
    later = requests((0,))
    assert work.add(later) == []
    with pytest.raises(RestoreFailed, match="a is gone"):
        work.wait(later)


def test_what_a_source_sits_on_is_asked_of_another() -> None:
    now = 0.0
    work, asked = FetchQueue([1, 1], clock=lambda: now), requests((0, 1))
    work.add(asked)
    stuck = work.take(0)
    now = LATE + 1
    assert work.take(1) is stuck
    # It is not asked of the same one again.
    assert work.take(1) is None
    assert stuck is not None
    work.done(stuck)
    work.wait(asked)
    # The first one comes late, and it does not matter.
    work.done(stuck)
    assert work.take(0) is None


def test_a_source_waits_for_what_another_may_lose() -> None:
    work, _ = begun((0, 1))
    first, taken = work.take(0), []
    waiting = Thread(target=lambda: taken.append(work.take(1)))
    waiting.start()
    work.lost(0, RestoreFailed("gone"))
    waiting.join(PATIENT)
    assert taken == [first]
