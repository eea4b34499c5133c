"""`adapt` puts a Checkpointer around a training loop that it understands whole, and refuses others."""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent

import pytest
from typer.testing import CliRunner

from spotelastic.cli.app import app
from spotelastic.client.adapt import adapt as adapting
from spotelastic.client.adapt.adapt import Adapted, adapted
from spotelastic.client.adapt.new_script import TEXT
from spotelastic.client.adapt.source import NotUnderstood
from spotelastic.errors import UsageError

SCRIPTS = Path(__file__).parents[2] / "support/plain_scripts"
NAMES = sorted(file.stem for file in SCRIPTS.glob("*.py"))
BEGIN = """\
import copy
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.utils.data import DataLoader, DistributedSampler
data = load()
model = nn.Linear(2, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
loader = DataLoader(data, batch_size=8, shuffle=True)
"""
LAST = BEGIN.splitlines()[-1]
STEP = "loss = model(x).mean()\noptimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"


def of(name: str) -> Adapted:
    return adapted((SCRIPTS / f"{name}.py").read_text(), f"{name}.py", workers=2)


def epochs(
    step: str = "",
    *,
    before: str = "",
    end: str = "",
    head: str = "",
    after: str = "",
    body: str = STEP,
) -> str:
    """A script that trains in epochs, with these lines added."""
    inner = "for i, x in enumerate(loader):\n" + indent(body + step, "    ")
    loop = "for epoch in range(3):\n" + indent(head + inner + end, "    ")
    return BEGIN + before + loop + after


def below(text: str) -> str:
    """What an adapted script has below the last line of BEGIN."""
    return adapted(text, "train.py").after.partition("batch_sampler=sampler)\n")[2]


def refused(text: str, workers: int | None = 2) -> str:
    with pytest.raises(NotUnderstood) as told:
        adapted(text, "train.py", workers)
    reason, _, by_hand = str(told.value).partition("\n")
    assert reason.startswith("train.py, line ") and "nothing was changed" in reason
    assert "with se.Checkpointer(state) as checkpoint:" in by_hand
    return reason


# -- what is converted -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_of_the_loop_stays_as_it_was_written(name: str) -> None:
    made = of(name)
    ast.parse(made.after)
    assert "se.Checkpointer(" in made.after and "import spotelastic as se" in made.after
    before, after = (
        {line.strip() for line in text.split("\n")} for text in (made.before, made.after)
    )
    assert {line for line in before if line.startswith("#")} <= after
    assert len(before - after) <= 9, before - after
    with pytest.raises(UsageError, match="uses spotelastic already"):
        adapted(made.after, f"{name}.py")


def test_a_plain_loop_keeps_its_number_and_says_its_loss() -> None:
    made = of("plain_loop").after.partition("# train\n")[2]
    assert made.startswith(
        dedent("""\
        state = {"model": model, "optimizer": optimizer}
        with se.Checkpointer(state) as checkpoint:
            for this_step in checkpoint.steps(STEPS):
                with this_step:
                    step = this_step.number - 1
                    x = torch.randn(16, 8)
                    y = x.sum(dim=1, keepdim=True)
                    loss = nn.functional.mse_loss(model(x), y)
                    optimizer.zero_grad()
                    loss.backward()
                    this_step.loss = loss
                    optimizer.step()
        """)
    )


