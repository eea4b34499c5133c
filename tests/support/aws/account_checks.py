"""What can be found out about an account without making anything: stage 0 of `make test-aws`.

Every check asks AWS itself. Change sets are made and deleted again; they make no resource.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from botocore.config import Config
from support.aws.cluster_requests import job, request
from support.aws.policies import additions, boundary_with_more, deletion, shipped, watching
from support.aws.role_calls import ROLES, calls
from support.aws.run_evidence import Evidence
from support.aws.template import policies, template
from support.strict.evaluation import AccessRequest

from spotelastic.aws.base.clients import Aws, Rejected, calling
from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.base.names import SHARED_NETWORK, Names
from spotelastic.aws.clusters.lifecycle import rehearsals
from spotelastic.aws.compute.images import AMAZON_LINUX, DEEP_LEARNING, first_image
from spotelastic.aws.compute.quotas import FAMILIES
from spotelastic.aws.compute.reservations import offered
from spotelastic.aws.network import shared_network
from spotelastic.aws.planning import disk_key, dry_run, network_quotas, public_access
from spotelastic.aws.planning.network_quotas import RULES_EACH
from spotelastic.aws.planning.plan import plan_of
from spotelastic.local.base import eventbridge_messages as events
from spotelastic.model.job import Capacity

NAME = "first-run-never-made"
POOL = "10.64.0.0/12"
TYPES = (
    *("c5.large", "g4dn.xlarge", "g5.12xlarge", "g6e.24xlarge"),
    *("p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge"),
)
NONE = frozenset[str]()
PERMITTED = {"DryRunOperation"}
"""What EC2 answers a dry run that it would carry out."""


def all_checks(
    aws: Aws,
    evidence: Evidence,
    lacking: frozenset[str] = NONE,
    types: Sequence[str] = TYPES,
) -> None:
    """Makes every check of stage 0. `lacking`: services that are not there to be asked."""
    who_is_asking(aws, evidence)
    policies_are_valid(aws, evidence, lacking)
    roles_may_do_what_they_are_for(aws, evidence)
    stacks_can_be_planned(aws, evidence)
    launches_would_be_carried_out(aws, evidence, types)
    images_are_there(aws, evidence)
    rules_match_events(aws, evidence, lacking)
    account_has_room(aws, evidence, types)


def client(aws: Aws, service: str, lacking: frozenset[str]) -> Any:
    """A client of a service that the product itself does not use."""
    if service in lacking:
        raise NotImplementedError(f"there is no {service} here")
    return aws.session.client(service, region_name=aws.region, config=Config(read_timeout=20.0))


def who_is_asking(aws: Aws, evidence: Evidence) -> None:
    with evidence.check("credentials"), calling("ask who this is"):
        evidence.fact("principal", aws.sts.get_caller_identity()["Arn"].rpartition(":")[2])
    evidence.fact("region", aws.region)
    evidence.fact(
        "service-linked roles", {role: _role(aws, role) for role in dry_run.SERVICE_ROLES}
    )


def _role(aws: Aws, role: str) -> str:
    """Whether the role is there; `up` makes one that is missing."""
    try:
        with calling(f"look for the role {role}"):
            return str(aws.iam.get_role(RoleName=role)["Role"]["CreateDate"])
    except Rejected as error:
        return error.code


def policies_are_valid(aws: Aws, evidence: Evidence, lacking: frozenset[str]) -> None:
    """By IAM Access Analyzer."""
    documents = {"laptop": shipped(), "additions": additions(), "watching": watching()}
    documents |= {"boundary": boundary_with_more(), "deletion": deletion()}
    for role in ROLES:
        documents |= {f"{role} {at}": each for at, each in enumerate(policies(role))}
    for name, document in documents.items():
        with evidence.check(f"policy {name} is valid"):
            found = client(aws, "accessanalyzer", lacking).validate_policy(
                policyDocument=json.dumps(document), policyType="IDENTITY_POLICY"
            )["findings"]
            evidence.fact(f"findings about policy {name}", found)
            assert [each for each in found if each["findingType"] == "ERROR"] == []


def roles_may_do_what_they_are_for(aws: Aws, evidence: Evidence) -> None:
    """The table of the unit tests, by AWS's own evaluation of policies."""
    for role in ROLES:
        its = [json.dumps(each) for each in policies(role)]
        with evidence.check(f"{role} by AWS's simulator"):
            refused = [
                f"{access.action} {access.resources[0].arn}"
                for access in calls(role)
                if _decision(aws, its, access) != "allowed"
            ]
            assert refused == []


def _decision(aws: Aws, its: list[str], access: AccessRequest) -> str:
    (thing,) = access.resources
    context = {
        **access.context,
        **{f"aws:ResourceTag/{key}": value for key, value in thing.tags.items()},
    }
    answer = aws.iam.simulate_custom_policy(
        PolicyInputList=its,
        ActionNames=[access.action],
        ResourceArns=[thing.arn],
        ContextEntries=[
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for key, value in context.items()
        ],
    )
    return str(answer["EvaluationResults"][0]["EvalDecision"])


def stacks_can_be_planned(aws: Aws, evidence: Evidence) -> None:
    """By change sets, which CloudFormation checks as it would a stack."""
    with evidence.check("change set of the shared network"):
        planned = shared_network.planned(aws, POOL, ())
        change_set(aws, SHARED_NETWORK, "network.yaml", shared_network.stack_parameters(planned))
    for what, kind in (("one network card", "c5.large"), ("several cards", "p4d.24xlarge")):
        with evidence.check(f"change set of a cluster, {what}"):
            plan = plan_of(request(NAME, instance_types=(kind,)), aws, None)
            wanted = {**plan.parameters, "ServiceRole": f"arn:aws:iam::{aws.account}:role/none"}
            change_set(aws, Names(NAME).stack, "cluster.yaml", wanted)


