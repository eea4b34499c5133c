"""What makes the ranks go back to an older commit, and what never does."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from spotelastic_checkpoints.errors import (
    ArenaFull,
    CheckpointsError,
    DaemonUnavailable,
    RestoreFailed,
    StorageRefused,
    StorageUnavailable,
)
from spotelastic_checkpoints.format import encoding
from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.types import Commit, Item, Moved, Range, RestoreSet, Resume

from spotelastic.errors import EnvironmentFailure, Unavailable
from spotelastic.training.restore.resuming import RestorePatience, open_source
from spotelastic.training.runtime.session import Ranks, WorkerSession
from spotelastic.training.state.compatibility import Misfit
from spotelastic.training.state.state import State

LOST = DaemonUnavailable("lost the checkpoint daemon")


class Daemons:
    """One after the other, each with files of the same names. `faults` strike at each fetch."""

    def __init__(self, folder: Path, *faults: CheckpointsError | None) -> None:
        self.folder = folder
        self._faults = list(faults)
        self.opened: list[int] = []
        self.released: list[int] = []
        self.told: list[str] = []
        self.before_next: Callable[[], None] = lambda: None
        self.slow = 0
        """Fetches that end before all has come, each with more than the one before it."""

    def open(self, resume: Resume, timeout: float) -> RestoreSet:
        self.opened.append(resume.step)
        file = self.folder / "restore-1"
        if not self.slow:
            file.unlink(missing_ok=True)
        file.touch()
        items: list[Item] = []
        for path in (("step",), ("spotelastic", "own")):
            length = len(encoding.plain_value(resume.step))
            name = ".".join(path)
            items.append(Item(name, path, "", (), (), (), -1, len(items) * length, length))
        return RestoreSet(1, resume.step, 1, (), str(file), tuple(items))

    def fetch(
        self,
        ident: int,
        ranges: Sequence[Range],
        timeout: float,
        *,
        ahead: Sequence[Range] = (),
        passed: int | None = None,
    ) -> tuple[Moved, ...]:
        if self.slow > 1:
            self.slow -= 1
            with (self.folder / "restore-1").open("ab") as file:
                file.write(bytes(1 << 16))
            raise DaemonUnavailable("did not answer")
        fault = self._faults.pop(0) if self._faults else None
        if fault is not None:
            raise fault
        (self.folder / "restore-1").write_bytes(encoding.plain_value(self.opened[-1]) * 2)
        return ()

    def find(
        self, timeout: float, *, step: int | None = None, before: Commit | None = None
    ) -> Commit | None:
        return Commit(1, (before.step if before else 10) - 1)

    def restored(self, ident: int) -> None:
        self.released.append(ident)

    def complain(self, message: str) -> None:
        self.told.append(message)


ALONE = Ranks(0, 1, 0, "n0")
COMMITTED = Resume("store", 7, epoch=1)


def resumed(
    daemons: Daemons,
    ranks: Ranks = ALONE,
    source: Resume = COMMITTED,
    patience: RestorePatience = RestorePatience(),  # noqa: B008
) -> int:
    state = {"step": 0}
    session = WorkerSession(ranks, "", "r1", source, False, lambda _: None)
    client = cast(WorkerClient, daemons)
    restored = open_source(session, client, State(state), None, patience)
    assert restored is not None
    # A daemon that has taken over makes a file of the same name for another rank.
    (daemons.folder / "restore-1").unlink()
    (daemons.folder / "restore-1").write_bytes(bytes(1000))
    restored.load(State(state))
    assert state["step"] == restored.step
    return restored.step


def test_a_damaged_source_is_left_for_the_commit_before_it(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path, RestoreFailed("does not match"))
    assert resumed(daemons) == 6
    assert daemons.released == [1], "what it had fetched is given back"


def test_a_daemon_that_dies_during_a_fetch_is_asked_again_for_the_same_source(
    tmp_path: Path,
) -> None:
    daemons = Daemons(tmp_path, LOST, LOST)
    assert resumed(daemons) == 7
    assert daemons.opened == [7, 7, 7]


@pytest.mark.parametrize("fault", [LOST, StorageUnavailable("the object store: no answer")])
def test_nobody_goes_back_for_who_does_not_answer(tmp_path: Path, fault: CheckpointsError) -> None:
    daemons = Daemons(tmp_path, fault)
    with pytest.raises(Unavailable, match=f"cannot resume from step 7: {fault}"):
        resumed(daemons, patience=RestorePatience(fetch_within=-1.0))
    assert daemons.opened == [7]


def test_room_for_what_is_fetched_is_waited_for_and_told_once(tmp_path: Path) -> None:
    full = ArenaFull("8 MiB more for a restore; 2 MiB are free")
    daemons = Daemons(tmp_path, full, full)
    assert resumed(daemons, patience=RestorePatience(look_every=0.0)) == 7
    assert daemons.opened == [7, 7, 7]
    assert daemons.released == [1, 1]
    assert daemons.told == [f"a restore is waiting for memory: {full}"]


def test_a_node_that_stays_without_room_is_named_with_its_numbers(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path, ArenaFull("8 MiB more for a restore; 2 MiB are free"))
    told = "cannot resume from step 7: n0: 8 MiB more for a restore; 2 MiB are free"
    with pytest.raises(EnvironmentFailure, match=told):
        resumed(daemons, patience=RestorePatience(room_within=-1.0))
    assert daemons.opened == [7]


def test_nobody_goes_back_for_a_store_that_refuses_to_be_read(tmp_path: Path) -> None:
    refused = StorageRefused("s3://b/run/1/step-00000007: 403 AccessDenied")
    daemons = Daemons(tmp_path, refused)
    with pytest.raises(EnvironmentFailure, match=f"cannot resume from step 7: n0: {refused}"):
        resumed(daemons)
    assert daemons.opened == [7]
    assert daemons.released == [1]


@pytest.mark.parametrize("own", [None, RestoreFailed("does not match")])
def test_all_ranks_end_alike_when_one_of_them_is_refused(
    own: CheckpointsError | None, tmp_path: Path
) -> None:
    class Two(Ranks):
        def gather(self, value: Any) -> list[Any]:
            if value is None or isinstance(value, Misfit):
                return [value, None]
            return [value, ("n1: 403 AccessDenied", EnvironmentFailure)]

    daemons = Daemons(tmp_path, own)
    with pytest.raises(EnvironmentFailure, match="cannot resume from step 7: n1: 403"):
        resumed(daemons, Two(0, 2, 0, "n0"))
    assert daemons.opened == [7]
    assert daemons.released == [1]


def test_a_save_that_is_gone_from_memory_is_left_for_what_is_committed(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path, RestoreFailed("its holders have overwritten it"))
    assert resumed(daemons, source=Resume("memory", 7)) == 9
    refused = StorageRefused("403 AccessDenied")
    daemons = Daemons(tmp_path, RestoreFailed("its holders have overwritten it"), refused)
    with pytest.raises(EnvironmentFailure, match="cannot resume from step 9: n0: 403"):
        resumed(daemons, source=Resume("memory", 7))


def test_a_state_that_comes_slowly_is_waited_for(tmp_path: Path) -> None:
    daemons = Daemons(tmp_path)
    daemons.slow = 4
    assert resumed(daemons, patience=RestorePatience(fetch_within=-1.0)) == 7
    assert daemons.opened == [7, 7, 7, 7]
