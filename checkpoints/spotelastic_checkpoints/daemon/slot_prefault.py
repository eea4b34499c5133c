"""Creates the slots of a node in shared memory, in the background, before saves need them."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError
from spotelastic_checkpoints.memory.arena import Arena

AGAIN = 1.0
"""Seconds between attempts while shared memory is full."""


class SlotPrefaulter:
    """Creates slots in threads, from the daemon's event loop."""

    def __init__(
        self,
        arena: Arena,
        most: int,
        moved_on: Callable[[], None],
        complain: Callable[[str], None],
    ) -> None:
        """`most` is the number of slots that each rank may have.

        `moved_on` is called for each slot that is in memory, `complain` with the reason why none
        can be made.
        """
        self._arena = arena
        self._most = most
        self._moved_on = moved_on
        self._complain = complain
        self._under_way: dict[int, asyncio.Task[tuple[str, ...]]] = {}
        """The task of each local rank, done when all its slots are in memory."""
        self._there: set[Path] = set()

    @property
    def done(self) -> bool:
        """Whether slots were asked for and all of them are in memory."""
        tasks = self._under_way.values()
        return bool(tasks) and all(
            task.done() and not task.cancelled() and task.exception() is None for task in tasks
        )

    @property
    def settled(self) -> bool:
        """Whether slots take no more memory.

        That is so once all that were asked for are there, or if a daemon that took over has found
        some.
        """
        return self.done if self._under_way else bool(self._arena.slots())

    def begin(self, local_rank: int, nbytes: int, dispensable: Collection[Path] = ()) -> list[Path]:
        """Return the slots, of `nbytes` each, that the rank will have, and begin to create them.

        Other slots of the rank are discarded if they are `dispensable`, before `ArenaFull` is
        raised because there is no room.
        """
        try:
            count = self._arena.slots_that_fit(nbytes, self._most)
        except ArenaFull:
            self._discard_beyond(self._paths(local_rank, min(2, self._most)), dispensable)
            count = self._arena.slots_that_fit(nbytes, self._most)
        paths = self._paths(local_rank, count)
        self._discard_beyond(paths, dispensable)
        before = self._under_way.get(local_rank)
        if before is not None:
            before.cancel()
        self._there.difference_update(paths)
        self._under_way[local_rank] = asyncio.get_running_loop().create_task(
            self._furnish(paths, nbytes)
        )
        return paths

    def _paths(self, local_rank: int, count: int) -> list[Path]:
        return [self._arena.slot_path(local_rank, number) for number in range(count)]

    def _discard_beyond(self, paths: Collection[Path], dispensable: Collection[Path]) -> None:
        for path in set(dispensable) - set(paths):
            self.discard(path)

    async def wait(self, local_rank: int) -> tuple[str, ...]:
        """Wait until all slots of the rank are in memory, and return their paths."""
        task = self._under_way.get(local_rank)
        if task is None:
            raise CheckpointsError(f"local rank {local_rank} has asked for no slots")
        return await asyncio.shield(task)

    def missing(self, paths: Iterable[Path]) -> set[Path]:
        """Return those of the slots that are not in memory yet."""
        return set(paths) - self._there

    def discard(self, path: Path) -> None:
        """Delete a slot and free its memory."""
        self._arena.discard(path)
        self._there.discard(path)

    async def _furnish(self, paths: list[Path], nbytes: int) -> tuple[str, ...]:
        """Create the slots one after the other, since the first save needs only one.

        Reports once that memory is full, and waits for room.
        """
        told = False
        for path in paths:
            while not await self._furnish_one(path, nbytes, told):
                told = True
                await asyncio.sleep(AGAIN)
            self._there.add(path)
            self._moved_on()
        return tuple(map(str, paths))

    async def _furnish_one(self, path: Path, nbytes: int, told: bool) -> bool:
        try:
            await asyncio.to_thread(self._arena.furnish, path, nbytes)
        except CheckpointsError as error:
            if not told:
                self._complain(f"no memory for a slot, so saves are left out: {error}")
            return False
        return True
