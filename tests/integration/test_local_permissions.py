"""The local cloud asks IAM: a role does what its policies say, to its own cluster, and no more."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest
from boto3.exceptions import S3UploadFailedError
from botocore.exceptions import ClientError
from support.aws.account import REGION, account
from support.aws.cluster_requests import job, request
from support.aws.policies import (
    boundary,
    bounded_by,
    keeps_to_its_cluster,
    role_of,
    session_of,
    shipped,
    signed_in,
    watching,
)
from support.draws import soaked
from support.strict.authority import Authority

from spotelastic.aws.base.clients import Aws, Rejected
from spotelastic.aws.base.identity import CLUSTER, MEMBER
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.messaging import command_queue
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.planning.dry_run import SERVICE_ROLES, ensure_service_roles
from spotelastic.aws.planning.survey import survey
from spotelastic.client.config.variables import folders
from spotelastic.client.logs import tail
from spotelastic.client.published import status_of
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.model.job import AccountDemands
from spotelastic.model.requests.command import Command

Policy = Mapping[str, Any]
OURS, THEIRS = "quokka", "wombat"
READ = folders("read", ["s3://datasets/train"])
WRITE = folders("write", ["s3://results/ours/"])
"""What the first cluster is given besides."""
BUCKET = "spotelastic-123456789012-us-east-1"
OWN_BOUNDARY = "arn:aws:iam::123456789012:policy/spotelastic-boundary"
COMPANYS = "arn:aws:iam::123456789012:policy/boundary-of-the-company"
"""Another boundary than the product's own."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    """Of an account with two clusters."""
    with account(tmp_path_factory.mktemp("account")) as authority:
        aws = Aws(REGION)
        aws.iam.create_policy(
            PolicyName="spotelastic-boundary", PolicyDocument=json.dumps(boundary())
        )
        for bucket in ("datasets", "results", "others"):
            aws.s3.create_bucket(Bucket=bucket)
            for key in ("train/1", "training/1", "ours/1", "theirs/1"):
                aws.s3.put_object(Bucket=bucket, Key=key, Body=b"data")
        for name, read, write in ((OURS, READ, WRITE), (THEIRS, (), ())):
            wanted = request(name, read=read, write=write)
            clusters.create(wanted, lambda _: None, aws)
        yield authority


@pytest.fixture(scope="module")
def roles(authority: Authority) -> Callable[[str], boto3.Session]:
    """Sessions with the roles of the first: "Control" and "Worker"."""

    def assume(role: str) -> boto3.Session:
        aws = Aws(REGION)
        return session_of(aws, role_of(aws, OURS, f"{role}Role"))

    return assume


def instance(name: str, role: str) -> str:
    found = boto3.client("ec2", region_name=REGION).describe_instances(
        Filters=[
            {"Name": "tag:spotelastic:cluster", "Values": [name]},
            {"Name": "tag:spotelastic:role", "Values": [role]},
        ]
    )
    return str(found["Reservations"][0]["Instances"][0]["InstanceId"])


def volume(name: str) -> str:
    tagged = [{"Name": "tag:spotelastic:cluster", "Values": [name]}]
    found = boto3.client("ec2", region_name=REGION).describe_volumes(Filters=tagged)
    return str(found["Volumes"][0]["VolumeId"])


def queue(name: str) -> str:
    return str(
        boto3.client("sqs", region_name=REGION).get_queue_url(QueueName=Names(name).queue)[
            "QueueUrl"
        ]
    )


