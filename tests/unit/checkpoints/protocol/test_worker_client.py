"""What a worker asks its node's daemon for, and how long, by stand-ins for the daemon."""

import threading
from pathlib import Path
from typing import Any

import pytest
from spotelastic_checkpoints import messages
from spotelastic_checkpoints.errors import ArenaFull
from spotelastic_checkpoints.memory import arena
from spotelastic_checkpoints.protocol import worker_client
from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.types import DaemonStatus, SlotGrant, UploadStatus


class Daemon:
    """Has a slot for urgent saves alone."""

    def __init__(self, slot: Path) -> None:
        self._slot = slot
        self._asked: list[Any] = []

    def send(self, request: object) -> int:
        self._asked.append(request)
        return len(self._asked)

    def receive(self, ident: int, kind: type, timeout: float) -> object:
        if not self._asked[ident - 1].urgent:
            raise TimeoutError
        return SlotGrant(str(self._slot), "test")


@pytest.mark.parametrize("urgent", [False, True])
def test_an_urgent_save_asks_again(tmp_path: Path, urgent: bool) -> None:
    path = tmp_path / "slot-0-0"
    path.write_bytes(bytes(arena.HEADER))
    daemon: Any = Daemon(path)
    client = WorkerClient.__new__(WorkerClient)
    client._connection, client._slots, client._written = daemon, {}, set()
    client._mapping = threading.Lock()
    client._reservation = daemon.send(messages.Reserve())
    slot = client.open_slot(worker_client.ANSWER_WITHIN, urgent=urgent)
    assert (slot.path if slot else None) == (str(path) if urgent else None)


class Full:
    """Has no memory for slots until `slot` is one."""

    slot: Path | None = None

    def __init__(self) -> None:
        self.told: list[str] = []
        self.prepared = 0

    def call(self, request: messages.Prepare, kind: type, timeout: float) -> None:
        if self.slot is None:
            raise ArenaFull("1 MiB are free")
        self.prepared += 1

    def send(self, request: object) -> int:
        if isinstance(request, messages.Complain):
            self.told.append(request.message)
        return 1

    def receive(self, ident: int, kind: type, timeout: float) -> object:
        if self.slot is None:
            raise ArenaFull("1 MiB are free")
        return SlotGrant(str(self.slot), "test")


def test_a_save_that_finds_no_memory_is_left_out_and_the_next_one_asks_again(
    tmp_path: Path,
) -> None:
    daemon: Any = Full()
    client = WorkerClient.__new__(WorkerClient)
    client._connection, client._slots, client._written = daemon, {}, set()
    client._mapping = threading.Lock()
    client._prepare, client._reservation, client._told = messages.Prepare(9), 1, ""
    assert [client.open_slot(0.0) for _ in range(3)] == [None] * 3
    assert daemon.told == ["nothing is saved for the moment: 1 MiB are free"]
    daemon.slot = tmp_path / "slot-0-0"
    daemon.slot.write_bytes(bytes(arena.HEADER))
    opened = client.open_slot(0.0)
    assert opened is not None
    assert (opened.path, daemon.prepared) == (str(daemon.slot), 1)


class Uploading(WorkerClient):
    """What the daemon tells of its upload after each flush that was too short; then it ends."""

    def __init__(self, *told: tuple[int, int, int]) -> None:
        self.left = list(told)

    def flush(self, timeout: float) -> bool:
        return not self.left

    def status(self) -> DaemonStatus:
        epoch, step, done = self.left.pop(0)
        return DaemonStatus("", (), None, (), UploadStatus(epoch, step, done, 100, 1.0))


def test_the_end_waits_for_an_upload_that_gets_on() -> None:
    assert Uploading((1, 90, 5), (1, 90, 9), (1, 100, 0), (1, 100, 1)).finish(0.0)
    stuck = Uploading((1, 90, 5), (1, 100, 3), (1, 100, 3), (1, 100, 4))
    assert not stuck.finish(0.0)
    assert stuck.left == [(1, 100, 4)], "it was not waited for any longer"
