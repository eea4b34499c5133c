"""A command of one version of spotelastic, and a cluster of another."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from spotelastic_checkpoints.commit.latest import LATEST, Latest
from spotelastic_checkpoints.types import Commit
from support.aws.account import account

from spotelastic import __version__
from spotelastic.aws.artifacts import boot_artifacts, wheel
from spotelastic.aws.artifacts.boot_artifacts import CURRENT
from spotelastic.aws.artifacts.code_archive import Archive
from spotelastic.aws.base import account as aws_account
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.planning.type_selection import Requirement
from spotelastic.client.bringing_up import preflight
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.confirmation import agreed, nobody_asked
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.cloud.bucket import CHECKPOINTS, JOB, STATUS
from spotelastic.errors import OtherVersion, UsageError
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.progress import Status
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion

NEXT = ProtocolVersion(PROTOCOL.major + 1, 0)
LATER = ProtocolVersion(PROTOCOL.major, PROTOCOL.minor + 1)
SPEC = JobSpec("demo", "demo", "train.py", (), "c0de", Settings(1, 4), "s3://bucket/demo", ())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterRecord]:
    with account(tmp_path):
        aws = Aws()
        aws.s3.create_bucket(Bucket="bucket")
        cluster = ClusterRecord(aws, SPEC, "bucket")
        written(cluster.objects, SPEC)
        yield cluster


def written(objects: BucketObjects, spec: JobSpec) -> None:
    objects.put(JOB, msgspec.json.encode(spec))


def target(cluster: ClusterRecord) -> AwsTarget:
    return AwsTarget(cluster.aws)


# -- the same major -------------------------------------------------------------------------------


def test_up_says_which_nodes_get_its_version_and_which_keep_theirs(cluster: ClusterRecord) -> None:
    objects = cluster.objects
    assert list(preflight.versions(None)) == []
    assert list(preflight.versions(cluster)) == [], "nothing was shipped yet"
    objects.put(CURRENT, b"0123456789abcdef/spotelastic-9.8.7-py3-none-any.whl")
    older = replace(cluster, spec=replace(SPEC, protocol=LATER))
    (line,) = preflight.versions(older)
    assert f"demo runs spotelastic 9.8.7 (protocol {LATER})" in line
    assert f"this command is {__version__} (protocol {PROTOCOL})" in line
    assert "nodes that start from now on have this one" in line
    boot_artifacts.ship(objects, None, print)
    current = (objects.get(CURRENT) or b"").decode()
    assert current == f"{wheel.build().sha256[:16]}/{wheel.build().file}"
    assert list(preflight.versions(cluster)) == []


def test_another_build_of_the_same_version_is_told_too(cluster: ClusterRecord) -> None:
    name = f"0123456789abcdef/spotelastic-{__version__}-py3-none-any.whl"
    cluster.objects.put(CURRENT, name.encode())
    (line,) = preflight.versions(cluster)
    assert f"demo runs spotelastic another build of {__version__}" in line


def test_a_job_of_another_minor_is_read(cluster: ClusterRecord) -> None:
    spec = replace(SPEC, protocol=LATER)
    written(cluster.objects, spec)
    assert cluster.objects.job() == spec


# -- another major --------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"settings": "elsewhere", "script": None}])
def test_a_cluster_of_another_major_is_refused_by_a_line_that_names_both(
    cluster: ClusterRecord, extra: dict[str, object]
) -> None:
    """Whether this version could read the job otherwise, or not."""
    content = msgspec.json.decode(msgspec.json.encode(replace(SPEC, protocol=NEXT))) | extra
    cluster.objects.put(JOB, msgspec.json.encode(content))
    before = cluster.objects.get(JOB)
    for refused in (cluster.objects.job, lambda: cluster.objects.change_job(lambda spec: spec)):
        with pytest.raises(OtherVersion) as error:
            refused()
        assert str(error.value) == (
            f"s3://bucket/demo/job.json: the cluster demo speaks protocol {NEXT}, and this "
            f"installation speaks {PROTOCOL}: install the same version of spotelastic on both; "
            "or run `spotelastic down demo`, and `up` again, which goes on from its checkpoints"
        )
    assert cluster.objects.get(JOB) == before


def test_a_status_of_another_major_is_not_shown_as_if_it_were_understood(
    cluster: ClusterRecord,
) -> None:
    status = msgspec.json.encode(Status("demo", "running", 1.0, protocol=NEXT))
    cluster.objects.put(STATUS, status)
    with pytest.raises(OtherVersion, match=f"speaks protocol {NEXT}"):
        cluster.objects.status()


def test_one_cluster_of_another_major_hides_no_other_in_the_list(
    cluster: ClusterRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(cluster, spec=replace(SPEC, cluster="later"))
    written(other.objects, replace(other.spec, protocol=NEXT))

    def find(name: str, aws: Aws) -> ClusterRecord:
        spec = BucketObjects(aws, "bucket", name).job()
        assert spec is not None
        return ClusterRecord(aws, spec, "bucket")

    monkeypatch.setattr(clusters, "find", find)
    monkeypatch.setattr(AwsTarget, "names", lambda _: ("demo", "later"))
    rows = {row.name: row.state for row in target(cluster).listing()}
    assert rows == {"demo": "pending", "later": "of another version"}


# -- what one of another major has left -----------------------------------------------------------


WANTED = ValidatedJob(
    JobConfig(bucket="bucket"), replace(SPEC, folder="/f"), Archive("", b"", 0), Requirement(), {}
)


def test_up_asks_before_it_goes_on_from_what_another_version_has_left(
    cluster: ClusterRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job says what made the checkpoints, but only to that version. They stay readable."""
    objects = cluster.objects
    written(objects, replace(SPEC, protocol=NEXT))
    monkeypatch.setattr(aws_account, "check_bucket", lambda *_: None)
    found = preflight.find(target(cluster), WANTED, nobody_asked)
    assert found is None, "nothing to go on from"
    latest = Latest("demo", 1, Commit(1, 40), "n")
    objects.put(f"{CHECKPOINTS}{LATEST}", msgspec.json.encode(latest))
    with pytest.raises(UsageError, match="were made by another version of spotelastic"):
        preflight.find(target(cluster), WANTED, nobody_asked)
    assert preflight.find(target(cluster), WANTED, agreed) is None
