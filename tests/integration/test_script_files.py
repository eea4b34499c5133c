"""What the script of a `spotelastic run` writes is on the node that comes next, and is fetched."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from spotelastic_checkpoints.files.file_store import FileStore
from spotelastic_checkpoints.storage.open import open_storage
from support.kubernetes.kube_client import emulated
from support.kubernetes.kube_cluster import KubeStory
from support.processes.patience import eventually
from support.processes.run_launcher import NodeProcess, Run, running, vanish
from support.saving.ckpt_command import spotelastic
from support.store.etcd_members import wait_until

from spotelastic.client import kept_files
from spotelastic.store.etcd_server.process import standalone

SCRIPT = Path(__file__).parents[1] / "support/scripts/writes_files.py"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with (
        standalone(tmp_path / "etcd") as member,
        running(
            member.endpoint,
            uuid.uuid4().hex,
            tmp_path,
            nnodes="1:2",
            flags=("--output", "out"),
        ) as run,
    ):
        yield run


def node(run: Run, name: str, steps: int = 100_000) -> NodeProcess:
    """Start a node in a folder of its own, as on a machine of its own."""
    folder = run.folder / name
    folder.mkdir()
    inside = ("env", "-C", str(folder))
    return run.add(name, str(SCRIPT), str(steps), "0.02", inside=inside)


def kept(run: Run) -> set[str]:
    return {file.path for file in kept_files.listed(open_storage(run.storage))}


@pytest.mark.soak
def test_files_are_on_the_next_node_whether_a_node_vanishes_or_leaves(
    run: Run, tmp_path: Path
) -> None:
    first = node(run, "a")
    run.trains("a")
    paths = {"out/notes.txt", "out/best.pt"}
    wait_until(lambda: paths <= kept(run), "the files that rest are kept")
    wait_until(lambda: "stray.txt is on this node alone" in first.output, "it is told")
    vanish(first)

    second = node(run, "b")
    run.trains("b")
    assert "finds ['a']" in second.output
    assert (tmp_path / "b/out/best.pt").stat().st_size == (
        tmp_path / "a/out/best.pt"
    ).stat().st_size
    second.signal(signal.SIGTERM)
    second.wait()
    last = (tmp_path / "b/out/deep/last_step.txt").read_text()

    third = node(run, "c", int(last) + 30)
    assert third.wait() == 0
    assert "finds ['a', 'b']" in third.output
    assert (tmp_path / "c/out/notes.txt").read_text() == "a\nb\nc\n"

    to = tmp_path / "fetched"
    told = spotelastic("files", run.storage, "--fetch", "--to", to).out
    ours = {p.relative_to(tmp_path / "c").as_posix() for p in (tmp_path / "c/out").rglob("*.*")}
    assert ours == {file.path for file in kept_files.listed(open_storage(run.storage))}
    for path in ours:
        assert (to / path).read_bytes() == (tmp_path / "c" / path).read_bytes()
    assert told.startswith("3 files of the script")
    assert len(FileStore(open_storage(run.storage)).kept()) == 1


@pytest.mark.soak
def test_files_of_a_cluster_come_home_through_an_interruption(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.read_text())
    env = os.environ | {"SPOTELASTIC_HOME": str(tmp_path / "home")}

    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "spotelastic", *words]

    def answer(*words: str) -> str:
        asked = command(*words)
        return subprocess.run(
            asked, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        ).stdout

    up = ("up", "--local", "--min", "1", "--max", "1", "--instance-types", "m5.large")
    with subprocess.Popen(
        command(*up, "--output", "out", "train.py", "3000", "0.02"),
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line)
            if "step" in line and "checkpoint" in line and "no checkpoint" not in line:
                break
        status = json.loads(answer("status", "--json"))
        [node] = [each["id"] for each in status["nodes"] if each["role"] == "worker"]
        answer("interrupt", node)
        told += process.stdout
    assert process.returncode == 0, "".join(told)
    assert "stray.txt is on this node alone" in "".join(told)
    home = tmp_path / "train-files/out"
    assert len(set((home / "notes.txt").read_text().split())) == 2, "the second node went on"
    assert (home / "deep/last_step.txt").read_text() == "3000"
    assert "files of the script" in "".join(told)
    paths = {each["path"] for each in json.loads(answer("files", "train", "--json"))}
    names = {"out/notes.txt", "out/best.pt", "out/deep/last_step.txt"}
    # What changes with each step may come after the node that goes on has begun.
    assert names <= paths and {each.partition("~")[0] for each in paths} == names


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_files_of_pods_come_home_when_their_node_is_lost(tmp_path: Path) -> None:
    """The folder of a pod is gone with it, whether it was told before or not."""
    with emulated() as kube:
        story = KubeStory.emulated(kube, tmp_path)
        (story.folder / "work/train.py").write_text(SCRIPT.read_text())
        told = story.run(
            *("up", "--kube", "--image", story.image, "--storage", story.storage),
            *("--min", "1", "--max", "1", "--lease", "3", "--snapshot-every", "20", "--detach"),
            *("--output", "out", "train.py", "3000", "0.02"),
        )
        assert "stays up" in told
        storage = open_storage(story.storage)
        notes = {"out/notes.txt", "out/best.pt"}
        eventually(lambda: notes <= {file.path for file in kept_files.listed(storage)}, "kept")
        before = story.training(1)
        (pod,) = story.pods("worker")
        kube.cluster.cause("lose-node", node=pod["spec"]["nodeName"])
        story.training(1, before["step"])
        found = {each["path"] for each in json.loads(story.run("files", "train", "--json"))}
        assert notes <= found
        # A terminal that comes back until the end gets what is small.
        told = story.run("up", "--kube", "--image", story.image, "--storage", story.storage,
                         "--min", "1", "--max", "1", "--lease", "3", "--snapshot-every", "20",
                         "--output", "out", "train.py", "3000", "0.02")  # fmt: skip
        assert "files of the script" in told
        home = story.folder / "work/train-files/out"
        assert len(set((home / "notes.txt").read_text().split())) == 2, "the second node went on"
        assert (home / "deep/last_step.txt").read_text() == "3000"
        torch.load(home / "best.pt", weights_only=True)
