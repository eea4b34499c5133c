"""A job on nodes of unlike types, which have other numbers of workers, on the local cloud."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.clusters.running_job import SAVES, machines, training
from support.clusters.trial_cluster import running_trial
from support.places import TESTS
from support.processes.patience import PATIENT

from spotelastic.local import cloud
from spotelastic.model.job import Settings

pytestmark = [pytest.mark.faults, pytest.mark.soak]

SCRIPT = TESTS / "support/scripts/exact_training.py"
STEPS = "80"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Sums of several threads have other bits."""
SMALL, LARGE = "g5.xlarge", "g6.12xlarge"


def test_a_node_with_more_gpus_takes_the_place_of_a_lost_one_and_no_bit_changes(
    tmp_path: Path,
) -> None:
    (folder := tmp_path / "job").mkdir()
    (folder / "slowly").touch()
    with running_trial(
        tmp_path,
        boot=cloud.BOOT,
        script=SCRIPT.read_text(),
        args=(str(folder), STEPS),
        env=ONE_THREAD,
        settings=Settings(1, 2, workers=1, **SAVES),
        instance_types=(SMALL, LARGE),
        virtual_ranks=True,
        workers_by_type={SMALL: 1, LARGE: 4},
    ) as trial:
        seen = trial.status(lambda status: len(training(status)) == 2, "two nodes that train")
        assert seen.world_size == 2
        lost = machines(trial)[min(training(seen))]
        assert lost.type == SMALL
        trial.faults.set_capacity(SMALL, lost.zone, 0)
        trial.faults.kill(lost.id)
        trial.status(lambda status: status.world_size == 5, "a node with four workers")
        (folder / "slowly").unlink()
        trial.status(lambda status: status.state == "succeeded", "the end of the job")
        report = trial.cluster.objects.report()
    assert report is not None
    assert report.job.final_step == int(STEPS)
    assert report.fingerprint == alone(tmp_path)


def test_a_node_whose_copy_has_gone_wrong_is_named_and_replaced_and_no_bit_is_wrong_after_it(
    tmp_path: Path,
) -> None:
    """Of three nodes, in whose audits all are asked."""
    (folder := tmp_path / "job").mkdir()
    (folder / "slowly").touch()
    with running_trial(
        tmp_path,
        boot=cloud.BOOT,
        script=SCRIPT.read_text(),
        args=(str(folder), STEPS),
        env=ONE_THREAD,
        settings=Settings(2, 3, workers=1, audit=4, **SAVES),
        virtual_ranks=True,
    ) as trial:
        seen = trial.status(
            lambda status: len(training(status)) == 3 and status.step > 12, "three nodes that train"
        )
        sick = max(training(seen))
        write_whole(folder / "sick", sick)
        trial.status(lambda status: sick not in training(status), "its end")
        trial.status(
            lambda status: len(training(status)) == 3 and sick not in training(status),
            "another one in its place",
        )
        (folder / "slowly").unlink()
        trial.status(lambda status: status.state == "succeeded", "the end of the job")
        report = trial.cluster.objects.report()
        told = [each for each in trial.cluster.objects.events() if each.kind == "audited"]
    assert report is not None and report.job.final_step == int(STEPS)
    assert report.fingerprint == alone(tmp_path)
    assert any(f"({sick})" in each.message for each in told), told
    assert [row.node for row in report.interruptions] == [sick]


def write_whole(file: Path, text: str) -> None:
    """Whoever sees the file sees all of it."""
    (new := file.with_suffix(".new")).write_text(text)
    new.rename(file)


def alone(folder: Path) -> str:
    """The fingerprint of a run on one rank."""
    (own := folder / "alone").mkdir()
    run = sys.executable, "-m", "spotelastic", "run", "--standalone", str(SCRIPT), str(own), STEPS
    done = subprocess.run(
        run,
        cwd=own,
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        timeout=3 * PATIENT,
        check=True,
    )
    (line,) = (each for each in done.stderr.splitlines() if "have the fingerprint" in each)
    return line.rpartition(" ")[2]
