"""Names of storages: what cannot be one is told in a line before anything is started."""

import os
from pathlib import Path

import pytest
from spotelastic_checkpoints.daemon.service import check_room
from spotelastic_checkpoints.errors import StorageRefused
from spotelastic_checkpoints.storage.open import folder_of, open_storage
from spotelastic_checkpoints.types import Resume, RoundInfo
from support.saving.small_disk import fill, make_read_only, small_disk

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.cli.commands.ckpt_target import opened
from spotelastic.client.targets.local_target import LocalTarget
from spotelastic.errors import UsageError
from spotelastic.launcher.storage_probe import probe
from spotelastic.local import cloud
from spotelastic.local.cloud import CloudInfo
from spotelastic.model.job import JobSpec, Settings

URLS = {
    "s3://bucket/../run": "has no folder ..",
    "s3://bucket/a/./run": "has no folder .",
    "s3://bucket//run": "there is an empty name between two slashes",
    "s3://": "the bucket is missing",
    "s3://bucket/a\tb": "holds a control character",
    "run\n": "holds a control character",
    "s4://bucket/run": "Protocol not known: s4",
}


@pytest.mark.parametrize("url", URLS)
def test_a_url_that_names_no_storage_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        probe(url, "run")
    assert URLS[url] in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(StorageRefused):
        open_storage(url)


def test_schemes_are_known_in_capitals(tmp_path: Path) -> None:
    assert folder_of(f"FILE://{tmp_path}") == tmp_path
    assert open_storage("S3://bucket/Run").url == "s3://bucket/Run"


def test_a_folder_that_cannot_be_made_or_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for url in (f"{tmp_path}/file/run", "/proc/run", f"{tmp_path}/{'x' * 300}"):
        with pytest.raises(UsageError, match=r"^--storage"):
            probe(url, "run")
        with pytest.raises(UsageError, match=r"^checkpoints go to .*; choose another target with"):
            probe(url, "run", chosen=False)
    probe(f"{tmp_path}/new/run", "run")
    probe(f"{tmp_path}/new/run", "run")


@pytest.mark.parametrize("chosen", [True, False])
def test_a_disk_that_takes_nothing_is_refused(tmp_path: Path, chosen: bool) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        ballast = fill(disk)
        with pytest.raises(UsageError, match="No space left on device"):
            probe(str(disk / "runs"), "run", chosen=chosen)
        ballast.unlink()
        make_read_only(disk)
        with pytest.raises(UsageError, match="Read-only file system"):
            probe(str(disk / "runs"), "run", chosen=chosen)


def test_a_storage_whose_name_looks_like_a_step(tmp_path: Path) -> None:
    for name in ("run@2024", "run@1/20"):
        with pytest.raises(UsageError, match="reads the part after the @ as a step"):
            probe(f"{tmp_path}/{name}", "run")
    (tmp_path / "old@2024").mkdir()
    with opened(f"{tmp_path}/old@2024") as named:
        assert (named.url, named.step) == (f"{tmp_path}/old@2024", None)


def test_a_run_that_begins_where_no_checkpoint_fits_is_refused(tmp_path: Path) -> None:
    too_much = 1 << 60
    begins, goes_on = (
        RoundInfo("a", 1, 1, 0, (), resume=Resume(*resume)) for resume in ((), ("store", 5))
    )
    with pytest.raises(StorageRefused, match="MiB are free, and one checkpoint takes"):
        check_room(str(tmp_path), begins, too_much)
    check_room(str(tmp_path), goes_on, too_much)
    check_room(str(tmp_path), begins, 1)
    check_room("s3://bucket/run", begins, too_much)


def test_a_bucket_of_the_users_own_is_the_local_clouds_if_its_cluster_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an AWS account is configured, in which a bucket may have that name."""
    info = CloudInfo(
        "http://127.0.0.1:9", 1, str(tmp_path), "127.77.0.0/16", "us-east-1", (), 1, secret="s"
    )
    for name in cloud.environment(info):
        monkeypatch.setenv(name, "of before")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setattr(cloud, "find", lambda: info)
    spec = JobSpec("demo", "demo", "a.py", (), "", Settings(1, 1), "s3://ours/demo/checkpoints", ())
    record = ClusterRecord(Aws(), spec, "ours")
    monkeypatch.setattr(LocalTarget, "cluster_or_gone", lambda *_: record)
    with opened("demo") as named:
        assert named.url == "s3://ours/demo/checkpoints"
        assert os.environ["AWS_ENDPOINT_URL"] == info.endpoint
