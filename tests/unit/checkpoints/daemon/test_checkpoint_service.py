"""What the daemon's threads share, and what must outlast a moment's lack of something."""

import asyncio
import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any, ClassVar

import pytest
from spotelastic_checkpoints import addresses
from spotelastic_checkpoints.commit.retention import Keep
from spotelastic_checkpoints.commit.upload_pipeline import Pipeline
from spotelastic_checkpoints.daemon import daemon_state, daemon_storage
from spotelastic_checkpoints.daemon.daemon_state import DaemonState
from spotelastic_checkpoints.daemon.daemon_storage import DaemonStorage
from spotelastic_checkpoints.daemon.service import Service
from spotelastic_checkpoints.memory.arena import Arena
from spotelastic_checkpoints.messages import Sealing
from spotelastic_checkpoints.peers.handshake import PeerCredentials
from spotelastic_checkpoints.peers.messages import Inventory
from spotelastic_checkpoints.peers.transfers import Peer, PeerServer
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.types import Schedule
from support.processes.patience import PATIENT
from support.saving.daemons_and_workers import round_info


def daemon_in(folder: Path) -> Service:
    return Service(
        Arena(folder / "arena", 1),
        storage=str(folder / "store"),
        owner="test",
        node="n0",
        credentials=PeerCredentials(""),
        most_slots=1,
        keep=Keep(),
    )


def test_threads_that_need_the_store_at_once_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens: list[str] = []
    both_ask, both_open = Barrier(2), Barrier(2)

    def opened(url: str) -> FolderStorage:
        opens.append(url)
        with suppress(BrokenBarrierError):
            both_open.wait(0.2)
        return FolderStorage(Path(url))

    monkeypatch.setattr(daemon_storage, "open_storage", opened)

    def ask(_: int) -> object:
        both_ask.wait(PATIENT)
        return storage.commits()

    with ThreadPoolExecutor(2) as pool:
        storage = DaemonStorage(str(tmp_path / "store"), "test", pool)
        first, second = pool.map(ask, range(2))
    assert first is second
    assert len(opens) == 1


class Poor(socket.socket):
    """A listener that has no descriptor left for the first who comes."""

    failures: ClassVar = [errno.EMFILE, errno.ECONNABORTED]

    def accept(self) -> Any:
        if self.failures:
            raise OSError(self.failures.pop(0), "not now")
        return super().accept()


def test_a_connection_that_cannot_be_taken_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poor_server(address: str, port: int, backlog: int) -> socket.socket:
        listener = Poor()
        listener.bind((address, port))
        listener.listen(backlog)
        return listener

    monkeypatch.setattr(addresses, "listen", poor_server)
    server = PeerServer(Arena(tmp_path, 1), PeerCredentials(""), "127.0.0.1", 0)
    with closing(server), closing(Peer(server.address, PeerCredentials(""))) as peer:
        assert peer.inventory(Inventory("r1", 1, "")) == ()
    assert Poor.failures == []


class Parts(FolderStorage):
    """With uploads in parts that somebody has begun."""

    def __init__(self, root: Path, *uploads: str) -> None:
        super().__init__(root)
        self.uploads = list(uploads)

    def unfinished(self) -> list[str]:
        return list(self.uploads)

    def abort_uploads(self, prefix: str) -> int:
        self.uploads.remove(prefix)
        return 1


def test_a_daemon_ends_what_one_before_it_was_uploading_and_nothing_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [
        "3/step-00000009/__0_0.distcp",
        "3/step-00000009/__20_0.distcp",
        "2/step-00000009/__2_0.distcp",
    ]
    ours = ["3/step-00000009/__2_0.distcp", "3/step-00000009/__2_11.distcp"]
    storage = Parts(tmp_path / "store", *others, *ours)
    monkeypatch.setattr(daemon_storage, "open_storage", lambda _: storage)
    (tmp_path / "arena").mkdir()
    round_ = round_info("r1", 2, ["n0", "n1", "n2"], 1, epoch=3)
    daemon_state.keep(tmp_path / "arena", DaemonState().begun(round_))

    async def main() -> None:
        daemon = daemon_in(tmp_path)
        uploading = asyncio.Event()

        async def run() -> None:
            assert storage.uploads == others
            uploading.set()

        monkeypatch.setattr(daemon.pipeline, "run", run)
        running = asyncio.create_task(daemon.run())
        await asyncio.wait_for(uploading.wait(), PATIENT)
        running.cancel()
        daemon.close()

    asyncio.run(main())


def sealing(
    daemon: Service, *steps: int, waiting: bool = False, in_haste: bool = False
) -> list[int]:
    """Of the steps that are sealed now, to be committed, those whose sealing begins an upload."""
    assert daemon.round is not None
    sealings = [Sealing(step, "", waiting, due=True) for step in steps]
    return [s.step for s in sealings if daemon.saves.passes(s, daemon.round, in_haste=in_haste)]


def test_where_uploads_take_long_few_saves_begin_one_unless_somebody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pipeline, "upload_time", 1000.0)
    daemon = daemon_in(tmp_path)

    def begin(incarnation: str, *nodes: str) -> None:
        daemon.begin(round_info(incarnation, 0, nodes, 1, epoch=1, schedule=Schedule(1, 2)))

    begin("r1", "n0", "n1")
    assert sealing(daemon, 2, 4, 6, 8) == [2], "how often they come is not known at first"
    assert sealing(daemon, 9) == [9], "it is none of the schedule"
    assert sealing(daemon, 10, waiting=True) == [10]

    async def flush() -> None:
        flushing = asyncio.create_task(daemon.saves.flush(PATIENT))
        await asyncio.sleep(0)
        assert sealing(daemon, 12) == [12]
        flushing.cancel()
        await asyncio.wait([flushing])
        assert sealing(daemon, 14) == []

    monkeypatch.setattr(daemon.pipeline, "busy", lambda: True)
    asyncio.run(flush())
    begin("r2", "n0")
    assert sealing(daemon, 16, 18, 20) == [16, 18, 20], "nobody else has to choose alike"
    begin("r3", "n0", "n1")
    assert sealing(daemon, 22, 24, 26, in_haste=True) == [22, 24, 26]
    daemon.close()
