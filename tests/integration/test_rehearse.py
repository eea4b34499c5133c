"""`spotelastic rehearse` tells scripts that come back from scripts that do not, and says why."""

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.places import TESTS
from support.processes.patience import PATIENT

SCRIPT = """
import numpy as np
import torch
import torch.distributed as dist
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import spotelastic as se

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(48, 8)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = se.ElasticSampler(data, global_batch=8)
loader = DataLoader(data, batch_sampler=sampler)
layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
model = nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.9)
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "data": sampler}
count = Path("count.txt")
it = 0
rng = np.random.default_rng(0)
with se.Checkpointer(state) as checkpoint:
    batches = checkpoint.batches(loader)
    for step in checkpoint.steps(9):
        with step:
            rows, targets = next(batches)
            # before
            loss = nn.functional.mse_loss(model(rows), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step.loss = loss
        # after
"""
TRAINED = """            loss = nn.functional.mse_loss(model(rows), targets)
            optimizer.zero_grad()
            loss.backward()
"""
VIRTUAL = """            optimizer.zero_grad()
            for micro in sampler.microbatches():
                loss = nn.functional.mse_loss(model(rows[micro.rows]), targets[micro.rows])
                (loss * micro.weight).backward()
                micro.loss = loss
            loss = sampler.loss
"""
FAULTS = {
    "lr": ('"scheduler": scheduler, ', "", "`scheduler`"),
    "rng": ("# before", "rows = rows + float(rng.random())", "`rng`"),
    "it": (
        "# after",
        "it += 1\n        optimizer.param_groups[0]['weight_decay'] = 0.1 * it",
        "`it`",
    ),
    "batches": (', "data": sampler', "", "ElasticSampler"),
    "file": (
        "# after",
        "n = int(count.read_text()) if count.exists() else 0\n        count.write_text(str(n + 1))"
        "\n        optimizer.param_groups[0]['weight_decay'] = 0.1 * n",
        "count.txt",
    ),
}
"""What is replaced in the script, by what, and what the answer says then."""


@dataclass
class Rehearsed:
    code: int
    told: dict[str, Any]
    errors: str

    @property
    def rows(self) -> dict[str, str]:
        return {row["act"]: row["state"] for row in self.told["rows"]}


def rehearse(folder: Path, text: str, *flags: str) -> Rehearsed:
    (folder / "train.py").write_text(text)
    before = sorted(folder.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "spotelastic", "rehearse", "--json", *flags, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=3 * PATIENT,
        check=False,
    )
    assert sorted(folder.iterdir()) == before, "the user's folder is as it was"
    told = json.loads(done.stdout) if done.stdout else {}
    return Rehearsed(done.returncode, told, done.stderr)


@pytest.mark.soak
def test_a_script_that_comes_back_is_equal_in_all_acts(tmp_path: Path) -> None:
    found = rehearse(tmp_path, SCRIPT, "--steps", "9", "--only", "stopped,killed")
    assert found.code == 0, found
    assert set(found.rows.values()) == {"equal"}
    assert len(found.rows) == 9
    assert (found.told["ranks"], found.told["steps"]) == (2, 9)
    assert (found.told["variables"], found.told["files"]) == ([], [])


