"""Gives lists by parameter group, as learning rate schedulers save them, the groups' present order.

A restored optimizer's groups may have other numbers than when they were saved. A scheduler computes
from lists that have an entry for each group (`base_lrs`), so an entry has to move with its group.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import torch

from spotelastic.errors import UsageError
from spotelastic.training.state.optimizers.wrappers import behind

_BY_GROUP = "lr", "lrs", "momentum", "momentums", "lambdas", "base_values"
"""Ends of the names of lists that have an entry for each group."""
_NOT_BY_GROUP = frozenset(("_schedulers", "_milestones", "milestones", "_schedule_phases", "betas"))
"""Names of lists that may have as many entries for another reason."""
_WITHIN = 2
"""How deep an optimizer is looked for: schedulers are wrapped, and combined with others."""


def follows(value: Any, optimizer: torch.optim.Optimizer, within: int = _WITHIN) -> bool:
    """Return whether an object, such as a scheduler, holds the optimizer, or one that does."""
    return any(
        behind(held) is optimizer
        or (within > 0 and hasattr(held, "state_dict") and follows(held, optimizer, within - 1))
        for held in _held(value)
    )


def _held(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
        return
    for held in getattr(value, "__dict__", {}).values():
        yield from held if isinstance(held, list | tuple) else (held,)


def in_order(at: str, saved: Any, numbers: Sequence[int]) -> Any:
    """Return a saved state, called `at`, with its lists by group in another order.

    `numbers` are those that the saved groups have now. Raises `UsageError` for a list of which it
    is not known whether it goes by groups.
    """
    if isinstance(saved, list):
        return [in_order(f"{at}.{number}", entry, numbers) for number, entry in enumerate(saved)]
    if not isinstance(saved, MutableMapping):
        return saved
    for key, entry in [*saved.items()]:
        where = f"{at}.{key}"
        if _goes_by_group(where, key, entry, len(numbers)):
            places = {here: entry[there] for there, here in enumerate(numbers)}
            saved[key] = type(entry)(places[number] for number in range(len(numbers)))
        else:
            saved[key] = in_order(where, entry, numbers)
    return saved


def _goes_by_group(at: str, key: Any, entry: Any, groups: int) -> bool:
    if not isinstance(entry, list | tuple) or len(entry) != groups or key in _NOT_BY_GROUP:
        return False
    if str(key).endswith(_BY_GROUP):
        return True
    if all(repr(each) == repr(entry[0]) for each in entry):
        return False
    raise UsageError(
        f"the groups of its optimizer are in another order than when {at} was saved, and it is not "
        "known whether that has an entry for each group: build the groups in the same order"
    )
