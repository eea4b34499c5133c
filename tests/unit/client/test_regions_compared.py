"""Several regions for one job: which is chosen, and what the plan says of the others."""

import pytest

from spotelastic.cli.render.plan_view import regions as shown
from spotelastic.client.bringing_up.plan import RegionPlan
from spotelastic.client.bringing_up.region_choice import Offered, compared
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.moving_policy import named
from spotelastic.client.targets.choice import chosen
from spotelastic.cloud.model import ZoneOffer
from spotelastic.errors import UsageError

EAST, WEST = "us-east-1", "us-west-2"


def offer(region: str, usd: float = 0.5, score: int = 0, refusal: str = "") -> Offered:
    plan = RegionPlan(region, refusal, ("g5.xlarge",), f"{region}a", score, usd)
    return Offered(plan, None if refusal else ZoneOffer(region, usd=usd, score=score))


def test_a_word_names_several_regions_and_each_counts_once() -> None:
    assert named(("us",)) == (EAST, "us-east-2", WEST)
    assert named((WEST, "us", "sa-east-1")) == (WEST, EAST, "us-east-2", "sa-east-1")


def test_the_price_of_a_node_and_the_likelihood_of_getting_it_decide() -> None:
    cheap, likely = offer("a", 0.4, 2), offer("b", 0.5, 9)
    assert [each.region for each in compared((cheap, likely))] == ["b", "a"]
    assert compared((cheap, likely))[0].chosen == "best by price and placement score"
    unscored = compared((offer("a", 0.6), offer("b", 0.5)))
    assert [each.region for each in unscored] == ["b", "a"]
    assert (unscored[0].chosen, unscored[1].chosen) == ("the cheapest", "")


def test_a_region_that_refuses_comes_last_with_its_reason() -> None:
    plans = compared((offer("a", refusal="no quota"), offer("b"), offer("c", usd=0.0)))
    assert [each.region for each in plans] == ["b", "c", "a"]
    assert list(shown(plans)) == [
        "regions, best first:",
        "  ba: 0.50 USD an hour each (g5.xlarge): chosen: the cheapest",
        "  ca: no spot price (g5.xlarge)",
        "  a: not possible: no quota",
        "",
    ]
    assert compared((offer("a", refusal="no quota"),))[0].chosen == ""
    assert compared((offer("a", refusal="no"), offer("b")))[0].chosen.startswith("the only one")


def test_one_region_and_several_contradict_each_other() -> None:
    config = JobConfig(region=EAST, regions=("us",))
    with pytest.raises(UsageError, match="--regions us: --region us-east-1 names one already"):
        chosen(config).check(config)
    assert (
        chosen(JobConfig(local=True, regions=("us",)))
        .applicable(JobConfig(local=True, regions=("us",)))
        .regions
        == ()
    )