CALLS: dict[str, tuple[str, str, Callable[[boto3.Session, str], Any]]] = {
    "size of a group": (
        "Control",
        "AccessDenied",
        lambda s, name: s.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName=Names(name).workers, DesiredCapacity=1
        ),
    ),
    "end of an instance": (
        "Control",
        "UnauthorizedOperation",
        lambda s, name: s.client("ec2").terminate_instances(InstanceIds=[instance(name, "worker")]),
    ),
    "console of an instance": (
        "Control",
        "UnauthorizedOperation",
        lambda s, name: s.client("ec2").get_console_output(InstanceId=instance(name, "worker")),
    ),
    "messages": (
        "Control",
        "AccessDenied",
        lambda s, name: s.client("sqs").receive_message(QueueUrl=queue(name), WaitTimeSeconds=0),
    ),
    "disk": (
        "Control",
        "UnauthorizedOperation",
        lambda s, name: s.client("ec2").create_volume(
            AvailabilityZone=f"{REGION}a",
            Size=1,
            TagSpecifications=[
                {
                    "ResourceType": "volume",
                    "Tags": [{"Key": "spotelastic:cluster", "Value": name}],
                }
            ],
        ),
    ),
    "commands": (
        "Control",
        "AccessDenied",
        lambda s, name: s.client("sqs").receive_message(
            QueueUrl=queue(name) + "-commands", WaitTimeSeconds=0
        ),
    ),
    "bill": (
        "Control",
        "AccessDenied",
        lambda s, name: s.client("s3").put_object(
            Bucket=BUCKET, Key=f"{name}/usage.json", Body=b"[]"
        ),
    ),
    "listing": (
        "Worker",
        "AccessDenied",
        lambda s, name: s.client("s3").list_objects_v2(Bucket=BUCKET, Prefix=f"{name}/"),
    ),
    "checkpoints": (
        "Worker",
        "AccessDenied",
        lambda s, name: s.client("s3").put_object(
            Bucket=BUCKET, Key=f"{name}/checkpoints/x", Body=b"x"
        ),
    ),
    "token": (
        "Worker",
        "AccessDeniedException",
        lambda s, name: s.client("ssm").get_parameter(Name=Names(name).token, WithDecryption=True),
    ),
    "logs": (
        "Worker",
        "AccessDeniedException",
        lambda s, name: s.client("logs").create_log_stream(
            logGroupName=Names(name).log_group, logStreamName=f"of-{name}"
        ),
    ),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_role_acts_on_its_own_cluster_and_on_no_other(
    roles: Callable[[str], boto3.Session], what: str
) -> None:
    role, code, call = CALLS[what]
    session = roles(role)
    call(session, OURS)
    with pytest.raises(ClientError) as refused:
        call(session, THEIRS)
    assert refused.value.response["Error"]["Code"] == code
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_a_worker_changes_no_machines_and_reads_no_secret_but_its_own(
    roles: Callable[[str], boto3.Session],
) -> None:
    worker = roles("Worker")
    for service, act in (
        ("ec2", lambda c: c.terminate_instances(InstanceIds=[instance(OURS, "worker")])),
        ("ec2", lambda c: c.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)),
        ("iam", lambda c: c.list_roles()),
        ("ssm", lambda c: c.get_parameter(Name=f"/spotelastic/{OURS}/ca-key")),
        ("s3", lambda c: c.put_object(Bucket=BUCKET, Key=f"{OURS}/job.json", Body=b"{}")),
    ):
        with pytest.raises(ClientError) as refused:
            act(worker.client(service))
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_a_worker_stores_an_environment_once_and_nobody_elses(
    roles: Callable[[str], boto3.Session], tmp_path: Path
) -> None:
    """As one object and in parts; what is there stays, whatever a worker says."""
    session, name = roles("Worker"), "environments/e.tar.gz"
    objects = BucketObjects(Aws(REGION, session=session), BUCKET, OURS)
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(os.urandom(40 << 20))  # three parts
    second.write_bytes(b"another")
    assert objects.create_from(name, first)
    assert not objects.create_from(name, second)
    assert not objects.create(name, b"another")
    for act in (
        lambda c: c.put_object(Bucket=BUCKET, Key=f"{OURS}/{name}", Body=b"another"),
        lambda c: c.upload_file(str(first), BUCKET, f"{OURS}/{name}"),
        lambda c: c.delete_object(Bucket=BUCKET, Key=f"{OURS}/{name}"),
    ):
        with pytest.raises((ClientError, S3UploadFailedError), match="AccessDenied"):
            act(session.client("s3"))
    assert objects.get(name) == first.read_bytes()
    assert objects.create(f"{name}.building", b"one")
    objects.delete(f"{name}.building")


