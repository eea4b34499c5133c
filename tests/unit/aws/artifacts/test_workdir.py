"""The working folder's archive: what git would keep, the same bytes every time, safely unpacked."""

import errno
import io
import os
import shutil
import socket
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest
from support.processes.patience import PATIENT

from spotelastic.aws.artifacts.code_archive import pack, unpack
from spotelastic.client.config import config_file
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.requests.dump import file_name


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(pack(folder).data)) as tar:
        return tar.getnames()


def test_equal_contents_make_equal_bytes_whatever_their_times_and_place(tmp_path: Path) -> None:
    files = {"train.py": "print(1)", "pkg/model.py": "x = 1"}
    one, other = write(tmp_path / "one", files), write(tmp_path / "other", files)
    os.utime(other / "train.py", (1, 1))
    (other / "train.py").chmod(0o600)
    assert pack(one) == pack(other)


def test_a_changed_file_or_executable_bit_changes_the_name(tmp_path: Path) -> None:
    folder = write(tmp_path, {"train.py": "print(1)"})
    before = pack(folder).sha256
    (folder / "train.py").chmod(0o755)
    executable = pack(folder).sha256
    (folder / "train.py").write_text("print(2)")
    assert len({before, executable, pack(folder).sha256}) == 3


def test_what_git_ignores_is_left_out(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {
            ".gitignore": "*.pt\n/build/\n!keep.pt\n",
            "train.py": "",
            "model.pt": "",
            "keep.pt": "",
            "build/out.txt": "",
            "src/build/stays.txt": "",
            "src/.gitignore": "secret\n!model.pt\n",
            "src/secret": "",
            "src/model.pt": "",
            ".git/config": "",
            "src/__pycache__/a.pyc": "",
            ".venv/pyvenv.cfg": "",
            ".venv/lib/torch.py": "",
        },
    )
    assert names(folder) == [
        ".gitignore",
        "keep.pt",
        "src/.gitignore",
        "src/build/stays.txt",
        "src/model.pt",
        "train.py",
    ]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_what_is_tracked_is_not_ignored(tmp_path: Path) -> None:
    """Whoever clones the repository has it, and the script may need it."""
    folder = write(
        tmp_path,
        {
            ".gitignore": "*.pt\n/data/\n",
            "sub/small.pt": "",
            "sub/large.pt": "",
            "sub/new.pt": "",
            "sub/removed.pt": "",
            "data/kept/é.csv": "",
            "data/left/out.csv": "",
            "data/.spotelasticignore": "/left\n",
            ".spotelasticignore": "large.pt\n",
        },
    )
    git = ("git", "-C", str(folder))
    subprocess.run([*git, "init", "-q"], check=True, timeout=PATIENT)
    subprocess.run([*git, "add", "-f", "."], check=True, timeout=PATIENT)
    subprocess.run([*git, "rm", "-q", "--cached", "sub/new.pt"], check=True, timeout=PATIENT)
    (folder / "sub/removed.pt").unlink()
    assert names(folder) == [
        ".gitignore",
        ".spotelasticignore",
        "data/.spotelasticignore",
        "data/kept/é.csv",
        "sub/small.pt",
    ]
    assert names(folder / "data") == [".spotelasticignore", "kept/é.csv"]


def test_other_flags_are_no_other_code(tmp_path: Path) -> None:
    folder = write(
        tmp_path, {"train.py": "", config_file.FILE: "max = 2", f"a/{config_file.FILE}": ""}
    )
    before = pack(folder)
    (folder / config_file.FILE).write_text("max = 4")
    assert pack(folder) == before
    assert names(folder) == [f"a/{config_file.FILE}", "train.py"]


def test_an_ignored_folder_stays_ignored_whatever_is_re_included_below(tmp_path: Path) -> None:
    files = {".gitignore": "data/\n", "data/.gitignore": "!big.bin\n", "data/big.bin": ""}
    assert names(write(tmp_path, files)) == [".gitignore"]


def test_the_rules_of_the_repository_above_hold_too(tmp_path: Path) -> None:
    files = {".gitignore": "*.bin\n/sub/x.py\n", "sub/a.bin": "", "sub/x.py": "", "sub/y.py": ""}
    write(tmp_path, files)
    (tmp_path / ".git").mkdir()
    assert names(tmp_path / "sub") == ["y.py"]


MARK = "\ufeff"
FORMS = {
    "byte order mark": MARK + "secret.pem\n",
    "carriage returns": "# keys\r\nsecret.pem\r\n",
    "line separator within a comment": "# keys\u2028!secret.pem\nsecret.pem",
    "form feed within a comment": "secret.pem\n#\f!secret.pem\n",
    "trailing blanks": "secret.pem  \n",
    "a name in brackets": "[s]ecret.p?m\n",
}


