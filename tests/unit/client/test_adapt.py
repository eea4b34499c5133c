"""`adapt` puts a Checkpointer around a training loop, and changes nothing else."""

import ast
import json
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from spotelastic.cli.app import app
from spotelastic.client.adapt.adapt import Adapted, adapted
from spotelastic.client.adapt.new_script import TEXT
from spotelastic.client.adapt.source import NotUnderstood
from spotelastic.errors import UsageError

SCRIPTS = Path(__file__).parents[2] / "support/plain_scripts"
NAMES = sorted(file.stem for file in SCRIPTS.glob("*.py"))
STEP = "loss = model(x).mean()\n{0}optimizer.zero_grad()\n{0}loss.backward()\n{0}optimizer.step()"
BEGIN = """\
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
EPOCHS = f"{BEGIN}loader = make_loader()\nfor epoch in range(3):\n    for x in loader:\n        "

IN_EPOCHS = EPOCHS + STEP.format(" " * 8) + "\n"


def of(name: str) -> Adapted:
    return adapted((SCRIPTS / f"{name}.py").read_text(), f"{name}.py", workers=2)


def script(loop: str) -> str:
    """A script with this loop, in which STEP stands for the lines of a step, four columns deep."""
    return BEGIN + dedent(loop).replace("STEP", STEP.format("    "))


def body(text: str) -> str:
    """What is added or kept below the imports."""
    return adapted(text, "train.py").after.partition("lr=0.1)\n")[2]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_of_the_loop_stays_as_it_was_written(name: str) -> None:
    made = of(name)
    ast.parse(made.after)
    assert "se.Checkpointer(" in made.after and "import spotelastic as se" in made.after
    before, after = (
        {line.strip() for line in text.split("\n")} for text in (made.before, made.after)
    )
    comments = {line for line in before if line.startswith("#") and line != "# resume"}
    assert comments <= after
    assert len(before - after) <= 15, before - after
    with pytest.raises(UsageError, match="has a Checkpointer already"):
        adapted(made.after, f"{name}.py")


def test_there_are_a_dozen_scripts() -> None:
    assert len(NAMES) >= 12


def test_a_plain_loop_keeps_its_number_and_says_its_loss() -> None:
    text = script(
        """\
        for step in range(100):
            x = get(step)
            STEP
        """
    )
    assert body(text) == dedent("""\
        state = {"model": model, "optimizer": optimizer}
        with se.Checkpointer(state) as checkpoint:
            for this_step in checkpoint.steps(100):
                with this_step:
                    step = this_step.number - 1
                    x = get(step)
                    loss = model(x).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    this_step.loss = loss
        """)


def test_a_number_that_nobody_uses_and_names_that_are_taken_are_left() -> None:
    text = script(
        """\
        checkpoint, state = "last.pt", None
        for i in range(10, 30):
            x = torch.rand(2)
            STEP
        """
    )
    made = body(text)
    assert 'saved_state = {"model": model' in made
    assert "with se.Checkpointer(saved_state) as checkpointer:" in made
    assert "for step in checkpointer.steps(30 - 10):" in made
    assert ".number" not in made


def test_epochs_keep_their_loop() -> None:
    made = of("main_epochs").after
    assert (
        dedent("""\
        first = max(checkpoint.restore() - 1, 0) // len(train_loader)
                for epoch in range(first, args.epochs):
                    net.train()
                    running = 0.0
                    batches = checkpoint.batches(train_loader)
                    for step in checkpoint.steps((epoch + 1) * len(train_loader)):
                        with step:
                            i = (step.number - 1) % len(train_loader)
                            inputs, targets = next(batches)
        """)
        in made
    )
    assert "sampler = se.ElasticSampler(dataset, global_batch=args.batch_size)\n" in made
    assert "DataLoader(dataset, batch_sampler=sampler, num_workers=0)" in made


def test_epochs_that_count_from_one_go_on_counting_from_one() -> None:
    made = of("mnist_style").after
    assert "for epoch in range(first + 1, args.epochs + 1):" in made
    assert "last_step=epoch * len(train_loader))" in made
    assert (
        "def train(args, model, device, train_loader, optimizer, epoch, checkpoint, last_step):"
        in (made)
    )


def test_the_batch_of_all_workers_is_that_of_one_times_their_number() -> None:
    made = of("ddp_epochs")
    assert "global_batch=batch_size * 2, seed=7, drop_last=True)" in made.after
    assert "import DataLoader, TensorDataset\n" in made.after, (
        "what is used no more is not imported"
    )
    assert not made.notes
    with pytest.raises(NotUnderstood, match=r"ddp_epochs.py, line 23: .*--workers N"):
        adapted(made.before, "ddp_epochs.py")


def test_a_schedulers_step_is_saved_with_the_epochs_last_step_if_it_cannot_come_again() -> None:
    """What follows an epoch needs the loss of its last batch, which no resume brings back."""
    text = IN_EPOCHS + "    sched.step()\n    print(loss)\n"
    text = text.replace(
        "loader =", "sched = torch.optim.lr_scheduler.StepLR(optimizer, 1)\nloader ="
    )
    made = body(text)
    assert "first = checkpoint.restore() // len(loader)" in made
    assert (
        "            if step.number % len(loader) == 0:\n                    sched.step()\n" in made
    )
    again = body(text.replace("    print(loss)\n", ""))
    assert "first = max(checkpoint.restore() - 1, 0) // len(loader)" in again
    measured = adapted(text.replace("sched.step()", "sched.step(loss)"), "train.py")
    assert any("sched.step(loss) is left out once" in note for note in measured.notes)


def test_a_collective_between_epochs_is_told() -> None:
    told = adapted(IN_EPOCHS + "    dist.all_reduce(total)\n", "train.py").notes
    assert any("line 12: dist.all_reduce() is a collective" in note for note in told)
    within = IN_EPOCHS + "        dist.all_reduce(loss)\n"
    assert not any("collective" in note for note in adapted(within, "train.py").notes)


def test_what_resumed_by_hand_goes_and_what_saves_stays() -> None:
    made = of("saved_by_hand")
    assert "torch.load" not in made.after and "start_epoch" not in made.after
    assert "torch.save" in made.after
    assert any("saved by hand" in note for note in made.notes)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_tabs_and_ends_of_lines_stay(ending: str) -> None:
    text = (SCRIPTS / "tabs_and_globals.py").read_text().replace("\n", ending)
    made = adapted(text, "tabs.py").after
    assert f"{ending}\t\twith step:{ending}\t\t\tbatch = next(batches){ending}" in made
    assert made.count("\r\n") == (made.count("\n") if ending == "\r\n" else 0)


ONE_LOOP = "for i in range(9):\n    STEP\n"
ADDED_UP = """\
for i, x in enumerate(data):
    model(x).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