def change_set(aws: Aws, stack: str, file: str, wanted: Mapping[str, str]) -> None:
    """Makes a change set of a new stack, waits for it, and deletes both."""
    made = {"StackName": f"{stack}-check", "ChangeSetName": "check"}
    body = infra(file).read_text()
    known = template(file=file)["Parameters"]
    pairs = [
        {"ParameterKey": key, "ParameterValue": value}
        for key, value in wanted.items()
        if key in known
    ]
    try:
        aws.cloudformation.create_change_set(
            **made,
            ChangeSetType="CREATE",
            TemplateBody=body,
            Parameters=pairs,
            Capabilities=["CAPABILITY_IAM"],
        )
        aws.cloudformation.get_waiter("change_set_create_complete").wait(
            **made, WaiterConfig={"Delay": 3, "MaxAttempts": 40}
        )
    finally:
        aws.cloudformation.delete_change_set(**made)
        aws.cloudformation.delete_stack(StackName=made["StackName"])


def launches_would_be_carried_out(aws: Aws, evidence: Evidence, types: Sequence[str]) -> None:
    """By dry runs with all of the launch template's data."""
    with evidence.check("a subnet to ask about"):
        subnets = aws.ec2.describe_subnets(MaxResults=5)["Subnets"]
        evidence.fact("subnets", len(subnets))
    for kind in types:
        for spot in (True, False):
            how = "spot" if spot else "on demand"
            with evidence.check(f"launch {kind} {how}"):
                answer = _launch(aws, kind, spot=spot)
                evidence.fact(f"launch {kind} {how}", answer)
                assert answer.partition(":")[0] in PERMITTED, answer


def _launch(aws: Aws, kind: str, *, spot: bool) -> str:
    wanted = request(NAME, instance_types=(kind,), capacity=Capacity(on_demand="fallback"))
    (launch,) = (
        each
        for each in rehearsals(wanted, plan_of(wanted, aws, None))
        if each.spot == spot and kind in each.what
    )
    subnet = next(
        (each["SubnetId"] for each in aws.ec2.describe_subnets(MaxResults=5)["Subnets"]), ""
    )
    call = dry_run.run_instances(launch, subnet)
    try:
        with calling("try a launch"):
            aws.ec2.run_instances(**call, MinCount=1, MaxCount=1, DryRun=True)
    except Rejected as error:
        return f"{error.code}: {error}"
    return "DryRunOperation: not even told"


def images_are_there(aws: Aws, evidence: Evidence) -> None:
    for name, parameters in {"Amazon Linux": (AMAZON_LINUX,), "GPUs": DEEP_LEARNING}.items():
        with evidence.check(f"image for {name}"):
            image = first_image(aws, *parameters)
            (found,) = aws.ec2.describe_images(ImageIds=[image])["Images"]
            disks = [each.get("Ebs", {}).get("VolumeSize") for each in found["BlockDeviceMappings"]]
            evidence.fact(
                f"image for {name}",
                {
                    "name": found["Name"],
                    "root": found["RootDeviceName"],
                    "disks_gib": disks,
                    "architecture": found["Architecture"],
                },
            )
            assert found["Architecture"] == "x86_64"


def rules_match_events(aws: Aws, evidence: Evidence, lacking: frozenset[str]) -> None:
    """Each rule of the template, and an event that it is for."""
    examples = {
        "InterruptionRule": events.of_instance(events.INTERRUPTION, aws.region, "i-1"),
        "RebalanceRule": events.of_instance(events.REBALANCE, aws.region, "i-1"),
        "StateRule": events.of_instance(events.STATE, aws.region, "i-1", state="terminated"),
    }
    for rule, event in examples.items():
        with evidence.check(f"{rule} matches its event"):
            pattern = template()["Resources"][rule]["Properties"]["EventPattern"]
            told = {
                "id": "1",
                "account": aws.account,
                "source": event.source,
                "time": "2026-01-01T00:00:00Z",
                "region": aws.region,
                "resources": list(event.resources),
                "detail-type": event.type,
                "detail": event.detail,
            }
            answer = client(aws, "events", lacking).test_event_pattern(
                EventPattern=json.dumps(pattern), Event=json.dumps(told)
            )
            assert answer["Result"]


def account_has_room(aws: Aws, evidence: Evidence, types: Sequence[str]) -> None:
    for family in FAMILIES:
        for how, code in (("spot", family.spot), ("on demand", family.on_demand)):
            with evidence.check(f"vCPU quota of {family.name} {how}"):
                answer = aws.quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
                evidence.fact(f"vCPUs of {family.name} {how}", answer["Quota"]["Value"])
    rooms = {"networks": (1, 0), "elastic addresses": (0, 1), "event rules": (0, 0, RULES_EACH)}
    for what, numbers in rooms.items():
        with evidence.check(f"room for {what}"):
            short = list(network_quotas.shortages(aws, *numbers))
            assert not short, short[0]
    with evidence.check("reservations of capacity"):
        found = offered(aws, job(NAME, instance_types=tuple(types)), ())
        evidence.fact("reservations of capacity", list(found))
    with evidence.check("key of disks"):
        evidence.fact("warnings about the key of disks", disk_key.look(aws))
    with evidence.check("VPC Block Public Access"):
        evidence.fact("VPC Block Public Access", public_access.mode(aws))
        public_access.check_own_network(public_access.mode(aws))
