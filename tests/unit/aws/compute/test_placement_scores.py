"""Which of EC2's placement scores tell zones apart, and what of those that do not."""

import itertools
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotelastic.aws.base.clients import Aws, Rejected
from spotelastic.aws.compute.placement_scores import MEANINGFUL, SIZES, ask, by_size

TYPES = ("p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge")


class Ec2:
    """EC2 that knows how many nodes each zone has, and says no more than `most` of them."""

    def __init__(self, zones: dict[str, int], most: int = 9, refuses_after: int = 99) -> None:
        self.zones, self.most, self.left = zones, most, refuses_after
        self.asked: list[int] = []

    @property
    def ec2(self) -> "Ec2":
        return self

    def get_paginator(self, _: str) -> "Ec2":
        return self

    def paginate(self, *, TargetCapacity: int, RegionNames: list[str], **_: Any) -> Iterator[Any]:
        self.asked.append(TargetCapacity)
        if len(self.asked) > self.left:
            raise Rejected("too many configurations", "MaxConfigLimitExceeded")
        for zone, nodes in self.zones.items():
            score = max(1, min(self.most, 9 * nodes // TargetCapacity))
            told = {"Region": RegionNames[0], "AvailabilityZoneId": zone, "Score": score}
            yield {"SpotPlacementScores": [told]}


def scores(ec2: Ec2, types: int, nodes: int = 8) -> dict[str, int]:
    found = ask(cast(Aws, ec2), TYPES[:types], nodes, ["us-east-1"])
    return {zone: score for (_, zone), score in found.items()}


ZONES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 60), min_size=1)


@given(ZONES, st.integers(1, 3), st.integers(1, 60))
def test_of_two_zones_that_with_more_nodes_never_has_the_lower_score(
    zones: dict[str, int], types: int, nodes: int
) -> None:
    ec2 = Ec2(zones, most=9 if types >= MEANINGFUL else 3)
    found = scores(ec2, types, nodes)
    assert found.keys() == zones.keys()
    assert all(1 <= score <= 10 for score in found.values())
    for (one, more), (other, fewer) in itertools.permutations(zones.items(), 2):
        assert more < fewer or found[one] >= found[other]


@pytest.mark.parametrize("types", [1, 2])
def test_few_types_are_told_apart_by_how_many_nodes_still_have_a_low_score(types: int) -> None:
    ec2 = Ec2({"none": 0, "few": 4, "many": 40}, most=3)
    found = scores(ec2, types)
    assert found["none"] < found["few"] < found["many"]
    assert ec2.asked == [8, *SIZES]


def test_what_tells_zones_apart_by_itself_is_taken_as_it_is() -> None:
    """AWS gives single types of P families scores from 4 to 9."""
    ec2 = Ec2({"few": 4, "many": 40})
    assert scores(ec2, 1) == {"few": 4, "many": 9}
    assert ec2.asked == [8]


@pytest.mark.parametrize("after", range(7))
def test_a_limit_of_what_may_be_asked_stops_nothing(after: int) -> None:
    ec2 = Ec2({"few": 4}, most=3, refuses_after=after)
    assert bool(scores(ec2, 1)) is (after == 6)


def test_a_zone_that_is_left_out_of_an_answer_has_the_least() -> None:
    place, other = ("r", "a"), ("r", "b")
    assert by_size([{place: 3}, {place: 2, other: 1}]) == {place: 3, other: 1}