def test_epochs_and_what_they_carry_are_gone_on_with() -> None:
    text = epochs(
        "total += loss.item()\nsteps += 1\n",
        before="steps, best = 0, None\n",
        head="total = 0.0\n",
        end="scheduler.step()\nbest = total if best is None else min(best, total)\n",
        after='print("best", best)\n',
    )
    assert below(text) == dedent("""\
        steps, best = 0, None
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "best": None, \
"steps": 0, "total": 0.0, "sampler": loader.batch_sampler}
        with se.Checkpointer(state) as checkpoint:
            for epoch in checkpoint.epochs(3, len(loader)):
                best = state["best"]
                total = 0.0
                batches = checkpoint.batches(loader)
                for step in checkpoint.steps((epoch + 1) * len(loader)):
                    with step:
                        x = next(batches)
                        steps = state["steps"]
                        total = state["total"] if (step.number - 1) % len(loader) else 0.0
                        loss = model(x).mean()
                        optimizer.zero_grad()
                        loss.backward()
                        step.loss = loss
                        optimizer.step()
                        total += loss.item()
                        steps += 1
                        state["steps"] = steps
                        state["total"] = total
                steps = state["steps"]
                total = state["total"]
                scheduler.step()
                best = total if best is None else min(best, total)
                state["best"] = best
            best = state["best"]
        print("best", best)
        """)


def test_epochs_that_count_from_one_go_on_counting_from_one() -> None:
    made = below(epochs().replace("range(3)", "range(1, n + 1)"))
    assert "for epoch_number in checkpoint.epochs(n, len(loader)):" in made
    assert "        epoch = epoch_number + 1\n" in made
    assert "checkpoint.steps((epoch_number + 1) * len(loader))" in made


def test_names_that_are_taken_are_left() -> None:
    made = below(epochs("print(i)\n", before='checkpoint = state = step = batches = "last.pt"\n'))
    assert 'saved_state = {"model": model' in made and "train_batches = " in made
    assert "with se.Checkpointer(saved_state) as checkpointer:" in made
    assert "i = (this_step.number - 1) % len(loader)" in made


def test_the_batch_of_all_workers_is_that_of_one_times_their_number() -> None:
    made = of("ddp_epochs")
    assert "global_batch=batch_size * 2, seed=7, drop_last=True)" in made.after
    assert "DataLoader(dataset, batch_sampler=sampler)" in made.after
    assert not made.notes
    with pytest.raises(NotUnderstood, match=r"ddp_epochs.py, line 23: .*--workers N"):
        adapted(made.before, "ddp_epochs.py")


@pytest.mark.parametrize(
    ("backward", "is_number"),
    [
        ("loss.backward()", True),
        ("loss.backward(retain_graph=True)", True),
        ("scaler.scale(loss).backward()", True),
        ("criterion(loss, x).backward()", False),
        ("loss.backward(torch.ones(3))", False),
        ("loss.backward(gradient=ones)", False),
        ("loss[0].backward()", False),
        ("loss.mean().backward()", False),
        ("loss.backward()\n(loss * 2).backward()", False),
    ],
)
def test_a_loss_is_shown_where_it_is_one_number(backward: str, is_number: bool) -> None:
    made = below(epochs(body=STEP.replace("loss.backward()", backward)))
    assert ("step.loss = loss" in made) == is_number


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_tabs_and_ends_of_lines_stay(ending: str) -> None:
    text = (SCRIPTS / "tabs_and_globals.py").read_text().replace("\n", ending)
    made = adapted(text, "tabs.py").after
    assert f"{ending}\t\t\twith step:{ending}\t\t\t\tbatch = next(batches){ending}" in made
    assert made.count("\r\n") == (made.count("\n") if ending == "\r\n" else 0)


def test_the_inside_of_a_text_of_several_lines_does_not_move() -> None:
    text = epochs('print("""a\n b\n""", i)\n')
    assert text[text.index('"""a') : text.index(", i)\n")] in below(text)


# -- what is refused, with its reason --------------------------------------------------------------

