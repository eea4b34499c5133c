"""What a role of a cluster may do: everything is about that cluster, or known to be about all.

Every action that a role is given has its things here, so that none comes unseen.
"""

from dataclasses import replace

import pytest
from support.aws.policies import of_another
from support.aws.role_calls import (
    BUCKET_ITSELF,
    CIRCUMSTANCES,
    ENVIRONMENT,
    INSTALLED,
    OF_ALL,
    ROLES,
    THINGS,
    calls,
    objects,
)
from support.aws.template import ACCOUNT, CLUSTER, RUN, SERVICE_ROLE, arn, policies
from support.strict.evaluation import AccessRequest, Resource, permits


@pytest.mark.parametrize("role", ROLES)
def test_each_action_that_a_role_is_given_is_about_things_that_are_known(role: str) -> None:
    statements = [each for policy in policies(role) for each in policy["Statement"]]
    assert {each["Effect"] for each in statements} == {"Allow"}
    given = {
        action
        for each in statements
        for action in ([each["Action"]] if isinstance(each["Action"], str) else each["Action"])
    }
    assert given == THINGS[role].keys() | OF_ALL[role]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_it_to_its_own_cluster_and_to_no_other(role: str) -> None:
    its = policies(role)
    for access in calls(role):
        assert permits(its, access), access
        # One service role and one key are there for all clusters.
        if access.action != "iam:PassRole" and not access.action.startswith("kms:"):
            name = RUN if RUN in access.resources[0].arn else CLUSTER
            elsewhere = of_another(access, name)
            assert elsewhere != access
            assert not permits(its, elsewhere), elsewhere


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_passed_to_nothing_but_cloudformation_and_no_other_role_is(role: str) -> None:
    its, to = policies(role), CIRCUMSTANCES["iam:PassRole"]
    service = (Resource(SERVICE_ROLE),)
    assert permits(its, AccessRequest("iam:PassRole", service, to)) == (role == "ControlRole")
    admin = (Resource(arn("iam", "role/admin", region="")),)
    assert not permits(its, AccessRequest("iam:PassRole", admin, to))
    for other in ("ec2.amazonaws.com", "lambda.amazonaws.com"):
        elsewhere = {"iam:PassedToService": other}
        assert not permits(its, AccessRequest("iam:PassRole", service, elsewhere))


@pytest.mark.parametrize("role", ROLES)
def test_a_bucket_that_has_become_another_accounts_gets_nothing_and_gives_nothing(
    role: str,
) -> None:
    its = policies(role)
    uploads = AccessRequest("s3:ListBucketMultipartUploads", BUCKET_ITSELF)
    for access in (*calls(role), uploads):
        if access.action.startswith("s3:"):
            theirs = {**access.context, "s3:ResourceAccount": "111111111111"}
            assert not permits(its, replace(access, context=theirs)), access


@pytest.mark.parametrize("role", ROLES)
def test_a_key_is_used_through_the_services_that_store_with_it_and_no_other_key_is(
    role: str,
) -> None:
    its = policies(role)
    for access in calls(role):
        if access.action.startswith("kms:"):
            assert not permits(its, replace(access, context={})), access
            elsewhere = {**access.context, "kms:ViaService": "lambda.us-east-1.amazonaws.com"}
            assert not permits(its, replace(access, context=elsewhere)), access
            another = (Resource(arn("kms", "key/another")),)
            assert not permits(its, replace(access, resources=another)), access


def test_a_worker_changes_none_of_what_the_cluster_is_run_by() -> None:
    its = policies("WorkerRole")
    for name in ("job.json", "status.json", "code/c0de.tar.gz", "boot/spotelastic.whl", "etcd/1"):
        for action in ("s3:PutObject", "s3:DeleteObject"):
            access = AccessRequest(
                action, objects(f"{CLUSTER}/{name}"), {"s3:ResourceAccount": ACCOUNT}
            )
            assert not permits(its, access), name


@pytest.mark.parametrize("name", [ENVIRONMENT, INSTALLED])
def test_a_worker_stores_what_others_will_run_once_and_replaces_nothing(name: str) -> None:
    its, whose = policies("WorkerRole"), {"s3:ResourceAccount": ACCOUNT}
    written = AccessRequest("s3:PutObject", objects(name), whose)
    part = {**whose, "s3:ObjectCreationOperation": "false"}
    whole = {**whose, "s3:ObjectCreationOperation": "true"}
    assert permits(its, replace(written, context=part))
    assert permits(its, replace(written, context={**whole, "s3:if-none-match": "*"}))
    assert not permits(its, replace(written, context=whole))
    assert not permits(its, AccessRequest("s3:DeleteObject", objects(name), whose))
