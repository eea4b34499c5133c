"""A cluster in an account that demands tags, a permissions boundary and a key of its own."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER
from support.aws.account import REGION, account
from support.aws.cluster_remains import remains
from support.aws.cluster_requests import request
from support.aws.policies import role_of
from support.aws.template import KEY, resources
from support.strict.evaluation import AccessRequest, Resource, permits

from spotelastic.aws.base.account import default_bucket
from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.network import cloudformation
from spotelastic.aws.planning.plan import plan_of
from spotelastic.aws.provider.receivers import receivers
from spotelastic.cloud.bucket import JOB
from spotelastic.errors import UsageError
from spotelastic.model.job import AccountDemands
from spotelastic.notifications.notification import Notification, SendOutcome

NAME = "quokka"
ITS = Names(NAME)
HOOK = "json://127.0.0.1/t0ken-of-the-hook"
TOPIC = "arn:aws:sns:us-east-1:123456789012:alerts"
BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"
ANYTHING = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}
WITHOUT_TAGS = {
    "AWS::EC2::Route",
    "AWS::EC2::SecurityGroupEgress",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::EC2::SubnetRouteTableAssociation",
    "AWS::EC2::VPCGatewayAttachment",
    "AWS::IAM::InstanceProfile",
    "AWS::IAM::Policy",
    "AWS::SQS::QueuePolicy",
}
"""What has no tags on AWS. Of profiles CloudFormation knows none."""


@dataclass
class Demanding:
    """The account, and what `up` has said."""

    aws: Aws
    key: str
    said: list[str] = field(default_factory=list)

    def up(self, tags: Mapping[str, str], **more: Any) -> None:
        self.said.clear()
        wish = request(NAME, 2, demands=AccountDemands(tags, BOUNDARY), **more)
        lifecycle.create(wish, self.said.append, self.aws)

    def templates(self) -> dict[str, dict[str, list[dict[str, str]]]]:
        """The tags that each group's launches give, by what is launched."""
        names = [ITS.workers, ITS.on_demand, *map(ITS.control, "abc")]
        groups = self.aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=names)
        return {
            each["AutoScalingGroupName"]: self._of(each) for each in groups["AutoScalingGroups"]
        }

    def _of(self, group: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
        mixed = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
        its = mixed.get("LaunchTemplateSpecification") or group["LaunchTemplate"]
        (version,) = self.aws.ec2.describe_launch_template_versions(
            LaunchTemplateName=its["LaunchTemplateName"], Versions=[its["Version"]]
        )["LaunchTemplateVersions"]
        data = version["LaunchTemplateData"]
        assert [each["Ebs"]["KmsKeyId"] for each in data["BlockDeviceMappings"]] == [self.key]
        return {each["ResourceType"]: each["Tags"] for each in data["TagSpecifications"]}


@pytest.fixture(scope="module")
def demanding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demanding]:
    with account(tmp_path_factory.mktemp("account")):
        aws = Aws(REGION)
        aws.iam.create_policy(PolicyName="boundary", PolicyDocument=json.dumps(ANYTHING))
        its = Demanding(aws, aws.kms.create_key()["KeyMetadata"]["Arn"])
        its.up(
            {"Team": "wombat"},
            key=its.key,
            secrets={"WANDB_API_KEY": "s3cret-key"},
            build_secrets={"PIP_INDEX_URL": "https://u:pa55word@host/"},
            notify={"1-json": HOOK, "2-sns": f"sns:{TOPIC}"},
        )
        yield its


def test_what_is_launched_has_the_tags_and_a_spot_request_only_where_there_is_one(
    demanding: Demanding,
) -> None:
    mine = {"Key": "Team", "Value": "wombat"}
    for group, launched in demanding.templates().items():
        expected = {"instance", "volume", "network-interface"}
        expected |= {"spot-instances-request"} if group == ITS.workers else set()
        assert launched.keys() - {"launch-template"} == expected, group
        assert all(mine in tags for tags in launched.values()), group


def test_control_nodes_use_a_key_for_the_topics_that_they_tell_alone(demanding: Demanding) -> None:
    key = (Resource(f"arn:aws:kms:{REGION}:123456789012:key/of-the-topic"),)
    by, of = "kms:ViaService", "kms:EncryptionContext:aws:sns:topicArn"
    its = {by: f"sns.{REGION}.amazonaws.com", of: TOPIC}
    for role in ("ControlRole", "WorkerRole"):
        given = role_of(demanding.aws, NAME, role).policies
        for action in ("kms:Decrypt", "kms:GenerateDataKey"):
            for context, may in (
                (its, role == "ControlRole"),
                (its | {of: f"{TOPIC}-of-others"}, False),
                ({of: TOPIC}, False),
                ({by: its[by]}, False),
            ):
                assert permits(given, AccessRequest(action, key, context)) == may


def test_control_nodes_may_tell_the_topics_of_notifications_and_read_where_others_are(
    demanding: Demanding,
) -> None:
    control = role_of(demanding.aws, NAME, "ControlRole")
    worker = role_of(demanding.aws, NAME, "WorkerRole")
    for topic, may in ((TOPIC, True), (f"{TOPIC}-of-others", False)):
        told = AccessRequest("sns:Publish", (Resource(topic),), {})
        assert permits(control.policies, told) == may
        assert not permits(worker.policies, told)
    place = f"arn:aws:ssm:{REGION}:123456789012:parameter{ITS.secrets}/control/notify/1-json"
    read = AccessRequest("ssm:GetParameter", (Resource(place),), {})
    assert permits(control.policies, read) and not permits(worker.policies, read)
    job = BucketObjects(demanding.aws, default_bucket(demanding.aws), NAME).get(JOB) or b""
    assert b"1-json" in job and b"t0ken" not in job and b"alerts" not in job
    found = receivers(demanding.aws, NAME, {"1-json": 1, "2-sns": 1, "3-gone": 1})
    assert [each.name for each in found] == ["1-json", "2-sns"]
    trial = Notification("trial 1", "demo — trial", "text")
    assert "NotFound" in found[1].send(trial).why
    demanding.aws.sns(REGION).create_topic(Name="alerts")
    assert found[1].send(trial) == SendOutcome()


