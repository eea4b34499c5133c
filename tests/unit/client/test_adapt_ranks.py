"""What a script makes of the ranks before its loop is made again: these change."""

import ast

import pytest

from spotelastic.client.adapt.adapt import adapted
from spotelastic.client.adapt.source import NotUnderstood

RANKS = """\
    rank, world_size = dist.get_rank(), int(os.environ["WORLD_SIZE"])
    is_main = rank == 0
"""
REDUCED = """\
    seen, right = torch.zeros(1), torch.zeros(1)
    for x, y in loader:
        right += (model(x) == y).sum()
        seen += len(y)
    dist.all_reduce(seen)
    dist.all_reduce(right)
    return right.item() / seen.item()
"""
SCRIPT = f"""\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

def evaluate(model, loader):
{REDUCED}
def main():
    dist.init_process_group("gloo")
{RANKS}    train, val = torch.rand(99, 2), torch.rand(40, 2)
    sampler = DistributedSampler(train)
    val_sampler = DistributedSampler(val, num_replicas=world_size, rank=rank, shuffle=False)
    loader = DataLoader(train, batch_size=8, sampler=sampler)
    val_loader = DataLoader(val, batch_size=8, sampler=val_sampler)
    model = DDP(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = 0.0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x in loader:
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = evaluate(model, val_loader)
        best = max(best, score)
        if rank == 0:
            print(epoch, score)
    if is_main:
        print(best)

if __name__ == "__main__":
    main()
"""


def changed(*pairs: tuple[str, str]) -> str:
    text = SCRIPT
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after)
    return text


def of(text: str) -> str:
    made = adapted(text, "train.py", 2).after
    ast.parse(made)
    return made


def test_the_rank_is_taken_again_where_it_is_read() -> None:
    made = of(SCRIPT)
    again = ["rank = dist.get_rank()", "is_main = rank == 0"]  # nothing reads the other
    deep, end = made.splitlines(), " " * 12
    place = deep.index(f"{end}score = evaluate(model, val_loader)")
    assert deep[place - 2 : place] == [f"{end}{line}" for line in again], "before an epoch's end"
    place = deep.index("    if is_main:")
    assert deep[place - 2 : place] == [f"        {line}" for line in again], "after the loop"
    step = made.partition("with step:")[2].partition("optimizer.step()")[0]
    assert "rank" not in step, "where nothing reads it, it is not taken"


def test_a_step_that_reads_it_takes_it_first() -> None:
    made = of(
        changed(
            (
                "            optimizer.step()\n",
                "            optimizer.step()\n            log(rank)\n",
            )
        )
    )
    assert made.partition("with step:\n")[2].lstrip().startswith("rank = dist.get_rank()\n")


@pytest.mark.parametrize(
    ("ranks", "line"),
    [
        (
            "    if args.ddp:\n        rank = dist.get_rank()\n",
            "if (args.ddp): rank = dist.get_rank()",
        ),
        (
            "    if one:\n        rank = 0\n    else:\n        rank = dist.get_rank()\n",
            "if not (one): rank = dist.get_rank()",
        ),
    ],
)
def test_what_is_made_in_some_cases_is_made_again_in_these(ranks: str, line: str) -> None:
    made = of(changed((RANKS, f"{ranks}    is_main, world_size = True, 2\n")))
    assert made.count(f"    {line}\n") == 1


def test_an_attribute_is_set_again() -> None:
    text = SCRIPT.replace(RANKS, "    args.rank = dist.get_rank()\n").replace(
        "is_main", "args.rank == 0"
    )
    text = text.replace("if rank ==", "if args.rank ==")
    text = text.replace("num_replicas=world_size, rank=rank, ", "")
    assert of(text).count("args.rank = dist.get_rank()\n") == 3


