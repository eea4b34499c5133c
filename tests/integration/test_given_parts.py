"""A cluster in an account that gives it roles, a security group and machine images: what `up` would
make otherwise is not made, and what is not fit is told before anything is."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.ec2.models import ec2_backends
from support.aws import simulator, template
from support.aws.account import REGION, account
from support.aws.cluster_remains import remains
from support.aws.own_network import Own
from support.aws.policies import role_of
from support.strict.evaluation import AccessRequest, Resource, permits

from spotelastic.aws.base.account import ensure_service_role
from spotelastic.aws.base.clients import Aws, Rejected
from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle, teardown
from spotelastic.aws.compute import autoscaling
from spotelastic.aws.network import cloudformation
from spotelastic.aws.planning import dry_run, given_parts, session_preferences
from spotelastic.aws.planning.given_parts import needs
from spotelastic.aws.planning.plan import plan_of
from spotelastic.aws.planning.survey import survey
from spotelastic.cloud.model import ALIVE
from spotelastic.errors import UsageError
from spotelastic.model.job import AccountDemands

NAME = "quokka"
ITS = Names(NAME)
ROLES = "company-roles"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    with account(tmp_path_factory.mktemp("account")), pytest.MonkeyPatch.context() as patch:
        simulator.install(patch)
        its = Own(Aws(REGION), "127.98.0.0/16")
        its.aws.cloudformation.create_stack(
            StackName=ROLES,
            TemplateBody=infra("roles.json").read_text(),
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        yield its


def given(own: Own, **changes: Any) -> AccountDemands:
    stack = cloudformation.describe(own.aws, ROLES)
    assert stack is not None
    made = {
        "worker_profile": "spotelastic-worker",
        "control_profile": "spotelastic-control",
        "stack_role": cloudformation.outputs(stack)["StackRole"],
        "security_group": group(own),
        "worker_image": image(own),
        "control_image": image(own),
    }
    return AccountDemands(**{**made, **changes})


def group(own: Own, *, talks: bool = True) -> str:
    named = {"GroupName": f"members-{talks}", "Description": "of nodes"}
    found = own.aws.ec2.describe_security_groups(
        Filters=[{"Name": "group-name", "Values": [named["GroupName"]]}]
    )["SecurityGroups"]
    if found:
        return str(found[0]["GroupId"])
    id = str(own.aws.ec2.create_security_group(VpcId=own.vpc, **named)["GroupId"])
    if talks:
        rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": id}]}
        own.aws.ec2.authorize_security_group_ingress(GroupId=id, IpPermissions=[rule])
    return id


def image(own: Own, architecture: str = "x86_64") -> str:
    """Hardened, and with another root device than Amazon Linux's. moto forgets what it is told."""
    id = str(own.aws.ec2.register_image(Name="hardened")["ImageId"])
    its: Any = ec2_backends[own.aws.account][REGION].amis[id]
    its.architecture, its.root_device_name = architecture, "/dev/sda1"
    its.root_device_type = "ebs"
    return id


def in_iam(own: Own) -> tuple[set[str], set[str]]:
    iam = own.aws.iam
    return (
        {each["RoleName"] for each in iam.list_roles()["Roles"]},
        {each["InstanceProfileName"] for each in iam.list_instance_profiles()["InstanceProfiles"]},
    )


def test_roles_json_permits_just_what_the_roles_of_a_cluster_may() -> None:
    values = {
        "AWS::AccountId": template.ACCOUNT,
        "AWS::Partition": "aws",
        "AWS::URLSuffix": "amazonaws.com",
        "Bucket": template.BUCKET,
        "Clusters": template.CLUSTER,
        "Key": template.KEY,
        "Regions": REGION,
        "Runs": template.RUN,
        "StackRole": template.SERVICE_ROLE,
    }
    for role in ("ControlRole", "WorkerRole"):
        its = [each for policy in template.policies(role) for each in policy["Statement"]]
        told = {each["Sid"]: as_equals(each) for each in needs(role, values)}
        told.pop("Notify", None)  # of the topics with the cluster's name, in a policy of its own
        assert told == {each["Sid"]: as_equals(each) for each in its}
        assert "Key" not in {each["Sid"] for each in needs(role, values | {"Key": ""})}


def as_equals(statement: dict[str, Any]) -> dict[str, Any]:
    """An administrator may name clusters by a pattern."""
    return dict(json.loads(json.dumps(statement).replace('StringLike"', 'StringEquals"')))


