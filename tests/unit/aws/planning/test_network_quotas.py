"""Quotas of networks, elastic addresses and event rules, looked at before any is made."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from support.aws.fake_services import Pages, fake_aws, refusal
from support.aws.template import resources

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.network_quotas import (
    ADDRESSES,
    RULES,
    RULES_EACH,
    VPCS,
    shortages,
)


class Quotas:
    """Answers with these quotas; a text is the code of a refusal."""

    def __init__(self, values: Mapping[str, float | str]) -> None:
        self.values = values

    def get_service_quota(self, ServiceCode: str, QuotaCode: str) -> dict[str, Any]:
        value = self.values[f"{ServiceCode}/{QuotaCode}"]
        if isinstance(value, str):
            raise refusal(value, "GetServiceQuota")
        return {"Quota": {"Value": value}}


class Ec2:
    """Has five VPCs on two pages, and five addresses."""

    def get_paginator(self, _: str) -> Pages:
        return Pages(lambda **_: [{"Vpcs": [{}] * 3}, {"Vpcs": [{}] * 2}])

    def describe_addresses(self) -> dict[str, Any]:
        return {"Addresses": [{}] * 5}


class Rules:
    """Has 295 event rules on two pages, unless these credentials may not count them."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused

    def get_paginator(self, _: str) -> Pages:
        if self.refused:
            raise refusal(self.refused, "ListRules")
        return Pages(lambda **_: [{"Rules": [{}] * 100}, {"Rules": [{}] * 195}])


def account(
    vpcs: float | str, addresses: float | str = 5.0, rules: float = 300.0, refused: str = ""
) -> Aws:
    values: dict[str, float | str] = {f"vpc/{VPCS.code}": vpcs, f"ec2/{ADDRESSES.code}": addresses}
    values[f"events/{RULES.code}"] = rules
    services = {"service-quotas": Quotas(values), "events": Rules(refused)}
    return fake_aws("eu-x-1", ec2=Ec2(), **services)


def test_a_sixth_network_is_refused_with_what_to_do() -> None:
    (line,) = shortages(account(5.0), 1, 0)
    assert line.startswith("the account may have 5 networks (VPCs) in eu-x-1, and has 5: delete")
    assert "--vpc and --subnets" in line
    assert line.endswith(
        "aws service-quotas request-service-quota-increase --region eu-x-1 --service-code vpc "
        f"--quota-code {VPCS.code} --desired-value 6"
    )
    assert not [*shortages(account(6.0), 1, 0), *shortages(account(5.0), 0, 0)]


def test_a_nat_gateway_needs_an_elastic_address() -> None:
    (line,) = shortages(account(6.0), 1, 1)
    assert "5 elastic addresses in eu-x-1, and has 5" in line
    assert not [*shortages(account(6.0, 6.0), 1, 1)]


def test_a_cluster_needs_five_event_rules() -> None:
    kinds = Counter(each["Type"] for each in resources().values())
    assert kinds["AWS::Events::Rule"] == RULES_EACH
    (line,) = shortages(account(6.0, rules=299.0), 0, 0, RULES_EACH)
    assert line.startswith("the account may have 299 event rules in eu-x-1, and has 295: take down")
    assert line.endswith(f"events --quota-code {RULES.code} --desired-value 300")
    assert not [*shortages(account(6.0), 0, 0, RULES_EACH)]
    assert not [*shortages(account(6.0, rules=1.0, refused="AccessDenied"), 0, 0, RULES_EACH)]


def test_all_that_is_missing_is_told() -> None:
    assert len([*shortages(account(5.0), 1, 1)]) == 2


@pytest.mark.parametrize("code", ["AccessDeniedException", "NoSuchResourceException"])
def test_a_quota_that_is_not_known_forbids_nothing(code: str) -> None:
    assert not [*shortages(account(code, code), 1, 1)]