@pytest.mark.parametrize("repository", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_rules_are_read_as_git_reads_them(tmp_path: Path, form: str, repository: bool) -> None:
    write(tmp_path, {".gitignore": FORMS[form], "secret.pem": "", "a/secret.pem": "", "a/b": ""})
    if repository:
        subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True, timeout=PATIENT)
    assert names(tmp_path) == [".gitignore", "a/b"]


def test_names_are_compared_as_bytes(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"k\xe9y\n")
    (tmp_path / os.fsdecode(b"k\xe9y")).touch()
    assert names(tmp_path) == [".gitignore"]


def test_patterns_count_wherever_git_looks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(
        tmp_path / "work",
        {"own.key": "", "clone.key": "", "train.py": "", "sub/lib.key": "", "sub/lib.py": ""},
    )
    settings = write(tmp_path / "home", {"git/ignore": "own.key\n"})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings))
    for repository in (folder, folder / "sub"):
        subprocess.run(["git", "-C", str(repository), "init", "-q"], check=True, timeout=PATIENT)
    with (folder / ".git/info/exclude").open("a") as exclude:
        exclude.write("clone.key\n")
    with (folder / "sub/.git/info/exclude").open("a") as exclude:
        exclude.write("lib.key\n")
    assert names(folder) == ["sub/lib.py", "train.py"]
    assert names(folder / "sub") == ["lib.py"]
    write(folder, {".spotelasticignore": "!own.key\n"})
    assert names(folder) == [".spotelasticignore", "own.key", "sub/lib.py", "train.py"]


def test_without_git_the_clones_own_patterns_still_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, {".git/info/exclude": "a.key\n", "a.key": "", "train.py": ""})
    monkeypatch.setenv("PATH", "")
    assert names(folder) == ["train.py"]


def test_a_folder_that_is_ignored_as_a_whole_is_still_shipped(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "out/\n*.pem\n", "out/a.py": "", "out/.gitignore": "b\n"})
    write(tmp_path, {"out/b": ""})
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True, timeout=PATIENT)
    assert names(tmp_path / "out") == [".gitignore", "a.py"]


@pytest.mark.parametrize("name", [".gitignore", ".spotelasticignore"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be"])
def test_rules_in_which_no_pattern_would_match_are_refused(
    tmp_path: Path, name: str, encoding: str
) -> None:
    write(tmp_path, {"secret.pem": ""})
    (tmp_path / name).write_bytes("secret.pem\n".encode(encoding))
    with pytest.raises(UsageError, match=r"no text in UTF-8.*save it as UTF-8"):
        pack(tmp_path)


def test_without_a_repository_folders_above_have_no_say(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.bin\n", "sub/a.bin": ""})
    assert names(tmp_path / "sub") == ["a.bin"]


def test_a_folder_too_large_is_refused_with_its_largest_parts(tmp_path: Path) -> None:
    files = {"data/a.bin": "x" * 3000, "data/b.bin": "x" * 3000, "small/c": "x", "train.py": "x"}
    with pytest.raises(UsageError, match=r"largest are data/ \(.*\.spotelasticignore"):
        pack(write(tmp_path, files), limit=4000)


def denied(monkeypatch: pytest.MonkeyPatch, of: object, name: str, which: str) -> None:
    """One place becomes unreadable; permissions would not stop root."""
    real = getattr(of, name)

    def refuse(path: object, *args: object, **kwargs: object) -> object:
        if str(path).endswith(which):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(of, name, refuse)


@pytest.mark.parametrize(
    ("of", "name", "which"),
    [(os, "scandir", "/private"), (Path, "exists", "/private/pyvenv.cfg")],
)
def test_a_folder_that_cannot_be_read_is_named_until_it_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: object, name: str, which: str
) -> None:
    folder = write(tmp_path, {"train.py": "", "private/x": ""})
    denied(monkeypatch, of, name, which)
    with pytest.raises(UsageError) as caught:
        pack(folder)
    assert str(caught.value) == (
        f"cannot read {folder}/private: Permission denied; list it in .spotelasticignore"
    )
    write(folder, {".spotelasticignore": "private\n"})
    assert names(folder) == [".spotelasticignore", "train.py"]


def test_rules_that_cannot_be_read_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, {"train.py": "", ".gitignore": "secrets\n", "secrets": ""})
    denied(monkeypatch, Path, "read_bytes", "/.gitignore")
    with pytest.raises(UsageError, match=r"cannot read .*/\.gitignore: Permission denied; make it"):
        pack(folder)


def test_links_inside_stay_links_and_links_outside_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "work", {"real/a.txt": "a", "train.py": ""})
    (folder / "relative").symlink_to("real/a.txt")
    (folder / "absolute").symlink_to(folder / "real")
    archive = pack(folder)
    unpack(archive.data, archive.sha256, tmp_path / "there")
    assert (tmp_path / "there/relative").read_text() == "a"
    assert (tmp_path / "there/absolute").readlink() == Path("real")

    (folder / "escape").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"escape is a link to .*elsewhere"):
        pack(folder)