def test_the_folders_that_were_named_are_read_or_written_and_nothing_else(
    roles: Callable[[str], boto3.Session],
) -> None:
    worker = roles("Worker").client("s3")
    worker.get_object(Bucket="datasets", Key="train/1")
    worker.put_object(Bucket="results", Key="ours/2", Body=b"result")
    worker.get_object(Bucket="results", Key="ours/2")
    worker.delete_object(Bucket="results", Key="ours/2")
    listed = worker.list_objects_v2(Bucket="datasets", Prefix="train/")["Contents"]
    assert [item["Key"] for item in listed] == ["train/1"]
    with pytest.raises(ClientError, match="NoSuchKey"):  # not "access denied": it may be made
        worker.get_object(Bucket="results", Key="ours/absent")

    refused: dict[str, Callable[[], object]] = {
        "write what is read": lambda: worker.put_object(Bucket="datasets", Key="train/1", Body=b""),
        "delete what is read": lambda: worker.delete_object(Bucket="datasets", Key="train/1"),
        "a name that begins so": lambda: worker.get_object(Bucket="datasets", Key="training/1"),
        "beside it": lambda: worker.put_object(Bucket="results", Key="theirs/1", Body=b""),
        "read beside it": lambda: worker.get_object(Bucket="results", Key="theirs/1"),
        "list beside it": lambda: worker.list_objects_v2(Bucket="results", Prefix="theirs/"),
        "another bucket": lambda: worker.get_object(Bucket="others", Key="train/1"),
        "its names": lambda: worker.list_objects_v2(Bucket="others"),
        "its policy": lambda: worker.get_bucket_policy(Bucket="results"),
    }
    for what, call in refused.items():
        with pytest.raises(ClientError) as error:
            call()
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, what
    control = roles("Control").client("s3")
    with pytest.raises(ClientError, match="AccessDenied"):
        control.get_object(Bucket="datasets", Key="train/1")


def test_up_again_gives_other_folders_and_takes_back_the_first(
    roles: Callable[[str], boto3.Session],
) -> None:
    worker = roles("Worker").client("s3")
    wanted = request(OURS, read=folders("read", ["s3://others"]))
    clusters.create(wanted, lambda _: None, Aws(REGION))
    assert len(worker.list_objects_v2(Bucket="others", Prefix="the")["Contents"]) == 1
    worker.get_object(Bucket="others", Key="train/1")
    for key in ("train/1", "training/1"):
        with pytest.raises(ClientError, match="AccessDenied"):
            worker.get_object(Bucket="datasets", Key=key)


def test_the_leader_takes_its_cluster_down_with_what_its_role_may_and_no_other(
    authority: Authority,
) -> None:
    aws, name = Aws(REGION), "koala"
    cluster = clusters.create(request(name), lambda _: None, aws)
    role = role_of(aws, name, "ControlRole")
    leader = signed_in(aws, role)
    leader.ec2.create_volume(  # as for a disk that was lost
        AvailabilityZone=f"{REGION}a",
        Size=1,
        TagSpecifications=[
            {
                "ResourceType": "volume",
                "Tags": [{"Key": CLUSTER, "Value": name}, {"Key": MEMBER, "Value": "a"}],
            }
        ],
    )
    teardown.delete_from_within(leader, name, cluster.bucket, cluster.spec.service_role)
    done = {
        "autoscaling:DeleteAutoScalingGroup",
        "cloudformation:DeleteStack",
        "ec2:CreateTags",
        "ec2:CreateVolume",
        "ec2:DeleteLaunchTemplate",
        "ec2:DeleteVolume",
        "iam:PassRole",
        "s3:PutObject",
        "ssm:DeleteParameters",
    }
    keeps_to_its_cluster(role, name, authority.calls, done)
    assert name not in clusters.all_names(aws)


# -- whoever runs the commands -------------------------------------------------------------------


def user_with(policy: Policy, name: str, monkeypatch: pytest.MonkeyPatch) -> AwsTarget:
    """As a user of the account who may do what the policy says."""
    iam = boto3.client("iam", region_name=REGION)
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="spotelastic", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    return AwsTarget(Aws(REGION))


@pytest.mark.parametrize(
    "bound", ["", *soaked([COMPANYS])], ids=["the product's own", "the company's"]
)
def test_up_and_down_need_no_more_than_the_policies_that_are_shipped_and_documented(
    roles: Callable[[str], boto3.Session],
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
) -> None:
    policy = bounded_by(bound) if bound else shipped()
    place = user_with(policy, f"bounded-{bool(bound)}", monkeypatch)
    demands = AccountDemands(boundary=bound)
    told: list[str] = []
    for wish in (
        job("engineered"),
        job("engineered", instance_types=()),
    ):
        assert not [line for line in survey(place.aws, wish).warnings if "permitted" in line]
    for _ in range(2):
        wanted = request("engineered", placement="cluster", demands=demands)
        cluster = clusters.create(wanted, lambda _: None, place.aws)
    for role in ("ControlRole", "WorkerRole"):
        its = place.aws.iam.get_role(RoleName=role_of(place.aws, "engineered", role).name)["Role"]
        arn = its["PermissionsBoundary"]["PermissionsBoundaryArn"]
        assert arn == (bound or OWN_BOUNDARY)
    assert [each.name for each in place.listing()] == ["engineered", OURS, THEIRS]
    assert list(tail(cluster)) == []
    command_queue.send(place.aws, "engineered", Command("1", "stop"))
    cluster.objects.put("checkpoints/1", b"state")
    place.aws.s3.create_multipart_upload(Bucket=BUCKET, Key="engineered/checkpoints/2")
    place.down("engineered", told.append, keep_data=False)
    assert place.names() == (OURS, THEIRS)
    assert cluster.objects.names("") == ()
    with pytest.raises(ClientError, match="not authorized to perform: iam:ListUsers"):
        place.aws.iam.list_users()


