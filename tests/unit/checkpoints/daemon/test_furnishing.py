"""Which slots a rank gets, and which of those it had make room for them."""

import asyncio
from pathlib import Path

import pytest
from spotelastic_checkpoints.daemon.slot_prefault import SlotPrefaulter
from spotelastic_checkpoints.errors import ArenaFull
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.memory.free_memory import FreeMemory

SIZE = 1 << 20


def test_slots_that_a_rank_does_not_use_any_more_make_room_before_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena(tmp_path, workers=1)
    paths = [arena.slot_path(0, number) for number in range(3)]
    for path in paths:
        arena.allocate(path, SIZE)

    def room() -> FreeMemory:
        """Enough for four of them and a bit."""
        taken = sum(slot.size for slot in arena.slots())
        return FreeMemory(4 * SIZE + SIZE // 2 - taken, "here", "make more")

    monkeypatch.setattr(arena, "room", room)

    async def main() -> None:
        furnishing = SlotPrefaulter(arena, 3, lambda: None, lambda _: None)
        with pytest.raises(ArenaFull, match="two slots of 2 MiB"):
            furnishing.begin(0, 2 * SIZE)
        assert all(path.exists() for path in paths)
        assert furnishing.begin(0, 2 * SIZE, paths[1:]) == paths[:2]
        assert [path.exists() for path in paths] == [True, True, False]
        assert await furnishing.wait(0) == tuple(map(str, paths[:2]))
        assert [slot.size for slot in arena.slots()] == [2 * SIZE, 2 * SIZE]

    asyncio.run(main())
