"""Cells fetched into shared memory: what is there stays while a rank needs it, and no longer."""

import itertools
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Lock
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from spotelastic_checkpoints.errors import RestoreFailed
from spotelastic_checkpoints.format.manifest import BLOCK
from spotelastic_checkpoints.memory.extents import PAGE
from spotelastic_checkpoints.restore import fetch_units
from spotelastic_checkpoints.restore.fetch_units import CopyLocation
from spotelastic_checkpoints.restore.fetcher import END, Fetcher
from spotelastic_checkpoints.types import Moved, Range
from support.draws import drawn
from support.processes.patience import PATIENT, eventually
from support.saving.checkpoint_items import item


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="se-test-", dir="/dev/shm") as folder:
        yield Path(folder)


class Damaged:
    """A source whose bytes are not what they should be, and each of its readers."""

    name, lanes, most = "a", 2, 64

    def open(self) -> "Damaged":
        return self

    def read(self, file: object, offset: int, target: memoryview) -> None:
        pass

    def abort(self) -> None: ...

    def close(self) -> None: ...


def test_a_fetch_that_failed_gives_its_memory_back_at_once(tmp_path: Path) -> None:
    placed = fetch_units.placed(
        [(item("t", 0, 64, checksum="another"), (CopyLocation(0, "f", 0),))]
    )
    fetcher = Fetcher(tmp_path / "restore-1", placed, [Damaged()])
    with pytest.raises(RestoreFailed, match="t does not match") as failed:
        fetcher.fetch([(0, 64)])
    assert failed.value.__traceback__ is not None, "which holds on to the fetcher"
    held = [descriptor.resolve() for descriptor in Path("/proc/self/fd").iterdir()]
    assert not [path for path in held if path.parent == tmp_path]
    with pytest.raises(RestoreFailed, match="t does not match"):
        fetcher.fetch([(0, 64)])


SIZE = 3 * BLOCK
SLACK = 3 * PAGE
"""Of an item's blocks, which come alone."""
COUNT = 5


class Whole:
    """A source that has everything, and each of its readers."""

    name, lanes, most = "a", 2, BLOCK

    def __init__(self) -> None:
        self.data = random.Random(0).randbytes(COUNT * SIZE)
        self.sent = 0
        self._counting = Lock()

    def open(self) -> "Whole":
        return self

    def read(self, file: object, offset: int, target: memoryview) -> None:
        target[:] = self.data[offset : offset + len(target)]
        with self._counting:  # its lanes are threads
            self.sent += len(target)

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Connection:
    """To a source that ends it when it has been idle for too long, or was made on a bad day."""

    def __init__(self, source: Whole) -> None:
        self._source = source
        self.ended = False

    def read(self, file: object, offset: int, target: memoryview) -> None:
        if self.ended:
            raise RestoreFailed("lost the checkpoint daemon")
        self._source.read(file, offset, target)

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Connected(Whole):
    """A source over connections, of which so many fail at once."""

    lanes = 1

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[Connection] = []
        self.bad = 0

    def open(self) -> Any:
        self.connections.append(Connection(self))
        self.connections[-1].ended = self.bad > 0
        self.bad -= 1
        return self.connections[-1]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_connection_that_was_ended_while_it_was_idle_is_no_loss_of_its_source(
    tmp_path: Path, bad: int
) -> None:
    source = Connected()
    items = [(item(f"t{n}", n * SIZE, SIZE), (CopyLocation(0, "f", n * SIZE),)) for n in range(2)]
    fetcher = Fetcher(tmp_path / "restore-1", fetch_units.placed(items), [source])
    fetcher.fetch([(0, SIZE)])
    eventually(lambda: fetcher.idle)
    source.connections[0].ended, source.bad = True, bad
    if bad:
        with pytest.raises(RestoreFailed, match="lost the checkpoint daemon"):
            fetcher.fetch([(SIZE, 2 * SIZE)])
    else:
        fetcher.fetch([(SIZE, 2 * SIZE)])
        assert there(fetcher, (0, 2 * SIZE)) == source.data[: 2 * SIZE]
    assert len(source.connections) == 2, "a new one is tried once"
    fetcher.remove()


def streamed(
    path: Path, readers: int, come: int | None = None
) -> tuple[Fetcher, Whole, list[Range]]:
    """Of COUNT items; all readers have entered, or as many as have come."""
    source = Whole()
    items = [
        (item(f"t{n}", n * SIZE, SIZE), (CopyLocation(0, "f", n * SIZE),)) for n in range(COUNT)
    ]
    placed = fetch_units.placed(items)
    fetcher = Fetcher(path, placed, [source], readers)
    for reader in range(readers if come is None else come):
        fetcher.enter(reader)
    return fetcher, source, [(n * SIZE, (n + 1) * SIZE) for n in range(COUNT)]


def memory(fetcher: Fetcher) -> int:
    return fetcher.path.stat().st_blocks * 512


def test_the_memory_of_what_all_ranks_have_passed_is_used_again(shared_memory: Path) -> None:
    fetcher, source, ranges = streamed(shared_memory / "restore-1", readers=2)
    for here, following in itertools.pairwise([*ranges, (END, END)]):
        for reader in range(2):
            fetcher.passed(reader, here[0])
            moved = fetcher.fetch([here], ahead=[following], keep=False)
            assert there(fetcher, here, moved) == source.data[slice(*here)]
    assert memory(fetcher) <= 3 * (SIZE + SLACK)
    assert source.sent == COUNT * SIZE
    fetcher.passed(0, END)
    assert fetcher.held == SIZE, "the other one is at the last"
    fetcher.passed(1, END)
    assert fetcher.held == 0
    fetcher.remove()


