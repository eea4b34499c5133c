"""What a worker asks its node's daemon for, by stand-ins for the daemon."""

from pathlib import Path
from typing import Any

import pytest
from spotelastic_checkpoints import arena, wire, worker
from spotelastic_checkpoints.worker import WorkerClient


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
        return wire.SlotGrant(str(self._slot), "test")


@pytest.mark.parametrize("urgent", [False, True])
def test_an_urgent_save_asks_again(tmp_path: Path, urgent: bool) -> None:
    path = tmp_path / "slot-0-0"
    path.write_bytes(bytes(arena.HEADER))
    daemon: Any = Daemon(path)
    client = WorkerClient.__new__(WorkerClient)
    client._connection, client._slots, client._written = daemon, {}, set()
    client._reservation = daemon.send(wire.Reserve())
    slot = client.open_slot(worker.ANSWER_WITHIN, urgent=urgent)
    assert (slot.path if slot else None) == (str(path) if urgent else None)
