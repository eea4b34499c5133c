"""Which of the sealed saves a daemon sends to the store."""

import asyncio
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace
from spotelastic_checkpoints import framing, messages
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.commit.upload_pipeline import Pipeline
from spotelastic_checkpoints.daemon.connections import Client
from spotelastic_checkpoints.daemon.service import Service
from spotelastic_checkpoints.daemon.slot_allocator import SlotAllocator
from spotelastic_checkpoints.daemon.slot_prefault import SlotPrefaulter
from spotelastic_checkpoints.decoders import from_msgpack
from spotelastic_checkpoints.memory import arena, slots
from spotelastic_checkpoints.memory.arena import Arena, Slot, SlotHeader
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.types import Branch, MemberRanks, RoundInfo, SlotGrant
from support.processes.patience import PATIENT

BEFORE = RoundInfo("before", 4, 1, 0, (MemberRanks(0, "n", (0,)),), epoch=4)
NOW = replace(BEFORE, incarnation="now", number=5, epoch=5, lineage=(Branch("before", 100),))
HEADER = SlotHeader(
    owner="test", incarnation="", step=0, layout="l", rank=0, world_size=1, ranks=(0,),
    whole=True, chunks=0, shared=0, owned=0, owned_bytes=0, data_bytes=0, index_bytes=1, values=0,
    due=True,
)  # fmt: skip


def seal(folder: Arena, number: int, incarnation: str, step: int, *, due: bool = True) -> None:
    path = folder.slot_path(0, number)
    path.write_bytes(bytes(arena.slot_bytes(0, arena.encode_index([]), 0)))
    slot = Slot(path)
    slot.open()
    slot.write_index(0, arena.encode_index([]))
    slot.seal(replace(HEADER, incarnation=incarnation, step=step, due=due), [])


def begun(folder: Arena) -> Service:
    """A daemon that has heard of both rounds."""

    service = Service(
        folder,
        storage=str(folder.folder / "store"),
        owner="test",
        node="n",
        credentials=PeerCredentials(),
        most_slots=2,
        keep=Keep(),
    )
    service.begin(BEFORE)
    service.begin(NOW)
    return service


def wanted(folder: Arena) -> tuple[int, int] | None:
    """Epoch and step of what the daemon sends next."""
    service = begun(folder)
    upload = service.pipeline.upload
    service.close()
    return (upload.epoch, upload.step) if upload is not None else None


def test_what_the_lost_round_left_is_sent_while_there_is_nothing_newer(tmp_path: Path) -> None:
    folder = Arena(tmp_path, 1)
    seal(folder, 0, "before", 100)
    assert wanted(folder) == (4, 100)
    seal(folder, 1, "now", 110, due=False)
    assert wanted(folder) == (4, 100)
    seal(folder, 1, "now", 110)
    assert wanted(folder) == (5, 110)


@dataclass
class Reading:
    """What an upload reads."""

    pinned: Set[Path]
    in_use: Set[Path]

    def give_way(self) -> bool:
        return False


class AllThere(SlotPrefaulter):
    """All slots are in memory."""

    def missing(self, paths: Iterable[Path]) -> set[Path]:
        return set()


def unasked(data: bytes) -> None:
    pytest.fail(f"nobody waits for {data!r}")


def test_a_save_on_its_way_to_a_store_that_is_away_is_overwritten_last(tmp_path: Path) -> None:
    """It is what all nodes commit when the store is back."""
    folder = Arena(tmp_path, 1)
    for number, step in enumerate((60, 70, 80)):
        seal(folder, number, "now", step, due=step == 60)
    sending, older, newest = (folder.slot_path(0, number) for number in range(3))
    reading = Reading(pinned={sending}, in_use=set())
    there = AllThere(folder, 3, lambda: None, pytest.fail)
    grants = SlotAllocator(folder, there, cast("Pipeline", reading))

    def granted(*paths: Path) -> Path | None:
        return grants.next(Client(unasked, slots=[*paths]), NOW, urgent=False)

    assert granted(sending, older, newest) == older
    assert granted(sending, newest) == sending, "there is no other"
    reading.in_use = {sending}
    assert granted(sending, newest) is None


