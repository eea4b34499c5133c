"""`adapt` follows an object through the names and functions that stand for it."""

import pytest
from support.scripts.scripts_in_epochs import epochs

from spotelastic.client.adapt.adapt import adapted
from spotelastic.client.adapt.source import NotUnderstood

CHANGED: dict[str, tuple[str, str]] = {
    "returned by a function": (
        epochs(
            "kept = same(seen)\nkept.append(1)\n", before="seen = []\ndef same(a):\n    return a\n"
        ),
        "may change seen",
    ),
    "returned through two functions": (
        epochs(
            "kept = other(0, of=seen)\nkept.append(1)\n",
            before="seen = []\ndef same(a):\n    b = a\n    return b\n"
            "def other(n, of):\n    return same(of)\n",
        ),
        "may change seen",
    ),
    "returned and changed at once": (
        epochs("same(seen).append(1)\n", before="seen = []\nsame = lambda a: a\n"),
        "same(seen).append(1) may change seen",
    ),
    "a part, returned": (
        epochs(
            "first(seen)['n'] = i\n",
            before="seen = {'a': {}}\ndef first(of):\n    for each in of.values():\n"
            "        return each\n",
        ),
        "may change seen",
    ),
    "the longer of two": (
        epochs("kept = max(seen, [], key=len)\nkept.append(1)\n", before="seen = []\n"),
        "may change seen",
    ),
    "an attribute by its name": (
        epochs(
            "kept = getattr(args, 'seen')\nkept.append(1)\n",
            before="from types import SimpleNamespace\nargs = SimpleNamespace(seen=[])\n",
        ),
        "may change args",
    ),
}
"""Scripts that change an object which nothing saves, and what is said of it."""
UNCHANGED = {
    "moved by a function of its own": epochs(
        "x = moved(x)\nx.mul_(2)\n",
        before="def moved(b):\n    return [moved(e) for e in b] if isinstance(b, list) else b\n",
    ),
    "the model, unwrapped": epochs(
        "bare(model).zero_grad()\n",
        before="def bare(net):\n    return getattr(net, 'module', net)\n",
    ),
    "made anew of its arguments": epochs(
        "row = made(i, rate)\nrow['x'] = 1\nprint(row)\n",
        before="rate = 0.5\ndef made(i, rate):\n    return {'i': i, 'rate': rate}\n",
    ),
    "functions that call each other": epochs(
        "print(one(i))\n",
        before="def one(n):\n    return other(n)\ndef other(n):\n    return one(n)\n",
    ),
}

SHARED = (
    "total = 0.0\nmodel = nn.parallel.DistributedDataParallel(model)\n"
    "world = dist.get_world_size()\n"
)
AVERAGED = {
    "a sum": "dist.all_reduce(mean)\ntotal += mean.item()\n",
    "divided": "dist.all_reduce(mean)\nmean /= dist.get_world_size()\ntotal += mean.item()\n",
    "divided where it is read": "dist.all_reduce(mean)\ntotal += (mean / world).item()\n",
    "in place": "dist.all_reduce(loss.detach())\ntotal += loss.item() / world\n",
    "the smallest": "dist.all_reduce(mean)\ntotal = min(total, mean.item())\n",
}
EACH_ITS_OWN = {
    "not summed": "total += mean.item()\n",
    "summed later": "total += mean.item()\ndist.all_reduce(mean)\n",
    "summed in some steps": "if i % 2:\n    dist.all_reduce(mean)\ntotal += mean.item()\n",
    "another one since": "dist.all_reduce(mean)\nmean = loss * 2\ntotal += mean.item()\n",
    "by the rank": "dist.all_reduce(mean)\nmean *= dist.get_rank()\ntotal += mean.item()\n",
    "not waited for": "dist.all_reduce(mean, async_op=True)\ntotal += mean.item()\n",
    "with another": "dist.all_reduce(mean)\ntotal += (mean + x).sum().item()\n",
}


def of_workers(lines: str) -> str:
    text = epochs("mean = loss.detach().clone()\n" + lines, before=SHARED, end="print(total)\n")
    return "import torch.distributed as dist\n" + text


@pytest.mark.parametrize("form", AVERAGED)
def test_a_number_of_all_workers_together_is_carried(form: str) -> None:
    assert '"total"' in adapted(of_workers(AVERAGED[form]), "train.py", 2).after


@pytest.mark.parametrize("form", EACH_ITS_OWN)
def test_a_number_that_each_worker_has_for_itself_is_refused(form: str) -> None:
    with pytest.raises(NotUnderstood, match=r"all workers have alike: all_reduce"):
        adapted(of_workers(EACH_ITS_OWN[form]), "train.py", 2)


def test_a_data_set_without_a_name_is_told_what_to_write() -> None:
    text = epochs().replace("DataLoader(data", "DataLoader(made(64)")
    with pytest.raises(NotUnderstood, match=r"`data = made\(64\)` in a line before"):
        adapted(text, "train.py", 2)


@pytest.mark.parametrize("form", CHANGED)
def test_a_change_of_what_stands_for_an_object_is_one_of_it(form: str) -> None:
    text, why = CHANGED[form]
    with pytest.raises(NotUnderstood) as told:
        adapted(text, "train.py", 2)
    assert why in str(told.value)


@pytest.mark.parametrize("form", UNCHANGED)
def test_what_changes_nothing_of_that_kind_is_converted(form: str) -> None:
    assert "se.Checkpointer(state)" in adapted(UNCHANGED[form], "train.py").after
