"""Which zones a cluster lies in."""

from typing import Any

import pytest
from moto import mock_aws
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend, Zone

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.compute.offers import zones as offered
from spotelastic.aws.network.zones import choose, given, padded, with_workers
from spotelastic.errors import EnvironmentFailure

GPU, SMALL = "p5.48xlarge", "t3.small"
KINDS = ("local", "wavelength")


def offers(**zones: str) -> dict[str, frozenset[str]]:
    """a="gs": zone a offers the GPU type and the small one."""
    letters = {"g": GPU, "s": SMALL}
    return {zone: frozenset(letters[each] for each in has) for zone, has in zones.items()}


def test_control_nodes_are_put_where_workers_can_be_and_workers_wherever_they_can() -> None:
    found = choose(offers(a="s", b="gs", c="s", d="gs", e="g"), [GPU], SMALL, "us-east-1")
    assert found == ("b", "d", "a", "e")
    assert with_workers(offers(a="s", b="gs", d="gs", e="g"), found, [GPU]) == ("b", "d", "e")


def test_workers_of_a_type_that_one_zone_offers_are_in_that_zone() -> None:
    has = offers(a="s", b="s", c="s", d="gs")
    zones = choose(has, [GPU], SMALL, "us-east-1")
    assert zones[0] == "d"
    assert with_workers(has, zones, [GPU]) == ("d",)


def test_a_region_that_does_not_do_is_told_with_what_it_lacks() -> None:
    with pytest.raises(EnvironmentFailure, match=r"no zone of eu-x offers p5\.48xlarge"):
        choose(offers(a="s", b="s", c="s"), [GPU], SMALL, "eu-x")
    with pytest.raises(EnvironmentFailure, match=r"t3\.small in 2 zones, .* need 3"):
        choose(offers(a="gs", b="s", c="g"), [GPU], SMALL, "eu-x")


def test_more_zones_than_the_stack_has_room_for_are_left_out() -> None:
    found = choose({z: frozenset({GPU, SMALL}) for z in "abcdefgh"}, [GPU], SMALL, "us-east-1")
    assert found == tuple("abcdef")
    assert given(padded(found[:4])) == found[:4]
    assert padded(found[:4]).count(",") == 5


def test_local_and_wavelength_zones_are_not_for_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come with the others where an account has opted in to them."""
    region, zones = "us-east-1", RegionsAndZonesBackend.zones
    strange = [Zone(f"{region}-{kind}-1a", region, kind, f"{kind}-zone") for kind in KINDS]
    monkeypatch.setitem(zones, region, [*zones[region], *strange])

    def offer(parsed: dict[str, Any], **_: object) -> None:
        parsed["InstanceTypeOfferings"] += [
            {"InstanceType": SMALL, "LocationType": "availability-zone", "Location": each.name}
            for each in strange
        ]

    with mock_aws():
        aws = Aws(region)
        aws.ec2.meta.events.register("after-call.ec2.DescribeInstanceTypeOfferings", offer)
        found = offered(aws, [SMALL, GPU])
    assert {each.name for each in strange}.isdisjoint(found)
    assert len([zone for zone, has in found.items() if SMALL in has]) >= 3