def test_the_roles_of_aws_are_made_by_whoever_may_run_up(
    roles: Callable[[str], boto3.Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who may look at such roles alone is denied one that is missing."""
    iam = boto3.client("iam", region_name=REGION)
    for role in SERVICE_ROLES:
        iam.delete_service_linked_role(RoleName=role)
    place = user_with(shipped(), "first", monkeypatch)
    for _ in range(2):
        ensure_service_roles(place.aws)
    assert {role["RoleName"] for role in iam.list_roles()["Roles"]} >= set(SERVICE_ROLES)


def test_nothing_foreign_becomes_a_clusters_and_nobody_an_administrator(
    roles: Callable[[str], boto3.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    administrator = Aws(REGION)
    its = {"AvailabilityZone": f"{REGION}a", "Size": 1}
    foreign = administrator.ec2.create_volume(**its)["VolumeId"]
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    administrator.iam.create_role(RoleName="spotelastic-old", AssumeRolePolicyDocument=trust)
    aws = user_with(shipped(), "curious", monkeypatch).aws
    mine = [{"Key": CLUSTER, "Value": "engineered"}]
    tagged = [{"ResourceType": "volume", "Tags": mine}]
    own = aws.ec2.create_volume(**its, TagSpecifications=tagged)["VolumeId"]
    made = {"RoleName": "spotelastic-x", "AssumeRolePolicyDocument": trust}
    everything = {"PolicyName": "x", "PolicyDocument": json.dumps(shipped())}
    refused: dict[str, Callable[[], object]] = {
        "tag": lambda: aws.ec2.create_tags(Resources=[foreign], Tags=mine),
        "end": lambda: aws.ec2.delete_volume(VolumeId=foreign),
        "a role": lambda: aws.iam.create_role(**made),
        "with another boundary": lambda: aws.iam.create_role(**made, PermissionsBoundary=COMPANYS),
        "rights of a role without": lambda: aws.iam.put_role_policy(
            RoleName="spotelastic-old", **everything
        ),
        "no boundary any more": lambda: aws.iam.delete_role_permissions_boundary(
            RoleName=f"spotelastic-cloudformation-{REGION}"
        ),
        "another boundary": lambda: aws.iam.create_policy_version(
            PolicyArn=OWN_BOUNDARY, PolicyDocument=json.dumps(shipped()), SetAsDefault=True
        ),
    }
    for what, call in refused.items():
        with pytest.raises(ClientError) as error:
            call()
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403, what
    aws.ec2.create_tags(Resources=[own], Tags=mine)
    aws.ec2.delete_volume(VolumeId=own)
    aws.iam.create_role(**made, PermissionsBoundary=OWN_BOUNDARY)
    aws.iam.put_role_policy(RoleName="spotelastic-x", **everything)


def test_without_the_boundary_it_is_told_who_makes_it(
    roles: Callable[[str], boto3.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    iam, of_stacks = Aws(REGION).iam, f"spotelastic-cloudformation-{REGION}"
    for name in iam.list_role_policies(RoleName=of_stacks)["PolicyNames"]:
        iam.delete_role_policy(RoleName=of_stacks, PolicyName=name)
    iam.delete_role(RoleName=of_stacks)
    iam.delete_policy(PolicyArn=OWN_BOUNDARY)
    place = user_with(shipped(), "early", monkeypatch)
    with pytest.raises(Rejected, match="spotelastic-boundary as boundary, which an administrator"):
        clusters.create(request("early"), lambda _: None, place.aws)


def test_commands_that_look_need_little(
    roles: Callable[[str], boto3.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = user_with(watching(), "watching", monkeypatch)
    assert [each.name for each in place.listing()] == [OURS, THEIRS]
    cluster = place.cluster_or_gone(OURS, print)
    assert status_of(cluster).state == "pending"
    assert (cluster.objects.events(), cluster.objects.report()) == ([], None)
    assert list(tail(cluster)) == []
    with pytest.raises(Rejected, match="not permitted"):
        place.down(OURS, print)
