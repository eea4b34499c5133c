"""The ledger of a job on the local cloud, against what was really done to its nodes' processes."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from support.clusters.running_job import SAVES, finishes, running_job, training
from support.clusters.trial_cluster import ONE_LEADS, Trial, controllers, eventually

from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.job import Settings
from spotelastic.model.progress import Interruption, Status, row_of

pytestmark = [pytest.mark.faults, pytest.mark.soak]

LOSS, WORKER = InterruptionKind.LOSS, InterruptionKind.WORKER
NODES = 3


@dataclass(frozen=True)
class Strike:
    process: str
    what: signal.Signals
    told: InterruptionKind | None
    """What its row says; None: training goes on, and there is no row."""


KILLS = [
    Strike("se-worker-0", signal.SIGKILL, WORKER),
    Strike("se-zygote", signal.SIGKILL, WORKER),
    Strike("se-agent", signal.SIGKILL, LOSS),
    Strike("se-daemon", signal.SIGKILL, None),
]
FREEZES = [
    Strike("se-agent", signal.SIGSTOP, LOSS),
    Strike("se-daemon", signal.SIGSTOP, None),
]


class Struck:
    """A job that is struck in turns, and what its table has to say."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.expected: list[tuple[InterruptionKind, str, float]] = []
        self._fell = ""
        """Whose worker was killed last. A node whose worker fails twice in a row is replaced."""

    def whole(self) -> Status:
        """All nodes train, and have made steps since."""

        def whole(status: Status) -> bool:
            return len(training(status)) == NODES and controllers(status) == ONE_LEADS

        seen = self.trial.status(whole, "a whole job")
        return self.trial.status(lambda s: whole(s) and s.step > seen.step + 20, "more steps")

    def strike(self, *strikes: Strike) -> None:
        """Each on another node, all at once."""
        nodes = sorted(training(self.whole()), key=lambda node: (node == self._fell, node))
        struck = list(zip(strikes, nodes, strict=False))
        self._fell = next((node for each, node in struck if each.told is WORKER), self._fell)
        pids = {node: self._pid(node, each.process) for each, node in struck}
        at = time.time()
        for each, node in struck:
            os.kill(pids[node], each.what)
        told = [(each.told, node) for each, node in struck if each.told is not None]
        self.expected += [(kind, node, at) for kind, node in told]
        for each, node in struck:
            if each.what is signal.SIGSTOP:
                self._thaw(each, node, pids[node], at)
        try:
            for _, node in told:
                eventually(partial(self._row, node, at), f"a row of {node}")
        except AssertionError as error:
            events = [e for e in self.trial.cluster.objects.events() if e.at >= at - 1.0]
            error.add_note("\n".join(f"{e.at:.2f} {e.kind} {e.node} {e.message}" for e in events))
            raise
        self.whole()

    def _thaw(self, strike: Strike, node: str, pid: int, at: float) -> None:
        """Lets a process go on once it was missed, or if training has gone on without it."""
        try:
            if strike.told is LOSS:
                self.trial.event("loss", lambda event: event.node == node and event.at > at)
            else:
                step = self.trial.status(lambda _: True, "a status").step
                self.trial.status(lambda status: status.step > step + 50, "steps without it")
        finally:
            with contextlib.suppress(ProcessLookupError):  # a daemon that is silent is replaced
                os.kill(pid, signal.SIGCONT)

    def _pid(self, node: str, role: str) -> int:
        (pid,) = (each.pid for each in self.trial.faults.processes(node) if each.role == role)
        return pid

    def _row(self, node: str, since: float) -> Interruption | None:
        """The row that is on record of what befell the node last."""
        rows = [row for event in self.trial.cluster.objects.events() if (row := row_of(event))]
        return next((row for row in rows if row.node == node and row.at > since - 1.0), None)

    def check(self, rows: Iterable[Interruption]) -> None:
        """Each strike that stopped training has its row, and there is no other one."""
        found = sorted(
            (row for row in rows if row.kind is not InterruptionKind.ETCD),
            key=lambda row: (row.node, row.at),
        )
        expected = sorted(self.expected, key=lambda each: each[1:])
        told = f"{found}\n{expected}"
        assert [(row.kind, row.node) for row in found] == [each[:2] for each in expected], told
        for row, (_, _, at) in zip(found, expected, strict=True):
            assert at - 0.5 <= row.at <= (row.first_step_at or 0.0), told


@pytest.mark.timeout(1200)
def test_the_table_says_what_was_done_to_processes(tmp_path: Path) -> None:
    settings = Settings(2, NODES, workers=1, max_restarts=1000, **SAVES)
    with running_job(tmp_path, settings=settings) as trial:
        job = Struck(trial)
        for strike in (*KILLS, *FREEZES):
            job.strike(strike)
        job.strike(KILLS[0], KILLS[2])
        job.strike(KILLS[1], FREEZES[0])
        job.strike(KILLS[2], KILLS[2])
        recorded = [row for e in trial.cluster.objects.events() if (row := row_of(e))]
        report = finishes(trial, tmp_path)
    job.check(report.interruptions)
    final = {(row.round, row.node, row.kind): row for row in report.interruptions}
    assert all(final[row.round, row.node, row.kind] == row for row in recorded), "a row has changed"
