"""The calls that the roles of a cluster are for: each action with things of that cluster.

`test_role_permissions.py` judges them by this project's own evaluation of policies, stage 0 of
`make test-aws` by AWS's.
"""

from collections.abc import Iterator, Mapping

from support.aws.template import ACCOUNT, BUCKET, CLUSTER, KEY, RUN, SERVICE_ROLE, arn
from support.strict.evaluation import AccessRequest, Resource

from spotelastic.aws.base.identity import CLUSTER as TAG
from spotelastic.aws.base.names import Names

ITS = Names(CLUSTER)
TAGS = {TAG: CLUSTER}
SESSIONS = {
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
}
"""What AWS confines to the instance that calls."""
OF_ALL = {
    "ControlRole": SESSIONS
    | {
        "autoscaling:DescribeAutoScalingGroups",
        "ec2:DescribeInstances",
        "ec2:DescribeLaunchTemplates",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSpotPriceHistory",
        "ec2:DescribeSubnets",
        "ec2:DescribeVolumes",
        "ec2:GetSpotPlacementScores",
        "pricing:GetProducts",
        "ssm:DescribeParameters",
    },
    "WorkerRole": SESSIONS
    | {
        *("ecr:BatchGetImage", "ecr:GetAuthorizationToken", "ecr:GetDownloadUrlForLayer"),
        "s3:ListBucketMultipartUploads",
    },
}
"""What AWS permits for everything or for nothing; it shows names, and no more. Of images it gives
what any of them contains, to read.
"""


def ec2(*kinds: str) -> tuple[Resource, ...]:
    return tuple(Resource(arn("ec2", f"{kind}/{kind}-1"), TAGS) for kind in kinds)


def objects(*names: str) -> tuple[Resource, ...]:
    return tuple(Resource(f"arn:aws:s3:::{BUCKET}/{name}") for name in names)


def secrets(*names: str) -> tuple[Resource, ...]:
    return tuple(Resource(arn("ssm", f"parameter{name}")) for name in names)


GROUPS = tuple(
    Resource(arn("autoscaling", f"autoScalingGroup:0000:autoScalingGroupName/{name}"), TAGS)
    for name in (ITS.workers, ITS.on_demand)
)
QUEUES = (Resource(arn("sqs", ITS.queue)), Resource(arn("sqs", ITS.commands)))
LOGS = (Resource(arn("logs", f"log-group:{ITS.log_group}:log-stream:i-1")),)
BUCKET_ITSELF = (Resource(f"arn:aws:s3:::{BUCKET}"),)
CHECKPOINT = f"{RUN}/checkpoints/1/step-1/0.distcp"
ENVIRONMENT = f"{CLUSTER}/environments/1.tar.gz"
BUILDING = f"{CLUSTER}/environments/1.building"
INSTALLED = f"{CLUSTER}/boot/d1935/worker-ami-1-x86_64.tar.gz"

THE_KEY = (Resource(KEY),)
"""The user's, where there is one; all clusters may have the same."""

