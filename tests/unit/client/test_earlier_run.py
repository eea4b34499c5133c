"""What `up` says of the checkpoints that a cluster of this name has left, and --fresh."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Commit
from support.aws.cluster_requests import job
from support.saving.commit_protocol import put_all
from support.saving.s3_servers import s3_endpoint, use_s3

from spotelastic.aws.artifacts.code_archive import Archive
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.planning.type_selection import Requirement
from spotelastic.client.bringing_up import earlier_run
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.cloud.bucket import JOB
from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec, Settings
from spotelastic.model.protocol import PROTOCOL, ProtocolVersion

__all__ = ["s3_endpoint"]


@pytest.fixture
def place(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[AwsTarget, str]]:
    bucket = use_s3(monkeypatch, s3_endpoint)
    monkeypatch.setenv("AWS_PROFILE", "")
    monkeypatch.delenv("AWS_PROFILE")
    yield AwsTarget(Aws("us-east-1")), bucket


def asked(bucket: str, **more: Any) -> JobConfig:
    return JobConfig(bucket=bucket, **more)


def begun(place: AwsTarget, config: JobConfig) -> list[str]:
    said = list[str]()
    spec = job("quokka", args=("--steps", "40"))
    wanted = ValidatedJob(config, spec, Archive("", b"", 0), Requirement(), {})
    earlier_run.begin(place, wanted, said.append)
    return said


def trained(url: str, step: int) -> None:
    commits = Commits(open_storage(url), "quokka")
    epoch = commits.claim().epoch
    put_all(commits, epoch, step)
    assert commits.commit(Commit(epoch, step), epoch)


def test_it_says_from_which_step_the_job_goes_on(place: tuple[AwsTarget, str]) -> None:
    there, bucket = place
    url = f"s3://{bucket}/quokka/checkpoints"
    assert begun(there, asked(bucket)) == [] == begun(there, asked(bucket, fresh=True))
    trained(url, 40)
    (line,) = begun(there, asked(bucket))
    assert line.startswith("continuing from step 40 of the run quokka, saved ")
    assert line.endswith("; begin afresh with --fresh before the script")
    (line,) = begun(there, asked(bucket, fresh=True))
    assert (
        line == f"beginning afresh: step 40 and earlier ones stay in {url}, but are no longer used"
    )
    assert begun(there, asked(bucket)) == [], "the job begins at step 0, also the next time"
    assert len(open_storage(url).keys("1/")) > 1
    trained(url, 5)
    assert "from step 5 of" in begun(there, asked(bucket))[0]


def test_it_names_another_script_or_other_arguments(place: tuple[AwsTarget, str]) -> None:
    there, bucket = place
    url = f"s3://{bucket}/quokka/checkpoints"
    trained(url, 40)
    for script, args, warning in (
        ("train.py", ("--steps", "40"), None),
        ("train.py", ("--token", "abcdefgh"), "that run had other arguments: --token ***"),
        ("old.py", (), "that run was made by another script, old.py"),
    ):
        spec = JobSpec("quokka", "quokka", script, args, "", Settings(1, 1), url, ())
        BucketObjects(there.aws, bucket, "quokka").put(JOB, msgspec.json.encode(spec))
        line, *more = begun(there, asked(bucket))
        assert f" by {script}" in line
        assert more == ([f"warning: {warning}"] if warning else [])


def test_it_goes_on_from_what_another_version_has_left_without_naming_its_script(
    place: tuple[AwsTarget, str],
) -> None:
    there, bucket = place
    url = f"s3://{bucket}/quokka/checkpoints"
    trained(url, 40)
    later = ProtocolVersion(PROTOCOL.major + 1, 0)
    spec = JobSpec("quokka", "quokka", "a.py", (), "", Settings(1, 1), url, (), protocol=later)
    BucketObjects(there.aws, bucket, "quokka").put(JOB, msgspec.json.encode(spec))
    (line,) = begun(there, asked(bucket))
    assert line.startswith("continuing from step 40 of the run quokka") and "a.py" not in line


def test_fresh_is_for_a_cluster_that_is_to_be_made() -> None:
    known = cast(Any, SimpleNamespace(name="quokka"))
    earlier_run.check(asked("b"), known)
    with pytest.raises(UsageError, match="the cluster quokka is training"):
        earlier_run.check(asked("b", fresh=True), known)
    with pytest.raises(UsageError, match="--fresh and --resume old: give only one of them"):
        earlier_run.check(asked("b", fresh=True, resume="old"), None)
