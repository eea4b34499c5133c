"""`adapt` refuses what it does not understand whole, with the true reason and the line."""

import ast
from pathlib import Path
from textwrap import indent

import pytest
from support.scripts.scripts_in_epochs import BEGIN, LAST, STEP, epochs

from spotelastic.client.adapt import adapt as adapting
from spotelastic.client.adapt.adapt import adapted
from spotelastic.client.adapt.source import NotUnderstood
from spotelastic.errors import UsageError


def refused(text: str, workers: int | None = 2) -> str:
    with pytest.raises(NotUnderstood) as told:
        adapted(text, "train.py", workers)
    reason, _, by_hand = str(told.value).partition("\n")
    assert reason.startswith("train.py, line ") and "nothing was changed" in reason
    assert "with se.Checkpointer(state) as checkpoint:" in by_hand
    return reason


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
MICRO = """\
for micro in range(4):
    (model(x) / 4).mean().backward()
optimizer.step()
optimizer.zero_grad()
"""
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
    "changed by its reader": (epochs(end="print(loss.float().add_(1))\n"), "carries loss"),
    "set again at the end": (epochs(end="print(loss.item())\nloss = 0\n"), "carries loss"),
    "set after it is used": (epochs("loss = 2 * loss\n", end="print(loss.item())\n"), "carries"),
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
    "model's attribute": (epochs("model.heat = 0.9 * model.heat\n"), "may change model"),
    "epochs of other lengths": (
        BEGIN
        + "for epoch in range(3):\n    for i in range(epoch):\n        x = get()\n"
        + indent(STEP, " " * 8),
        "another length in each epoch",
    ),
    "one of two optimizers": (
        epochs(
            before="other = optim.SGD(head.parameters(), lr=0.1)\n",
            body=STEP + "other.step()\nif need:\n    other.zero_grad()\n",
        ),
        "zero_grad() of other",
    ),
    "object's optimizer": (
        epochs(body=STEP.replace("optimizer.step", "self.optimizer.step")),
        "what self.optimizer is, whose step() is called, is not seen",
    ),
    "unknown optimizer": (
        epochs(before="optimizer = make(model)\n"),
        "whose parameters optimizer has",
    ),
    "spawn": (
        epochs(after="torch.multiprocessing.spawn(run, nprocs=2)\n"),
        "starts processes of its own",
    ),
    "another name's object": (
        epochs(
            "for old, new in zip(kept, model.parameters()):\n    old.mul_(0.9).add_(new)\n",
            before="kept = [each.clone() for each in model.parameters()]\n",
        ),
        "may change kept",
    ),
    "modules in a list": (
        epochs("for each in others:\n    x = each(x)\n", before="others = [nn.BatchNorm1d(2)]\n"),
        "others has modules: name each by itself",
    ),
    "given to a function": (
        epochs(
            "note(mean, x)\n",
            before="mean = torch.zeros(2)\ndef note(kept, x):\n    kept.add_(x.mean(0))\n",
        ),
        "may change mean",
    ),
    "given to torch": (
        epochs("torch._foreach_lerp_(kept, [x], 0.1)\n", before="kept = [torch.zeros(2)]\n"),
        "may change kept",
    ),
    "out=": (
        epochs("torch.add(kept, x, out=kept)\n", before="kept = torch.zeros(2)\n"),
        "may change kept",
    ),
    "setattr": (epochs(end='setattr(model, "heat", epoch)\n'), "may change model"),
    "frozen later": (
        epochs(end="for p in model.parameters():\n    p.requires_grad = False\n"),
        "may change model",
    ),
    "default of an argument": (
        epochs("note()\n", before="def note(seen=[]):\n    seen.append(1)\n"),
        "may change seen",
    ),
    "method under another name": (
        epochs("add(loss.item())\n", before="losses = []\nadd = losses.append\n"),
        "what add() may change is not seen",
    ),
    "list under two names": (
        epochs("losses.append(loss.item())\n", before="losses = []\nall_of_them = losses\n"),
        "the same list under two names",
    ),
    "object that is called": (
        epochs(
            "noise(x)\n",
            before="class Noise:\n    s = 1.0\n    def __call__(self, x):\n"
            "        self.s *= 0.9\n        return x * self.s\nnoise = Noise()\n",
        ),
        "Noise.__call__() changes self.s",
    ),
    "module that counts": (
        epochs(
            before="class Net(nn.Module):\n    def __init__(self):\n        self.n = 0\n"
            "    def forward(self, x):\n        self.n += 1\n        return x * self.n\n"
        ),
        "Net.forward() changes self.n",
    ),
    "module that is told": (
        epochs(
            before="class Net(nn.Module):\n    def heat(self, t):\n        self.t = t\n"
            "    def forward(self, x):\n        return x * self.t\n"
        ),
        "Net.heat() changes self.t",
    ),
    "module that draws": (
        epochs(
            before="class Net(nn.Module):\n    def __init__(self):\n"
            "        self.g = torch.Generator().manual_seed(0)\n"
        ),
        "Net draws from self.g",
    ),
    "hook": (
        epochs(
            before="seen = []\ndef note(module, given, out):\n    seen.append(1)\n"
            "model.register_forward_hook(note)\n"
        ),
        "may change seen",
    ),
    "lambda": (
        epochs(before="seen = []\nscheduler.lr_lambda = lambda epoch: seen.append(epoch)\n"),
        "may change seen",
    ),
    "read by a lambda": (
        epochs("it += 1\n", before="it = 0\nrate = lambda: 1 / (it + 1)\n"),
        "a lambda() uses it as well",
    ),
    "set for a function": (
        epochs(end="level = 0.5\n", before="level = 1.0\ndef scaled(x):\n    return x * level\n"),
        "scaled() uses it as well",
    ),
    "of another module": (
        "import config\n" + epochs("config.steps += 1\n"),
        "may change config",
    ),
    "list of another module": (
        "from config import history\n" + epochs("history.append(loss.item())\n"),
        "may change history",
    ),
    "rate of a function before": (
        epochs(
            before="def adjust(o, epoch):\n    if epoch:\n        o.param_groups[0]['lr'] *= 0.1\n",
            head="adjust(optimizer, epoch)\n",
        ),
        "before an epoch's steps",
    ),
    "rate of itself before": (
        epochs(head="g = optimizer.param_groups[0]\ng['lr'] = g['lr'] * 0.1\n"),
        "before an epoch's steps",
    ),
    "name of itself before": (
        epochs(before="lr = 0.1\n", head="if epoch == 1:\n    lr = lr * 0.1\n"),
        "before an epoch's steps",
    ),
    "drawn by a function before": (
        epochs(before="def draw():\n    return torch.randn(2)\n", head="noise = draw()\n"),
        "before an epoch's steps",
    ),
    "meter of an epoch": (
        epochs("meter.update(loss.item())\n", head="meter = Meter()\n", end="print(meter)\n"),
        "may change meter",
    ),
    "numbers of an epoch": (
        epochs("of['loss'] += loss.item()\n", head="of = {'loss': 0.0}\n", end="print(of)\n"),
        "may change of",
    ),
    "group added before": (
        epochs(head="if epoch == 1:\n    optimizer.add_param_group({'params': [1]})\n"),
        "before an epoch's steps",
    ),
    "scheduler made in the loop": (
        epochs("scheduler.step()\n", head="scheduler = optim.lr_scheduler.StepLR(optimizer, 1)\n"),
        "scheduler is made anew in the loop",
    ),
    "parameter beside a model": (
        "import torch\nfrom torch import nn\nscale = nn.Parameter(torch.zeros(1))\n"
        + epochs().replace(
            "optim.SGD(model.parameters(),",
            "optim.SGD([{'params': model.parameters()}, {'params': [scale]}],",
        ),
        "optimizer has scale, a parameter of no model",
    ),
    "argument of the loop's function": (
        BEGIN
        + "def train(count=0):\n    for x in loader:\n"
        + indent(STEP + "count += 1\n", " " * 8)
        + "    print(count)\ntrain()\n",
        "carries count from turn to turn",
    ),
    "steps from a checkpoint": (
        BEGIN
        + "start = load()\nfor it in range(start, 9):\n    x = get()\n"
        + indent(STEP, "    "),
        "the steps begin with start: the script goes on from checkpoints",
    ),
    "exit": (epochs("if i > 3:\n    exit()\n"), "left early"),
    "exception": (
        BEGIN
        + "try:\n    for x in loader:\n"
        + indent(STEP + "if loss < 1:\n    raise StopIteration\n", " " * 8)
        + "except StopIteration:\n    pass\n",
        "left early",
    ),
    "method with a harmless name": (
        epochs(
            "notes.info(i)\n",
            before="class Notes:\n    n = 0\n    def info(self, x):\n        self.n += 1\n"
            "notes = Notes()\n",
        ),
        "Notes.info() changes self.n",
    ),
    "what Python calls": (
        epochs(
            "with watch:\n    print(i)\n",
            before="class Watch:\n    n = 0\n    def __enter__(self):\n        self.tick()\n"
            "    def __exit__(self, *_):\n        pass\n"
            "    def tick(self):\n        self.n += 1\nwatch = Watch()\n",
        ),
        "Watch.tick() changes self.n",
    ),
    "property": (
        epochs(
            "print(counter.next)\n",
            before="class Counter:\n    n = 0\n    @property\n    def next(self):\n"
            "        self.n += 1\n        return self.n\ncounter = Counter()\n",
        ),
        "Counter.next() changes self.n",
    ),
    "given with a star": (
        epochs("note(seen)\n", before="seen = []\ndef note(*all):\n    all[0].append(1)\n"),
        "note(seen) may change seen",
    ),
    "given as options": (
        epochs("note(to=seen)\n", before="seen = []\ndef note(**o):\n    o['to'].append(1)\n"),
        "note(to=seen) may change seen",
    ),
    "method handed on": (
        epochs("list(map(seen.append, [i]))\n", before="seen = []\n"),
        "seen.append may change seen",
    ),
    "a name set by exec": (
        epochs("exec('n += 1')\n", before="n = 0\n"),
        "exec() may set any name of the loop",
    ),
    "a variable of the process": (
        epochs("os.environ['N'] = str(i)\n", before="import os\n"),
        "may change os",
    ),
    "printed to a file": (
        epochs("print(i, file=log)\n", before="log = open('log.txt', 'w')\n"),
        "may change log",
    ),
    "number of the epoch": (
        epochs(end="epoch += 1\nprint(epoch)\n"),
        "it is set by the loop of epochs as well",
    ),
    "read before, written in a step": (
        epochs("best = min(best, loss.item())\n", before="best = 9.0\n", head="print(best)\n"),
        "print(best) before an epoch's steps",
    ),
    "length of a list before": (
        epochs("all.append(i)\n", before="all = []\n", head="heat = len(all)\n"),
        "heat = len(all) before an epoch's steps",
    ),
    "value of the model before": (
        epochs(head="was = float(model.weight.sum())\n", end="print(was)\n"),
        "was = float(model.weight.sum()) before an epoch's steps",
    ),
    "rate before that steps change": (
        epochs(
            "optimizer.param_groups[0]['lr'] = rate / (i + 1)\n",
            head="rate = optimizer.param_groups[0]['lr']\n",
        ),
        "before an epoch's steps",
    ),
    "draws with a rare name": (
        epochs(head="mix = np.random.beta(1, 1)\n", before="import numpy as np\n"),
        "np.random.beta(1, 1) before an epoch's steps",
    ),
    "drawn in place": (
        epochs(head="noise = torch.empty(2).normal_()\n"),
        "torch.empty(2).normal_() before an epoch's steps",
    ),
    "begun anew in some epochs": (
        epochs(
            "total += loss.item()\n",
            before="total = 0.0\n",
            head="if epoch % 2:\n    total = 0.0\n",
            end="print(total)\n",
        ),
        "carries total from turn to turn",
    ),
    "imported number": (
        "from math import pi as n\n" + epochs("n = n + 1\n", after="print(n)\n"),
        "carries n from turn to turn",
    ),
    "sum of a tensor": (
        epochs("total = total + x.sum()\n", before="total = 0\n"),
        "it is set by total + x.sum()",
    ),
    "parameter of a group": (
        epochs(before="c = nn.Parameter(x)\noptimizer.add_param_group({'params': [c]})\n"),
        "optimizer has c, a parameter of no model",
    ),
    "parameters in a dictionary": (
        BEGIN.replace("optimizer = ", "of = {'c': nn.Parameter(x)}\noptimizer = ").replace(
            "model.parameters()", "[*model.parameters(), of['c']]"
        )
        + epochs().removeprefix(BEGIN),
        "optimizer has of, a parameter of no model",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_understood_is_refused_with_its_reason(form: str) -> None:
    text, why = FORMS[form]
    ast.parse(text.replace("return\n", "pass\n"))
    assert why in refused(text)


def test_a_class_of_the_scripts_own_is_not_ours() -> None:
    """Its name does not make a script one that has a Checkpointer."""
    text = epochs(before="class Checkpointer:\n    pass\nown = Checkpointer()\n")
    assert "se.Checkpointer(state)" in adapted(text, "train.py").after


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def f(:\n", "not Python: line 1: "),
        ("x = 'a\0b'\n", "null bytes"),
        ("(" * 500 + ")" * 500, "Python"),
        ("import lightning as L\nL.Trainer().fit(model)\n", r"line 2: L.Trainer\(\) has the loop"),
        ("from pytorch_lightning import Trainer\nTrainer()\n", "hugging-face-and-lightning"),
        ("from transformers import Trainer\nTrainer().train()\n", "hugging-face-and-lightning"),
        ("import lightning as L\nfabric = L.Fabric()\n", "leave the loader out of setup_dataload"),
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