def test_a_rank_reads_on_in_peace_while_others_go_ahead(shared_memory: Path) -> None:
    fetcher, source, ranges = streamed(shared_memory / "restore-1", readers=2)
    fetcher.passed(1, 0)
    moved = fetcher.fetch(ranges[:1], keep=False)
    for here in ranges:
        fetcher.passed(0, here[0])
        fetcher.fetch([here], keep=False)
    fetcher.passed(0, END)
    assert there(fetcher, ranges[0], moved) == source.data[:SIZE]
    fetcher.remove()


def test_what_a_rank_keeps_stays_in_its_place_wherever_it_came_to(shared_memory: Path) -> None:
    fetcher, source, ranges = streamed(shared_memory / "restore-1", readers=1)
    assert fetcher.fetch(ranges[:1], ahead=ranges[1:], keep=False)
    assert fetcher.fetch(ranges) == []
    fetcher.passed(0, END)
    assert there(fetcher, (0, COUNT * SIZE)) == source.data
    assert source.sent == COUNT * SIZE
    assert fetcher.held == 0, "it is in its place alone"
    fetcher.remove()


class Late(Whole):
    """A source that brings something else, when it is let go on."""

    lanes = 1

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = Event(), Event()

    def read(self, file: object, offset: int, target: memoryview) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENT)
        target[:] = bytes(len(target))


class Second(Whole):
    """One that waits until the other is at it."""

    def __init__(self, first: Late) -> None:
        super().__init__()
        self._first = first

    def read(self, file: object, offset: int, target: memoryview) -> None:
        assert self._first.begun.wait(PATIENT)
        super().read(file, offset, target)


def test_who_comes_last_with_the_same_does_not_write_to_what_is_read(
    shared_memory: Path,
) -> None:
    late = Late()
    second = Second(late)
    both = (CopyLocation(0, "f", 0), CopyLocation(1, "f", 0))
    placed = fetch_units.placed([(item("t", 0, BLOCK), both)])
    fetcher = Fetcher(shared_memory / "restore-1", placed, [late, second], late=0.0)
    fetcher.enter(0)
    asked = [(0, BLOCK)]
    moved = fetcher.fetch(asked, keep=False)
    late.go_on.set()
    eventually(lambda: fetcher.idle)
    assert there(fetcher, asked[0], moved) == second.data[:BLOCK]
    assert fetcher.fetch(asked, keep=False) == moved
    fetcher.remove()


def test_what_is_longer_than_one_read_is_verified_as_a_whole(shared_memory: Path) -> None:
    source = Whole()
    checksum = xxhash.xxh3_64_hexdigest(source.data[:SIZE])
    placed = fetch_units.placed([(item("t", 0, SIZE, checksum), (CopyLocation(0, "f", 0),))])
    fetcher = Fetcher(shared_memory / "restore-1", placed, [source])
    moved = fetcher.fetch([(5, 6)], keep=False)
    assert there(fetcher, (0, SIZE), moved) == source.data[:SIZE]
    fetcher.remove()


def test_nothing_goes_before_every_rank_has_come(shared_memory: Path) -> None:
    fetcher, source, ranges = streamed(shared_memory / "restore-1", readers=2, come=1)
    moved = fetcher.fetch(ranges, keep=False)
    fetcher.passed(0, END)
    assert there(fetcher, (0, COUNT * SIZE), moved) == source.data
    assert fetcher.held == COUNT * SIZE
    fetcher.remove()


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["keep", "next", "next", "next", "again"]),
            st.integers(0, COUNT * SIZE - 1),
            st.integers(1, SIZE),
        ),
        max_size=40,
    )
)
@settings(deadline=None, max_examples=drawn(60))
def test_what_a_rank_has_not_passed_or_keeps_is_there(
    steps: list[tuple[int, str, int, int]],
) -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:
        fetcher, source, _ = streamed(Path(folder) / "restore-1", readers=3)
        at, needed = [0] * 3, [list[Range]() for _ in range(3)]
        passing: dict[int, tuple[Range, list[Moved]]] = {}
        for reader, what, start, length in steps:
            match what:
                case "again":
                    fetcher.enter(reader)
                    at[reader], needed[reader] = 0, []
                    passing.pop(reader, None)
                case "keep":
                    wanted = start, min(start + length, COUNT * SIZE)
                    fetcher.fetch([wanted])
                    needed[reader].append(wanted)
                case _:
                    fetcher.passed(reader, at[reader])
                    wanted = at[reader], min(at[reader] + length, COUNT * SIZE)
                    moved = fetcher.fetch([wanted], keep=False)
                    at[reader] = wanted[1]
                    passing[reader] = wanted, moved
            for each in needed:
                for kept in each:
                    assert there(fetcher, kept) == source.data[slice(*kept)]
            for read, moved in passing.values():
                assert there(fetcher, read, moved) == source.data[slice(*read)]
        fetcher.remove()


def there(fetcher: Fetcher, wanted: Range, moved: Iterable[Moved] = ()) -> bytes:
    """What a rank reads."""
    start, end = wanted
    with fetcher.path.open("rb") as file:
        data = bytearray(os.pread(file.fileno(), end - start, start))
        for first, last, at in moved:
            low, high = max(first, start), min(last, end)
            if low < high:
                piece = os.pread(file.fileno(), high - low, at + low - first)
                data[low - start : high - start] = piece
    return bytes(data)
