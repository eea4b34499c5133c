"""The CloudFormation template and the boot script, as AWS will judge them."""

import base64
import ipaddress
import subprocess
import sys
from pathlib import Path

import pytest
from support.aws.template import CLUSTER, PARTITIONS, arn, policies
from support.processes.patience import PATIENT
from support.strict.evaluation import AccessRequest, Resource, permits

from spotelastic.aws.base.infra_files import boot_script, infra
from spotelastic.aws.base.names import Names, addresses
from spotelastic.errors import EnvironmentFailure, UsageError


def test_the_templates_are_clean_in_every_partition() -> None:
    templates = (str(infra(name)) for name in ("cluster.yaml", "network.yaml", "roles.json"))
    command = [str(Path(sys.executable).with_name("cfn-lint")), *templates]
    command += ["--regions", *PARTITIONS]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENT)
    assert (found.returncode, found.stdout) == (0, "")


def test_the_boot_script_fits_a_parameter_and_ends_in_a_unit_that_runs_spotelastic_boot() -> None:
    script = boot_script()
    assert len(script) <= 4096
    text = base64.b64decode(script)
    assert text.splitlines()[-1].startswith(b". ") and text.endswith(b'/install.sh"\n')
    assert "systemctl enable --now spotelastic\n" in infra("boot/install.sh").read_text()
    assert "/bin/spotelastic boot\n" in infra("boot/spotelastic.service").read_text()
    subprocess.run(["bash", "-n"], input=text, check=True, timeout=PATIENT)


def test_members_have_fixed_addresses_in_subnets_of_their_own() -> None:
    its = addresses("10.64.0.0/12", (), zones=5)
    block = ipaddress.ip_network(its.block)
    assert len(its.subnets) == 5
    for subnet, member in zip(its.subnets[:3], its.members, strict=True):
        network = ipaddress.ip_network(subnet)
        assert network.subnet_of(block)  # type: ignore[arg-type]
        # AWS keeps the first four addresses and the last one for itself.
        assert ipaddress.ip_address(member) in list(network)[4:-1]


def test_a_network_in_use_is_not_used_again() -> None:
    first = addresses("127.80.0.0/16", ("172.31.0.0/16",))
    second = addresses("127.80.0.0/16", ("172.31.0.0/16", first.block))
    assert not ipaddress.ip_network(first.block).overlaps(ipaddress.ip_network(second.block))
    with pytest.raises(EnvironmentFailure, match=r"127\.80\.0\.0/16"):
        addresses("127.80.0.0/16", ("127.80.0.0/16",))


@pytest.mark.parametrize("name", ["", "Demo", "1st", "a_b", "x" * 40])
def test_a_name_that_aws_would_refuse_is_refused_before(name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        Names(name)


def test_no_node_may_read_the_key_of_another_role_nor_the_authority() -> None:
    its = Names(CLUSTER)
    secrets = (its.authority, its.member_certificate("a"), its.worker_certificate, its.token)
    readers = {
        secret: {role for role in ("Control", "Worker") if may_read(f"{role}Role", secret)}
        for secret in secrets
    }
    assert readers == {
        its.authority: set(),
        its.member_certificate("a"): {"Control"},
        its.worker_certificate: {"Worker"},
        its.token: {"Worker"},
    }


def may_read(role: str, parameter: str) -> bool:
    """Whether any statement lets the role read the parameter; AWS's own policies would all do."""
    secret = Resource(arn("ssm", f"parameter{parameter}"))
    return permits(policies(role), AccessRequest("ssm:GetParameter", (secret,)))