THINGS: Mapping[str, Mapping[str, tuple[Resource, ...]]] = {
    "ControlRole": {
        "autoscaling:CompleteLifecycleAction": GROUPS,
        "autoscaling:DeleteAutoScalingGroup": GROUPS,
        "autoscaling:PutScheduledUpdateGroupAction": GROUPS,
        "autoscaling:ResumeProcesses": GROUPS,
        "autoscaling:SetDesiredCapacity": GROUPS,
        "autoscaling:TerminateInstanceInAutoScalingGroup": GROUPS,
        "autoscaling:UpdateAutoScalingGroup": GROUPS,
        "cloudformation:DeleteStack": (Resource(arn("cloudformation", f"stack/{ITS.stack}/0")),),
        "ec2:AttachNetworkInterface": ec2("instance", "network-interface"),
        "ec2:AttachVolume": ec2("instance", "volume"),
        "ec2:CreateTags": (Resource(arn("ec2", "volume/*")),),
        "ec2:CreateVolume": (Resource(arn("ec2", "volume/*")),),
        "ec2:DeleteLaunchTemplate": ec2("launch-template"),
        "ec2:DeleteVolume": ec2("volume"),
        "ec2:DetachNetworkInterface": ec2("instance", "network-interface"),
        "ec2:DetachVolume": ec2("instance", "volume"),
        "ec2:GetConsoleOutput": ec2("instance"),
        "ec2:ModifyInstanceAttribute": ec2("instance", "volume"),
        "ec2:TerminateInstances": ec2("instance"),
        "iam:PassRole": (Resource(SERVICE_ROLE),),
        "kms:CreateGrant": THE_KEY,
        "kms:Decrypt": THE_KEY,
        "kms:DescribeKey": THE_KEY,
        "kms:GenerateDataKey": THE_KEY,
        "kms:GenerateDataKeyWithoutPlaintext": THE_KEY,
        "kms:ReEncryptFrom": THE_KEY,
        "kms:ReEncryptTo": THE_KEY,
        "s3:DeleteObject": objects(f"{CLUSTER}/etcd/1"),
        "s3:GetObject": objects(f"{CLUSTER}/job.json"),
        "s3:ListBucket": BUCKET_ITSELF,
        "s3:PutObject": objects(f"{CLUSTER}/status.json"),
        "sqs:ChangeMessageVisibility": QUEUES,
        "sqs:DeleteMessage": QUEUES,
        "sqs:GetQueueUrl": QUEUES,
        "sqs:ReceiveMessage": QUEUES,
        "ssm:DeleteParameters": secrets(ITS.token, ITS.authority, f"{ITS.secrets}/env/KEY"),
        "ssm:GetParameter": secrets(ITS.member_certificate("a")),
    },
    "WorkerRole": {
        "kms:Decrypt": THE_KEY,
        "kms:GenerateDataKey": THE_KEY,
        "logs:CreateLogStream": LOGS,
        "logs:PutLogEvents": LOGS,
        "s3:AbortMultipartUpload": objects(CHECKPOINT),
        "s3:DeleteObject": objects(CHECKPOINT, BUILDING),
        "s3:GetObject": objects(
            BUILDING,
            CHECKPOINT,
            ENVIRONMENT,
            f"{CLUSTER}/boot/spotelastic.whl",
            f"{CLUSTER}/code/c0de.tar.gz",
            f"{CLUSTER}/job.json",
        ),
        "s3:ListBucket": BUCKET_ITSELF,
        "s3:ListMultipartUploadParts": objects(CHECKPOINT),
        "s3:PutObject": objects(CHECKPOINT, BUILDING, ENVIRONMENT, INSTALLED),
        "ssm:GetParameter": secrets(ITS.token, ITS.worker_certificate),
        "ssm:GetParameters": secrets(ITS.token, ITS.worker_certificate),
    },
}
CIRCUMSTANCES: dict[str, dict[str, str]] = {
    "ec2:CreateTags": {"ec2:CreateAction": "CreateVolume", f"aws:RequestTag/{TAG}": CLUSTER},
    "ec2:CreateVolume": {f"aws:RequestTag/{TAG}": CLUSTER},
    "iam:PassRole": {"iam:PassedToService": "cloudformation.amazonaws.com"},
    "s3:ListBucket": {"s3:prefix": f"{CLUSTER}/"},
    "s3:PutObject": {"s3:if-none-match": "*", "s3:ObjectCreationOperation": "true"},
}
VIA_DISKS = {"kms:ViaService": "ec2.us-east-1.amazonaws.com", "kms:GrantIsForAWSResource": "true"}
VIA_OBJECTS = {"kms:ViaService": "s3.us-east-1.amazonaws.com"}
ROLES = list(THINGS)


def calls(role: str) -> Iterator[AccessRequest]:
    for action, things in THINGS[role].items():
        for thing in things:
            whose = {"s3:ResourceAccount": ACCOUNT} if action.startswith("s3:") else {}
            if action.startswith("kms:"):
                whose = VIA_DISKS if role == "ControlRole" else VIA_OBJECTS
            yield AccessRequest(action, (thing,), whose | CIRCUMSTANCES.get(action, {}))
