"""Which devices of a booted node are checked."""

from pathlib import Path

import pytest

from spotelastic.agent.config import HealthChecks
from spotelastic.agent.health.kernel_log import PATH, VARIABLE
from spotelastic.aws.node.hardware import Ec2Hardware, FolderHardware
from spotelastic.bootstrap.entrypoint import OFF, health_checks_of

HOME = Path("/home/node")


@pytest.mark.parametrize(
    ("gpus", "env", "checks"),
    [
        (8, {}, HealthChecks(gpus=True, promised=8, kernel_log=PATH)),
        (8, {OFF: "1"}, HealthChecks()),
        (8, {OFF: "0"}, HealthChecks(gpus=True, promised=8, kernel_log=PATH)),
        (0, {}, HealthChecks(kernel_log=PATH)),
    ],
)
def test_an_instance_has_what_its_type_promises(
    gpus: int, env: dict[str, str], checks: HealthChecks
) -> None:
    assert health_checks_of(Ec2Hardware(), gpus, env, HOME, efa=False) == checks


def test_a_node_of_the_local_cloud_has_no_gpu_but_may_have_a_log() -> None:
    local = FolderHardware(Path("/volumes"))
    assert not health_checks_of(local, 8, {}, HOME, efa=False).gpus
    given = health_checks_of(local, 8, {VARIABLE: "kmsg"}, HOME, efa=True)
    assert given == HealthChecks(gpus=True, network=True, kernel_log=HOME / "kmsg")
