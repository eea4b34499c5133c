"""Programs of the kinds that people bring lose a worker, then a node, and end as if nothing was.

Two nodes with a worker each, on this machine: bit for bit the parameters of an uninterrupted run.
"""

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from milestones import MILESTONES
from support.processes.run_launcher import NodeProcess, Run, running, vanish
from support.store.etcd_members import wait_until

from spotelastic.store.etcd_server.process import EtcdMember

pytestmark = [pytest.mark.programs, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
PROGRAMS = {
    "nanogpt_like": None,
    "mingpt_ddp_like": None,
    "image_classifier": None,
    "lightning_module": "lightning",
    "lightning_elastic": "lightning",
    "transformers_trainer": "transformers",
    "transformers_elastic": "transformers",
    "accelerate_loop": "accelerate",
    "accelerate_elastic": "accelerate",
    "torchtitan_model": "torchtitan",
}
"""By file: the package that it needs besides torch."""
SHARDED = {"transformers_sharded": "transformers", "lightning_sharded": "lightning"}
"""On a GPU that both nodes share."""
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SAVES = ("--snapshot-every", "4", "--checkpoint-every", "10")
PATIENT = 180.0


@pytest.mark.parametrize(
    "program",
    [*PROGRAMS, *(pytest.param(name, marks=[pytest.mark.gpu, NEEDS_GPU]) for name in SHARDED)],
)
def test_a_program_that_loses_a_worker_and_a_node_ends_as_one_that_does_not(
    program: str, etcd_member: EtcdMember, tmp_path: Path
) -> None:
    needed = {**PROGRAMS, **SHARDED}[program]
    if needed is not None:
        pytest.importorskip(needed)
    if needed == "torchtitan" and version("torchtitan") >= "0.3":
        pytest.skip("torchtitan's models train on CPU only before 0.3")
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    with begun(program, etcd_member, whole) as run:
        ends(run.nodes["a"], run.nodes["b"])
    with begun(program, etcd_member, interrupted, PROGRAM_WAITS="1") as run:
        first, second = run.nodes["a"], run.nodes["b"]
        early, late = MILESTONES
        waits(run, early)
        (worker,) = first.workers()
        os.kill(worker, signal.SIGKILL)
        passes(run, early)
        waits(run, late)
        assert first.workers() not in ([], [worker])
        vanish(second)
        passes(run, late)
        third = node(run, "c", PROGRAM_WAITS="1")
        ends(first, third)
    expected, *others = (torch.load(whole / f"final-{rank}.pt") for rank in (0, 1))
    others += [torch.load(interrupted / f"final-{rank}.pt") for rank in (0, 1)]
    for found in others:
        assert len(found) == len(expected) > 0
        for one, another in zip(found, expected, strict=True):
            assert torch.equal(one, another), (one - another).abs().max()
    history = (whole / "history-0.json").read_text()
    assert (interrupted / "history-0.json").read_text() == history


@contextlib.contextmanager
def begun(program: str, etcd: EtcdMember, folder: Path, **env: str) -> Iterator[Run]:
    """Nodes `a` and `b` in a folder of their own."""
    folder.mkdir()
    script = (str(HERE / f"{program}.py"),)
    with running(
        etcd.endpoint, uuid.uuid4().hex, folder, nnodes="2", flags=SAVES, script=script
    ) as run:
        for name in ("a", "b"):
            node(run, name, **env)
        yield run


def node(run: Run, name: str, **env: str) -> NodeProcess:
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", ""))))
    mine = {"PROGRAM_FOLDER": str(run.folder), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return run.add(name, env={**mine, **a_machine_of_its_own(name), **env})


def a_machine_of_its_own(name: str) -> dict[str, str]:
    """What has NCCL take nodes that share a GPU for machines, as it refuses them otherwise."""
    return {"NCCL_HOSTID": name, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


def waits(run: Run, step: int) -> None:
    """Until both workers wait at a step."""
    at = [run.folder / f"at-{step}-rank-{rank}" for rank in (0, 1)]

    def there() -> bool:
        assert all(n.process.poll() is None for n in run.nodes.values()), told(run)
        return all(file.exists() for file in at)

    wait_until(there, f"both workers wait at step {step}", PATIENT)


def passes(run: Run, step: int) -> None:
    (run.folder / f"passed-{step}").touch()


def ends(*nodes: NodeProcess) -> None:
    for each in nodes:
        assert each.wait(PATIENT) == 0, f"{each.name}: {each.output[-4000:]}"


def told(run: Run) -> str:
    return "\n".join(f"--- {n.name}\n{n.output[-4000:]}" for n in run.nodes.values())
