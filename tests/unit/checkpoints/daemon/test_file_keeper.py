"""The daemon keeps files after checkpoints, at the end at once, and never ends because of them."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.daemon.file_keeper import FileKeeper, FilePace, ScriptFolder
from spotelastic_checkpoints.errors import StorageUnavailable
from spotelastic_checkpoints.files.file_store import FileStore
from spotelastic_checkpoints.files.keeping import KeptFolders
from spotelastic_checkpoints.files.kept import FilePiece
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.types import MemberRanks, RoundInfo

PATIENT = 60.0


class Node:
    """A keeper over a real folder and a real storage. `busy` is a checkpoint that is on its way."""

    def __init__(self, base: Path) -> None:
        self.out = base / "work/out"
        self.out.mkdir(parents=True)
        self.storage = FolderStorage(base / "storage")
        self.store = FileStore(self.storage)
        self.busy, self.told = False, list[str]()
        self.asked = 0
        work, kept = (
            base / "work",
            KeptFolders(base / "work", ["out"], "a", lambda: self.store, self.told.append),
        )
        self.thread = ThreadPoolExecutor(1)
        self.keeper = FileKeeper(
            ScriptFolder(work, ("out",), looks=True),
            kept,
            self._is_busy,
            self.thread,
            self.told.append,
            FilePace(0.01, 0.01, 0.01, 0.01),
        )

    def _is_busy(self) -> bool:
        self.asked += 1
        return self.busy

    def begin(self, rank: int = 0) -> None:
        epoch = Commits(self.storage, "run").claim().epoch
        own = MemberRanks(rank, "a", (rank,))
        self.keeper.begin(RoundInfo("r", 1, 2, rank, (own,), epoch))

    def kept(self) -> set[str]:
        return {path for index in self.store.kept().values() for path in index.files}

    async def until_kept(self, *paths: str) -> None:
        async with asyncio.timeout(PATIENT):
            while self.kept() != set(paths):
                await asyncio.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def carried_out(node: Node, story: Coroutine[Any, Any, None]) -> None:
    async def told() -> None:
        running = asyncio.ensure_future(node.keeper.run())
        await story
        assert not running.done()
        running.cancel()
        node.thread.shutdown()

    asyncio.run(told())


def test_files_wait_for_checkpoints_but_not_at_the_end(node: Node) -> None:
    async def story() -> None:
        node.busy = True
        node.begin()
        (node.out / "best.pt").write_text("best")
        async with asyncio.timeout(PATIENT):
            while not node.asked:
                await asyncio.sleep(0.01)
        assert node.kept() == set(), "a checkpoint is on its way"
        await node.keeper.put_back(0)  # a script that starts does not wait for it
        assert await node.keeper.flush(PATIENT)
        assert node.kept() == {"out/best.pt"}
        node.busy = False
        (node.out / "more.txt").write_text("more")
        await node.until_kept("out/best.pt", "out/more.txt")

    carried_out(node, story())


def test_a_store_that_is_away_and_an_error_of_any_kind_are_told_once_and_outlived(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = [
        *(StorageUnavailable("the store is away") for _ in range(3)),
        RuntimeError("a loop of links"),
    ]
    put = FileStore.put

    def unsteady(store: FileStore, rank: int, piece: FilePiece, data: memoryview) -> None:
        if errors:
            raise errors.pop(0)
        put(store, rank, piece, data)

    monkeypatch.setattr(FileStore, "put", unsteady)

    async def story() -> None:
        node.begin()
        (node.out / "best.pt").write_text("best")
        await node.until_kept("out/best.pt")

    carried_out(node, story())
    assert node.told == ["the script's files cannot be kept for now: the store is away"]


def test_what_cannot_be_kept_in_time_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise StorageUnavailable("the store is away")

    monkeypatch.setattr(FileStore, "put", away)

    async def story() -> None:
        node.begin()
        (node.out / "best.pt").write_text("best")
        assert not await node.keeper.flush(0.3)

    carried_out(node, story())
    assert any("last files" in line for line in node.told)


def test_files_that_nobody_keeps_are_told_at_a_save_and_new_ones_at_the_end(node: Node) -> None:
    async def story() -> None:
        node.begin()
        (node.out.parent / "stray.txt").write_text("x")
        node.keeper.saved()
        async with asyncio.timeout(PATIENT):
            while not node.told:
                await asyncio.sleep(0.01)
        node.keeper.saved()
        await node.keeper.flush(PATIENT)
        assert len(node.told) == 1
        (node.out.parent / "late.txt").write_text("late")
        await node.keeper.flush(PATIENT)

    carried_out(node, story())
    assert node.told == [
        "stray.txt is on this node alone: write into $SPOTELASTIC_OUTPUT",
        "late.txt, stray.txt are on this node alone: write into $SPOTELASTIC_OUTPUT",
    ]


def test_a_node_that_leaves_says_when_it_has_written_its_last(node: Node) -> None:
    async def story() -> None:
        node.begin()
        node.keeper.hurry(2e9)
        (node.out / "log").write_text("first")
        await node.until_kept("out/log")
        assert node.store.indexes(0)[0].leaving == 2e9
        (node.out / "last").write_text("last")
        node.keeper.ended()
        await node.until_kept("out/last", "out/log")
        async with asyncio.timeout(PATIENT):
            while node.store.indexes(0)[0].leaving:
                await asyncio.sleep(0.01)

    carried_out(node, story())
