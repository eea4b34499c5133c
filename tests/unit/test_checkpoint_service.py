"""What the daemon's threads share, and what must outlast a moment's lack of something."""

import errno
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any, ClassVar

import pytest
from spotelastic_checkpoints import peers, service
from spotelastic_checkpoints.arena import Arena
from spotelastic_checkpoints.handshake import Credentials
from spotelastic_checkpoints.peers import Peer, PeerServer
from spotelastic_checkpoints.retention import Keep
from spotelastic_checkpoints.service import Service
from spotelastic_checkpoints.storage.folder import FolderStorage
from spotelastic_checkpoints.wire import Inventory
from support.patience import PATIENT


def test_threads_that_need_the_store_at_once_get_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Service(
        Arena(tmp_path / "arena", 1),
        storage=str(tmp_path / "store"),
        owner="test",
        node="n0",
        credentials=Credentials(""),
        most_slots=1,
        keep=Keep(),
    )
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
