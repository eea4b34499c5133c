"""A storage is that of one cluster's nodes: another cluster of the same name is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from spotelastic_checkpoints.commit.tenancy import TenancyPace

from spotelastic.bootstrap.storage_tenant import StorageTaken, holding
from spotelastic.model.job import JobSpec, Settings

LEFT = 143
"""Exit code of a node that was asked to leave."""
PACE = TenancyPace(look_every=0.02, ask_every=0.01, answer_within=3.0)


def test_another_cluster_of_the_name_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    storage = f"file://{tmp_path}/run"
    mine = JobSpec(
        "gpt", "gpt", "train.py", (), "", Settings(1, 4), storage, ("gpt-control:2379",),
        born_at=1.5,
    )  # fmt: skip
    other = replace(mine, born_at=2.5)

    def beside() -> int:
        with pytest.raises(StorageTaken, match=r"another job uses it: gpt: train\.py"):
            holding(other, never, PACE)
        assert holding(mine, lambda: LEFT, PACE) == LEFT, "another node of the first one"
        return holding(replace(mine, args=("3",)), lambda: LEFT, PACE)

    assert holding(mine, beside, PACE) == LEFT
    silent = replace(PACE, answer_within=0.2)
    assert holding(other, lambda: 0, silent) == 0, "nobody of the first one is left"
    assert holding(mine, lambda: 0, PACE) == 0, "the other one has said that it is over"


def never() -> int:
    raise AssertionError("it trains beside the first one")
