"""A keeper of replicas and the daemon that it asks, in one process: what gives way to what."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from spotelastic_checkpoints.memory import arena as memory
from spotelastic_checkpoints.memory import slots
from spotelastic_checkpoints.memory.arena import Arena, Slot, SlotHeader
from spotelastic_checkpoints.memory.free_memory import FreeMemory
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.messages import AwaitOffer
from spotelastic_checkpoints.peers.offers import Offers
from spotelastic_checkpoints.peers.transfers import PeerServer
from spotelastic_checkpoints.replicas.keeper import ReplicaKeeper
from spotelastic_checkpoints.types import Item, RoundInfo, Ward
from support.processes.patience import eventually
from support.saving.daemons_and_workers import round_info

PIECE = 4096
PIECES = 16
ITEM = Item("w", ("w",), "uint8", (PIECE * PIECES,), (0,), (PIECE * PIECES,), -1, 0, PIECE * PIECES)
INDEX = memory.encode_index([ITEM])
HEADER = SlotHeader(
    "test", "r1", 0, "layout", 1, 2, (1,), False, 1, 1, 1, ITEM.length, ITEM.length, len(INDEX), 0,
    False, alone=1, alone_bytes=ITEM.length,
)  # fmt: skip
CREDENTIALS = PeerCredentials("a token")


def bytes_of(step: int, changed: int = PIECES) -> bytes:
    """Of which the first pieces are those of the step, and the others always the same."""
    return bytes([step]) * (PIECE * changed) + bytes(PIECE * (PIECES - changed))


def sealed(folder: Arena, number: int, step: int, changed: int = PIECES) -> Slot:
    path = folder.slot_path(0, number)
    slot = folder.furnish(path, memory.slot_bytes(ITEM.length, INDEX, 0))
    slot.open()
    slot.data[: ITEM.length] = bytes_of(step, changed)
    slot.write_index(ITEM.length, INDEX)
    slot.seal(replace(HEADER, step=step), [])
    return slot


class Pair:
    """An owner that serves its slots, and a keeper."""

    def __init__(self, folder: Path) -> None:
        self.owner, self.arena = Arena(folder / "owner", 1), Arena(folder / "keeper", 1)
        self.offers = Offers(self.owner, answer_after=0.05)
        self.server = PeerServer(self.owner, CREDENTIALS, "127.0.0.1", 0, offers=self.offers)
        self.told: list[str] = []
        self.keepers: list[ReplicaKeeper] = []

    def keeper(
        self, may_pull: Callable[[], bool] = lambda: True, arena: Arena | None = None
    ) -> ReplicaKeeper:
        made = ReplicaKeeper(
            arena or self.arena, CREDENTIALS, may_pull, lambda: True, self.told.append, PIECE
        )
        self.keepers.append(made)
        return made

    @property
    def round(self) -> RoundInfo:
        return round_info("r1", 0, ["n0", "n1"], 1, 0, ward=Ward("n1", self.server.address, 1e9))

    def steps(self) -> set[int]:
        return {found.step for found in slots.replicas(self.arena)}

    def has(self, step: int, changed: int = PIECES) -> bool:
        return any(
            header.step == step and bytes(slot.data[: ITEM.length]) == bytes_of(step, changed)
            for slot, header in self.arena.sealed_replicas()
        )


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    for keeper in made.keepers:
        keeper.end()
    made.server.close()
    eventually(lambda: not any(t.name in ("replicas", "peer") for t in threading.enumerate()))


def test_what_has_not_changed_does_not_come_again(pair: Pair) -> None:
    keeper = pair.keeper()
    sealed(pair.owner, 0, 1)
    keeper.begin(pair.round)
    eventually(lambda: pair.has(1))
    sealed(pair.owner, 1, 2, changed=3)
    pair.offers.sealed()
    eventually(lambda: pair.has(2, changed=3))
    before = keeper.pulled
    sealed(pair.owner, 0, 3, changed=3)
    pair.offers.sealed()
    eventually(lambda: pair.has(3, changed=3))
    assert keeper.pulled - before == 3 * PIECE
    assert pair.steps() == {2, 3} and not pair.told


def test_while_something_goes_first_no_range_is_asked_for(pair: Pair) -> None:
    free = threading.Event()
    asked = threading.Semaphore(0)

    def may_pull() -> bool:
        asked.release()
        return free.is_set()

    keeper = pair.keeper(may_pull)
    sealed(pair.owner, 0, 1)
    keeper.begin(pair.round)
    for _ in range(3):
        assert asked.acquire(timeout=30)
    assert keeper.pulled == 0 and not pair.steps()
    free.set()
    eventually(lambda: pair.has(1))


def test_a_slot_that_training_needs_is_given_up_and_the_next_save_copied(pair: Pair) -> None:
    """The save is overwritten in the middle: what has come of it is never sealed."""
    sealed(pair.owner, 0, 1)
    calls = iter(range(10_000))

    def may_pull() -> bool:
        if next(calls) == PIECES // 2:
            sealed(pair.owner, 0, 2)
            pair.offers.sealed()
        return True

    pair.keeper(may_pull).begin(pair.round)
    eventually(lambda: pair.has(2))
    assert pair.steps() == {2}


def test_a_node_under_notice_offers_nothing(pair: Pair) -> None:
    sealed(pair.owner, 0, 1)
    assert pair.offers.next(AwaitOffer("r1", 0)) is not None
    assert pair.offers.in_use == {pair.owner.slot_path(0, 0)}
    assert pair.offers.next(AwaitOffer("r1", 1)) is None, "it has that one"
    assert pair.offers.next(AwaitOffer("r2", 0)) is None, "another history's"
    pair.offers.pause()
    assert pair.offers.next(AwaitOffer("r1", 0)) is None
    assert not pair.offers.in_use


class Full(Arena):
    """An arena on a machine without free memory."""

    def room(self) -> FreeMemory:
        return FreeMemory(ITEM.length, "on this machine", "take a machine with more memory")


def test_without_room_one_line_says_so_and_there_is_no_file(pair: Pair, tmp_path: Path) -> None:
    full = Full(tmp_path / "full", 1)
    asked = threading.Semaphore(0)
    keeper = pair.keeper(lambda: not asked.release(), full)  # type: ignore[func-returns-value]
    sealed(pair.owner, 0, 1)
    keeper.begin(pair.round)
    for _ in range(3):
        assert asked.acquire(timeout=30)
    [told] = pair.told
    assert told.startswith("no replica of n1: two of 0 MiB need 0 MiB more; 0 MiB are free on")
    assert not full.replicas()


def test_slots_get_the_memory_of_replicas(pair: Pair) -> None:
    keeper = pair.keeper()
    assert not keeper.give_up_memory()
    sealed(pair.owner, 0, 1)
    keeper.begin(pair.round)
    eventually(lambda: pair.has(1))
    assert keeper.give_up_memory()
    assert not pair.arena.replicas()
    [told] = pair.told
    assert "gave way to this node's own saves" in told
    pulled = keeper.pulled
    keeper.begin(pair.round)  # told again of the same round
    assert not keeper.give_up_memory() and keeper.pulled == pulled
