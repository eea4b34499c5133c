"""Fills the CloudFormation template with one cluster's names, as CloudFormation does."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml
from support.strict.evaluation import Policy

from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.base.names import Names, bucket

REGION, ACCOUNT = "us-east-1", "123456789012"
CHINA, GOVCLOUD = "cn-north-1", "us-gov-west-1"
PARTITIONS = {REGION: "aws", CHINA: "aws-cn", GOVCLOUD: "aws-us-gov"}
CLUSTER, RUN = "quokka", "numbat"
"""What the run is called is another thing than what the cluster is."""
BUCKET = bucket(ACCOUNT, REGION)


def arn(service: str, rest: str, region: str = REGION) -> str:
    return f"arn:aws:{service}:{region}:{ACCOUNT}:{rest}"


SERVICE_ROLE = arn("iam", f"role/spotelastic-cloudformation-{REGION}", region="")
KEY = arn("kms", "key/1234abcd-12ab-34cd-56ef-1234567890ab")
"""The user's own."""


def values(region: str) -> Mapping[str, str]:
    """What the template refers to."""
    its, partition = Names(CLUSTER), PARTITIONS[region]
    given = {
        "AWS::AccountId": ACCOUNT,
        "Bucket": bucket(ACCOUNT, region),
        "Cluster": CLUSTER,
        "Commands.Arn": arn("sqs", its.commands, region),
        "Key": KEY,
        "Queue.Arn": arn("sqs", its.queue, region),
        "Run": RUN,
        "ServiceRole": SERVICE_ROLE,
    }
    there = {name: text.replace("arn:aws:", f"arn:{partition}:") for name, text in given.items()}
    return there | {
        "AWS::Partition": partition,
        "AWS::Region": region,
        "AWS::URLSuffix": "amazonaws.com.cn" if region == CHINA else "amazonaws.com",
    }


@lru_cache
def template(region: str = REGION, file: str = "cluster.yaml") -> dict[str, Any]:
    """A function of CloudFormation's that is none of names stands for what it is given."""

    class Loader(yaml.SafeLoader):
        pass

    def construct(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            whole: list[Any] = loader.construct_sequence(node, deep=True)
            return whole
        text = str(node.value)
        if tag == "Sub":
            return re.sub(r"\$\{([\w:.]+)\}", lambda found: known.get(found[1], found[1]), text)
        return known.get(text, text)

    known = values(region)
    Loader.add_multi_constructor("!", construct)
    loaded: dict[str, Any] = yaml.load(infra(file).read_text(), Loader)
    return loaded


def resources(region: str = REGION, file: str = "cluster.yaml") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = template(region, file)["Resources"]
    return found


def policies(role: str, region: str = REGION) -> list[Policy]:
    """All that the role has, e.g. "ControlRole", but for the user's own folders.

    With what it has for the user's own key, where there is one.
    """
    properties = resources(region)[role]["Properties"]
    assert "ManagedPolicyArns" not in properties, "AWS's own policies are not in the template"
    its = [each[1] if isinstance(each, list) else each for each in properties["Policies"]]
    return [each["PolicyDocument"] for each in its]


def chosen(value: Any, region: str) -> Any:
    """What an `!If` of a comparison stands for."""
    condition, when, otherwise = value
    left, right = template(region)["Conditions"][condition]
    return when if left == right else otherwise
