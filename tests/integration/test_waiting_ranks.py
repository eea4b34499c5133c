"""DDP and FSDP2 scripts as they are, on real ranks: which one keeps the other waiting is seen."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import sys, tempfile, time
from pathlib import Path

import torch, torch.distributed as dist
from spotelastic_checkpoints.memory.worker_page import WorkerPage
from support.training import forked
from torch.distributed.fsdp import fully_shard

from spotelastic.training.runtime import own_time

MOST = 2000


def train(rank, world, kind):
    page = WorkerPage(Path(tempfile.mkdtemp()) / "page")
    page.reset("round", rank)
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(3)])
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    measuring = own_time.measuring(page, world)
    wait = dist.Work.wait
    for step in range(1, MOST):
        measuring.step_begins()
        if rank == 1:
            time.sleep(0.05)
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        measuring.step_ends(step)
        if step % 8 == 0:
            pages = [None] * world
            dist.all_gather_object(pages, page.read(0))
            fast, slow = pages
            if slow.own_time > 2 * fast.own_time > 0 and fast.waiting_time > slow.waiting_time:
                break
    else:
        sys.exit(f"{kind}: {pages}")
    measuring.close()
    assert dist.Work.wait is not wait, "torch has back what it had"


for kind in ("ddp", "fsdp"):
    forked.run(2, train, kind, within=90.0)
"""


@pytest.mark.soak
def test_the_rank_that_keeps_the_other_waiting_has_more_of_its_own_time(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(tests), "SPOTELASTIC_MEASURE_EVERY": "0.2"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
