"""Instances of the local cloud: what is theirs, what they cost, what they know of themselves."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import boto3
import pytest
from botocore.exceptions import ClientError
from support.clusters.local_cloud import Laptop, environment, until
from support.processes.patience import PATIENT

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.identity import from_imds
from spotelastic.aws.base.imds import Imds
from spotelastic.aws.compute.zone_ranking import Zones
from spotelastic.aws.provider.notices import ImdsNotices
from spotelastic.errors import Unavailable, UsageError
from spotelastic.local import cloud


def test_a_terminated_instance_has_no_process_no_memory_and_no_address(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    running = until(lambda: found if len(found := laptop.faults.processes(member)) == 2 else None)
    memory = Path("/dev/shm", f"spotelastic-{laptop.info.id}", member)
    assert memory.is_dir()
    laptop.delete_group(name)
    assert running is not None
    assert not any(Path(f"/proc/{process.pid}").exists() for process in running)
    assert not memory.exists()
    assert "PrivateIpAddress" not in laptop.instance(member)
    assert not laptop.ec2.describe_network_interfaces()["NetworkInterfaces"]


def test_one_process_of_an_instance_can_be_killed(laptop: Laptop, name: str, template: str) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    until(lambda: len(laptop.faults.processes(member)) == 2)
    killed = laptop.faults.kill_process(member, "sleep")
    until(lambda: killed not in [process.pid for process in laptop.faults.processes(member)])
    assert laptop.state(member) == "running"
    with pytest.raises(UsageError, match="runs no se-agent; it runs sleep"):
        laptop.faults.kill_process(member, "se-agent")


def test_a_volume_and_an_address_belong_to_one_instance_and_outlive_it(
    laptop: Laptop, name: str, template: str
) -> None:
    zone, subnet = laptop.info.zones[0], laptop.subnets[0]
    address = laptop.info.net.replace("0.0/16", "0.200")
    volume = laptop.ec2.create_volume(AvailabilityZone=zone, Size=1)["VolumeId"]
    interface = laptop.ec2.create_network_interface(SubnetId=subnet, PrivateIpAddress=address)
    eni = interface["NetworkInterface"]["NetworkInterfaceId"]
    with pytest.raises(ClientError, match="in use"):
        laptop.ec2.create_network_interface(SubnetId=subnet, PrivateIpAddress=address)
    laptop.make_group(name, template, 2, VPCZoneIdentifier=subnet)
    first, second = laptop.in_service(name, 2)

    def attach(instance: str) -> None:
        laptop.ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/sdf")
        laptop.ec2.attach_network_interface(
            NetworkInterfaceId=eni, InstanceId=instance, DeviceIndex=1
        )

    attach(first)
    with pytest.raises(ClientError, match="VolumeInUse"):
        attach(second)
    with pytest.raises(ClientError, match=r"InvalidNetworkInterface\.InUse"):
        laptop.ec2.attach_network_interface(
            NetworkInterfaceId=eni, InstanceId=second, DeviceIndex=1
        )
    folder = Path(laptop.info.folder, "instances", first, "volumes", volume)
    (folder / "kept").write_text("yes")
    laptop.faults.kill(first)
    until(lambda: laptop.state(first) == "terminated")
    attach(second)
    assert (folder.parents[2] / second / "volumes" / volume / "kept").read_text() == "yes"
    laptop.delete_group(name)
    laptop.ec2.delete_network_interface(NetworkInterfaceId=eni)
    laptop.ec2.delete_volume(VolumeId=volume)
    assert not laptop.ec2.describe_volumes()["Volumes"]


def test_an_instance_outside_the_loopback_network_is_refused(laptop: Laptop) -> None:
    subnet = laptop.ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])
    with pytest.raises(ClientError, match="not on this machine"):
        laptop.ec2.run_instances(
            ImageId="ami-12345678",
            MinCount=1,
            MaxCount=1,
            SubnetId=subnet["Subnets"][0]["SubnetId"],
        )


def test_spot_prices_can_be_set(laptop: Laptop) -> None:
    def price(zone: str) -> float:
        history = laptop.ec2.describe_spot_price_history(
            InstanceTypes=["g5.xlarge"], AvailabilityZone=zone
        )["SpotPriceHistory"]
        return float(history[0]["SpotPrice"])

    assert price("us-east-1a") == pytest.approx(1.006 * 0.3, abs=1e-3)
    laptop.faults.set_spot_price("g5.xlarge", "us-east-1b", 0.75)
    assert price("us-east-1b") == 0.75 and price("us-east-1a") == pytest.approx(0.3018)


def test_placement_scores_follow_capacity(laptop: Laptop) -> None:
    types = ["g6e.xlarge", "g6e.2xlarge", "g6e.4xlarge"]
    for type in types:
        laptop.faults.set_capacity(type, "us-east-1a", 0)
    with environment(**cloud.environment(laptop.info)):
        zones = Zones(Aws(laptop.info.region))
        scored = zones.offers(zones.of(laptop.subnets), types, 4)
        few = zones.offers(zones.named(laptop.info.zones), types[:2], 4)
    a, b, _ = scored
    assert (a.name, a.score) == ("us-east-1a", 1)
    assert (b.name, b.score) == ("us-east-1b", 9)
    assert b.usd == pytest.approx(1.861 * 0.3, abs=1e-3)
    assert b.subnets == laptop.subnets[1:2]
    assert few[0].score < few[1].score, "two types: told apart by how many nodes have low scores"
    assert [zone.id for zone in few][:2] == [a.id, b.id]


def test_only_one_of_many_conditional_puts_succeeds(laptop: Laptop) -> None:
    s3 = laptop.client("s3")
    s3.create_bucket(Bucket="conditional")

    def put(value: int) -> bool:
        try:
            s3.put_object(Bucket="conditional", Key="k", Body=bytes([value]), IfNoneMatch="*")
        except ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(16))) == 1


@pytest.fixture
def profile(laptop: Laptop) -> Iterator[str]:
    """An instance profile with a role."""
    iam = laptop.client("iam")
    trust = {"Version": "2012-10-17", "Statement": []}
    iam.create_role(RoleName="worker-role", AssumeRolePolicyDocument=json.dumps(trust))
    iam.create_instance_profile(InstanceProfileName="worker")
    iam.add_role_to_instance_profile(InstanceProfileName="worker", RoleName="worker-role")
    yield "worker"
    iam.remove_role_from_instance_profile(InstanceProfileName="worker", RoleName="worker-role")
    iam.delete_instance_profile(InstanceProfileName="worker")
    iam.delete_role(RoleName="worker-role")


def metadata_of(laptop: Laptop, instance: str) -> str:
    return f"http://{laptop.instance(instance)['PrivateIpAddress']}:{laptop.info.imds_port}"


def test_an_instance_learns_who_it_is_and_what_it_may_do(
    laptop: Laptop, name: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = laptop.make_template(
        name,
        IamInstanceProfile={"Name": profile},
        MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": "spotelastic:role", "Value": "worker"}]}
        ],
    )
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    url = metadata_of(laptop, member)
    identity = from_imds(url)
    assert (identity.instance, identity.zone, identity.spot) == (member, "us-east-1a", True)
    assert identity.tags["spotelastic:role"] == "worker"
    assert Imds(url, timeout=PATIENT).lifecycle_state() == "InService"

    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    session = boto3.Session(region_name=identity.region)
    caller = session.client("sts", endpoint_url=laptop.info.endpoint).get_caller_identity()
    assert caller["Arn"].endswith(f":assumed-role/worker-role/{member}")


def test_the_metadata_service_wants_a_token_and_goes_with_its_instance(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    url = metadata_of(laptop, member)
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{url}/latest/meta-data/instance-id", timeout=PATIENT)
    assert refused.value.code == 401
    imds = Imds(url, timeout=PATIENT)
    assert imds.get("instance-id") == member
    assert imds.tags() == {}  # not enabled in this template's metadata options
    assert imds.interruption() is None
    laptop.faults.interrupt(member, 60)
    told = imds.interruption()
    assert told is not None and told.action == "terminate"
    assert told.at == pytest.approx(time.time() + 60, abs=30)
    laptop.ec2.terminate_instances(InstanceIds=[member])
    until(lambda: laptop.state(member) == "terminated")
    with pytest.raises(Unavailable):
        Imds(url).get("instance-id")


def test_maintenance_is_announced_called_off_and_carried_out(
    laptop: Laptop, name: str, template: str
) -> None:
    laptop.make_group(name, template, 1)
    (member,) = laptop.in_service(name, 1)
    until(lambda: len(laptop.faults.processes(member)) == 2)
    before = {process.pid for process in laptop.faults.processes(member)}
    source = ImdsNotices(metadata_of(laptop, member), member, timeout=PATIENT)
    laptop.faults.schedule(member, "instance-retirement", 3600.0)
    (notice,) = source.poll()
    assert (notice.kind, notice.action) == ("retirement", "instance-retirement")
    assert notice.is_announcement
    laptop.faults.call_off(member)
    (over,) = source.poll()
    assert (over.kind, over.called_off) == ("retirement", True)
    laptop.faults.schedule(member, "system-reboot", 0.0)

    def rebooted() -> bool:
        found = {process.pid for process in laptop.faults.processes(member)}
        return len(found) == 2 and not found & before

    until(rebooted)
    assert laptop.state(member) == "running", "all the time, as on EC2"
    laptop.faults.end_block(member, 3600.0)
    assert laptop.instance(member)["CapacityReservationId"].startswith("cr-")
    with pytest.raises(UsageError, match="EC2 schedules no flood"):
        laptop.faults.schedule(member, "flood", 1.0)
