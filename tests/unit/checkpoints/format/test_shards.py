"""A rank's part of the state is cut into files that hold whole items, all of them, in order."""

from msgspec.structs import replace
from spotelastic_checkpoints.format import layout, shards
from spotelastic_checkpoints.format.layout import Declaration, Declared
from spotelastic_checkpoints.types import Item

MOST = 4096


def slot(*rows: int) -> tuple[list[Item], int]:
    """Tensors of so many floats, and a value that does not fill its room."""
    declared = [
        Declared(f"t{number}", (f"t{number}",), "float32", (count,), (0,), (count,))
        for number, count in enumerate(rows)
    ]
    declared.append(Declared("value", ("value",), room=640))
    own = layout.plan([Declaration(0, "n", tuple(declared))]).slots[0]
    items = [item if item.is_tensor else replace(item, length=100) for item in own.items]
    return items, own.owned_bytes


def test_every_item_lies_whole_in_one_file_and_in_order() -> None:
    items, end = slot(*(100 * number % 700 for number in range(1, 40)), 5000)
    files = shards.cut(items, end, MOST)
    assert [item for file in files for item in file.items] == items
    for file in files:
        for item, placed in zip(file.items, file.placed(), strict=True):
            assert placed.offset >= 0 and placed.offset + item.length <= file.end - file.start
            assert file.start + placed.offset == item.offset
    assert max(file.end for file in files) == end


def test_a_file_is_no_longer_than_asked_for_unless_an_item_is() -> None:
    items, end = slot(*range(0, 1200, 50), 3000)
    files = shards.cut(items, end, MOST)
    assert len(files) > 3
    for file in files:
        assert file.end - file.start <= MOST + layout.ALIGNMENT or len(file.items) == 1


def test_tensors_stay_aligned() -> None:
    items, end = slot(*range(1, 1200, 49))
    for file in shards.cut(items, end, MOST):
        assert file.start % layout.ALIGNMENT == 0


def test_a_rank_that_uploads_nothing_has_one_empty_file() -> None:
    [file] = shards.cut([], 0)
    assert (file.start, file.end, file.items) == (0, 0, ())
