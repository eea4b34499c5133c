"""Memory that is used again: never by two at a time, never more of it than was needed at once."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spotelastic_checkpoints.format.layout import ALIGNMENT
from spotelastic_checkpoints.memory.extents import PAGE, Extents, Lease
from support.saving.small_disk import small_disk

SIZE = 16 * PAGE
BEGIN = 5000


@pytest.fixture
def descriptor() -> Iterator[int]:
    with TemporaryFile(dir="/dev/shm") as file:
        yield file.fileno()


def content(number: int, length: int) -> bytes:
    return bytes([number % 251 + 1]) * length


@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.integers(0, 2 * SIZE), st.integers(0, 200)), max_size=60
    )
)
@settings(deadline=None)
def test_what_is_leased_is_nobody_elses(steps: list[tuple[bool, int, int]]) -> None:
    with TemporaryFile(dir="/dev/shm") as file:
        extents = Extents(file.fileno(), BEGIN, SIZE)
        leased: dict[int, tuple[Lease, int]] = {}
        for number, (take, length, like) in enumerate(steps):
            if take or not leased:
                lease = extents.lease(length, like)
                assert (len(lease.memory), lease.offset % ALIGNMENT) == (length, like % ALIGNMENT)
                assert lease.offset >= BEGIN
                lease.memory[:] = content(number, length)
                leased[number] = lease, length
            else:
                lease, _ = leased.pop(sorted(leased)[like % len(leased)])
                extents.give_back(lease)
            for known, (lease, size) in leased.items():
                assert lease.memory == content(known, size)
                assert os.pread(file.fileno(), size, lease.offset) == content(known, size)


def test_memory_is_used_again(descriptor: int) -> None:
    extents = Extents(descriptor, 0, SIZE)
    for _ in range(100):
        leases = [extents.lease(length, 0) for length in (SIZE, 100, SIZE // 2, SIZE // 3)]
        for lease in leases:
            lease.memory[:] = bytes(len(lease.memory))
            extents.give_back(lease)
    assert os.fstat(descriptor).st_blocks * 512 <= 4 * SIZE
    assert extents.free >= SIZE


def test_what_is_longer_than_an_extent_has_one_of_its_own(descriptor: int) -> None:
    extents = Extents(descriptor, 0, SIZE)
    long = extents.lease(10 * SIZE, 0)
    offset = long.offset
    extents.give_back(long)
    extents.give_back(extents.lease(SIZE, 0))
    assert extents.lease(10 * SIZE, 0).offset == offset


def test_what_is_left_of_it_goes_with_the_last_lease(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb+") as file:
        extents = Extents(file.fileno(), 0, SIZE)
        lease = extents.lease(SIZE, 0)
        lease.memory[:] = content(1, SIZE)
        extents.clear()
        assert lease.memory == content(1, SIZE)
        del lease
    held = [descriptor.resolve() for descriptor in Path("/proc/self/fd").iterdir()]
    assert path not in held


def test_a_full_file_system_is_an_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "shm", 1 << 10) as folder, (folder / "file").open("wb+") as file:
        extents = Extents(file.fileno(), 0, SIZE)
        with pytest.raises(OSError, match="No space left"):
            for _ in range(1000):
                extents.lease(SIZE, 0).memory[:] = bytes(SIZE)