def test_sockets_and_pipes_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": ""})
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert names(tmp_path) == ["train.py"]


def test_what_was_packed_is_what_is_unpacked(tmp_path: Path) -> None:
    folder = write(tmp_path / "work", {"train.py": "print(1)", "pkg/run.sh": "#!/bin/sh"})
    (folder / "pkg/run.sh").chmod(0o755)
    archive = pack(folder)
    unpack(archive.data, archive.sha256, tmp_path / "node/code")
    assert (tmp_path / "node/code/train.py").read_text() == "print(1)"
    assert os.access(tmp_path / "node/code/pkg/run.sh", os.X_OK)
    assert pack(tmp_path / "node/code") == archive
    assert [path.name for path in (tmp_path / "node").iterdir()] == ["code"]


def test_a_damaged_archive_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    archive = pack(write(tmp_path / "work", {"train.py": ""}))
    with pytest.raises(EnvironmentFailure, match="damaged"):
        unpack(archive.data[:-1], archive.sha256, tmp_path / "code")
    assert not (tmp_path / "code").exists()


@pytest.mark.parametrize("name", ["../evil", "/tmp/spotelastic-evil"])
def test_an_archive_cannot_write_outside_of_its_target(tmp_path: Path, name: str) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("first.txt"))
        tar.addfile(tarfile.TarInfo(name))
    data = raw.getvalue()
    target = tmp_path / "node/code"
    try:
        unpack(data, sha256(data).hexdigest(), target)
    except EnvironmentFailure:
        assert not target.exists()
    assert not (tmp_path / "node/evil").exists()
    assert not Path("/tmp/spotelastic-evil").exists()


def test_an_archive_that_is_no_archive_leaves_nothing_behind(tmp_path: Path) -> None:
    data = b"not an archive"
    with pytest.raises(EnvironmentFailure, match="cannot unpack"):
        unpack(data, sha256(data).hexdigest(), tmp_path / "node/code")
    assert list((tmp_path / "node").iterdir()) == []


def test_what_git_ignores_is_counted_and_its_rule_brings_it(tmp_path: Path) -> None:
    files = {
        ".gitignore": "*.bin\nlarge/\n*.pkl\n__pycache__/\n.venv/\n*.log\n",
        ".spotelasticignore": "meta.pkl\n",
        "train.py": "print(1)",
        "data/train.bin": "x" * 300,
        "large/rows/a.npy": "x" * 1000,
        "large/__pycache__/a.pyc": "x" * 5000,
        "meta.pkl": "x" * 9000,
        "run.log": "x" * 9000,
        "__pycache__/train.pyc": "x" * 9000,
        ".venv/lib/torch.bin": "x" * 9000,
    }
    left = pack(write(tmp_path, files)).left_out
    assert left is not None
    assert (left.files, left.size, left.largest) == (2, 1300, "large/rows/a.npy")
    rules = f"meta.pkl\n{left.rule}\n"
    brought = pack(write(tmp_path, {".spotelasticignore": rules})).left_out
    assert "large/rows/a.npy" in names(tmp_path)
    assert brought is not None
    assert (brought.files, brought.largest, brought.rule) == (
        1,
        "data/train.bin",
        "!/data/train.bin",
    )
    write(tmp_path, {".spotelasticignore": f"{rules}{brought.rule}\n"})
    assert pack(tmp_path).left_out is None and "data/train.bin" in names(tmp_path)


def test_what_runs_have_written_is_no_code(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "x", "runs/tensorboard/events": "kept"})
    before = pack(tmp_path).sha256
    write(
        tmp_path,
        {
            "runs/default/conditional-writes": "",
            "runs/default/1/step-00000001/__0_0.distcp": "data",
            "elsewhere/spotelastic-run.json": "{}",
            ".spotelastic/local/x": "data",
            file_name("demo", None, 1e9): "what `spotelastic dump` has written",
            file_name("demo", "i-0a", 1e9): "the same of one node",
        },
    )
    assert pack(tmp_path).sha256 == before
