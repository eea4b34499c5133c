"""A folder reaches the pods whatever its size: in ConfigMaps, or by way of the storage."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from spotelastic_checkpoints.storage.open import open_storage

from spotelastic.bootstrap import kube_worker
from spotelastic.client.kubernetes import code_shipping
from spotelastic.client.kubernetes.kube_job import KubeJob, kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator import apply
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.kubernetes import pod_files


def job(folder: Path, **given: Any) -> KubeJob:
    needed = {"kube": True, "image": "r/train:1", "min": 2, **given}
    return kube_job(PodConfig("train.py", **needed), folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "work"
    found.mkdir()
    (found / "train.py").write_text("print(1)")
    return found


def large(folder: Path) -> Path:
    (folder / "vocabulary.bin").write_bytes(os.urandom(pod_files.MOST_CODE))
    return folder


def mounted(folder: Path, data: bytes) -> Path:
    folder.mkdir()
    for number, part in enumerate(pod_files.parts(data)):
        (folder / pod_files.part_file(number)).write_bytes(part)
    return folder


def test_a_small_folder_is_shipped_without_the_storage(folder: Path) -> None:
    made, told = job(folder, storage="s3://nowhere/gpt"), list[str]()
    assert code_shipping.ship(made.archive, made.spec.storage, told.append) == made.archive
    assert told == ["shipping 1 KiB of code"]


def test_a_large_folder_goes_to_the_bucket_once_and_pods_unpack_it(
    folder: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told = job(large(folder), bucket=bucket, name="gpt"), list[str]()
    given = code_shipping.ship(made.archive, made.spec.storage, told.append)
    url = f"s3://{bucket}/gpt/checkpoints/code/{made.spec.code}.tar.gz"
    assert pod_files.url_of(given) == url
    (line,) = told
    assert "5.0 MiB" in line and url in line
    assert code_shipping.ship(made.archive, made.spec.storage, told.append) == given
    assert told == [line], "what is there already is not shipped again"

    monkeypatch.setenv("HOME", str(tmp_path))
    unpacked = kube_worker.code_folder(made.spec, mounted(tmp_path / "mounted", given))
    for name in ("train.py", "vocabulary.bin"):
        assert (unpacked / name).read_bytes() == (folder / name).read_bytes()


def test_code_in_the_storage_is_no_checkpoint(folder: Path, bucket: str) -> None:
    from spotelastic_checkpoints.commit.commit_protocol import Commits

    made = job(large(folder), storage=f"s3://{bucket}/gpt")
    code_shipping.ship(made.archive, made.spec.storage, lambda _: None)
    storage = open_storage(made.spec.storage)
    digest = hashlib.sha256(made.archive).hexdigest()
    assert storage.keys() == [f"code/{digest}.tar.gz"]
    assert Commits(storage, "gpt").newest() is None


def test_a_large_folder_needs_an_object_store(folder: Path) -> None:
    made = job(large(folder), storage="/mnt/shared/gpt")
    for refused in (
        lambda: apply.look(None, made, lambda _: True),  # type: ignore[arg-type]
        lambda: code_shipping.ship(made.archive, made.spec.storage, lambda _: None),
    ):
        with pytest.raises(UsageError, match=r"5\.0 MiB compressed.*--bucket or --storage s3://"):
            refused()


def test_a_bucket_that_is_not_there_is_named(folder: Path, bucket: str) -> None:
    made = job(large(folder), storage=f"s3://{bucket}-other/gpt")
    with pytest.raises(EnvironmentFailure, match=f"{bucket}-other"):
        code_shipping.ship(made.archive, made.spec.storage, lambda _: None)
