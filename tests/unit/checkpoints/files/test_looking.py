"""Which files a script has written and nobody keeps, and what is said of them."""

import os
import time
from pathlib import Path

from spotelastic_checkpoints.daemon.file_keeper import left_behind as line
from spotelastic_checkpoints.files.looking import is_shared, kept_files, left_behind


def write(file: Path, nbytes: int = 1) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * nbytes)


def test_what_is_not_a_result_is_not_told(tmp_path: Path) -> None:
    write(tmp_path / "shipped.txt")
    write(tmp_path / "data/shipped.bin")
    time.sleep(0.02)  # the clock of a file system stands still for some milliseconds
    since = time.time()
    time.sleep(0.02)
    results = {"best.pt": 3, "deep/er/metrics.csv": 2, "outer/x": 1}
    for path, nbytes in results.items():
        write(tmp_path / path, nbytes)
    old = tmp_path / "copied.pt"
    write(old)
    os.utime(old, (1, 1))  # as cp -p and tar do
    for path in (
        *("__pycache__/a.pyc", ".git/index", ".cache/x", "deep/__pycache__/b", "new.py"),
        *("out/kept.pt", "runs/default/LATEST", "venv/lib/x", ".hidden", "x.lock"),
    ):
        write(tmp_path / path)
    write(tmp_path / "venv/pyvenv.cfg")
    write(tmp_path / "empty", 0)
    (tmp_path / "link").symlink_to("best.pt")
    found = left_behind(tmp_path, since, ["out"], [tmp_path / "runs/default"])
    assert dict(found) == {**results, "copied.pt": 1}


def test_a_line_names_the_largest_and_what_to_do() -> None:
    assert line([("out/best.pt", 9)]) == "out/best.pt is on this node alone: --output out"
    told = line([("a/1", 1), ("b/2", 4), ("b/3", 3), ("best.pt", 2)])
    assert told == (
        "b/2, b/3, best.pt and 1 more are on this node alone: "
        "--output a --output b; write into $SPOTELASTIC_OUTPUT, with --output out"
    )
    assert line([("x", 1)], ["out"]).endswith("alone: write into $SPOTELASTIC_OUTPUT")


def test_names_that_cannot_be_printed_are_told_and_folders_that_cannot_be_read(
    tmp_path: Path,
) -> None:
    write(tmp_path / "out/good")
    (tmp_path / "out/bad\n").write_text("x")
    found, problem = kept_files(tmp_path, ["out"])
    assert set(found) == {"out/good"}
    assert "its name cannot be printed" in problem
    (tmp_path / "file").write_text("x")
    assert kept_files(tmp_path, ["nothing"]) == ({}, "")
    assert "cannot be read" in kept_files(tmp_path, ["file"])[1]


def test_a_folder_that_nodes_share_is_known(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for kind, shared in (("nfs4", True), ("ext4", False), ("fuse.sshfs", True)):
        mounts = tmp_path / "mountinfo"
        mounts.write_text(f"36 35 {number} / /home rw,noatime shared:1 - {kind} host:/home rw\n")
        assert is_shared(tmp_path, mounts) is shared
    assert not is_shared(tmp_path, tmp_path / "missing")
