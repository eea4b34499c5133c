"""GovCloud and China: other names of the same, and what is not there."""

import json
import re
from typing import Any

import pytest
from support.aws.cluster_requests import job
from support.aws.fake_services import fake_aws, refusal
from support.aws.template import CHINA, GOVCLOUD, PARTITIONS, REGION, chosen, policies, resources

from spotelastic.aws.base import partitions
from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.clusters import fault_injection
from spotelastic.aws.compute.images import find_workers_image
from spotelastic.aws.compute.prices import PriceList, shipped_table
from spotelastic.aws.compute.quotas import link
from spotelastic.aws.planning.survey import survey
from spotelastic.errors import UsageError

REGIONS = list(PARTITIONS)
ROLES = ("ControlRole", "WorkerRole")


@pytest.mark.parametrize("region", REGIONS)
def test_a_region_tells_its_partition_as_boto3_does(region: str) -> None:
    import boto3

    known = boto3.session.Session().get_partition_for_region(region)
    assert partitions.partition_of(region).name == known == PARTITIONS[region]


@pytest.mark.parametrize("region", REGIONS)
def test_every_arn_of_the_template_is_of_the_stacks_partition(region: str) -> None:
    text = json.dumps(resources(region))
    found = set(re.findall(r"arn:([a-z-]+):", text))
    assert found == {PARTITIONS[region]}


@pytest.mark.parametrize("region", REGIONS)
def test_instances_may_take_the_roles_by_ec2s_name_there(region: str) -> None:
    for role in ROLES:
        (trust,) = resources(region)[role]["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        service = chosen(trust["Principal"]["Service"], region)
        assert service == "ec2.amazonaws.com" + (".cn" if region == CHINA else "")


@pytest.mark.parametrize("region", REGIONS)
def test_a_key_is_used_through_the_services_as_they_are_called_there(region: str) -> None:
    ends = ".amazonaws.com.cn" if region == CHINA else ".amazonaws.com"
    for role in ROLES:
        text = json.dumps(policies(role, region))
        services = re.findall(r'"((?:ec2|s3|ssm)\.[^"]+)"', text)
        assert services and all(each.endswith(f".{region}{ends}") for each in services)


@pytest.mark.parametrize("region", REGIONS)
def test_the_gateway_endpoint_of_s3_has_the_same_name_everywhere(region: str) -> None:
    its = resources(region)["StorageEndpoint"]["Properties"]["ServiceName"]
    assert its == f"com.amazonaws.{region}.s3"


@pytest.mark.parametrize("name", ["laptop.json", "deletion.json", "boundary.json"])
def test_policies_for_people_name_no_partition(name: str) -> None:
    assert set(re.findall(r"arn:([^:]+):", infra(name).read_text())) == {"*"}


@pytest.mark.parametrize(
    ("region", "host"),
    [
        (REGION, "us-east-1.console.aws.amazon.com"),
        (GOVCLOUD, "us-gov-west-1.console.amazonaws-us-gov.com"),
        ("us-gov-east-1", "us-gov-east-1.console.amazonaws-us-gov.com"),
        (CHINA, "cn-north-1.console.amazonaws.cn"),
    ],
)
def test_more_is_asked_for_where_people_are_signed_in(region: str, host: str) -> None:
    assert link(region, "L-1") == f"https://{host}/servicequotas/home/services/ec2/quotas/L-1"


class Pricing:
    """Counts its calls, and knows nothing."""

    def __init__(self) -> None:
        self.calls = 0

    def get_products(self, **_: Any) -> dict[str, Any]:
        self.calls += 1
        return {"PriceList": []}


@pytest.mark.parametrize(
    ("region", "calls", "known"), [(REGION, 1, True), (GOVCLOUD, 0, True), (CHINA, 0, False)]
)
def test_no_price_is_asked_where_there_is_no_list_and_none_is_of_another_currency(
    region: str, calls: int, known: bool
) -> None:
    pricing = Pricing()
    found = PriceList(fake_aws(pricing=pricing, region=region)).on_demand("t3.small")
    assert pricing.calls == calls
    assert found == (shipped_table().usd_per_hour["t3.small"] if known else 0.0)


def test_what_prices_are_is_told() -> None:
    assert list(partitions.about_prices(REGION)) == []
    (gov,) = partitions.about_prices(GOVCLOUD)
    assert gov.startswith("the on-demand prices are those of us-east-1: aws-us-gov has no list")
    (china,) = partitions.about_prices(CHINA)
    assert china.startswith("in cn-north-1 $ and --max-price stand for CNY")


def test_a_limit_that_cannot_be_kept_is_refused() -> None:
    wish = job("quokka")
    limited = job("quokka", capacity=wish.capacity.__class__(max_cost=5.0))
    with pytest.raises(UsageError, match=r"--max-cost 5: of cn-north-1 only spot prices are known"):
        survey(fake_aws(region=CHINA), limited)
    partitions.check(GOVCLOUD, 5.0)
    partitions.check(CHINA, None)


@pytest.mark.parametrize("region", ["us-iso-east-1", "us-isob-east-1", "eu-isoe-west-1"])
def test_a_region_without_internet_is_refused(region: str) -> None:
    with pytest.raises(UsageError, match=rf"--region {region}: it has no way to the internet"):
        survey(fake_aws(region=region), job("quokka"))


def test_a_notice_cannot_be_asked_for_in_china() -> None:
    with pytest.raises(UsageError, match=r"cn-north-1 has no Fault Injection Service.*--kind loss"):
        fault_injection.interrupt(fake_aws(region=CHINA), "i-1", 120.0)


class Parameters:
    def get_parameter(self, Name: str) -> None:
        raise refusal("ParameterNotFound", "GetParameter")


def test_nodes_with_gpus_need_images_that_the_region_has() -> None:
    aws = fake_aws(ssm=Parameters(), region=CHINA)
    with pytest.raises(UsageError, match="cn-north-1 has none of AWS's Deep Learning images"):
        find_workers_image(aws, 1)
