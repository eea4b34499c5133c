"""Fills the CloudFormation template with one cluster's names, as CloudFormation does."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import yaml

from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.base.names import Names, bucket
from spotelastic.local.iam.evaluation import Policy

REGION, ACCOUNT = "us-east-1", "123456789012"
CLUSTER, RUN = "quokka", "numbat"
"""What the run is called is another thing than what the cluster is."""
BUCKET = bucket(ACCOUNT, REGION)


def arn(service: str, rest: str, region: str = REGION) -> str:
    return f"arn:aws:{service}:{region}:{ACCOUNT}:{rest}"


SERVICE_ROLE = arn("iam", f"role/spotelastic-cloudformation-{REGION}", region="")
_VALUES: Mapping[str, str] = {
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::Region": REGION,
    "Bucket": BUCKET,
    "Cluster": CLUSTER,
    "Commands.Arn": arn("sqs", Names(CLUSTER).commands),
    "Queue.Arn": arn("sqs", Names(CLUSTER).queue),
    "Run": RUN,
    "ServiceRole": SERVICE_ROLE,
}


@lru_cache
def template(file: str = "cluster.yaml") -> dict[str, Any]:
    """A function of CloudFormation's that is none of names stands for what it is given."""
    loaded: dict[str, Any] = yaml.load(infra(file).read_text(), _Loader)
    return loaded


def resources(file: str = "cluster.yaml") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = template(file)["Resources"]
    return found


def policies(role: str) -> list[Policy]:
    """All that the role has, e.g. "ControlRole", but for the user's own folders."""
    properties = resources()[role]["Properties"]
    assert "ManagedPolicyArns" not in properties, "AWS's own policies are not in the template"
    return [each["PolicyDocument"] for each in properties["Policies"]]


class _Loader(yaml.SafeLoader):
    pass


def _construct(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        whole: list[Any] = loader.construct_sequence(node, deep=True)  # type: ignore[arg-type]
        return whole
    text = str(node.value)
    if tag == "Sub":
        return re.sub(r"\$\{([\w:.]+)\}", lambda found: _VALUES.get(found[1], found[1]), text)
    return _VALUES.get(text, text)


_Loader.add_multi_constructor("!", _construct)
