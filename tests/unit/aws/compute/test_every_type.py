"""The launch template of every instance type that AWS has, held against the type's own limits."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.aws.instance_types import DESCRIBED, SERVED, TYPES, interfaces_of, template

from spotelastic.aws.compute.instance_types import (
    InstanceType,
    check_alike,
    check_spot,
    describe_mismatch,
    parse_type,
)
from spotelastic.aws.compute.network_interfaces import (
    EFA_ONLY,
    ORDINARY,
    Interface,
    NetworkCard,
    NetworkCards,
    choose_interfaces,
)
from spotelastic.aws.compute.prices import shipped_table
from spotelastic.client.bringing_up.list_prices import SEVERAL_CARDS
from spotelastic.errors import UsageError
from spotelastic.model.job import Capacity


def broken_limits(data: Mapping[str, Any], item: Mapping[str, Any]) -> list[str]:
    """Which limits of the type the template breaks, as EC2 would find when it launches one."""
    network = item["NetworkInfo"]
    cards = {card["NetworkCardIndex"]: card for card in network["NetworkCards"]}
    told = []
    wanted = data.get("NetworkInterfaces", [])
    if len(wanted) > network["MaximumNetworkInterfaces"]:
        told.append(f"{len(wanted)} interfaces")
    for index, count in Counter(each["NetworkCardIndex"] for each in wanted).items():
        if index not in cards or count > cards[index]["MaximumNetworkInterfaces"]:
            told.append(f"{count} interfaces on card {index}")
    places = Counter((each["NetworkCardIndex"], each["DeviceIndex"]) for each in wanted)
    told += [f"{place} twice" for place, count in places.items() if count > 1]
    for each in wanted:
        if each["InterfaceType"] not in cards[each["NetworkCardIndex"]]["InterfaceTypes"]:
            told.append(f"{each['InterfaceType']} on card {each['NetworkCardIndex']}")
    efa = [each for each in wanted if each["InterfaceType"] != "interface"]
    if len(efa) > network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0):
        told.append(f"{len(efa)} for EFA")
    if wanted and (wanted[0]["NetworkCardIndex"], wanted[0]["DeviceIndex"]) != (0, 0):
        told.append("no primary interface")
    if wanted and wanted[0]["InterfaceType"] == "efa-only":
        told.append("a primary interface without an address")
    if len(wanted) > 1 and any("AssociatePublicIpAddress" in each for each in wanted):
        told.append("a public address with several interfaces")
    return told


def test_what_has_several_network_cards_is_known_without_an_account() -> None:
    """Such types get no public address, and a NAT gateway: the plan with list prices says so."""
    listed = [name for name in shipped_table().usd_per_hour if name in TYPES]
    found = {name for name in listed if len(interfaces_of(name)) > 1}
    assert found == SEVERAL_CARDS & {*listed}


def test_the_template_of_every_type_keeps_the_types_own_limits() -> None:
    assert len(SERVED) > 900
    broken = {name: broken_limits(template(name), DESCRIBED[name]) for name in SERVED}
    assert {name: told for name, told in broken.items() if told} == {}


def test_every_card_that_offers_efa_is_used_as_far_as_the_type_allows() -> None:
    for name in SERVED:
        network = DESCRIBED[name]["NetworkInfo"]
        most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
        offered = sum("efa-only" in card["InterfaceTypes"] for card in network["NetworkCards"])
        used = sum(each.kind != "interface" for each in interfaces_of(name))
        assert used == min(most, offered), name


def test_an_instance_has_one_address_and_a_single_efa_card_leaves_it_a_public_one() -> None:
    for name in SERVED:
        found = interfaces_of(name)
        assert [each.kind != EFA_ONLY for each in found] == [True] + [False] * (len(found) - 1)
        if len(DESCRIBED[name]["NetworkInfo"]["NetworkCards"]) == 1:
            assert len(found) == 1, name


PRIMARY = Interface(0, 0, "interface")


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["g5.xlarge"], ORDINARY),
        (["g5.12xlarge"], (Interface(0, 0, "efa"),)),
        (["g6e.24xlarge"], (PRIMARY, Interface(0, 1, "efa-only"), Interface(1, 0, "efa-only"))),
        (["g6e.12xlarge", "g6e.24xlarge"], (Interface(0, 0, "efa"),)),
        (["g6.4xlarge", "g6.8xlarge"], ORDINARY),
        (["p6-b300.48xlarge"], (PRIMARY, *(Interface(n, 0, "efa-only") for n in range(1, 17)))),
        (["hpc6id.32xlarge"], (Interface(0, 0, "efa"), Interface(1, 0, "efa-only"))),
        (["i7ie.48xlarge"], (Interface(0, 0, "efa"),)),
    ],
)
def test_interfaces_are_those_that_all_types_can_have(
    names: list[str], found: tuple[Interface, ...]
) -> None:
    assert interfaces_of(*names) == found
    for name in names:
        assert not broken_limits(template(*names), DESCRIBED[name])


def test_efa_on_a_card_that_only_one_type_has_is_not_used() -> None:
    one = NetworkCards((NetworkCard(0, False, 2), NetworkCard(1, True, 2)), 1)
    other = NetworkCards((NetworkCard(0, True, 2),), 1)
    assert choose_interfaces([one, other]) == ORDINARY
    assert choose_interfaces([one]) == (PRIMARY, Interface(1, 0, "efa-only"))


def test_a_public_address_is_only_for_a_single_interface() -> None:
    assert template("g5.12xlarge")["NetworkInterfaces"][0]["AssociatePublicIpAddress"]
    given = template("g5.12xlarge", public=None)["NetworkInterfaces"]
    assert "AssociatePublicIpAddress" not in given[0]
    assert template("g5.xlarge")["SecurityGroupIds"] == ["sg-1"]


# -- what would be paid for, and not used ----------------------------------------------------------


def accelerated(item: Mapping[str, Any]) -> bool:
    """Whether people pay for an accelerator, by all that is known of a type."""
    described = {"GpuInfo", "NeuronInfo", "FpgaInfo", "InferenceAcceleratorInfo"} & item.keys()
    names = ("g", "p", "trn", "inf", "dl", "vt", "f")
    return bool(described or "MediaAcceleratorInfo" in item) or any(
        item["InstanceType"].startswith(name) and item["InstanceType"][len(name)].isdigit()
        for name in names
    )


def test_a_type_with_an_accelerator_is_used_with_all_of_its_gpus_or_refused() -> None:
    refused = set()
    for name, item in DESCRIBED.items():
        if not accelerated(item):
            assert TYPES[name].gpus == 0, name
            continue
        kind, gpus = TYPES[name], item.get("GpuInfo", {}).get("Gpus", [])
        if why := describe_mismatch(kind):
            assert "use g4dn, g5 or g6" in why, name
            refused.add(name.partition(".")[0])
        else:
            assert kind.gpus == kind.workers == sum(gpu["Count"] for gpu in gpus) > 0, name
            assert {gpu["Manufacturer"] for gpu in gpus} == {"NVIDIA"}, name
            assert {gpu["GpuPartitionSize"] for gpu in gpus} == {1.0}, name
            assert kind.gpu_memory_mib * kind.gpus == item["GpuInfo"]["TotalGpuMemoryInMiB"], name
    assert refused >= {"trn1", "trn2", "trn2u", "inf1", "inf2", "dl2q", "f2", "vt1", "g6f", "gr6f"}
    assert not refused & {"g4dn", "g5", "g6", "g6e", "gr6", "p4d", "p4de", "p5", "p6-b300"}


def test_an_accelerator_that_ec2_does_not_describe_is_known_by_the_name() -> None:
    assert "GpuInfo" not in DESCRIBED["trn2u.48xlarge"]
    assert "EC2 describes no GPU of it" in describe_mismatch(TYPES["trn2u.48xlarge"])
    coming = {**DESCRIBED["c5.large"], "InstanceType": "g9.xlarge"}
    assert "EC2 describes no GPU of it" in describe_mismatch(parse_type(coming))


def test_every_type_that_is_served_has_the_architecture_the_memory_and_a_root_disk() -> None:
    for name, item in DESCRIBED.items():
        architectures = item["ProcessorInfo"]["SupportedArchitectures"]
        if "x86_64" not in architectures or item["MemoryInfo"]["SizeInMiB"] < 2048:
            assert name not in SERVED
    for name in SERVED:
        item = DESCRIBED[name]
        assert "hvm" in item["SupportedVirtualizationTypes"]
        assert "ebs" in item["SupportedRootDeviceTypes"]
        (disk,) = template(name)["BlockDeviceMappings"]
        assert not disk["Ebs"]["Encrypted"] or item["EbsInfo"]["EncryptionSupport"] == "supported"
    assert describe_mismatch(TYPES["t3.nano"]) == "PyTorch needs 2048 MiB of memory, and it has 512"


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("p4d.24xlarge", "p4de.24xlarge", "GPU memory in MiB 40960 and 81920"),
        ("g6.xlarge", "g6.12xlarge", "gpus 1 and 4"),
        ("g6f.large", "g6f.2xlarge", "GPU memory in MiB 2861 and 5722"),
        ("g6.xlarge", "gr6f.4xlarge", "GPU memory"),
    ],
)
def test_gpus_of_different_memory_are_not_alike(one: str, other: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"{one} and {other} must not share a job: {why}"):
        check_alike([TYPES[one], TYPES[other]])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("g5.xlarge", "g6e.xlarge"),
        ("g6.xlarge", "g6.12xlarge"),
        ("p4d.24xlarge", "p4de.24xlarge"),
        ("c5.large", "m6i.4xlarge"),
    ],
)
def test_unlike_types_share_a_job_that_deals_each_batch_out(one: str, other: str) -> None:
    assert check_alike([TYPES[one], TYPES[other]], unlike=True) == TYPES[one]


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("m5.large", "g5.xlarge", "processors CPUs and GPUs"),
        ("g6.xlarge", "g6f.large", "part of a GPU 1.0 and 0.125"),
        ("c5.large", "c6g.large", "architecture x86_64 and arm64"),
    ],
)
def test_but_not_any(one: str, other: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"{one} and {other} must not share a job: {why}"):
        check_alike([TYPES[one], TYPES[other]], unlike=True)


def test_a_type_that_is_never_spot_needs_nodes_that_are_bought_on_demand() -> None:
    never: InstanceType = TYPES["hpc7a.96xlarge"]
    with pytest.raises(UsageError, match=r"hpc7a.96xlarge: AWS does not sell it as spot"):
        check_spot([never], Capacity(), 4)
    check_spot([never], Capacity(base=4), 4)
    check_spot([never], Capacity(on_demand="fallback"), 4)
    check_spot([never, replace(never, spot=True)], Capacity(), 4)
