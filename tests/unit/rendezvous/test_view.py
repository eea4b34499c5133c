"""What a node knows of its run, when the store that told it has gone back in time."""

import pytest

from spotelastic.model.job import Settings
from spotelastic.model.round import Round
from spotelastic.rendezvous.view import RunState, fold, has_gone_back
from spotelastic.store.codec import encode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Reset, StoredValue

KEYS = Keys("r")
SETTINGS = StoredValue(KEYS.settings, encode(Settings(1, 2)), 1, 1, 0)


def round_(number: int, revision: int) -> StoredValue:
    data = encode(Round(number, f"r{number}", "started", (), "start", ""))
    return StoredValue(KEYS.round, data, 1, revision, 0)


def read(seen: RunState, revision: int, *values: StoredValue) -> RunState:
    return fold(seen, [Reset(values, revision)], KEYS, 1000.0, KEYS.all)


BEFORE = read(RunState(), 90, SETTINGS, round_(3, 80))


@pytest.mark.parametrize(
    ("values", "back"),
    [
        ((), True),
        ((SETTINGS,), True),
        ((SETTINGS, round_(2, 5)), True),
        ((SETTINGS, round_(3, 80)), False),
        ((SETTINGS, round_(4, 95)), False),
    ],
    ids=["emptied", "no round", "set back", "the same", "gone on"],
)
def test_a_store_that_knows_less_is_told_from_one_that_was_away(
    values: tuple[StoredValue, ...], back: bool
) -> None:
    seen = read(BEFORE, 10, *values)
    assert has_gone_back(BEFORE, seen) is back
    assert seen.revision == 10, "what is written next has a revision of the store as it is now"
    assert (seen.round_revision != 0) is (seen.round is not None)


def test_a_node_that_comes_to_a_new_run_has_seen_nothing_go_back() -> None:
    assert not has_gone_back(RunState(), read(RunState(), 1))