ADDED_UP = "gradients of several batches are added up"
MEAN = "model(x).mean().backward()\n"
GENERATOR = "def steps():\n" + indent(
    "for x in loader:\n" + indent(STEP, "    ") + "    yield loss\n", "    "
)
OBJECT = """\
class Trainer:
    def fit(self):
        for x in self.data:
            self.loss(x).backward()
            self.optimizer.step()
"""
CALLED = "def update():\n    for x in loader:\n" + indent(STEP, " " * 8)
MICRO = "for micro in range(4):\n    (model(x) / 4).mean().backward()\noptimizer.step()\noptimizer.zero_grad()\n"
FORMS: dict[str, tuple[str, str]] = {
    "while": (BEGIN + "while True:\n" + indent(STEP, "    "), "a `while` loop"),
    "while around": (
        epochs().replace("for epoch in range(3)", "while epoch < 3"),
        "a `while` loop",
    ),
    "else": (epochs() + "else:\n    pass\n", "`else`"),
    "no loop": (BEGIN + "loss.backward()\n", "in no loop"),
    "no backward": (BEGIN, "no backward"),
    "two loops": (epochs() + "for x in loader:\n" + indent(STEP, "    "), "in line 12 already"),
    "break": (epochs("if i > 3:\n    break\n"), "left early"),
    "break of epochs": (epochs(end="if bad:\n    break\n"), "left early"),
    "return": (epochs("if done:\n    return\n"), "left early"),
    "generator": (BEGIN + GENERATOR, "a generator"),
    "object": (OBJECT, "in a method of Trainer"),
    "third loop": (
        BEGIN + "for lr in rates:\n" + indent(epochs().partition(LAST + "\n")[2], "    "),
        "a third loop",
    ),
    "function in a loop": (
        BEGIN + CALLED + "for _ in range(4):\n    update()\n",
        "called in a loop",
    ),
    "function called twice": (BEGIN + CALLED + "update()\nupdate()\n", "called in 2 places"),
    "function never called": (BEGIN + CALLED, "called in 0 places"),
    "function passed on": (BEGIN + CALLED + "run(update)\n", "how often it runs is not seen"),
    "start epoch": (
        epochs().replace("range(3)", "range(args.start_epoch, 3)"),
        "args.start_epoch: the script goes on",
    ),
    "steps by another": (epochs(body=MEAN + "update(model)\n"), "no optimizer's step()"),
    "function of a step": (
        BEGIN + "def one(x):\n    model(x).backward()\nfor x in loader:\n    one(x)\n",
        "backward() is in one()",
    ),
    "modulo": (
        epochs(
            body=MEAN + "if (i + 1) % 4 == 0:\n    optimizer.step()\n    optimizer.zero_grad()\n"
        ),
        ADDED_UP,
    ),
    "need_update": (
        epochs(body=MEAN + "need = (i + 1) % 4 == 0\nif need:\n    optimizer.step()\n"),
        ADDED_UP,
    ),
    "and": (epochs(body=MEAN + "need and optimizer.step()\noptimizer.zero_grad()\n"), ADDED_UP),
    "continue": (
        epochs(
            body=MEAN + "if (i + 1) % 4:\n    continue\noptimizer.step()\noptimizer.zero_grad()\n"
        ),
        ADDED_UP,
    ),
    "micro": (BEGIN + "for it in range(9):\n" + indent(MICRO, "    "), ADDED_UP),
    "micro without a loop": (BEGIN + "while True:\n" + indent(MICRO, "    "), ADDED_UP),
    "accumulate": (
        epochs(body="with accelerator.accumulate(model):\n" + indent(STEP, "    ")),
        "adds up gradients of several",
    ),
    "zero_grad in an if": (
        epochs(body=STEP.replace("optimizer.zero_grad()", "if need:\n    optimizer.zero_grad()")),
        "zero_grad()",
    ),
    "no zero_grad": (epochs(body=STEP.replace("optimizer.zero_grad()\n", "")), "zero_grad()"),
    "unknown loader": (epochs().replace(LAST, "loader = get_loader()"), "not seen to be made once"),
    "loader of loaders": (
        epochs().replace("enumerate(loader)", "enumerate(zip(loader, b))"),
        "no loader by name",
    ),
    "two samplers": (
        epochs(before="val_sampler = DistributedSampler(val)\n")
        .replace("8, shuffle=True", "8, sampler=train_sampler")
        .replace(LAST[:6], "train_sampler = DistributedSampler(data)\nloader", 1),
        "deals out samples to the ranks",
    ),
    "sampler under another name": (
        epochs(before="s = torch.utils.data.distributed.DistributedSampler(val)\n"),
        "deals out samples to the ranks",
    ),
    "sampler that an import renames": (
        "from torch.utils.data import DistributedSampler as Shares\n"
        + epochs(before="s = Shares(val)\n"),
        "deals out samples to the ranks",
    ),
    "by node": (
        epochs(before="data = split_dataset_by_node(data, rank, 2)\n"),
        "deals out samples to the ranks",
    ),
    "one of two samplers": (
        epochs().replace(
            LAST,
            "if many:\n    s = DistributedSampler(data)\nelse:\n    s = None\n"
            + LAST.replace("shuffle=True", "sampler=s"),
        ),
        "what s deals out is not seen",
    ),
    "prepared": (
        epochs(before="model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"),
        "prepare() binds a loader",
    ),
    "two uses of a loader": (epochs(end="evaluate(model, loader)\n"), "used here as well"),
    "its sampler": (epochs(head="loader.sampler.set_epoch(epoch)\n"), "used here as well"),
    "own generator": (
        epochs(before="g = torch.Generator()\n", step="torch.randn(2, generator=g)\n"),
        "g has a state of its own",
    ),
    "iterable": (
        "from torch.utils.data import IterableDataset\nclass Lines(IterableDataset):\n    pass\n"
        + epochs().replace("load()", "Lines()"),
        "no order that could be gone on in",
    ),
    "iterator": (
        BEGIN + "it = iter(loader)\nfor n in range(9):\n    x = next(it)\n" + indent(STEP, "    "),
        "it has a state of its own",
    ),
    "loader with a position": (
        BEGIN
        + "own = Own()\nfor n in range(9):\n    x = own.next_batch()\n"
        + indent(STEP, "    "),
        "may change own",
    ),
    "meter": (
        epochs("meter.update(loss.item())\n", before="meter = Meter()\n"),
        "may change meter",
    ),
    "tensor kept": (
        epochs("hidden = model(hidden).detach()\n", before="hidden = None\n"),
        "carries hidden",
    ),
    "tensor added up": (epochs("total += loss\n", before="total = 0\n"), "carries total"),
    "tensors listed": (epochs("losses.append(loss)\n", before="losses = []\n"), "carries losses"),
    "read at the end": (epochs(end="print(loss)\n"), "carries loss"),
    "read after the loop": (epochs(after="print(x)\n"), "carries x"),
    "what a function says": (
        epochs(end="best = evaluate(model)\n", before="best = 0\n", after="print(best)\n"),
        "carries best",
    ),
    "used by a function": (
        epochs("it += 1\n", before="it = 0\ndef rate():\n    return 1 / it\n"),
        "rate() uses it as well",
    ),
    "changed by a function": (
        epochs("count()\n", before="n = 0\ndef count():\n    global n\n    n += 1\n"),
        "count() changes n",
    ),
    "filled by a function": (
        epochs("note(1)\n", before="seen = []\ndef note(x):\n    seen.append(x)\n"),
        "may change seen",
    ),
    "attribute": (epochs("args.lr *= 0.5\n"), "may change args"),
    "average by hand": (
        epochs("average[0].mul_(0.9)\n", before="average = [1]\n"),
        "may change average",
    ),
    "copy": (
        epochs("update(teacher)\n", before="teacher = copy.deepcopy(model)\n"),
        "teacher is a copy",
    ),
    "scheduler before": (epochs(head="scheduler.step()\n"), "before an epoch's steps"),
    "drawn before": (epochs(head="order = torch.randperm(9)\n"), "before an epoch's steps"),
    "seeded before": (epochs(head="torch.manual_seed(epoch)\n"), "before an epoch's steps"),
    "counted before": (
        epochs(head="rounds += 1\n", before="rounds = 0\n"),
        "before an epoch's steps",
    ),
    "object's optimizer": (
        epochs(body=STEP.replace("optimizer.step", "self.optimizer.step")),
        "belongs to an object",
    ),
    "unknown optimizer": (
        epochs(before="optimizer = make(model)\n"),
        "whose parameters optimizer has",
    ),
    "spawn": (
        epochs(after="torch.multiprocessing.spawn(run, nprocs=2)\n"),
        "starts processes of its own",
    ),
    "different on workers": (
        epochs(
            "total += loss.item()\n",
            before="total = 0.0\nmodel = nn.parallel.DistributedDataParallel(model)\n",
        ),
        "that all workers have alike",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_understood_is_refused_with_its_reason(form: str) -> None:
    text, why = FORMS[form]
    ast.parse(text.replace("return\n", "pass\n"))
    assert why in refused(text)


def test_a_class_of_the_scripts_own_is_not_ours() -> None:
    """Its name does not make a script one that has a Checkpointer."""
    assert "se.Checkpointer(state)" in below(
        epochs(before="class Checkpointer:\n    pass\nown = Checkpointer()\n")
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def f(:\n", "not Python: line 1: "),
        ("x = 'a\0b'\n", "null bytes"),
        ("(" * 500 + ")" * 500, "Python"),
        ("import lightning as L\nL.Trainer().fit(model)\n", "line 2: the Trainer of Lightning"),
        ("from pytorch_lightning import Trainer\nTrainer()\n", "hugging-face-and-lightning"),
        ("from transformers import Trainer\nTrainer().train()\n", "Hugging Face"),
        ("import lightning as L\nfabric = L.Fabric()\n", "its loop is the script's own"),
    ],
)
def test_what_is_no_loop_of_ones_own_is_told(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        adapted(text, "train.py")


def test_a_trainer_of_the_scripts_own_is_not_that_of_a_library() -> None:
    assert "in a method of Trainer" in refused(
        "import transformers\n" + OBJECT + "Trainer().fit()\n"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"# coding: nothing\n",
        b"\n\n",
        b"\xef\xbb\xbfx = 1\n",
        b"x = 1\x0c\n",
        b"\r",
    ],
)
def test_no_file_makes_it_fail_otherwise(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(data)
    with pytest.raises(UsageError):
        adapted(adapting.read(file), "train.py")


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


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_a_changed_script_leaves_what_it_was_and_never_loses_that(
    tmp_path: Path, coding: str
) -> None:
    file = tmp_path / "train.py"
    text = f"# -*- coding: {coding} -*-\n# ä\n" + (SCRIPTS / "plain_loop.py").read_text()
    file.write_bytes(text.encode(coding))
    done = CliRunner().invoke(app, ["adapt", str(file), "--write"])
    assert done.exit_code == 0
    assert (tmp_path / "train.py.orig").read_bytes() == text.encode(coding)
    made = file.read_bytes().decode(coding)
    assert "se.Checkpointer" in made and "# ä" in made
    file.write_text(text)
    again = CliRunner().invoke(app, ["adapt", str(file), "--write"])
    assert isinstance(again.exception, UsageError) and "nothing was changed" in str(again.exception)
    assert file.read_text() == text


def test_what_was_written_is_rehearsed(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text((SCRIPTS / "plain_loop.py").read_text())
    rehearse: Callable[[Path], tuple[str, ...]] = lambda path: (f"{path.name}: as without a fault",)
    backup, told = adapting.write(of("plain_loop"), file, rehearse)
    assert told == ("train.py: as without a fault",)
    assert of("plain_loop").as_told(backup, told)["notes"] == [*of("plain_loop").notes, *told]


def test_a_new_script_is_python_and_never_overwrites_one(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    assert CliRunner().invoke(app, ["new-script", str(file)]).exit_code == 0
    assert file.read_text() == TEXT.format(name=file)
    ast.parse(file.read_text())
    again = CliRunner().invoke(app, ["new-script", str(file)])
    assert isinstance(again.exception, UsageError) and "is there already" in str(again.exception)
    other = CliRunner().invoke(app, ["new-script", str(tmp_path / "train")])
    assert "ends with .py" in str(other.exception)
