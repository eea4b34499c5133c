"""What a worker asks its node's daemon for, and how long, by a stand-in for the daemon."""

from pathlib import Path

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.errors import ArenaFull, CheckpointsError
from spotelastic_checkpoints.memory import arena
from spotelastic_checkpoints.types import DaemonStatus, SlotGrant, UploadStatus
from support.processes.patience import PATIENT
from support.saving.stand_in_daemon import UNANSWERED, standing_in


def a_slot(folder: Path) -> Path:
    path = folder / "slot-0-0"
    path.write_bytes(bytes(arena.HEADER))
    return path


def test_an_urgent_save_asks_again(tmp_path: Path) -> None:
    path = a_slot(tmp_path)

    def for_urgent_saves_alone(request: messages.Request) -> object:
        if isinstance(request, messages.Reserve):
            return SlotGrant(str(path), "test") if request.urgent else UNANSWERED
        return None

    with standing_in(tmp_path, for_urgent_saves_alone) as daemon:
        worker = daemon.worker()
        worker.prepare(9)
        assert worker.open_slot(0.0) is None
        slot = worker.open_slot(PATIENT, urgent=True)
        assert slot is not None and slot.path == str(path)
        worker.close()


class Full:
    """Answers that it has no memory for slots, until `slot` is one."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.prepared = 0
        self.slot: Path | None = None

    def __call__(self, request: messages.Request) -> object:
        match request:
            case messages.Complain(message=message):
                self.told.append(message)
            case messages.Prepare():
                self.prepared += 1
                # The memory was there when the worker asked first.
                if self.slot is None and self.prepared > 1:
                    raise ArenaFull("1 MiB are free")
            case messages.Reserve() if self.slot is None:
                raise ArenaFull("1 MiB are free")
            case messages.Reserve():
                return SlotGrant(str(self.slot), "test")
        return None


def test_a_save_that_finds_no_memory_is_left_out_and_the_next_one_asks_again(
    tmp_path: Path,
) -> None:
    full = Full()
    with standing_in(tmp_path, full) as daemon:
        worker = daemon.worker()
        worker.prepare(9)
        assert [worker.open_slot(PATIENT) for _ in range(3)] == [None] * 3
        assert full.told == ["nothing is saved for the moment: 1 MiB are free"]
        assert full.prepared == 3, "each save asks again"
        full.slot = a_slot(tmp_path)
        opened = worker.open_slot(PATIENT)
        assert opened is not None
        assert (opened.path, full.prepared) == (str(full.slot), 4)
        worker.close()


class Uploading:
    """Tells of its upload after each flush that was too short; then it ends."""

    def __init__(self, *told: tuple[int, int, int]) -> None:
        self.left = list(told)

    def __call__(self, request: messages.Request) -> object:
        if isinstance(request, messages.Flush):
            return not self.left
        if isinstance(request, messages.GetStatus):
            epoch, step, done = self.left.pop(0)
            return DaemonStatus("", (), None, (), UploadStatus(epoch, step, done, 100, 1.0))
        return None


def test_the_end_waits_for_an_upload_that_gets_on(tmp_path: Path) -> None:
    getting_on = Uploading((1, 90, 5), (1, 90, 9), (1, 100, 0), (1, 100, 1))
    with standing_in(tmp_path, getting_on) as daemon:
        worker = daemon.worker()
        assert worker.finish(PATIENT)
        worker.close()


def test_the_end_does_not_wait_for_an_upload_that_is_stuck(tmp_path: Path) -> None:
    stuck = Uploading((1, 90, 5), (1, 100, 3), (1, 100, 3), (1, 100, 4))
    with standing_in(tmp_path, stuck) as daemon:
        worker = daemon.worker()
        assert not worker.finish(PATIENT)
        assert stuck.left == [(1, 100, 4)], "it was not waited for any longer"
        worker.close()


def test_a_daemon_that_does_not_know_the_round_yet_is_as_good_as_none(tmp_path: Path) -> None:
    """The next daemon after one that died: the agent is about to tell it."""
    path = a_slot(tmp_path)
    attached: list[messages.Attach] = []

    def knows_the_round_late(request: messages.Request) -> object:
        match request:
            case messages.Attach():
                attached.append(request)
                if len(attached) == 2:
                    raise CheckpointsError("round r1 is not the current one on this node")
            case messages.Reserve():
                return SlotGrant(str(path), "test") if len(attached) == 3 else UNANSWERED
        return None

    with standing_in(tmp_path, knows_the_round_late) as daemon:
        worker = daemon.worker()
        worker.prepare(9)
        daemon.hang_up()
        slot = worker.open_slot(PATIENT)
        assert slot is not None and slot.path == str(path)
        assert len(attached) == 3
        worker.close()
