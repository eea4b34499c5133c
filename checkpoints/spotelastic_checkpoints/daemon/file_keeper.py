"""Keeps the script's files in the daemon: looks at them now and then, beside the checkpoints.

Checkpoints go first. A piece of a file waits while a save is on its way, so that files cost
training nothing beside it. They go without waiting at the end, once the saves are committed.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from spotelastic_checkpoints.backoff import Backoff
from spotelastic_checkpoints.errors import CheckpointsError, StorageUnavailable
from spotelastic_checkpoints.files import looking
from spotelastic_checkpoints.files.keeping import KeptFolders
from spotelastic_checkpoints.types import RoundInfo

logger = logging.getLogger(__name__)

T = TypeVar("T")

WAITS = 120.0
"""Seconds for which a piece of a file waits for saves that are on their way."""
PUT_BACK_WITHIN = 60.0
"""Seconds for which a script that is to start waits for a store that does not answer."""
LOOK_AGAIN = Backoff(1.0, 60.0)
"""Between looks for files that nobody keeps."""
LOOKS_WITHIN = 5.0
"""Seconds that the last one may take."""
NAMED = 3
"""Files that are named in a line."""


@dataclass(frozen=True, slots=True)
class FilePace:
    """How often files are looked at."""

    every: float = 2.0
    """Seconds between two looks at the folders, or more where a look takes long."""
    rest: float = 2.0
    """Seconds for which a file must not have been written to."""
    in_haste: float = 0.25
    """The same two, once the node is about to go."""
    again: float = 5.0
    """Seconds until the next try, where the store did not answer."""


FILE_PACE = FilePace()


@dataclass(frozen=True, slots=True)
class ScriptFolder:
    """The folder that a script runs in."""

    path: Path
    kept: tuple[str, ...] = ()
    """Folders within it whose files are kept."""
    ours: tuple[Path, ...] = ()
    """Folders that are not the script's."""
    looks: bool = False
    """Whether to look for files that nobody keeps."""


