"""Slots are locked for a GPU each in one piece, once, and unlocked again."""

import mmap
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from spotelastic.training.save.pinning import Pinned, Pins


class Driver:
    """Locks what is not locked yet; refuses all else, as CUDA does."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.locked: dict[int, int] = {}
        self.threads = set[int]()
        self._refuses = refuses

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.threads.add(threading.get_ident())
        if self._refuses or address in self.locked:
            return 712
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.threads.add(threading.get_ident())
        del self.locked[address]
        return 0


def memory() -> memoryview:
    return memoryview(mmap.mmap(-1, (5 << 16) + 4096))


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def pins(driver: Driver) -> Iterator[Pins]:
    with closing(Pins(lambda memory: Pinned(memory, driver))) as pins:
        yield pins


def test_a_slot_is_locked_in_one_piece_until_it_is_released(driver: Driver) -> None:
    slot = memory()
    pinned = Pinned(slot, driver)
    assert pinned.locked and list(driver.locked.values()) == [len(slot)]
    pinned.release()
    pinned.release()
    assert not driver.locked and not pinned.locked


def test_what_is_refused_is_not_released() -> None:
    driver = Driver(refuses=True)
    with closing(Pins(lambda memory: Pinned(memory, driver))) as pins:
        pins.add("slot", memory())
    assert not driver.locked


def test_a_slot_is_locked_once_however_often_it_is_added(driver: Driver, pins: Pins) -> None:
    slot = memory()
    for _ in range(3):
        pins.add("slot", slot)
    assert len(driver.locked) == 1
    other = memory()
    pins.add("slot", other)
    assert len(driver.locked) == 1, "the new one alone"
    pins.close()
    assert not driver.locked


def test_nothing_is_locked_after_the_end(driver: Driver, pins: Pins) -> None:
    pins.close()
    pins.add("slot", memory())
    assert not driver.locked


def test_the_thread_that_trains_never_asks_the_driver(driver: Driver, pins: Pins) -> None:
    """Which would fail that thread's next kernel after a refusal."""
    pins.add("slot", memory())
    pins.close()
    assert driver.threads and threading.get_ident() not in driver.threads
