"""What a file browser leaves in a folder is no code, and names are exactly those of the nodes."""

import shutil
import subprocess
import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from spotelastic.aws.artifacts.code_archive import Archive, pack
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check
from spotelastic.errors import UsageError


@pytest.mark.parametrize(
    "name",
    [
        *(".DS_Store", "sub/.DS_Store", "Icon\r", "__MACOSX/train.py", ".AppleDouble/train.py"),
        *(".Spotlight-V100/store.db", ".fseventsd/0001", ".localized", "sub/.TemporaryItems/x"),
        *("Thumbs.db", "sub/desktop.ini", "._train.py", "train.py:Zone.Identifier"),
    ],
)
def test_what_a_system_leaves_behind_changes_no_code(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text("print(1)")
    before = pack(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"as somebody has looked into it")
    assert pack(tmp_path) == before


def test_a_file_of_the_users_is_shipped_whatever_it_resembles(tmp_path: Path) -> None:
    names = {"DS_Store", "Icon", ".DS_Store.py", "thumbs.db.py", "Zone.Identifier"}
    for name in names:
        (tmp_path / name).write_text("")
    assert pack(tmp_path).names == names


@pytest.mark.parametrize(
    ("typed", "real"),
    [
        ("train.py", "Train.py"),
        ("Models/train.py", "models/Train.PY"),
        (unicodedata.normalize("NFC", "träin.py"), unicodedata.normalize("NFD", "träin.py")),
        ("straße.py", "STRASSE.py"),
    ],
)
def test_a_name_that_only_a_mac_takes_for_the_files_is_told_with_the_files(
    typed: str, real: str
) -> None:
    with pytest.raises(UsageError, match=f"^{typed}: the file is named {real}, and nodes"):
        Archive("", b"", 1, names=frozenset({real, "other.py"})).require(typed)


def test_a_script_that_no_node_would_get_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    check(JobConfig("train.py"), tmp_path)
    (tmp_path / ".spotelasticignore").write_text("train.py\n")
    with pytest.raises(UsageError, match=r"^train\.py is not shipped to the nodes.*!/train\.py"):
        check(JobConfig("train.py"), tmp_path)


@pytest.mark.parametrize("given", ["requirements.txt", "./requirements.txt", None])
def test_a_list_of_packages_that_no_node_would_get_is_refused(
    tmp_path: Path, given: str | None
) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "requirements.txt").write_text("msgspec\n")
    found = check(JobConfig("train.py", environment=given), tmp_path).spec.environment
    assert found is not None
    (tmp_path / ".spotelasticignore").write_text("*.txt\n")
    with pytest.raises(UsageError, match=r"^requirements\.txt is not shipped to the nodes"):
        check(JobConfig("train.py", environment=given), tmp_path)
    check(JobConfig("train.py", environment="none"), tmp_path)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_what_git_ignores_is_no_code_however_a_disk_spells_it(
    tmp_path: Path, form: Literal["NFC", "NFD"]
) -> None:
    """A Mac's disk decomposes letters, and git composes them."""
    name = "schlüssel.pem"
    folder = tmp_path / unicodedata.normalize("NFD", "Übung")
    folder.mkdir()
    (folder / unicodedata.normalize(form, name)).write_text("secret")
    (folder / "train.py").write_text("print(1)")
    (tmp_path / ".gitignore").write_text("*.pem\n")
    for words in (["init", "-q"], ["config", "core.precomposeunicode", "true"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert pack(folder).names == {"train.py"}


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_what_git_ignores_is_no_code_in_a_folder_that_is_reached_by_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "sub").mkdir(parents=True)
    (real / "sub/key.pem").write_text("secret")
    (real / "sub/train.py").write_text("print(1)")
    (real / ".gitignore").write_text("*.pem\n")
    subprocess.run(["git", "init", "-q"], cwd=real, check=True)
    (tmp_path / "link").symlink_to(real)
    assert pack(tmp_path / "link/sub").names == {"train.py"}
