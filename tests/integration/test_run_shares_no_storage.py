"""Two living runs never share one storage; a killed one gives way at once. Real processes."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from spotelastic_checkpoints.commit.tenancy import KEY, tenant_here
from support.processes.patience import PATIENT
from support.processes.ports import held_ports
from support.processes.run_launcher import SCRIPT, NodeProcess, resumed_steps, vanish
from support.saving.commit_protocol import retried
from support.saving.s3_servers import s3_endpoint, use_s3
from support.store.etcd_members import wait_until

__all__ = ["s3_endpoint"]


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    return use_s3(monkeypatch, s3_endpoint)


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spotelastic", "run", *args]
    return subprocess.run(
        command, check=False, cwd=cwd, capture_output=True, text=True, timeout=PATIENT
    )


def committed(node: NodeProcess, url: str, step: int) -> None:
    from spotelastic_checkpoints.commit.commit_protocol import Commits
    from spotelastic_checkpoints.storage.open import open_storage

    commits = Commits(open_storage(url), "default")

    def so() -> bool:
        assert node.process.poll() is None, node.output
        newest = retried(commits.latest)  # moto fails a read that meets a write
        return newest is not None and newest.step >= step

    wait_until(so, f"step {step} is committed")


@pytest.mark.soak
def test_an_object_store_has_one_living_run(bucket: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}/run"
    flags = ("--standalone", "--storage", url, "--checkpoint-every", "10")
    first = NodeProcess("first", [*flags, str(SCRIPT)], tmp_path)
    try:
        committed(first, url, 10)
        (tmp_path / "other.py").write_text("print('began')\n")
        refused = run(*flags, "other.py", cwd=tmp_path)
        assert refused.returncode == 2 and "began" not in refused.stdout
        assert refused.stderr.count("\n") == 1, refused.stderr
        assert f"another run ({SCRIPT}, begun" in refused.stderr
    finally:
        vanish(first)
    again = run(*flags, str(SCRIPT), "1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert re.search(rf"resuming from step \d+ in {url}, saved .* ago by {SCRIPT}", again.stderr)
    assert "that run had other arguments: none" in again.stderr
    assert resumed_steps(again.stdout)[0] >= 10
    fresh = run(*flags, "--fresh", str(SCRIPT), "3", cwd=tmp_path)
    assert fresh.returncode == 0, fresh.stderr
    assert "beginning afresh: step" in fresh.stderr and resumed_steps(fresh.stdout) == [0]


@pytest.mark.soak
def test_a_folder_has_one_living_run_of_several_nodes(tmp_path: Path) -> None:
    def command(port: int, *more: str) -> list[str]:
        where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}")
        return [*where, "--nnodes", "1:2", "--checkpoint-every", "10", *more, str(SCRIPT)]

    url = str(tmp_path / "runs" / SCRIPT.stem)
    with held_ports(2) as (port, other):
        nodes = [NodeProcess("one", command(port), tmp_path)]
        try:
            committed(nodes[0], url, 10)
            nodes.append(NodeProcess("two", command(port, "--fresh"), tmp_path))
            wait_until(lambda: " of 2" in nodes[1].output, "both train")
            assert "--fresh has no effect: the run has already begun" in nodes[1].output
            refused = run(*command(other), cwd=tmp_path)
            assert refused.returncode == 2, refused.stderr
            assert "another run (" in refused.stderr
        finally:
            vanish(*nodes)


@pytest.mark.soak
def test_a_run_that_was_displaced_ends(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / SCRIPT.stem
    node = NodeProcess("one", ["--standalone", "--checkpoint-every", "5", str(SCRIPT)], tmp_path)
    try:
        committed(node, str(folder), 5)
        other = msgspec.structs.replace(tenant_here("default", "b.py"), machine="elsewhere")
        (folder / "new").write_bytes(msgspec.json.encode(other))
        (folder / "new").replace(folder / KEY)  # whole, whenever the run looks
        assert node.wait() == 2
        assert "another run (b.py, begun" in node.output and ": this one ends" in node.output
        assert msgspec.json.decode((folder / KEY).read_bytes())["command"] == "b.py"
    finally:
        node.kill()
