"""A rehearsal leaves the folder as it is, and tells what the script has written."""

import os
import resource
import socket
from pathlib import Path

import pytest

from spotelastic.client.rehearsal import copies
from spotelastic.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mine"
    for name in ("train.py", "data/rows.csv", ".git/HEAD", "env/pyvenv.cfg", "env/lib.py"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "large.bin").write_text("large")
    (made / "linked").symlink_to("../shared")
    return made


def test_a_copy_has_the_files_and_links_what_is_large(folder: Path, tmp_path: Path) -> None:
    used = tmp_path / "acts" / "first" / "used"
    before = copies.copy(folder, used)
    assert (used / "data/rows.csv").read_text() == "data/rows.csv"
    assert not (used / ".git").exists()
    assert (used / "env").resolve() == (folder / "env").resolve()
    assert (used / "linked/large.bin").read_text() == "large"
    assert copies.written(before, used) == []


def test_sockets_and_pipes_are_left_out(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "data/pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        copies.copy(folder, tmp_path / "used")
    assert (tmp_path / "used/data/rows.csv").exists()
    assert not (tmp_path / "used/data/pipe").exists() and not (tmp_path / "used/socket").exists()


def test_what_cannot_be_copied_is_told_in_a_line(folder: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len("train.py"), before[1]))
    try:
        with pytest.raises(UsageError, match=r"data/rows.csv cannot be copied: .*File too large"):
            copies.copy(folder, tmp_path / "used")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_a_script_writes_is_told_and_the_folder_stays_as_it_is(
    folder: Path, tmp_path: Path
) -> None:
    used = tmp_path / "used"
    before = copies.copy(folder, used)
    (used / "data/rows.csv").write_text("other")
    (folder / "own.log").write_text("what the user's shell writes meanwhile")
    (used / "out").mkdir()
    (used / "out/last.pt").write_text("new")
    (used / "__pycache__").mkdir()
    (used / "__pycache__/train.pyc").write_text("compiled")
    assert copies.written(before, used) == ["data/rows.csv", "out/last.pt"]
    assert (folder / "data/rows.csv").read_text() == "data/rows.csv"


def test_a_folder_that_is_too_large_is_refused_in_a_line(folder: Path) -> None:
    with (folder / "large.bin").open("wb") as file:
        file.truncate(copies.MOST + 1)
    with pytest.raises(UsageError, match="Move data out of it"):
        copies.check(folder)
