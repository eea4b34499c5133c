"""What the script of a `spotelastic run` writes is on the node that comes next, and is fetched."""

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotelastic_checkpoints.files.file_store import FileStore
from spotelastic_checkpoints.storage.open import open_storage
from support.ckpt import spotelastic
from support.etcd import wait_until
from support.launcher import NodeProcess, Run, running, vanish

from spotelastic.client import kept_files
from spotelastic.store.etcd_server.process import standalone

SCRIPT = Path(__file__).parents[1] / "support/writes_files.py"


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


def test_files_are_on_the_next_node_whether_a_node_vanishes_or_leaves(
    run: Run, tmp_path: Path
) -> None:
    first = node(run, "a")
    run.trains("a")
    paths = {"out/notes.txt", "out/best.pt"}
    wait_until(lambda: paths <= kept(run), "the files that rest are kept")
    assert "stray.txt is on this node alone" in first.output
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
    told = spotelastic("fetch", run.storage, "--to", to).out
    ours = {p.relative_to(tmp_path / "c").as_posix() for p in (tmp_path / "c/out").rglob("*.*")}
    assert ours == {file.path for file in kept_files.listed(open_storage(run.storage))}
    for path in ours:
        assert (to / path).read_bytes() == (tmp_path / "c" / path).read_bytes()
    assert told.startswith("3 files of the script")
    assert len(FileStore(open_storage(run.storage)).kept()) == 1