def test_all_else_has_them_too(demanding: Demanding) -> None:
    tagged = remains("wombat")
    for name in (ITS.workers, ITS.on_demand, *map(ITS.control, "abc")):
        assert f"autoscaling.autoscaling_groups: {name}" in tagged
    aws = demanding.aws
    assert mine(aws.s3.get_bucket_tagging(Bucket=default_bucket(aws))["TagSet"])
    role = aws.iam.get_role(RoleName=f"spotelastic-cloudformation-{REGION}")["Role"]
    assert mine(role["Tags"])
    below = {"Key": "Name", "Option": "BeginsWith", "Values": [f"{ITS.secrets}/"]}
    its = aws.ssm.describe_parameters(ParameterFilters=[below])["Parameters"]
    assert {each["Name"].removeprefix(f"{ITS.secrets}/") for each in its} >= {
        "token",
        "authority",
        "worker/secrets/WANDB_API_KEY",
        "worker/build/PIP_INDEX_URL",
        "control/notify/1-json",
        "control/notify/2-sns",
    }
    for each in its:
        assert each["KeyId"] == demanding.key, each["Name"]
        found = aws.ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=each["Name"])
        assert mine(found["TagList"]), each["Name"]
    (logs,) = aws.logs.describe_log_groups(logGroupNamePrefix=ITS.log_group)["logGroups"]
    assert logs["kmsKeyId"] == demanding.key
    assert aws.logs.list_tags_log_group(logGroupName=ITS.log_group)["tags"]["Team"] == "wombat"
    stack = cloudformation.describe(aws, ITS.stack)
    assert stack is not None and mine(stack["Tags"])


def mine(tags: list[dict[str, str]]) -> bool:
    return {"Key": "Team", "Value": "wombat"} in tags


def test_the_stacks_tags_reach_what_it_makes_on_aws() -> None:
    """By AWS's registry. The local cloud hands them to some of it."""
    for kind in {each["Type"] for each in resources().values()}:
        schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
        tagging = schema.get("tagging") or {"taggable": schema.get("taggable", True)}
        told = tagging.get("taggable", True) and kind not in WITHOUT_TAGS
        assert told != (kind in WITHOUT_TAGS or kind == "AWS::EC2::LaunchTemplate"), kind


def test_roles_have_the_boundary(demanding: Demanding) -> None:
    roles = demanding.aws.iam.list_roles()["Roles"]
    names = [each["RoleName"] for each in roles if each["RoleName"].startswith("spotelastic-")]
    assert len(names) == 3
    for name in names:
        role = demanding.aws.iam.get_role(RoleName=name)["Role"]
        assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == BOUNDARY, name


def test_disks_of_the_members_are_encrypted_with_the_key() -> None:
    """The local cloud makes them without."""
    its = {name: each.get("Properties", {}) for name, each in resources().items()}
    kinds = {name: each["Type"] for name, each in resources().items()}
    encrypted = [name for name, each in its.items() if "KmsKeyId" in each]
    assert [kinds[name] for name in encrypted] == ["AWS::EC2::Volume"] * 3
    assert all(its[name]["KmsKeyId"][:2] == ["Keyed", KEY] for name in encrypted)


def test_another_key_is_refused_and_none_means_the_same(demanding: Demanding) -> None:
    aws = demanding.aws
    known = cloudformation.describe(aws, ITS.stack)
    other = aws.kms.create_key()["KeyMetadata"]["Arn"]
    assert plan_of(request(NAME, 2), aws, known).spec.demands.key == demanding.key
    with pytest.raises(UsageError, match=f"--kms-key .*: {NAME} was made with {demanding.key}"):
        plan_of(request(NAME, 2, key=other), aws, known)


def test_a_second_up_with_other_tags_changes_them_and_says_what_keeps_them(
    demanding: Demanding,
) -> None:
    aws = demanding.aws
    of_a_person = {"Key": "noted-by", "Value": "ann", "PropagateAtLaunch": False}
    group = {"ResourceId": ITS.workers, "ResourceType": "auto-scaling-group"}
    aws.autoscaling.create_or_update_tags(Tags=[{**of_a_person, **group}])
    demanding.up({"stage": "test"})
    assert "tags: nodes that run, with their disks, and secrets that are stored keep theirs" in (
        demanding.said
    )
    stack = cloudformation.describe(aws, ITS.stack)
    assert stack is not None
    keys = {tag["Key"] for tag in stack["Tags"]}
    assert "stage" in keys and "Team" not in keys
    for name in (ITS.workers, ITS.on_demand):
        (found,) = aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])[
            "AutoScalingGroups"
        ]
        keys = {tag["Key"] for tag in found["Tags"]}
        assert {"stage", "Team"} <= keys, "one that is not given any more stays until `down`"
        assert ("noted-by" in keys) == (name == ITS.workers), "others' tags are left"
        launched = demanding.templates()[name]
        assert all({"Key": "stage", "Value": "test"} in tags for tags in launched.values()), name
    demanding.up({"stage": "test"})
    assert not [line for line in demanding.said if line.startswith("tags:")]
