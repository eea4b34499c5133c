"""What `up` asks an account before it makes anything: quotas, prices, roles, permissions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.aws.cluster_requests import job, request
from support.clusters.local_cloud import Laptop, environment, running_cloud

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.clusters import lifecycle
from spotelastic.aws.compute.prices import shipped_table
from spotelastic.aws.planning import dry_run
from spotelastic.aws.planning.plan import plan_of
from spotelastic.aws.planning.survey import Survey, survey
from spotelastic.aws.planning.type_selection import Requirement
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError
from spotelastic.local import cloud
from spotelastic.model.job import AccountDemands, Capacity, JobSpec, Settings

G_SPOT, G_ON_DEMAND, STANDARD = "L-3819A6DF", "L-DB2E81BA", "L-1216C47A"


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    with (
        running_cloud(tmp_path_factory.mktemp("home")) as info,
        environment(**cloud.environment(info)),
    ):
        yield Laptop(info)


@pytest.fixture
def aws(laptop: Laptop) -> Iterator[Aws]:
    yield Aws(laptop.info.region)
    for code in (G_SPOT, G_ON_DEMAND, STANDARD):
        laptop.faults.set_quota(code, 1000)


def asked(aws: Aws, *types: str, minimum: int = 2, maximum: int = 8) -> Survey:
    return survey(aws, wanted(*types, minimum=minimum, maximum=maximum))


def wanted(*types: str, minimum: int = 2, maximum: int = 8, **more: Any) -> JobSpec:
    return job("demo", settings=Settings(minimum, maximum), instance_types=types, **more)


def test_without_a_type_the_cheapest_gpu_in_quota_is_taken(laptop: Laptop, aws: Aws) -> None:
    for zone in laptop.info.zones:
        laptop.faults.set_spot_price("g5.xlarge", zone, 0.01)
        laptop.faults.set_spot_price("p4d.24xlarge", zone, 0.02)
    found = asked(aws)
    assert (found.types[0].name, found.price) == ("g5.xlarge", 0.01)
    laptop.faults.set_quota(G_SPOT, 4)
    found = asked(aws)
    assert found.types[0].name == "p4d.24xlarge"
    assert len(found.zones) > 3, "all that offer it, not those of the control nodes only"


def test_nodes_on_demand_count_against_a_quota_of_their_own(laptop: Laptop, aws: Aws) -> None:
    laptop.faults.set_quota(G_ON_DEMAND, 4)
    fallback = Capacity("fallback")
    found = survey(aws, wanted("g5.xlarge", capacity=fallback))
    (told,) = found.warnings
    assert told.startswith("--on-demand: quota allows 1 of 2 on-demand g5.xlarge (")
    assert survey(aws, wanted("g5.xlarge", minimum=1, capacity=fallback)).warnings == ()


def test_an_account_without_spot_may_buy_what_min_needs_on_demand(laptop: Laptop, aws: Aws) -> None:
    laptop.faults.set_quota(G_SPOT, 0)
    laptop.faults.set_quota(G_ON_DEMAND, 64)
    wish = wanted("g5.xlarge", capacity=Capacity("fallback"))
    (told,) = survey(aws, wish).warnings
    assert told.startswith("quota allows 0 of 8 spot g5.xlarge (G and VT: 0 vCPUs, 4 each); ask")
    based = wanted("g5.xlarge", maximum=2, capacity=Capacity(base=2))
    assert survey(aws, based).warnings == (), "no spot is asked for"
    assert survey(aws, replace(wish, instance_types=()), Requirement(1, int(20e9))).options
    laptop.faults.set_quota(G_ON_DEMAND, 4)
    both = r"--min 2: quota allows 0 of 8 spot .*; and quota allows 1 of 2 on-demand g5\.xlarge"
    with pytest.raises(EnvironmentFailure, match=both):
        survey(aws, wish)
    laptop.faults.set_quota(G_SPOT, 1000)
    with pytest.raises(EnvironmentFailure, match="--min 2: quota allows 1 of 2 on-demand"):
        survey(aws, based)


def test_nodes_of_a_base_are_priced_as_on_demand(laptop: Laptop, aws: Aws) -> None:
    for zone in laptop.info.zones:
        laptop.faults.set_spot_price("g5.xlarge", zone, 0.3)
    laptop.faults.set_on_demand_price("g5.xlarge", 1.0)

    def workers(low: int, high: int, base: int) -> list[tuple[int, int, float, str]]:
        asked = wanted("g5.xlarge", minimum=low, maximum=high, capacity=Capacity(base=base))
        lines = survey(aws, asked).estimate.lines
        found = [line for line in lines if line.what == "worker, g5.xlarge"]
        return [(line.low, line.high, line.usd, line.note) for line in found]

    assert workers(2, 8, 0) == [(2, 8, 0.3, "")]
    assert workers(2, 8, 3) == [(0, 5, 0.3, ""), (2, 3, 1.0, "on demand")]
    assert workers(2, 2, 2) == [(2, 2, 1.0, "on demand")]


def test_by_requirement_the_cheapest_kind_in_quota_is_taken_and_the_others_are_told(
    laptop: Laptop, aws: Aws
) -> None:
    for zone in laptop.info.zones:
        laptop.faults.set_spot_price("p4d.24xlarge", zone, 6.0)
        laptop.faults.set_spot_price("p4de.24xlarge", zone, 7.0)
        laptop.faults.set_spot_price("g6e.48xlarge", zone, 5.0)
    required = Requirement(8, int(40e9))
    laptop.faults.set_quota(G_SPOT, 191)
    found = survey(aws, wanted(), required)
    assert [kind.name for kind in found.types] == ["p4d.24xlarge"]
    assert {kind.gpus for option in found.options for kind in option.types} == {8}
    refused = {option.types[0].name: option.refusal for option in found.options if option.refusal}
    assert "quota allows 0 of 2 spot g6e.48xlarge" in refused["g6e.48xlarge"]
    laptop.faults.set_quota(G_SPOT, 1000)
    assert survey(aws, wanted(), required).types[0].name == "g6e.48xlarge"


def test_a_cluster_that_has_its_types_is_held_to_what_is_required(aws: Aws) -> None:
    its = wanted("g5.xlarge")
    assert not survey(aws, its, Requirement(1, int(24e9))).options
    with pytest.raises(UsageError, match=r"--gpu-memory 40GB: the cluster has g5\.xlarge with 1"):
        survey(aws, its, Requirement(1, int(40e9)))


def test_types_with_several_network_cards_cost_a_nat_gateway(laptop: Laptop, aws: Aws) -> None:
    def gateways(type: str) -> list[int]:
        lines = asked(aws, type).estimate.lines
        return [line.high for line in lines if line.what == "NAT gateway"]

    assert gateways("p4d.24xlarge") == [1]
    assert gateways("g5.xlarge") == []


def test_on_demand_prices_are_those_that_the_pricing_api_has_today(
    laptop: Laptop, aws: Aws
) -> None:
    laptop.faults.set_on_demand_price("t3.small", 0.5)
    found = asked(aws, "g5.xlarge")
    (control,) = [line for line in found.estimate.lines if "control node" in line.what]
    assert control.usd == 0.5
    assert found.prices_of > shipped_table().date


def test_a_quota_below_max_is_a_warning_with_the_command_that_asks_for_more(
    laptop: Laptop, aws: Aws
) -> None:
    laptop.faults.set_quota(G_SPOT, 12)
    (warning,) = asked(aws, "g5.xlarge").warnings
    assert warning.startswith("quota allows 3 of 8 spot g5.xlarge (G and VT: 12 vCPUs, 4 each)")
    assert warning.endswith(f"--quota-code {G_SPOT} --desired-value 32")


def test_instances_of_others_use_the_quota_up(laptop: Laptop, aws: Aws) -> None:
    laptop.faults.set_quota(G_SPOT, 16)
    laptop.make_network()
    laptop.make_group("others", laptop.make_template("others"), 2)
    try:
        laptop.in_service("others", 2)
        (warning,) = asked(aws, "g5.xlarge").warnings
        assert "quota allows 2 of 8 spot g5.xlarge (G and VT: 16 vCPUs, 8 in use" in warning
    finally:
        laptop.delete_group("others")


@pytest.mark.parametrize(
    ("code", "vcpus", "types", "message"),
    [
        (
            G_SPOT,
            0,
            ("g5.xlarge",),
            "too few nodes for --min 2: quota allows 0 of 8 spot g5.xlarge",
        ),
        (
            G_SPOT,
            4,
            ("g5.xlarge",),
            "too few nodes for --min 2: quota allows 1 of 8 spot g5.xlarge",
        ),
        (STANDARD, 5, ("g5.xlarge",), "too few control nodes: quota allows 2 of 3"),
    ],
)
def test_a_quota_that_is_too_small_is_refused(
    laptop: Laptop, aws: Aws, code: str, vcpus: int, types: tuple[str, ...], message: str
) -> None:
    laptop.faults.set_quota(code, vcpus)
    with pytest.raises(EnvironmentFailure, match=message) as caught:
        asked(aws, *types)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("types", "kind", "message"),
    [
        (("g5.xlage",), UsageError, "us-east-1 has no such type"),
        (("g5.xlarge", "g5.12xlarge"), UsageError, "gpus 1 and 4"),
        (("g5.xlarge", "g6.xlarge"), UsageError, "gpu A10G and L4"),
        (("m5.large", "m6g.large"), UsageError, "m6g.large: the workers' image is for x86_64"),
        (
            ("p3dn.24xlarge",),
            UsageError,
            "NVIDIA's open driver supports Turing and later, not V100",
        ),
    ],
)
def test_types_that_cannot_be_are_named(
    aws: Aws, types: tuple[str, ...], kind: type[SpotelasticError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        asked(aws, *types)


def test_a_container_needs_types_whose_image_has_docker(aws: Aws) -> None:
    wish = wanted("m5.large", container="team/torch:2.9")
    with pytest.raises(UsageError, match=r"--image team/torch:2\.9: nodes of m5\.large have no"):
        survey(aws, wish)
    assert survey(aws, replace(wish, instance_types=("g5.xlarge",))).types[0].gpus


def test_workers_may_be_in_fewer_zones_than_the_control_nodes(aws: Aws) -> None:
    found = asked(aws, "p4de.24xlarge").zones
    assert 0 < len(found) < 3


def test_other_types_must_fit_those_that_the_cluster_has(aws: Aws) -> None:
    wish = wanted("g5.2xlarge")
    assert survey(aws, wish, known=wanted("g5.xlarge")).types[0].name == "g5.2xlarge"
    with pytest.raises(UsageError, match=r"g5\.12xlarge and g5\.2xlarge must not share a job"):
        survey(aws, wish, known=wanted("g5.12xlarge"))


def test_unlike_types_are_taken_by_what_a_step_costs_where_batches_are_dealt_out(
    laptop: Laptop, aws: Aws
) -> None:
    for zone in laptop.info.zones:
        laptop.faults.set_spot_price("g5.xlarge", zone, 0.4)
        laptop.faults.set_spot_price("g6e.xlarge", zone, 0.9)
    wish = wanted("g5.xlarge", "g6e.xlarge")
    with pytest.raises(UsageError, match=r"g5\.xlarge and g6e\.xlarge must not share a job: gpu"):
        survey(aws, wish)
    found = survey(aws, replace(wish, virtual_ranks=True))
    assert [kind.name for kind in found.types] == ["g6e.xlarge", "g5.xlarge"]
    assert found.speeds["g6e.xlarge"] == 1.0 > found.speeds["g5.xlarge"]
    workers = found.estimate.lines[0]
    assert workers.what == "worker, g6e.xlarge", "the most that it may cost"
    assert found.ranking[0].usd == found.price < workers.usd
    exact = replace(wish.settings, exact=True)
    with pytest.raises(UsageError, match="must not share a job"):
        survey(aws, replace(wish, virtual_ranks=True, settings=exact))


def test_roles_that_aws_needs_are_made_once(laptop: Laptop, aws: Aws) -> None:
    dry_run.ensure_service_roles(aws)
    dry_run.ensure_service_roles(aws)
    made = {role["RoleName"] for role in laptop.client("iam").list_roles()["Roles"]}
    assert made >= set(dry_run.SERVICE_ROLES)


def test_a_rehearsal_makes_nothing(laptop: Laptop, aws: Aws) -> None:
    ec2 = laptop.ec2

    def there() -> list[object]:
        return [
            ec2.describe_instances()["Reservations"],
            ec2.describe_internet_gateways()["InternetGateways"],
            ec2.describe_launch_templates()["LaunchTemplates"],
            ec2.describe_security_groups()["SecurityGroups"],
            ec2.describe_volumes()["Volumes"],
            ec2.describe_vpcs()["Vpcs"],
        ]

    before = there()
    demands = AccountDemands({"Team": "vision"})
    wish = request("quokka", 2, demands=demands, capacity=Capacity(on_demand="fallback"))
    plan = plan_of(wish, aws, None)
    launches = list(lifecycle.rehearsals(wish, plan))
    assert [each.what for each in launches] == [
        "start spot instances of c5.large",
        "start on-demand instances of c5.large",
        "start control nodes (t3.small)",
    ]
    zone = plan.worker_zones[0]
    dry_run.dry_run(aws, launches, demands, block=plan.parameters["Cidr"], zone=zone)
    assert there() == before


@pytest.mark.parametrize(
    ("code", "message", "types", "advice"),
    [
        ("PendingVerification", "Your request is being verified.", (), "run this again then"),
        ("Blocked", "This account is blocked.", ("t3.small",), "ask AWS Support"),
        ("Unsupported", "It is not supported.", ("c5a.large",), "--instance-types"),
        ("SomethingOfTheFuture", "No.", (), "prepare-an-account"),
    ],
)
def test_whatever_ec2_says_of_a_launch_to_come_keeps_all_from_being_made(
    laptop: Laptop, aws: Aws, code: str, message: str, types: tuple[str, ...], advice: str
) -> None:
    buckets = laptop.client("s3").list_buckets()["Buckets"]
    wish = request("refused", 2, instance_types=("c5.large", "c5a.large"))
    laptop.faults.refuse_launches(code, message, *types)
    try:
        with pytest.raises(EnvironmentFailure) as refused:
            lifecycle.create(wish, print, aws)
    finally:
        laptop.faults.refuse_launches("", "")
    told = str(refused.value)
    assert f"({code}: {message})" in told and advice in told and "--force" in told
    for kind in types or ("c5.large", "c5a.large", "t3.small"):
        assert kind in told
    assert laptop.client("s3").list_buckets()["Buckets"] == buckets
    assert not laptop.client("cloudformation").list_stacks()["StackSummaries"]


def test_quotas_that_allow_too_little_are_told_as_one_list(laptop: Laptop, aws: Aws) -> None:
    laptop.faults.set_quota(G_SPOT, 4)
    laptop.faults.set_quota(STANDARD, 5)
    with pytest.raises(EnvironmentFailure) as refused:
        asked(aws, "g5.xlarge")
    first, workers, control = str(refused.value).splitlines()
    assert first == "quotas allow too little:"
    assert workers.startswith("- too few nodes for --min 2: quota allows 1 of 8 spot g5.xlarge")
    assert workers.endswith(f"--quota-code {G_SPOT} --desired-value 32")
    assert control.startswith("- too few control nodes: quota allows 2 of 3 on-demand t3.small")
    assert "; take one control node, --control 1, without which training goes on, or ask" in control
    assert control.endswith(f"--quota-code {STANDARD} --desired-value 6")


def test_a_disk_key_that_auto_scaling_may_not_use_is_an_obstacle(laptop: Laptop, aws: Aws) -> None:
    key = laptop.client("kms").create_key()["KeyMetadata"]["Arn"]
    laptop.faults.set_disk_key(key, granted=False)
    try:
        (obstacle,) = asked(aws, "c5.large").obstacles
        assert key in obstacle and "every instance would end at its launch" in obstacle
        role = "arn:aws:iam::123456789012:role/AWSServiceRoleForAutoScaling"
        laptop.client("kms").create_grant(
            KeyId=key, GranteePrincipal=role, Operations=["CreateGrant", "Decrypt"]
        )
        assert asked(aws, "c5.large").obstacles == ()
    finally:
        laptop.faults.set_disk_key("alias/aws/ebs", granted=True)


def test_a_bucket_that_encrypts_with_a_key_that_nodes_may_not_use_is_an_obstacle(
    laptop: Laptop, aws: Aws
) -> None:
    s3, kms, bucket = laptop.client("s3"), laptop.client("kms"), "of-the-company"
    s3.create_bucket(Bucket=bucket)
    key = kms.create_key()["KeyMetadata"]
    wish = wanted("c5.large")
    assert survey(aws, wish, bucket=bucket).obstacles == ()
    for named in (key["Arn"], key["KeyId"]):
        default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": named}
        rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": default}]}
        s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration=rules)
        (obstacle,) = survey(aws, wish, bucket=bucket).obstacles
        assert bucket in obstacle and "--kms-key" in obstacle
        (obstacle,) = survey(aws, wish, bucket=bucket, key=key["Arn"]).obstacles
        assert "disks and logs will be encrypted with" in obstacle, "of its own policy"
