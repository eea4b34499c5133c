"""Who calls in the local cloud, where that is not plain."""

import json
from pathlib import Path

import pytest
from support.aws.account import REGION, account
from support.aws.policies import Role, session_of

from spotelastic.aws.base.clients import Aws, Rejected, calling

ALL = {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}


def test_credentials_of_a_role_that_is_deleted_are_refused_in_nobodys_name(tmp_path: Path) -> None:
    with account(tmp_path) as authority:
        aws = Aws(REGION)
        arn = aws.iam.create_role(RoleName="leader", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
        policy = {"Version": "2012-10-17", "Statement": [ALL]}
        aws.iam.put_role_policy(
            RoleName="leader", PolicyName="all", PolicyDocument=json.dumps(policy)
        )
        queues = session_of(aws, Role("leader", arn, ())).client("sqs", region_name=REGION)
        queues.list_queues()
        aws.iam.delete_role_policy(RoleName="leader", PolicyName="all")
        aws.iam.delete_role(RoleName="leader")
        with pytest.raises(Rejected, match="not permitted"), calling("list the queues"):
            queues.list_queues()
        told = [(call.principal, call.permitted) for call in authority.calls]
    assert told == [("leader", True), (f"{arn} (deleted)", False)]
