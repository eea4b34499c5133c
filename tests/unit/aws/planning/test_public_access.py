"""VPC Block Public Access, which cuts nodes off without any error of the launch."""

import pytest
from support.aws.account import REGION, account
from support.aws.fake_services import fake_aws, refusal

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.planning.public_access import check_own_network, mode, warnings
from spotelastic.errors import EnvironmentFailure


class Ec2:
    def __init__(self, answer: dict[str, object] | str) -> None:
        self._answer = answer

    def describe_vpc_block_public_access_options(self) -> dict[str, object]:
        if isinstance(self._answer, str):
            raise refusal(self._answer, "DescribeVpcBlockPublicAccessOptions")
        return self._answer


def blocked(how: str) -> dict[str, object]:
    return {"VpcBlockPublicAccessOptions": {"InternetGatewayBlockMode": how}}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (blocked("off"), "off"),
        (blocked("block-ingress"), "block-ingress"),
        (blocked("block-bidirectional"), "block-bidirectional"),
        ({}, "off"),
        ("UnauthorizedOperation", "off"),
        ("InvalidAction", "off"),
    ],
)
def test_the_mode_is_what_aws_says_and_off_where_it_says_nothing(
    answer: dict[str, object] | str, found: str
) -> None:
    assert mode(fake_aws(ec2=Ec2(answer))) == found


def test_a_network_of_its_own_is_refused_with_the_way_on() -> None:
    check_own_network("off")
    with pytest.raises(EnvironmentFailure, match=r"private subnets with a NAT gateway \(--vpc"):
        check_own_network("block-ingress")
    with pytest.raises(EnvironmentFailure, match="another way out, or are excluded"):
        check_own_network("block-bidirectional")


@pytest.mark.parametrize(
    ("how", "public", "told"),
    [
        ("off", True, 0),
        ("block-ingress", False, 0),
        ("block-ingress", True, 1),
        ("block-bidirectional", False, 1),
        ("block-bidirectional", True, 1),
    ],
)
def test_of_the_users_own_subnets_is_told_what_they_need(how: str, public: bool, told: int) -> None:
    assert len(list(warnings(how, public=public))) == told


def test_the_local_cloud_blocks_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    with account(tmp_path_factory.mktemp("account")):
        assert mode(Aws(REGION)) == "off"
