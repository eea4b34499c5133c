"""A run rehearses early, once for each number of ranks, and rarely again."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.training.runtime.rehearsal_record import (
    EARLY,
    LEAST,
    RehearsalRecord,
    of_script,
)

records = st.builds(
    lambda ranks, later, restores: replace(
        of_script(None), ranks=tuple(ranks), later=later, restores=restores
    ),
    st.lists(st.integers(1, 64), max_size=4, unique=True).map(sorted),
    st.integers(0, 10**9),
    st.booleans(),
)


@given(records)
def test_what_is_saved_is_what_was_known(record: RehearsalRecord) -> None:
    assert of_script(json.loads(json.dumps(record.value()))) == record


def test_a_record_of_an_older_version_and_of_another_script() -> None:
    saved = replace(of_script(None), ranks=(2,), later=700, restores=True).value()
    del saved["restores"]
    assert of_script(saved) == replace(of_script(None), ranks=(2,), later=700)
    assert of_script(saved | {"script": "of another version"}) == of_script(None)


@given(records, st.integers(1, 10**6), st.integers(1, 64), st.booleans())
def test_the_same_number_of_ranks_waits_for_long_and_another_one_does_not(
    record: RehearsalRecord, step: int, ranks: int, restores: bool
) -> None:
    after = record.rehearsed(step, ranks, seconds=1.0, step_time=0.1, restores=restores)
    assert not after.is_due(step + LEAST - 1, ranks, resumed=0)
    assert after.is_due(after.later, ranks, resumed=0)
    other = max(after.ranks) + 1
    assert after.is_due(step + EARLY, other, resumed=step)
    assert not after.is_due(step + EARLY - 1, other, resumed=step)
    assert after.restores == (record.restores or restores)


@pytest.mark.parametrize("step_time", [0.0, 1e-9, 1e3])
def test_any_step_time_gives_a_later_step(step_time: float) -> None:
    after = of_script(None).rehearsed(7, 2, seconds=3.0, step_time=step_time)
    assert after.later > 7 + LEAST