"""
GENERATOR = """\
def steps():
    for x in data:
        loss = model(x)
        loss.backward()
        optimizer.step()
        yield loss
"""
OBJECT = """\
class Trainer:
    def fit(self):
        for x in self.data:
            self.loss(x).backward()
            self.optimizer.step()
"""
SWEEP = """\
for lr in rates:
    for epoch in range(3):
        for x in loader:
            model(x).backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (script("while True:\n    STEP\n"), 5, "no `for` loop"),
        (script(f"{ONE_LOOP}else:\n    pass\n"), 10, "`else`"),
        (script(ONE_LOOP.replace("9", "0, 9, 2")), 5, "does not count by one"),
        (BEGIN + "loss.backward()\n", 5, "in no loop"),
        (BEGIN, 1, "no backward"),
        (script(ONE_LOOP * 2), 13, "another training"),
        (BEGIN + ADDED_UP, 7, "gradients of several batches"),
        (IN_EPOCHS + "        if done:\n            break\n", 13, "left early"),
        (IN_EPOCHS.replace("range(3)", "numbers"), 6, "not counted by"),
        (GENERATOR, 6, "a generator"),
        (OBJECT, 3, "belongs to an object"),
        ("for x in data:\n    model(x).backward()\n    update(model)\n", 1, "no optimizer"),
        ("for x in data:\n    loss(x).backward()\n    optimizer.step()\n", 1, "model was not"),
        (BEGIN + SWEEP, 5, "a loop around the epochs"),
    ],
)
def test_what_is_not_understood_is_said_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why) as told:
        adapted(text, "train.py")
    assert f"train.py, line {line}: " in str(told.value)
    assert "nothing was changed" in str(told.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def f(:\n", "not a Python file: line 1: invalid syntax$"),
        ("import lightning as L\n", "Lightning"),
        ("from transformers import Trainer\nTrainer().train()\n", "Hugging Face"),
        ("import pytorch_lightning\n", "hugging-face-and-lightning"),
    ],
)
def test_loops_of_libraries_are_told_where_to_look(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        adapted(text, "train.py")


# -- the commands ----------------------------------------------------------------------------------


def test_the_diff_is_shown_and_nothing_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text((SCRIPTS / "plain_loop.py").read_text())
    done = CliRunner().invoke(app, ["adapt", str(file)])
    assert done.exit_code == 0
    assert done.stdout.startswith(f"--- {file}\tbefore\n+++ {file}\tadapted\n@@ ")
    assert f"nothing was changed: `spotelastic adapt {file} --write`" in done.stderr
    assert "Checkpointer" not in file.read_text()
    told = json.loads(CliRunner().invoke(app, ["adapt", str(file), "--json"]).stdout)
    assert (told["written"], told["backup"]) == (False, None)
    assert told["diff"] == done.stdout


def test_a_changed_script_leaves_what_it_was_and_never_loses_that(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    text = (SCRIPTS / "plain_loop.py").read_text()
    file.write_text(text)
    done = CliRunner().invoke(app, ["adapt", str(file), "--write"])
    assert done.exit_code == 0
    assert (tmp_path / "train.py.orig").read_text() == text
    assert "se.Checkpointer" in file.read_text()
    file.write_text(text)
    again = CliRunner().invoke(app, ["adapt", str(file), "--write"])
    assert isinstance(again.exception, UsageError) and "nothing was changed" in str(again.exception)
    assert file.read_text() == text


def test_a_new_script_is_python_and_never_overwrites_one(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    assert CliRunner().invoke(app, ["new-script", str(file)]).exit_code == 0
    assert file.read_text() == TEXT.format(name=file)
    ast.parse(file.read_text())
    again = CliRunner().invoke(app, ["new-script", str(file)])
    assert isinstance(again.exception, UsageError) and "is there already" in str(again.exception)
    other = CliRunner().invoke(app, ["new-script", str(tmp_path / "train")])
    assert "ends with .py" in str(other.exception)