def test_with_all_that_is_given_nothing_of_it_is_made_or_lost(own: Own) -> None:
    before, its = in_iam(own), given(own)
    dry_run.ensure_service_roles(own.aws)
    wanted = own.request(NAME, demands=its)
    found = survey(own.aws, wanted.job)
    assert found.obstacles == ()
    assert any("images need systemd" in each for each in found.warnings)
    cluster = lifecycle.create(wanted, lambda _: None, own.aws)
    assert cluster.spec.service_role == its.stack_role
    kinds = {each.split()[1] for each in found.resources}
    assert not {each for each in kinds if each.startswith(("IAM::", "EC2::SecurityGroup"))}
    assert in_iam(own)[1] == before[1]
    assert in_iam(own)[0] - before[0] <= set(dry_run.SERVICE_ROLES)
    alive = [each.id for each in autoscaling.instances(own.aws, NAME) if each.state in ALIVE]
    answer = own.aws.ec2.describe_instances(InstanceIds=alive)["Reservations"]
    instances = [each for reservation in answer for each in reservation["Instances"]]
    assert len(instances) == 5
    for each in instances:
        tags = {tag["Key"]: tag["Value"] for tag in each["Tags"]}
        assert its.security_group in {a["GroupId"] for a in each["SecurityGroups"]}
        assert each["ImageId"] == getattr(its, f"{tags['spotelastic:role']}_image")
        profile = each["IamInstanceProfile"]["Arn"].rpartition("/")[2]
        assert profile == f"spotelastic-{tags['spotelastic:role']}"
    (launched,) = own.aws.ec2.describe_launch_template_versions(
        LaunchTemplateName=ITS.control("a"), Versions=["$Latest"]
    )["LaunchTemplateVersions"]
    (disk,) = launched["LaunchTemplateData"]["BlockDeviceMappings"]
    assert disk["DeviceName"] == "/dev/sda1"
    lifecycle.create(wanted, lambda _: None, own.aws)
    with pytest.raises(UsageError, match=f"--worker-image .*: {NAME} has nodes of"):
        other = given(own, worker_image=image(own))
        plan_of(
            own.request(NAME, demands=other), own.aws, cloudformation.describe(own.aws, ITS.stack)
        )
    teardown.delete(NAME, aws=own.aws)
    assert in_iam(own)[1] == before[1]
    assert remains(NAME) == []


def test_dry_runs_try_the_launches_with_what_is_given(own: Own) -> None:
    its = given(own)
    plan = plan_of(own.request(NAME, demands=its), own.aws, None)
    for each in lifecycle.rehearsals(own.request(NAME, demands=its), plan):
        asked = dry_run.run_instances(each, own.subnets[0])
        assert asked["SecurityGroupIds"] == [its.security_group]
        assert "instance-profile/spotelastic-" in asked["IamInstanceProfile"]["Arn"]


def test_what_a_given_role_lacks_is_named(own: Own) -> None:
    iam = own.aws.iam
    iam.create_role(RoleName="bare", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="bare")
    with pytest.raises(UsageError, match="--worker-profile bare: the instance profile has no role"):
        survey(own.aws, own.request(NAME, demands=AccountDemands(worker_profile="bare")).job)
    iam.add_role_to_instance_profile(InstanceProfileName="bare", RoleName="bare")
    allowed = [
        {"Effect": "Allow", "Action": ["s3:*", "ecr:*", "ssm:*", "ssmmessages:*"], "Resource": "*"}
    ]
    policy = {"Version": "2012-10-17", "Statement": allowed}
    iam.put_role_policy(RoleName="bare", PolicyName="its", PolicyDocument=json.dumps(policy))
    found = survey(own.aws, own.request(NAME, demands=AccountDemands(worker_profile="bare")).job)
    (told,) = found.obstacles
    where = f"arn:aws:logs:{REGION}:{own.aws.account}:log-group:{ITS.log_group}:*"
    assert f"may not do what nodes do: logs:CreateLogStream on {where}, logs:PutLogEvents" in told
    with pytest.raises(UsageError, match="--control-profile none: the account has no such"):
        survey(own.aws, own.request(NAME, demands=AccountDemands(control_profile="none")).job)


def test_where_nobody_may_look_that_is_told(own: Own) -> None:
    asks = AccountDemands(worker_profile="spotelastic-worker")
    job = own.request(NAME, demands=asks).job
    for number, actions in enumerate((["iam:GetRole"], ["iam:GetInstanceProfile"])):
        developer = signed_in(own, f"developer-{number}", actions)
        told, obstacles = given_parts.look(developer, job, None, "", "")
        assert obstacles == ()
        assert any("may not look what its role permits" in each for each in told)
    told, obstacles = given_parts.look(own.aws, job, None, "", "")
    assert obstacles == () and not any("may not look" in each for each in told)