@pytest.mark.soak
def test_what_adapt_has_written_is_rehearsed(tmp_path: Path) -> None:
    shutil.copy(TESTS / "support/scripts/plain_scripts/plain_loop.py", tmp_path / "train.py")
    command = [sys.executable, "-m", "spotelastic", "adapt", "--write", "--rehearse", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "equal" in done.stdout and "DIFFERS" not in done.stdout
    assert "Checkpointer" in (tmp_path / "train.py").read_text()


@pytest.mark.soak
def test_nodes_that_go_and_come_are_equal_up_to_rounding(tmp_path: Path) -> None:
    # Three ranks share a batch of six evenly.
    script = SCRIPT.replace("steps(9)", "steps(1000)").replace("global_batch=8", "global_batch=6")
    found = rehearse(tmp_path, script, "--only", "nodes")
    assert found.code == 0, found
    assert list(found.rows.values()) == ["equal", *["rounding"] * 4]


@pytest.mark.soak
def test_nodes_that_go_and_come_change_no_bit_where_there_are_virtual_ranks(tmp_path: Path) -> None:
    script = SCRIPT.replace("global_batch=8", "global_batch=8, virtual_ranks=4")
    script = script.replace(TRAINED, VIRTUAL)
    found = rehearse(tmp_path, script, "--only", "nodes", "--steps", "15")
    assert found.code == 0, found
    assert list(found.rows.values()) == ["equal"] * 5


def faulty(fault: str) -> str:
    old, new, _ = FAULTS[fault]
    assert old in SCRIPT
    return SCRIPT.replace(old, new)


def check(folder: Path, fault: str) -> None:
    found = rehearse(folder, faulty(fault), "--steps", "9", "--only", "stopped", "--ranks", "1")
    assert found.code == 1, found
    [row] = [row for row in found.told["rows"] if row["state"] == "different"]
    assert row["since"] >= 4
    assert FAULTS[fault][2] in row["cause"] + row["advice"]


@pytest.mark.soak
def test_a_variable_that_nobody_saves_is_named_as_the_cause(tmp_path: Path) -> None:
    check(tmp_path, "it")


@pytest.mark.soak
@pytest.mark.parametrize("fault", [each for each in FAULTS if each != "it"])
def test_each_kind_of_fault_is_named_with_its_cause(tmp_path: Path, fault: str) -> None:
    check(tmp_path, fault)


EPOCHS = SCRIPT.replace(
    """    for step in checkpoint.steps(9):
        with step:
""",
    """    for epoch in checkpoint.epochs(2, len(sampler)):
      for step in checkpoint.steps((epoch + 1) * len(sampler)):
        with step:
""",
).replace(
    """            scheduler.step()
            step.loss = loss
""",
    """            step.loss = loss
      scheduler.step()
""",
)
BETWEEN = "the same after step 6, at an epoch's end"


@pytest.mark.soak
def test_a_script_is_stopped_at_the_end_of_an_epoch_whose_save_waits_for_it(tmp_path: Path) -> None:
    flags = "--only", "stopped", "--ranks", "1", "--act-within", "60"
    found = rehearse(tmp_path, EPOCHS, *flags)
    assert found.code == 0, found
    assert found.rows[BETWEEN] == "equal"
    assert set(found.rows.values()) == {"equal"}
    assert found.told["variables"] == []


@pytest.mark.soak
def test_a_scheduler_of_epochs_that_nobody_saves_is_named_at_the_first_step_after_one(
    tmp_path: Path,
) -> None:
    script = EPOCHS.replace('"scheduler": scheduler, ', "").replace(
        "StepLR(optimizer, 2", "StepLR(optimizer, 9"
    )
    found = rehearse(tmp_path, script, "--only", "stopped", "--ranks", "1", "--act-within", "60")
    assert found.code == 1, found
    [row] = [row for row in found.told["rows"] if row["state"] == "different"]
    assert (row["act"], row["since"]) == (BETWEEN, 7)
    assert "`scheduler`" in row["cause"]


@pytest.mark.soak
def test_what_was_not_tried_is_told_with_the_steps_that_it_takes(tmp_path: Path) -> None:
    script = EPOCHS.replace("global_batch=8", "global_batch=4")
    found = rehearse(tmp_path, script, "--steps", "9", "--only", "stopped,longer", "--ranks", "1")
    assert found.code == 0, found
    untried = [row for row in found.told["rows"] if row["state"] == "not tried"]
    assert [row["act"] for row in untried] == [
        "stopped after step 12, at an epoch's end",
        "ended, and then made longer",
    ]
    assert {what for row in untried for what in row["what"]} == {"--steps 21"}


@pytest.mark.soak
def test_the_first_epoch_is_made_whole_where_that_costs_little(tmp_path: Path) -> None:
    script = EPOCHS.replace("global_batch=8", "global_batch=2")
    found = rehearse(tmp_path, script, "--only", "stopped", "--ranks", "1")
    assert found.code == 0, found
    assert found.told["steps"] == 33
    assert found.rows["the same after step 24, at an epoch's end"] == "equal"


PLAIN = """
import os
import torch
model = torch.nn.Linear(1, 1)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
start = 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    start = saved["step"]
for step in range(start, 40):
    loss = (model(torch.ones(1, 1)) * (step + 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "step": step + 1}, "new.pt")
    os.replace("new.pt", "last.pt")
    __import__("time").sleep(0.05)
"""


@pytest.mark.soak
def test_a_script_without_a_checkpointer_is_judged_by_its_files(tmp_path: Path) -> None:
    found = rehearse(tmp_path, PLAIN)
    assert found.code == 1, found
    act = "killed after it has saved, and started again with its files"
    assert found.rows[act] == "different"
    assert found.told["files"] == ["last.pt"]


def test_a_mistake_of_the_script_is_told_once_with_its_place(tmp_path: Path) -> None:
    found = rehearse(tmp_path, "import torch\n\nundefined\n")
    assert found.code == 1
    assert found.errors.splitlines()[-1] == (
        "spotelastic: the script fails without any interruption: "
        "NameError: name 'undefined' is not defined (train.py:3)"
    )


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spotelastic", "rehearse", "none.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "spotelastic: no such script: none.py\n")
