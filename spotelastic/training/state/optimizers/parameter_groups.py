"""Matches an optimizer's saved parameter groups with those that the script has made, by parameters.

Scripts build groups from sets and dictionaries, and change how from one version to the next. If
groups were matched by number, one could get another's learning rate.
"""

from collections import defaultdict
from collections.abc import Sequence

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


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more if names else "(none)"