def signed_in(own: Own, name: str, actions: list[str]) -> Aws:
    """Somebody who may do just that."""
    own.aws.iam.create_user(UserName=name)
    statement = {"Effect": "Allow", "Action": actions, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    own.aws.iam.put_user_policy(UserName=name, PolicyName="its", PolicyDocument=policy)
    key = own.aws.iam.create_access_key(UserName=name)["AccessKey"]
    session = boto3.Session(key["AccessKeyId"], key["SecretAccessKey"], region_name=REGION)
    return Aws(REGION, session=session)


def test_a_group_or_an_image_that_nodes_could_not_have_is_refused(own: Own) -> None:
    silent = AccountDemands(security_group=group(own, talks=False))
    (told,) = survey(own.aws, own.request(NAME, demands=silent).job).obstacles
    assert "does not let in all traffic between its members" in told
    elsewhere = own.aws.ec2.create_security_group(GroupName="elsewhere", Description="-")["GroupId"]
    for demands, why in (
        (AccountDemands(security_group="sg-0"), "there is no such security group"),
        (AccountDemands(security_group=elsewhere), f"and the nodes are in {own.vpc}"),
        (AccountDemands(worker_image="ami-0"), "us-east-1 has no such image"),
        (AccountDemands(worker_image="/company/none"), "us-east-1 has no such image"),
        (AccountDemands(worker_image=image(own, "arm64")), "it is for arm64"),
    ):
        with pytest.raises(UsageError, match=why):
            survey(own.aws, own.request(NAME, demands=demands).job)
    own.aws.ssm.put_parameter(Name="/company/golden", Value=image(own), Type="String")
    named = AccountDemands(control_image="/company/golden")
    plan = plan_of(own.request(NAME, demands=named), own.aws, None)
    assert plan.parameters["ControlImage"].startswith("ami-")
    assert plan.parameters["ControlRoot"] == "/dev/sda1"


def test_roles_that_are_made_may_use_the_keys_of_data_and_what_sessions_are_kept_in(
    own: Own,
) -> None:
    aws = own.aws
    keys = [aws.kms.create_key()["KeyMetadata"]["Arn"] for _ in range(3)]
    mine, of_sessions, other = keys
    inputs = {
        "kmsKeyId": of_sessions.rpartition("/")[2],
        "s3BucketName": "sessions",
        "cloudWatchLogGroupName": "/company/sessions",
    }
    preferences = {"schemaVersion": "1.0", "sessionType": "Standard_Stream", "inputs": inputs}
    aws.ssm.create_document(
        Name=session_preferences.PREFERENCES,
        DocumentType="Session",
        Content=json.dumps(preferences),
    )
    for bucket, key in (("theirs", mine), ("others", other)):
        aws.s3.create_bucket(Bucket=bucket)
        rule = {
            "ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
        }
        aws.s3.put_bucket_encryption(
            Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]}
        )
    wanted = own.request(
        NAME, demands=AccountDemands(data_keys=(mine,)), read=("theirs/",), write=("others/",)
    )
    found = survey(aws, wanted.job)
    told = [each for each in found.warnings if "--data-key" in each]
    assert len(told) == 1 and told[0].startswith(f"s3://others encrypts with {other}")
    lifecycle.create(wanted, lambda _: None, aws)
    stack = aws.cloudformation.describe_stack_resources(StackName=ITS.stack)["StackResources"]
    policies = sum(each["ResourceType"] == "AWS::IAM::Policy" for each in stack)
    assert f"{policies} IAM::Policy" in found.resources
    by_s3 = {"kms:ViaService": f"s3.{REGION}.amazonaws.com"}
    logs = f"arn:aws:logs:{REGION}:{aws.account}:log-group:/company/sessions:log-stream:i-1"
    for role in ("WorkerRole", "ControlRole"):
        its = role_of(aws, NAME, role).policies
        for action, resource, context, may in (
            ("kms:Decrypt", mine, by_s3, role == "WorkerRole"),
            ("kms:Decrypt", mine, {}, False),
            ("kms:Decrypt", other, by_s3, False),
            ("kms:Decrypt", of_sessions, {}, True),
            ("s3:PutObject", "arn:aws:s3:::sessions/i-1.log", {}, True),
            ("s3:GetEncryptionConfiguration", "arn:aws:s3:::sessions", {}, True),
            ("logs:PutLogEvents", logs, {}, True),
        ):
            asked = AccessRequest(action, (Resource(resource),), context)
            assert permits(its, asked) == may, (role, action, resource)
    teardown.delete(NAME, aws=aws)
    aws.ssm.delete_document(Name=session_preferences.PREFERENCES)
    assert not any(session_preferences.parameters(aws, {}).values())


def test_a_role_that_an_administrator_has_made_before_is_used_as_it_is(own: Own) -> None:
    iam, developer = own.aws.iam, signed_in(own, "developer", ["iam:GetRole"])
    made = ensure_service_role(own.aws)
    assert ensure_service_role(developer) == made
    name = made.rpartition("/")[2]
    iam.delete_role_policy(RoleName=name, PolicyName="spotelastic")
    iam.delete_role(RoleName=name)
    with pytest.raises(Rejected, match="or name a role that is there, --stack-role"):
        ensure_service_role(developer)
