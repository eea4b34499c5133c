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
from spotelastic_checkpoints import peers, remembered, service
from spotelastic_checkpoints.arena import Arena
from spotelastic_checkpoints.handshake import Credentials
from spotelastic_checkpoints.peers import Peer, PeerServer
from spotelastic_checkpoints.remembered import Remembered
from spotelastic_checkpoints.retention import Keep
from spotelastic_checkpoints.service import Service
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.wire import Inventory
from support.checkpoints import round_info
from support.patience import PATIENT


def daemon_in(folder: Path) -> Service:
    return Service(
        Arena(folder / "arena", 1),
        storage=str(folder / "store"),
        owner="test",
        node="n0",
        credentials=Credentials(""),
        most_slots=1,
        keep=Keep(),
    )


def test_threads_that_need_the_store_at_once_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = daemon_in(tmp_path)
    opens: list[str] = []
    both_ask, both_open = Barrier(2), Barrier(2)

    def opened(url: str) -> FolderStorage:
        opens.append(url)
        with suppress(BrokenBarrierError):
            both_open.wait(0.2)
        return FolderStorage(Path(url))

    monkeypatch.setattr(service, "open_storage", opened)

    def ask(_: int) -> object:
        both_ask.wait(PATIENT)
        return daemon.commits()

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, range(2))
    assert first is second
    assert len(opens) == 1
    daemon.close()


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
    def poor_server(address: tuple[str, int], backlog: int) -> socket.socket:
        listener = Poor()
        listener.bind(address)
        listener.listen(backlog)
        return listener

    monkeypatch.setattr(peers.socket, "create_server", poor_server)
    server = PeerServer(Arena(tmp_path, 1), Credentials(""), "127.0.0.1", 0)
    with closing(server), closing(Peer(server.address, Credentials(""))) as peer:
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
    monkeypatch.setattr(service, "open_storage", lambda _: storage)
    (tmp_path / "arena").mkdir()
    round_ = round_info("r1", 2, ["n0", "n1", "n2"], 1, epoch=3)
    remembered.keep(tmp_path / "arena", Remembered().begun(round_))

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
