"""Generators of random numbers come back where they were."""

import random
from typing import Any

import numpy as np
import pytest
import torch

import spotelastic as se
from spotelastic.training.state.state import State
from spotelastic.training.state.values import decode, encode

MADE = {
    "python": lambda: random.Random(3),
    "numpy": lambda: np.random.default_rng(3),
    "mersenne": lambda: np.random.Generator(np.random.MT19937(3)),
    "legacy": lambda: np.random.RandomState(3),
    "torch": lambda: torch.Generator().manual_seed(3),
}


def drawn(generator: Any) -> float:
    if isinstance(generator, torch.Generator):
        return float(torch.rand(1, generator=generator))
    return float(generator.random() if hasattr(generator, "random") else generator.rand())


@pytest.mark.parametrize("kind", MADE)
def test_what_is_saved_of_a_generator_is_data_from_which_it_goes_on(kind: str) -> None:
    generator, other = MADE[kind](), MADE[kind]()
    state = State({"rng": generator})
    drawn(generator)
    entry = state.values["rng"]
    assert state.values["rng"] is entry
    assert [each.fqn for each in state.view().entries if each.fqn.startswith("rng")]
    saved = decode("rng", encode("rng", entry.state_dict()))
    expected = [drawn(generator) for _ in range(3)]
    State({"rng": other}).values["rng"].load_state_dict(saved)
    assert [drawn(other) for _ in range(3)] == expected


@pytest.mark.parametrize("kind", MADE)
def test_each_rank_may_have_a_generator_of_its_own(kind: str) -> None:
    own = se.PerRank(MADE[kind]())
    saved = decode("rng", encode("rng", own.saved("rng")))
    expected = drawn(own.value)
    own.load(saved)
    assert drawn(own.value) == expected
