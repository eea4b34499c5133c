from collections.abc import Iterator

import pytest
from support.clusters.local_cloud import Laptop, running_cloud
from support.processes.warm_python import warm_torch
from support.processes.zygote_pool import pool
from support.saving.s3_servers import bucket, s3_endpoint
from support.store.etcd_members import etcd_member, etcd_store, prefix


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """A local cloud with a network in it, for all tests of a file."""
    with running_cloud(tmp_path_factory.mktemp("home")) as info:
        laptop = Laptop(info)
        laptop.make_network()
        yield laptop


@pytest.fixture
def name(request: pytest.FixtureRequest, laptop: Laptop) -> Iterator[str]:
    """Of a launch template and, if the test makes it, a group; both end with the test."""
    name = str(request.node.name)[:60]
    yield name
    groups = laptop.scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    if groups["AutoScalingGroups"]:
        laptop.delete_group(name)


@pytest.fixture
def template(laptop: Laptop, name: str) -> Iterator[str]:
    template = laptop.make_template(name)
    yield template
    laptop.ec2.delete_launch_template(LaunchTemplateId=template)
