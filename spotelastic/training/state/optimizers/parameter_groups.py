"""Matches an optimizer's saved parameter groups with those that the script has made, by parameters.

Scripts build groups from sets and dictionaries, and change how from one version to the next. If
groups were matched by number, one could get another's learning rate.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spotelastic.errors import UsageError

SHOWN = 3
"""Names of a group that a message shows."""


def matched(
    optimizer: str, here: Sequence[Sequence[str]], saved: Sequence[Sequence[str]]
) -> list[int]:
    """Return, for each saved group, the number of the present one with the same parameters.

    Groups are given by the names of their parameters, and there are as many as were saved. Raises
    `UsageError` where a saved group is none of the present ones.
    """
    numbers: dict[frozenset[str], list[int]] = defaultdict(list)
    for number, group in enumerate(here):
        numbers[frozenset(group)].append(number)
    found = []
    # There are several only for groups without parameters.
    for number, group in enumerate(saved):
        same = numbers[frozenset(group)]  # several only of groups without parameters
        if not same:
            raise UsageError(
                f"{optimizer}: group {number} was saved with the parameters {_shown(group)}, and "
                "no group has exactly these now: build the groups as when it was saved"
            )
        found.append(same.pop(0))
    return found


def check_numbers(
    optimizer: str, here: Sequence[Sequence[str]], saved: Sequence[Sequence[str]]
) -> None:
    """Raise `UsageError` where matching groups by number is known to be wrong.

    For groups in which each rank, such as a pipeline stage, had parameters of its own. Those of one
    rank were saved, and the others are matched by their numbers.
    """
    numbers = {parameter: number for number, group in enumerate(saved) for parameter in group}
    for number, group in enumerate(here):
        for parameter in group:
            if numbers.get(parameter, number) != number:
                raise UsageError(
                    f"{optimizer}: {parameter} was saved in group {numbers[parameter]}, but is in "
                    f"group {number} now: build the groups as when it was saved"
                )


def regroup(
    optimizer: torch.optim.Optimizer,
    named: Mapping[str, torch.Tensor],
    wanted: Sequence[Sequence[str]],
    undo: list[Callable[[], None]],
) -> None:
    """Give an optimizer groups of the `wanted` parameters, as a run has made them.

    Each is the present one that has most of these, or a new one with the optimizer's defaults.
    `undo` receives what takes that back. Nothing is changed where a parameter is not `named`.
    """
    if not all(name in named for group in wanted for name in group):
        return
    groups = optimizer.param_groups
    known = [(group, group["params"]) for group in groups]

    def back() -> None:
        for group, parameters in known:
            group["params"] = parameters
        groups[:] = [group for group, _ in known]

    undo.append(back)
    left, found = [*groups], []
    for number, names in enumerate(wanted):
        own = {id(named[name]) for name in names}
        others = [{id(named[name]) for name in group} for group in wanted[number + 1 :]]
        candidates = [group for group in left if _ids(group) == own] or [
            group for group in left if _ids(group) & own and _ids(group) not in others
        ]
        if candidates:
            group = max(candidates, key=lambda group: len(_ids(group) & own))
            left = [each for each in left if each is not group]
        else:
            group = copy.deepcopy(optimizer.defaults)
        found.append(group)
    for group, names in zip(found, wanted, strict=True):
        group["params"] = [named[name] for name in names]
    groups[:] = found


def _ids(group: Mapping[str, Any]) -> set[int]:
    return set(map(id, group["params"]))


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more if names else "(none)"
