"""`spotelastic ckpt export` and `import` where a disk is full or may not be written to."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.saving.ckpt_command import ckpt, fine, refused
from support.saving.small_disk import make_read_only, small_disk

from spotelastic.client.targets.local_target import LocalTarget, has_gone
from spotelastic.local.cloud import CloudInfo

KIB = 256
STATE = {"model": {str(i): torch.rand(16 * 1024) for i in range(8)}}
"""Twice as much as the disk holds."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", KIB) as folder:
        yield folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    torch.save(STATE, tmp_path / "in.pt")
    fine("import", tmp_path / "in.pt", tmp_path / "run")
    return tmp_path / "run"


def left(disk: Path) -> list[Path]:
    return [path for path in disk.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "arguments", [["model.pt"], ["folder"], ["folder", "--max-shard-size", "100kB"]]
)
def test_an_export_to_a_full_disk_says_so_and_leaves_nothing(
    run: Path, disk: Path, arguments: list[str]
) -> None:
    to, *options = arguments
    told = refused("export", run, disk / to, *options)
    assert f"{disk / to} cannot be written: No space left on device, and it takes up to" in told
    assert "make room there, or name another place" in told
    assert left(disk) == []


def test_a_disk_without_room_for_the_file_beside_what_is_assembled_says_so(
    run: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "larger", 3 * KIB) as disk:
        assert "No space left" in refused("export", run, disk / "model.pt")
        assert left(disk) == []


def test_a_disk_that_others_fill_meanwhile_is_told_of_and_not_torchs_archive(
    run: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the room that was made had gone: nothing is allocated."""
    monkeypatch.setattr("os.posix_fallocate", lambda *_: None)
    monkeypatch.setattr("spotelastic.training.dcp.convert.assemble", lambda *_: None)
    assert "cannot be written: No space left" in refused("export", run, disk / "model.pt")
    assert left(disk) == []


@pytest.mark.parametrize("to", ["model.pt", "folder", "new/model.pt"])
def test_an_export_to_where_one_may_not_write_says_so(run: Path, disk: Path, to: str) -> None:
    make_read_only(disk)
    told = refused("export", run, disk / to)
    assert told == (
        f"spotelastic: {disk / to} cannot be written: Read-only file system: name another place\n"
    )


@pytest.mark.parametrize("to", ["model.pt", "folder"])
def test_an_export_below_a_file_says_so(run: Path, tmp_path: Path, to: str) -> None:
    (tmp_path / "file").touch()
    assert "cannot be written: Not a directory" in refused(
        "export", run, tmp_path / "file" / "more" / to
    )


def test_an_import_names_the_temporary_folder_that_is_full(
    tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(STATE, tmp_path / "in.pt")
    monkeypatch.setattr("tempfile.tempdir", str(disk))
    told = refused("import", tmp_path / "in.pt", tmp_path / "run")
    assert told.startswith(f"spotelastic: {disk} has no room for 1 MiB, which are needed to ")
    assert told.endswith("No space left on device; set TMPDIR to a folder that has\n")
    assert left(disk) == []
    monkeypatch.undo()
    fine("import", tmp_path / "in.pt", tmp_path / "run")


def test_an_import_to_where_one_may_not_write_says_so(tmp_path: Path, disk: Path) -> None:
    torch.save(STATE, tmp_path / "in.pt")
    make_read_only(disk)
    done = ckpt("import", tmp_path / "in.pt", disk / "run")
    assert done.code and not done.out
    assert done.err == f"spotelastic: {disk / 'run'}: Read-only file system\n"


def test_a_local_cloud_that_has_ended_is_not_to_blame_unless_the_command_used_it(
    tmp_path: Path, disk: Path
) -> None:
    LocalTarget(CloudInfo("http://127.0.0.1:1", 1, "/tmp", "127.77.0.0/16", "us-east-1", (), 1))
    assert has_gone()
    test_an_import_to_where_one_may_not_write_says_so(tmp_path, disk)


def test_a_file_that_cannot_be_read_is_not_called_unsafe(tmp_path: Path) -> None:
    (tmp_path / "loop.pt").symlink_to("loop.pt")
    for file, reason in (
        (tmp_path, os.strerror(21)),
        (tmp_path / "loop.pt", "Too many levels of symbolic links"),
    ):
        assert refused("import", file, tmp_path / "run") == (
            f"spotelastic: {file} cannot be read: {reason}\n"
        )
