"""Pure: which of an optimizer's saved parameter groups is which of those that the script has made.

Scripts build groups from sets and dictionaries, and change how from one version to the next. So a
group is known by its parameters: by its number, one group would get another's learning rate.
"""

from collections import defaultdict
from collections.abc import Sequence

from spotelastic.errors import UsageError

SHOWN = 3
"""Names that a message shows of a group."""


def matched(
    optimizer: str, here: Sequence[Sequence[str]], saved: Sequence[Sequence[str]]
) -> list[int]:
    """For each saved group the number of the one here with the same parameters, in any order.

    Groups are given by the names of their parameters, as many here as were saved. Raises
    `UsageError` where a saved group is none of those here.
    """
    numbers: dict[frozenset[str], list[int]] = defaultdict(list)
    for number, group in enumerate(here):
        numbers[frozenset(group)].append(number)
    found = []
    for number, group in enumerate(saved):
        same = numbers[frozenset(group)]  # several only of groups without parameters
        if not same:
            raise UsageError(
                f"{optimizer}: group {number} was saved with the parameters {_shown(group)}, and "
                "no group has just these now: make the groups as they were"
            )
        found.append(same.pop(0))
    return found


def check_numbers(
    optimizer: str, here: Sequence[Sequence[str]], saved: Sequence[Sequence[str]]
) -> None:
    """Of groups that each rank, such as a pipeline stage, had with parameters of its own: those of
    one rank were saved, and the others go by their numbers. Raises `UsageError` where that is
    known to be wrong."""
    numbers = {parameter: number for number, group in enumerate(saved) for parameter in group}
    for number, group in enumerate(here):
        for parameter in group:
            if numbers.get(parameter, number) != number:
                raise UsageError(
                    f"{optimizer}: {parameter} was saved in group {numbers[parameter]}, and is in "
                    f"group {number} now: make the groups as they were"
                )


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more if names else "(none)"
