"""Real nodes whose clocks are wrong, and are set while they train."""

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.run_launcher import Run, running
from support.saving.whole_files import put

from spotelastic.store.etcd_server.process import EtcdMember, standalone

pytestmark = pytest.mark.faults

HOUR = 3600.0
SITE = Path(__file__).parent.parent / "support/processes/set_clock"


class Clock:
    """One node's."""

    def __init__(self, folder: Path, name: str, ahead: float) -> None:
        self._file = folder / f"{name}.clock"
        self.set(ahead)
        self.env = {"PYTHONPATH": str(SITE), "CLOCK_AHEAD": str(self._file)}

    def set(self, ahead: float) -> None:
        """Seconds by which it is ahead from now on."""
        put(self._file, str(ahead))


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdMember]:
    with standalone(tmp_path / "etcd") as member:
        yield member


@pytest.mark.soak
def test_clocks_that_jump_lose_no_node_no_restart_and_no_time(
    etcd: EtcdMember, tmp_path: Path
) -> None:
    with running(etcd.endpoint, uuid.uuid4().hex, tmp_path, nnodes="1:3") as run:
        clocks = {name: Clock(tmp_path, name, ahead) for name, ahead in (("a", 0), ("b", HOUR))}
        for name, clock in clocks.items():
            run.add(name, env=clock.env)
        before = run.trains("a", "b", beyond=15)
        clocks["a"].set(-HOUR)
        clocks["b"].set(2 * HOUR)
        assert run.trains("a", "b", beyond=run.step() + 100) == before, "leases are etcd's"
        _changes_as_ever(run, clocks)


def _changes_as_ever(run: Run, clocks: dict[str, Clock]) -> None:
    """A failure, an arrival, a departure, a loss: each while the clocks are set back and forth."""
    before = run.trains("a", "b")
    os.kill(run.nodes["a"].workers()[0], signal.SIGKILL)
    run.wait(lambda s: s.round and s.round.number > before.number, "a new round")
    failed = run.trains("a", "b", beyond=before.resume.step)
    assert (failed.cause, len(failed.charged)) == ("worker", 1)
    clocks["a"].set(HOUR)
    clocks["b"].set(-HOUR)
    run.add("c", env=Clock(run.folder, "c", -2 * HOUR).env)
    joined = run.trains("a", "b", "c")
    assert joined.resume.step == run.record(failed.number).last_step, "no step is lost"
    clocks["a"].set(0)
    run.nodes["c"].signal(signal.SIGTERM)
    left = run.trains("a", "b")
    assert left.cause == "drain" and left.resume.step == run.record(joined.number).last_step
    assert run.nodes["c"].wait() == 128 + signal.SIGTERM
    held = run.wait(lambda s: s.holder, "a holder").holder
    run.nodes[held].kill()
    alone = run.trains(*({"a", "b"} - {held}), beyond=left.resume.step)
    assert (alone.cause, len(alone.charged)) == ("loss", 1), "as long ago as it was"
