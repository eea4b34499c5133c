"""An environment is built once, by one node, and is the same wherever it is fetched to."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import pytest
from support.clusters.memory_bucket import MemoryBucket
from support.processes.wheels import tiny

from spotelastic.aws.artifacts.environments import (
    BuildFailed,
    Environments,
    forget_failures,
    tag_of,
)
from spotelastic.aws.artifacts.micromamba import RELEASE, MicromambaRelease
from spotelastic.aws.artifacts.requirements import find
from spotelastic.model.job import Environment


@dataclass
class Node:
    name: str
    bucket: MemoryBucket
    folder: Path
    said: list[str] = field(default_factory=list)
    stale: float = 30.0
    micromamba: MicromambaRelease = RELEASE

    def ensure(self, wanted: Environment, code: Path) -> Path:
        home = self.folder / self.name
        its = Environments(
            self.bucket,
            home,
            self.name,
            self.said.append,
            look=0.01,
            stale=self.stale,
            micromamba=self.micromamba,
        )
        return its.ensure(wanted, code)

    def builds(self) -> bool:
        return any("building" in line for line in self.said)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    tiny(folder)
    (folder / "requirements.txt").write_text("./tinymath-1.0-py3-none-any.whl\n")
    return folder


def asked(code: Path) -> Environment:
    found = find(code, None, "code")
    assert found is not None
    return found


def run(python: Path, *command: str) -> str:
    return subprocess.run(
        [python.with_name(command[0]), *command[1:]], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_of_nodes_that_need_it_at_once_one_builds_and_all_have_the_same(
    tmp_path: Path, code: Path
) -> None:
    bucket = MemoryBucket("demo")
    nodes = [Node(f"n{number}", bucket, tmp_path) for number in range(3)]
    with ThreadPoolExecutor() as pool:
        pythons = list(pool.map(lambda node: node.ensure(asked(code), code), nodes))
    assert sum(node.builds() for node in nodes) == 1
    assert len({python.parent for python in pythons}) == 3
    builder = pythons[[node.builds() for node in nodes].index(True)]
    shutil.rmtree(builder.parent.parent)  # the others' do not lean on it
    for python in pythons:
        if python != builder:
            doubled = run(python, "python", "-c", "import tinymath; print(tinymath.double(21))")
            assert doubled == "42"
            assert run(python, "tiny") == str(python)
            own = "import spotelastic, spotelastic_checkpoints; find_spec('torch').origin"
            run(python, "python", "-c", f"from importlib.util import find_spec; {own}")
    assert not any(name.endswith(".building") for name in bucket.objects)
    kept = next(python for python in pythons if python != builder)
    again = Node(kept.parents[2].name, bucket, tmp_path)
    assert again.ensure(asked(code), code) == kept
    assert again.said == []


def test_a_list_that_cannot_be_installed_is_tried_once_and_its_output_told(
    tmp_path: Path, code: Path
) -> None:
    (code / "requirements.txt").write_text("./absent-1.0-py3-none-any.whl\n")
    bucket = MemoryBucket("demo")
    first, second = Node("n0", bucket, tmp_path), Node("n1", bucket, tmp_path)
    for node in (first, second):
        with pytest.raises(BuildFailed, match=r"requirements\.txt cannot be installed:") as caught:
            node.ensure(asked(code), code)
        assert "absent-1.0" in str(caught.value)
    assert first.builds() and not second.builds()
    forget_failures(bucket, asked(code))
    assert bucket.objects == {}


def test_a_builder_that_is_silent_is_replaced(tmp_path: Path, code: Path) -> None:
    bucket = MemoryBucket("demo")
    tag = tag_of(asked(code))
    bucket.put(f"environments/{tag}.building", b"gone 7")
    node = Node("n0", bucket, tmp_path, stale=0.05)
    assert run(node.ensure(asked(code), code), "tiny")
    assert node.said[0] == "waiting for gone to build requirements.txt"


def test_what_a_killed_build_has_left_is_no_environment(tmp_path: Path, code: Path) -> None:
    left = tmp_path / "n0" / tag_of(asked(code)) / "bin"
    left.mkdir(parents=True)
    (left / "python").write_text("half")
    assert run(Node("n0", MemoryBucket("demo"), tmp_path).ensure(asked(code), code), "tiny")


def test_uv_is_told_to_keep_the_python_that_the_rest_is_made_for(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself it would make the environment anew, with the one of .python-version."""
    for name in ("uv.lock", "pyproject.toml"):
        (code / name).touch()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > asked\n')
    (tools / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    python = Node("n0", MemoryBucket("demo"), tmp_path).ensure(asked(code), code)
    told = (code / "asked").read_text().split()
    assert told[told.index("--python") + 1] == str(python)


CONDA = """#!/bin/sh
printf "%s\\n" "$@" > asked
echo "root $MAMBA_ROOT_PREFIX" >> asked
while [ "$1" != --prefix ]; do shift; done
test ! -e "$2" || exit 1
mkdir -p "$2/bin" "$2/lib/python{version}/site-packages"
"""
"""As much of a conda as is needed, with the Python of that version."""
OWN_PYTHON = "{}.{}".format(*sys.version_info)


@pytest.fixture
def listed(code: Path) -> Path:
    (code / "requirements.txt").unlink()
    (code / "environment.yml").write_text("dependencies: [python, scipy]\n")
    return code


def install(folder: Path, name: str, python: str = OWN_PYTHON) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(CONDA.format(version=python))
    (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("tool", "words"),
    [("micromamba", ["create"]), ("mamba", ["env", "create"]), ("conda", ["env", "create"])],
)
def test_conda_makes_the_environment_in_a_folder_that_is_not_there_yet(
    tmp_path: Path, listed: Path, monkeypatch: pytest.MonkeyPatch, tool: str, words: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(install(tmp_path / "tools", tool)), prepend=":")
    python = Node("n0", MemoryBucket("demo"), tmp_path).ensure(asked(listed), listed)
    told = (listed / "asked").read_text().splitlines()
    prefix = str(python.parents[1])
    expected = [*words, "--yes", "--prefix", prefix, "--file", "environment.yml", "root "]
    assert told == expected


def test_a_conda_environment_of_another_python_is_refused_with_what_to_write(
    tmp_path: Path, listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = install(tmp_path / "tools", "conda", python="3.8")
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    with pytest.raises(BuildFailed, match=f"add python={OWN_PYTHON}"):
        Node("n0", MemoryBucket("demo"), tmp_path).ensure(asked(listed), listed)


@pytest.fixture
def no_conda(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the images that workers boot."""
    monkeypatch.setattr(shutil, "which", lambda _: None)


def published(folder: Path, data: bytes) -> MicromambaRelease:
    """micromamba, where it is fetched from; `folder` lacks it where that is not the release."""
    digest = sha256(CONDA.format(version=OWN_PYTHON).encode()).hexdigest()
    release = MicromambaRelease("9.9", digest, folder.as_uri(), pause=0.0)
    (folder / "9.9").mkdir(parents=True)
    if data:
        (folder / "9.9" / "micromamba-linux-64").write_bytes(data)
    return release


@pytest.mark.usefixtures("no_conda")
def test_without_a_conda_micromamba_is_fetched_once(tmp_path: Path, listed: Path) -> None:
    release = published(tmp_path / "site", CONDA.format(version=OWN_PYTHON).encode())
    node = Node("n0", MemoryBucket("demo"), tmp_path, micromamba=release)
    python = node.ensure(asked(listed), listed)
    told = (listed / "asked").read_text().splitlines()
    assert told[:4] == ["create", "--yes", "--prefix", str(python.parents[1])]
    assert told[-1] == f"root {tmp_path}/n0/tools/mamba"
    shutil.rmtree(tmp_path / "site")
    (listed / "environment.yml").write_text("dependencies: [python]\n")
    assert node.ensure(asked(listed), listed) != python


@pytest.mark.usefixtures("no_conda")
@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "cannot fetch file:"), (b"another", "is not micromamba as it was released")],
)
def test_a_micromamba_that_cannot_be_had_fails_the_job_with_what_to_do(
    tmp_path: Path, listed: Path, data: bytes, why: str
) -> None:
    release = published(tmp_path / "site", data)
    with pytest.raises(BuildFailed, match=why) as caught:
        Node("n0", MemoryBucket("demo"), tmp_path, micromamba=release).ensure(asked(listed), listed)
    told = str(caught.value)
    assert told.startswith("environment.yml needs micromamba") and "requirements.txt" in told
    assert "\n" not in told and not (listed / "asked").exists()
