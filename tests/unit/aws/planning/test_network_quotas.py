"""Quotas of networks and elastic addresses, looked at before a network is made."""

from collections.abc import Mapping
from typing import Any

import pytest
from support.aws.fake_services import Pages, fake_aws, refusal

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.network_quotas import ADDRESSES, VPCS, shortages


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


def account(vpcs: float | str, addresses: float | str = 5.0) -> Aws:
    values = {f"vpc/{VPCS.code}": vpcs, f"ec2/{ADDRESSES.code}": addresses}
    return fake_aws("eu-x-1", ec2=Ec2(), **{"service-quotas": Quotas(values)})


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


def test_all_that_is_missing_is_told() -> None:
    assert len([*shortages(account(5.0), 1, 1)]) == 2


@pytest.mark.parametrize("code", ["AccessDeniedException", "NoSuchResourceException"])
def test_a_quota_that_is_not_known_forbids_nothing(code: str) -> None:
    assert not [*shortages(account(code, code), 1, 1)]