class FileKeeper:
    """Keeps a node's files, from the daemon's event loop."""

    def __init__(
        self,
        folder: ScriptFolder,
        kept: KeptFolders,
        is_busy: Callable[[], bool],
        executor: Executor,
        tell: Callable[[str], None],
        pace: FilePace = FILE_PACE,
    ) -> None:
        """`is_busy` says whether a save is on its way. `executor` has a thread of its own.

        `tell` is called in the event loop with what people should know.
        """
        self._folder = folder
        self._kept = kept
        self._is_busy = is_busy
        self._executor = executor
        self._tell = tell
        self._pace = pace
        self._one = asyncio.Lock()
        self._changed = asyncio.Event()
        self._hurried = 0.0
        """Epoch seconds at which the node will be gone; 0: not known."""
        self._ended = False
        """Whether nobody writes any more, on a node that leaves."""
        self._wanted = threading.Event()
        """Set while something waits that is more urgent than a look."""
        self._round: tuple[int, int] | None = None
        """Rank and epoch of the current round."""
        self._known = -1
        """The rank whose files in the storage were compared with those here."""
        self._away = False
        """Whether it was told that the store does not answer."""
        self._since = time.time()
        self._look_at, self._pause = 0.0, LOOK_AGAIN
        self._looking: asyncio.Future[None] | None = None
        self._found: frozenset[str] = frozenset()
        """What nobody keeps, as it was told."""

    def begin(self, round_: RoundInfo) -> None:
        """Go on in this round."""
        self._round = round_.slot, round_.epoch
        if self._ended:
            self._ended = False
            self._wanted.clear()
        self._changed.set()

    def hurry(self, deadline: float) -> None:
        """Keep files as soon as they rest: this node will be gone at `deadline` (epoch s)."""
        self._hurried = deadline
        self._changed.set()

    def ended(self) -> None:
        """Keep the last files of a node that leaves at once: its script has ended."""
        if self._hurried:
            self._wanted.set()
            self._ended = True
            self._changed.set()

    async def run(self) -> None:
        """Keep files until cancelled."""
        while self._folder.kept:
            begun = time.monotonic()
            pause = self._pace.in_haste if self._hurried else self._pace.every
            try:
                async with self._turn(first=self._ended):
                    await self._adopt()
                    await self._keep()
                self._away = False
            except Exception as error:  # whatever a file system does, the daemon goes on
                pause = self._pace.again
                if not isinstance(error, CheckpointsError):
                    logger.exception("keeping the script's files")
                if not self._away:
                    self._away = True
                    self._tell(f"the script's files cannot be kept for now: {error}")
            took = time.monotonic() - begun
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), max(pause, 10 * took))
            except TimeoutError:
                pass

    async def _keep(self) -> None:
        if not self._ended:
            self._kept.leaving = self._hurried
            rest = self._pace.in_haste if self._hurried else self._pace.rest
            await self._in_thread(self._kept.keep, rest, self._goes)
        elif await self._in_thread(self._kept.keep, 0.0):
            self._kept.leaving = 0.0
            await self._in_thread(self._kept.keep, 0.0)

    async def _adopt(self) -> None:
        """Take the round's rank and epoch.

        With a new rank, files of its own are put back beside the script, where there are none.
        """
        if self._round is None:
            return
        rank, epoch = self._round
        self._kept.begin(rank, epoch)
        if rank != self._known:
            await self._in_thread(partial(self._kept.put_back, rank, missing=True))
            self._known = rank

    def _goes(self) -> bool:
        """Wait until a piece may be sent. Returns False where something else goes first."""
        until = time.monotonic() + WAITS
        while self._is_busy() and time.monotonic() < until:
            if self._wanted.wait(0.1):
                break
        return not self._wanted.is_set()

    @asynccontextmanager
    async def _turn(self, *, first: bool = True) -> AsyncIterator[None]:
        """Wait until nothing else is done; `first`: in place of a look that is under way."""
        if first:
            self._wanted.set()
        async with self._one:
            if first:
                self._wanted.clear()
            yield

    async def put_back(self, rank: int) -> None:
        """Put the files of a rank back, before its script starts."""
        until = time.monotonic() + PUT_BACK_WITHIN
        while self._folder.kept:
            try:
                async with self._turn():
                    await self._in_thread(self._kept.put_back, rank)
                return
            except Exception as error:
                if not isinstance(error, StorageUnavailable) or time.monotonic() > until:
                    self._tell(f"the script begins without the files that it kept: {error}")
                    return
            await asyncio.sleep(0.5)

    async def flush(self, within: float) -> bool:
        """Keep all that has changed, at the end. Returns whether that was done in `within` s."""
        kept = True
        if self._folder.kept:
            task = asyncio.ensure_future(self._flush(time.monotonic() + within))
            done, _ = await asyncio.wait((task,), timeout=within)
            kept = bool(done) and task.result()
            if not done:  # it goes on as long as the daemon lives
                self._tell("some of the script's last files were not kept in time")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._look(), LOOKS_WITHIN)
        return kept

    async def _flush(self, until: float) -> bool:
        reason = "they could not be read, or the storage was never claimed"
        while time.monotonic() < until:
            try:
                async with self._turn():
                    await self._adopt()
                    if await self._in_thread(self._kept.keep, 0.0):
                        return True
            except Exception as error:
                reason = str(error)
                if not isinstance(error, StorageUnavailable):
                    break
            await asyncio.sleep(0.2)
        self._tell(f"some of the script's last files are not kept: {reason}")
        return False

    def saved(self) -> None:
        """Look for files that nobody keeps, now and then until there are some."""
        now = time.monotonic()
        if not self._found and now >= self._look_at:
            self._pause = self._pause.failed()
            self._look_at = now + self._pause.bound
            self._looking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        """Tell of files that nobody keeps, unless that was told."""
        folder = self._folder
        if not folder.looks:
            return
        found = await self._in_thread(
            looking.left_behind, folder.path, self._since, folder.kept, folder.ours
        )
        paths = frozenset(path for path, _ in found)
        if paths and paths != self._found:
            self._found = paths
            self._tell(left_behind(found, folder.kept))

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, function, *arguments)


def left_behind(found: list[tuple[str, int]], kept: Collection[str] = ()) -> str:
    """Return the line about files that nobody keeps, given their paths and sizes (pure).

    `kept` are the folders that are kept.
    """
    largest = [path for path, _ in sorted(found, key=lambda each: -each[1])]
    named = ", ".join(largest[:NAMED])
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    verb = "is" if len(found) == 1 else "are"
    folders = sorted({path.partition("/")[0] for path in largest if "/" in path})
    advice = [" ".join(f"--output {folder}" for folder in folders[:NAMED])] if folders else []
    if not all("/" in path for path in largest):
        advice.append("write into $SPOTELASTIC_OUTPUT" + ("" if kept else ", with --output out"))
    return f"{named}{more} {verb} on this node alone: {'; '.join(advice)}"
