"""etcd members whose instances and disks are lost, on the local cloud with real etcd and TLS."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from support.clusters.trial_cluster import (
    NAME,
    ONE_LEADS,
    Trial,
    controllers,
    eventually,
    running_trial,
)

from spotelastic import certificates
from spotelastic.aws.compute import autoscaling
from spotelastic.clock import wall
from spotelastic.cloud.model import ALIVE
from spotelastic.controller.etcd import snapshots
from spotelastic.controller.etcd.generations import Generation, Generations
from spotelastic.errors import Unavailable
from spotelastic.store.diagnose import diagnose
from spotelastic.store.etcd_server import roster
from spotelastic.store.tls import TlsFiles


@pytest.mark.soak
def test_a_member_outlives_its_instance_its_disk_and_the_quorum(tmp_path: Path) -> None:
    with running_trial(tmp_path) as trial:
        etcd_answers_only_those_whom_the_cluster_certified(trial, tmp_path)
        a_replacement_rejoins_with_the_data_of_the_disk(trial)
        with_its_disk_lost_it_is_a_new_member(trial)
        when_most_disks_are_lost_the_newest_snapshot_is_restored(trial)


# -- the steps -----------------------------------------------------------------------------------


def etcd_answers_only_those_whom_the_cluster_certified(trial: Trial, folder: Path) -> None:
    endpoint = trial.cluster.spec.etcd[0]
    eventually(lambda: three_are_led(trial), "three members")
    now = datetime.now(UTC)
    stranger = certificates.make_authority("other", now)
    forged = certificates.issue(stranger, certificates.Subject("x"), now)
    mine = TlsFiles(trial.tls.cacert, *forged.write(folder / "forged")[1:])
    assert "does not accept this client's certificate" in diagnose(endpoint, mine).told
    assert "speaks TLS" in diagnose(endpoint).told


def a_replacement_rejoins_with_the_data_of_the_disk(trial: Trial) -> None:
    before, lost = trial.members(), instance_of(trial, "a")
    disks = disk_of(trial, "a")
    with trial.store() as store:
        made = store.put("kept", b"1")
    trial.faults.kill(lost)
    eventually(lambda: gone_and_replaced(trial, lost, "a"), "another instance for member a")
    eventually(lambda: three_are_led(trial), "three members again")
    assert trial.members() == before
    assert disk_of(trial, "a") == disks
    trial.status(
        lambda s: lost not in {n.id for n in s.nodes} and controllers(s) == ONE_LEADS,
        "the new control node in the account of the leader",
    )
    with trial.store() as store:
        value = store.get("kept")
    assert value is not None
    assert value.modified == made


def with_its_disk_lost_it_is_a_new_member(trial: Trial) -> None:
    before, disk = trial.members(), disk_of(trial, "b")
    lose(trial, "b")
    after = eventually(lambda: led_anew(trial, before, "b"), "three members again")
    assert {name for name in before if before[name] != after[name]} == {"b"}
    assert disk_of(trial, "b") != disk
    assert [generation(trial).number, generation(trial).snapshot] == [1, ""]


def when_most_disks_are_lost_the_newest_snapshot_is_restored(trial: Trial) -> None:
    spec = trial.cluster.spec
    before = trial.members()
    with trial.store() as store:
        store.put("kept", b"2")
        saved = snapshots.save(trial.cluster.objects, spec.etcd, trial.tls, wall())
        store.put("later", b"lost")
    lose(trial, "a", "b", "c")
    eventually(lambda: led_anew(trial, before, *before), "three members of a new generation")
    found = generation(trial)
    assert (found.number, found.snapshot) == (2, saved)
    with trial.store() as store:
        kept, later = store.get("kept"), store.get("later")
    assert kept is not None and kept.data == b"2"
    assert later is None
    trial.status(lambda s: controllers(s) == ONE_LEADS, "one controller that leads")


# -- what is seen and done -----------------------------------------------------------------------


def three_are_led(trial: Trial) -> bool | None:
    """Every member answers by itself, and sees a leader and three members that have served."""
    try:
        for endpoint in trial.cluster.spec.etcd:
            seen = roster.ask([endpoint], trial.tls)
            if seen is None or not seen.led or [m.served for m in seen.members] != [True] * 3:
                return None
        return True
    except Unavailable:
        return None


def led_anew(trial: Trial, before: dict[str, int], *renewed: str) -> dict[str, int] | None:
    """The members by name, once all are led, and these are others than before."""
    if three_are_led(trial) is None:
        return None
    found = trial.members()
    return found if all(found[name] != before[name] for name in renewed) else None


def instance_of(trial: Trial, member: str) -> str:
    machines = autoscaling.instances(trial.cluster.aws, NAME, "control")
    (found,) = (m.id for m in machines if m.member == member and m.state in ALIVE)
    return found


def gone_and_replaced(trial: Trial, lost: str, member: str) -> bool | None:
    machines = autoscaling.instances(trial.cluster.aws, NAME, "control")
    alive = [m.id for m in machines if m.member == member and m.state in ALIVE]
    return True if alive and lost not in alive else None


def disk_of(trial: Trial, member: str) -> str:
    tags = {"cluster": NAME, "member": member}
    filters = [{"Name": f"tag:spotelastic:{key}", "Values": [tags[key]]} for key in tags]
    (found,) = trial.cluster.aws.ec2.describe_volumes(Filters=filters)["Volumes"]
    return str(found["VolumeId"])


def lose(trial: Trial, *members: str) -> None:
    """Takes their disks and their instances away, all at once; returns when all are replaced."""
    ec2 = trial.cluster.aws.ec2
    lost = {member: instance_of(trial, member) for member in members}
    for member, instance in lost.items():
        disk = disk_of(trial, member)
        ec2.detach_volume(VolumeId=disk, Force=True)
        ec2.delete_volume(VolumeId=disk)
        trial.faults.kill(instance)
    for member, instance in lost.items():
        eventually(partial(gone_and_replaced, trial, instance, member), member)


def generation(trial: Trial) -> Generation:
    found = Generations(trial.cluster.objects).newest()
    assert found is not None
    return found
