"""A company's account may demand 40 tags, which stand a dozen times in the stack's template."""

from pathlib import Path

from support.aws.account import REGION, account
from support.aws.cluster_requests import request

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.demands import MOST
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle, teardown
from spotelastic.aws.network import cloudformation
from spotelastic.aws.network.cloudformation import LONGEST_BODY, stack_template
from spotelastic.model.job import AccountDemands

TAGS = {f"company:cost-center-{number:02}": "a" * 40 for number in range(MOST)}


def test_a_cluster_has_as_many_tags_as_can_be_given(tmp_path: Path) -> None:
    assert len(stack_template(TAGS)) > LONGEST_BODY
    with account(tmp_path):
        aws, demands = Aws(REGION), AccountDemands(tags=TAGS)
        lifecycle.create(request("quokka", 2, demands=demands), lambda _: None, aws)
        found = cloudformation.describe(aws, Names("quokka").stack)
        assert found is not None and cloudformation.tags(found).items() >= TAGS.items()
        more = AccountDemands(tags=TAGS | {"company:cost-center-00": "b" * 40})
        lifecycle.create(request("quokka", 2, demands=more), lambda _: None, aws)
        found = cloudformation.describe(aws, Names("quokka").stack)
        assert found is not None and cloudformation.tags(found).items() >= more.tags.items()
        teardown.delete("quokka", aws=aws)
