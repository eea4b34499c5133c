"""How much is drawn: all of it in a turn of `make soak`, a third of it at each change.

`make soak` takes all tests of hypothesis, and those that are marked `in_part`.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

SOAK = "SOAK_TURN" in os.environ
OF = 3


def drawn(examples: int) -> int:
    """For `max_examples` of a test whose examples take long."""
    return examples if SOAK else -(-examples // OF)


def part(values: Sequence[T], shift: int = 0) -> Sequence[T]:
    """Values that a test marked `in_part` goes through."""
    return values if SOAK else values[shift % OF :: OF]


def soaked(values: Iterable[object]) -> list[Any]:
    """Values of a parameter that only `make soak` takes."""
    return [pytest.param(value, marks=pytest.mark.soak) for value in values]


def every_other(values: Iterable[object]) -> list[Any]:
    """Values of a parameter, of which `make soak` alone takes half."""
    all_values = [*values]
    return [*all_values[::2], *soaked(all_values[1::2])]
