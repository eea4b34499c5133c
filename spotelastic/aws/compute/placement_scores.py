"""Asks for EC2's placement scores: how likely it is that so many nodes are launched in a zone.

Of fewer than three types EC2 says no more than 3 of most families, whatever the zone has. Then the
numbers of nodes tell zones apart for which it still says 2 and 3: one zone may do so for fifty
nodes, and another for one.

Scores are advice: whatever AWS answers, in whatever partition, stops nothing.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from spotelastic.aws.base.clients import Aws, Rejected, calling, listed
from spotelastic.errors import Unavailable

MEANINGFUL = 3
"""Number of types from which scores are meaningful."""
BLIND = 3
"""The highest score that fewer types have, of most families."""
SIZES = (1, 5, 10, 20, 50)
"""Numbers of nodes that are asked for where scores do not tell zones apart: the same for all jobs,
because AWS limits how many configurations can be asked a day.
"""
FRESH_FOR = 1800.0
"""Seconds that scores are kept, for the same reason."""

Place = tuple[str, str]
"""A region, and the id of a zone."""


def ask(aws: Aws, types: Sequence[str], nodes: int, regions: Sequence[str]) -> Mapping[Place, int]:
    """Return the score of each zone of these regions, 1 to 10; empty if AWS does not tell."""

    def asked(size: int) -> dict[Place, int]:
        items = listed(
            aws.ec2,
            "get_spot_placement_scores",
            "SpotPlacementScores",
            InstanceTypes=sorted(types),
            TargetCapacity=size,
            SingleAvailabilityZone=True,
            RegionNames=list(regions),
        )
        return {
            (item.get("Region", ""), item["AvailabilityZoneId"]): int(item["Score"])
            for item in items
        }

    with suppress(Rejected, Unavailable), calling("ask for placement scores"):
        found = asked(nodes)
        if len(types) >= MEANINGFUL or max(found.values(), default=0) > BLIND:
            return found
        return by_size([asked(size) for size in SIZES])
    return {}


def by_size(scores: Sequence[Mapping[Place, int]]) -> dict[Place, int]:
    """Return scores of few types, made from those for each of `SIZES` (pure).

    A score is how many of ten questions are answered with yes: for each size, whether so many nodes
    have a score of 2, and of 3.
    """
    return {
        place: max(1, sum(each.get(place, 0) >= least for each in scores for least in (2, 3)))
        for place in {place for each in scores for place in each}
    }
