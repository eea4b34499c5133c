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


@pytest.mark.parametrize("form", CHANGED)
def test_a_change_of_what_stands_for_an_object_is_one_of_it(form: str) -> None:
    text, why = CHANGED[form]
    with pytest.raises(NotUnderstood) as told:
        adapted(text, "train.py", 2)
    assert why in str(told.value)


@pytest.mark.parametrize("form", UNCHANGED)
def test_what_changes_nothing_of_that_kind_is_converted(form: str) -> None:
    assert "se.Checkpointer(state)" in adapted(UNCHANGED[form], "train.py").after