@pytest.mark.parametrize(
    "pairs",
    [
        ((RANKS, "    rank, is_main = setup()\n    world_size = 2\n"),
         ("def main", "def setup():\n    n = dist.get_rank()\n    return n, n == 0\n\ndef main")),
        ((RANKS, "    is_main = rank == 0\n    world_size = 2\n"),
         ("def main()", "def main(rank)"), ("    main()", "    main(int(os.environ['RANK']))")),
        ((RANKS, "    is_main = rank == 0\n    world_size = 2\n"),
         ("def main", "rank = int(os.environ.get('RANK', 0))\n\ndef main")),
    ],
)  # fmt: skip
def test_what_cannot_be_made_again_is_refused(pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(
        NotUnderstood, match=r"(rank|is_main) is made of the ranks, and these change"
    ):
        of(changed(*pairs))


@pytest.mark.parametrize("returned", ["dist.get_rank(), dist.get_world_size()", "n, of"])
def test_what_a_function_returns_of_the_ranks_is_made_again_without_it(returned: str) -> None:
    begun = (
        "    dist.init_process_group('gloo')\n    n, of = dist.get_rank(), dist.get_world_size()\n"
    )
    setup = f"def setup():\n{begun}    return {returned}\n\ndef main"
    made = of(
        changed(
            ("def main", setup),
            ('    dist.init_process_group("gloo")\n', ""),
            (RANKS, "    rank, world_size = setup()\n    is_main = rank == 0\n"),
        )
    )
    assert made.count("rank = dist.get_rank()\n") == 2 and made.count("setup()") == 2


def test_a_function_that_asks_each_time_is_no_concern() -> None:
    log = "def log(*told):\n    if dist.get_rank() == 0:\n        print(*told)\n\n"
    text = changed(("def main", f"{log}def main"), ("print(epoch, score)", "log(epoch, score)"))
    assert "log(epoch, score)" in of(text)


# -- data sets for evaluations ---------------------------------------------------------------------


def test_a_validation_set_is_dealt_out_to_the_workers_that_there_are() -> None:
    made = of(SCRIPT)
    assert "    val_sampler = se.ElasticSampler(val, global_batch=8 * 2, shuffle=False)\n" in made
    assert "    val_loader = DataLoader(val, batch_sampler=val_sampler)\n" in made
    state = next(line for line in made.splitlines() if line.lstrip().startswith("state = "))
    assert "val" not in state and '"sampler": loader.batch_sampler' in state


@pytest.mark.parametrize(
    ("use", "why"),
    [
        ("len(val_sampler)", "an ElasticSampler counts batches"),
        ("val_loader.batch_size", "it has no batch_size and no sampler of its own"),
        ("loader.batch_size", "it is for training alone"),
    ],
)
def test_what_an_elastic_sampler_says_otherwise_is_refused(use: str, why: str) -> None:
    with pytest.raises(NotUnderstood, match=f"is used here as well: .*{why}"):
        of(changed(("print(epoch, score)", f"print(epoch, {use})")))


# -- numbers that functions of the script return ---------------------------------------------------


@pytest.mark.parametrize(
    ("body", "score"),
    [
        (REDUCED, "score"),
        (REDUCED.replace("return ", "return seen.item(), "), "_, score"),
        (REDUCED.replace(" / seen.item()", " / len(loader.dataset)"), "score"),
        ("    if model is None:\n        return 0.5\n" + REDUCED, "score"),
        ("    return again(model, loader)\n\ndef again(model, loader):\n" + REDUCED, "score"),
    ],
)
def test_a_number_that_a_function_sums_up_over_all_workers_is_carried(
    body: str, score: str
) -> None:
    made = of(changed((REDUCED, body), ("        score = eval", f"        {score} = eval")))
    assert 'state["best"] = best' in made


@pytest.mark.parametrize(
    "body",
    [
        REDUCED.replace("    dist.all_reduce(right)\n", ""),
        REDUCED.replace("right.item() / seen.item()", "right / seen"),
        "    return evaluate(model, loader)\n",
        "    found = []\n    for x, y in loader:\n        found.append(model(x).item())\n"
        "    return max(found)\n",
        REDUCED + "\n\ndef other():\n    return 1\n\ndef evaluate(model):\n    return 2\n",
    ],
)
def test_what_is_not_seen_to_be_alike_is_refused(body: str) -> None:
    with pytest.raises(NotUnderstood, match="the loop carries best from turn to turn"):
        of(changed((REDUCED, body)))


@pytest.mark.parametrize(
    "workers",
    [
        "dist.get_world_size()",
        "int(os.environ['WORLD_SIZE'])",
        "dist.get_world_size() if one else 1",
    ],
)
def test_a_mean_over_all_workers_is_carried(workers: str) -> None:
    mean = "mean = loss.detach().clone(); dist.all_reduce(mean)"
    step = "            optimizer.step()\n"
    text = changed(
        (RANKS, f"    rank, is_main, world_size = dist.get_rank(), True, {workers}\n"),
        (step, f"{step}            {mean}\n            total += mean.item() / world_size\n"),
        ("        for x in", "        total = 0.0\n        for x in"),
        ("print(epoch, score)", "print(epoch, total)"),
    )
    assert 'state["total"] = total' in of(text)


@pytest.mark.parametrize(
    ("begun", "added", "averaged"),
    [
        (
            "total = 0.0",
            "total += loss.item()",
            "total += mean_loss.item() / dist.get_world_size()",
        ),
        (
            "total = []",
            "total.append(float(loss))",
            "total.append(mean_loss.item() / dist.get_world_size())",
        ),
    ],
)
def test_a_sum_of_each_workers_losses_becomes_that_of_their_means(
    begun: str, added: str, averaged: str
) -> None:
    step = "            optimizer.step()\n"
    made = of(
        changed(
            (step, f"{step}            {added}\n"),
            ("        for x in", f"        {begun}\n        for x in"),
            ("print(epoch, score)", "print(epoch, total)"),
        )
    )
    lines = [line.strip() for line in made.splitlines()]
    backward = lines.index("loss.backward()")
    assert lines[backward + 1 : backward + 5] == [
        "step.loss = loss",
        "mean_loss = loss.detach().clone()",
        "dist.all_reduce(mean_loss)",
        "optimizer.step()",
    ], "a collective goes before the optimizer's step"
    assert averaged in lines and 'state["total"] = total' in lines


@pytest.mark.parametrize(
    "added",
    ["total += loss.item() * len(x)", "loss = loss / 2\n            total += loss.item()"],
)
def test_other_sums_of_each_workers_own_are_refused(added: str) -> None:
    step = "            optimizer.step()\n"
    with pytest.raises(NotUnderstood, match="the loop carries total from turn to turn"):
        of(
            changed(
                (step, f"{step}            {added}\n"),
                ("        for x in", "        total = 0.0\n        for x in"),
                ("print(epoch, score)", "print(epoch, total)"),
            )
        )


def test_a_loss_of_each_worker_that_an_epochs_end_lists_is_refused() -> None:
    """A process that begins there has no mean of it."""
    listed = ("        score = eval", "        told.append(loss.item())\n        score = eval")
    with pytest.raises(NotUnderstood, match="the loop carries told from turn to turn"):
        of(changed(listed, ("    best = 0.0\n", "    best, told = 0.0, []\n")))


@pytest.mark.parametrize("main", ["rank == 0", "is_main", "dist.get_rank() == 0 and score > best"])
def test_what_one_worker_sets_is_refused(main: str) -> None:
    """A state has the same for all."""
    alone = f"        if {main}:\n            best = score\n"
    with pytest.raises(NotUnderstood, match="one worker alone sets best: set it on all"):
        of(changed(("        best = max(best, score)\n", alone)))