def test_a_run_that_was_sent_back_goes_on_committing(tmp_path: Path) -> None:
    folder = Arena(tmp_path, 1)
    seal(folder, 0, "before", 100)
    seal(folder, 1, "now", 60)
    assert wanted(folder) == (5, 60)


@pytest.mark.parametrize("due", [0, 1])
def test_of_a_step_that_was_sealed_twice_all_take_what_is_due(tmp_path: Path, due: int) -> None:
    """The same names go up from both: one's bytes and the other's checksums were a commit."""
    folder = Arena(tmp_path, 1)
    for number in (0, 1):
        seal(folder, number, "now", 110, due=number == due)
    chosen = folder.slot_path(0, due)
    service = begun(folder)
    assert service.pipeline.pinned == {chosen}
    service.close()
    assert [slot.path for slot, _ in slots.members(folder.sealed(), "now", 110, "l")] == [chosen]
    views = [folder.view(slot.path) for slot in folder.slots()]
    assert slots.choose(views, NOW, ()) == folder.slot_path(0, 1 - due)


@pytest.mark.parametrize("urgent", [False, True])
def test_an_urgent_save_takes_the_slot_of_one_that_waits_for_the_store(
    tmp_path: Path, urgent: bool
) -> None:
    """The newest save keeps its own: a crash must lose nothing that was sealed."""
    folder = Arena(tmp_path, 1)
    seal(folder, 0, "now", 110)
    seal(folder, 1, "now", 120, due=False)

    async def granted() -> str | None:
        service = begun(folder)
        assert service.pipeline.pinned == {folder.slot_path(0, 0)}
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        worker = Client(answers.put_nowait, rank=0, local_rank=0, round="now")
        service.clients.add(worker)
        service.handle(worker, 1, messages.Prepare(1))
        service.handle(worker, 2, messages.AwaitSlots(0))
        for _ in range(2):
            await asyncio.wait_for(answers.get(), PATIENT)
        service.handle(worker, 3, messages.Reserve(urgent))
        service.handle(worker, 4, messages.GetStatus())
        answer = await asyncio.wait_for(answers.get(), PATIENT)
        service.close()
        ident, _, grant = framing.decode_reply(answer[framing.FRAME.size :])
        return from_msgpack(grant, SlotGrant).path if ident == 3 else None

    assert asyncio.run(granted()) == (str(folder.slot_path(0, 0)) if urgent else None)


@pytest.mark.parametrize(
    ("saves", "stays"),
    [
        ({0: (110, True), 1: (120, False), 2: (90, False)}, False),
        ({0: (90, False), 1: (110, True), 2: (120, False)}, True),
        ({0: (90, False), 1: (120, False), 2: (110, True)}, True),
    ],
    ids=["oldest", "newest", "on its way to the store"],
)
def test_a_slot_beyond_those_that_a_rank_has_goes_unless_it_is_needed(
    tmp_path: Path, saves: dict[int, tuple[int, bool]], stays: bool
) -> None:
    folder = Arena(tmp_path, 1)
    for number, (step, due) in saves.items():
        seal(folder, number, "now", step, due=due)

    async def prepared() -> None:
        service = begun(folder)  # with two slots for each rank
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        worker = Client(answers.put_nowait, rank=0, local_rank=0, round="now")
        service.clients.add(worker)
        service.handle(worker, 1, messages.Prepare(1))
        await asyncio.wait_for(answers.get(), PATIENT)
        service.close()

    asyncio.run(prepared())
    assert folder.slot_path(0, 2).exists() is stays
    assert all(folder.slot_path(0, number).exists() for number in (0, 1))
