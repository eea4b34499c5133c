"""Creates a group of two workers in a moto account."""

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.compute.launch_template import WorkerGroups

ITS = Names("demo")


def two_workers(aws: Aws) -> WorkerGroups:
    return WorkerGroups(
        names=ITS,
        types=("g4dn.xlarge",),
        size=2,
        image="ami-12345678",
        bucket="bucket",
        profile="arn:aws:iam::123456789012:instance-profile/worker",
        security_group="sg-12345678",
        subnets=tuple(each["SubnetId"] for each in aws.ec2.describe_subnets()["Subnets"]),
        start=0,
    )
