"""`up` and `down` as processes of their own, killed by SIGKILL, against a local cloud."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.aws.cluster_requests import request
from support.clusters.local_cloud import environment, running_cloud, until
from support.clusters.trial_cluster import only_the_shared_network_is_left

from spotelastic.aws.base.clients import Aws
from spotelastic.aws.base.names import Names
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
from spotelastic.aws.compute import autoscaling
from spotelastic.local import cloud
from spotelastic.local.cloud import CloudInfo

pytestmark = pytest.mark.faults

NAME = "quokka"
TESTS = Path(__file__).parent.parent
CHILD = """
import sys
from support.aws.cluster_requests import request
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.clusters import teardown
what, name, network = sys.argv[1:]
say = lambda line: print(line, flush=True)
if what == "up":
    clusters.create(request(name, 2, network=network), say)
else:
    teardown.delete(name, say=say)
print("done", flush=True)
"""


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudInfo]:
    home = tmp_path_factory.mktemp("home")
    with running_cloud(home) as info, environment(**cloud.environment(info)):
        yield info


def killed_when_it_says(word: str, what: str, info: CloudInfo) -> None:
    """Starts `up` or `down`, and kills it the moment that it announces that step."""
    command = [sys.executable, "-c", CHILD, what, NAME, info.net]
    with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = next(line for line in child.stdout if line.startswith((word, "done")))
        child.kill()
        assert said.startswith(word)


def up(info: CloudInfo) -> None:
    clusters.create(request(NAME, 2, network=info.net), lambda _: None)


@pytest.mark.soak
@pytest.mark.parametrize("word", ["bucket", "stack", "workers"])
def test_an_up_that_is_killed_is_run_again_and_ends_with_what_was_asked_for(
    info: CloudInfo, word: str
) -> None:
    killed_when_it_says(word, "up", info)
    up(info)

    def sized() -> bool:
        found = autoscaling.group(Aws(), Names(NAME).workers)
        return found is not None and found.desired == 2

    until(sized)  # which the cloud may show only later
    teardown.delete(NAME)
    nothing_is_left()


@pytest.mark.soak
@pytest.mark.parametrize("word", ["ending", "deleting"])
def test_a_down_that_is_killed_is_run_again_and_leaves_nothing(info: CloudInfo, word: str) -> None:
    up(info)
    killed_when_it_says(word, "down", info)
    teardown.delete(NAME)
    nothing_is_left()


def nothing_is_left() -> None:
    aws = Aws()
    assert clusters.all_names(aws) == ()
    assert all(machine.state == "terminated" for machine in autoscaling.instances(aws, NAME))
    assert aws.ec2.describe_launch_templates()["LaunchTemplates"] == []
    assert aws.ec2.describe_network_interfaces()["NetworkInterfaces"] == []
    assert aws.ec2.describe_volumes()["Volumes"] == []
    only_the_shared_network_is_left(aws)
