"""Slots are locked for a GPU range by range, wholly or not at all, and unlocked again."""

import mmap

import pytest

from spotelastic.training import pinning
from spotelastic.training.pinning import Pinned


class Driver:
    """Locks until it has locked `most` ranges."""

    def __init__(self, most: int = 100) -> None:
        self.locked: dict[int, int] = {}
        self._most = most

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if len(self.locked) == self._most:
            return 2
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> memoryview:
    monkeypatch.setattr(pinning, "RANGE", 1 << 16)
    return memoryview(mmap.mmap(-1, (5 << 16) + 4096))


def test_neighbouring_ranges_cover_the_memory_until_they_are_released(memory: memoryview) -> None:
    driver = Driver()
    pinned = Pinned(memory, driver)
    assert pinned.whole
    starts = sorted(driver.locked)
    assert sum(driver.locked.values()) == len(memory)
    ends = [start + driver.locked[start] for start in starts]
    assert starts[1:] == ends[:-1]
    pinned.release()
    assert not driver.locked and not pinned.whole


def test_what_the_driver_does_not_lock_wholly_is_not_locked_at_all(memory: memoryview) -> None:
    driver = Driver(most=3)
    pinned = Pinned(memory, driver)
    assert not pinned.whole and not driver.locked
    pinned.release()
