"""boot.sh and install.sh of infra/boot from the first to the last line, on a local instance.

It runs as the instance's user data, below a root of its own. Only what a container lacks is played:
`systemctl` starts what the unit says, `aws` copies to and from S3 by boto3.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from support.clusters.local_cloud import Laptop, environment, running_cloud, until
from support.processes.patience import PATIENT

from spotelastic.aws.artifacts import boot_artifacts
from spotelastic.aws.base import boot_variables
from spotelastic.aws.base.clients import ENCRYPTION, Aws
from spotelastic.aws.base.infra_files import infra
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.bootstrap import entrypoint as boot_command
from spotelastic.local import cloud
from spotelastic.local.instances import hypervisor
from spotelastic.model.job import AccountDemands

BUCKET, CLUSTER = "bucket", "demo"
NOBODY = "http://127.0.0.9:9"
"""A proxy that refuses every connection."""
USER_DATA = """
at=$AWS_EC2_METADATA_SERVICE_ENDPOINT/latest
token=$(curl -fsS -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" $at/api/token)
curl -fsS -H "X-aws-ec2-metadata-token: $token" $at/user-data > user-data
exec bash user-data
"""
AWS = """
import sys
from pathlib import Path
import boto3
from botocore.exceptions import ClientError
s3, words = boto3.client("s3"), [word for word in sys.argv[1:] if not word.startswith("--")]
assert words[:2] == ["s3", "cp"], words
source, target = words[2:]
remote = source if source.startswith("s3://") else target
bucket, _, key = remote.removeprefix("s3://").partition("/")
try:
    if remote == source:
        s3.download_file(bucket, key, target)
    else:
        s3.upload_file(source, bucket, key)
except ClientError as error:
    sys.exit(f"fatal error: {error}")
"""
SYSTEMCTL = """
import os, re, shlex, subprocess, sys
if sys.argv[1] == "poweroff":
    print("Power down", flush=True)
if sys.argv[1] != "enable":
    sys.exit()
unit = open(os.environ["SPOTELASTIC_ROOT"] + "/etc/systemd/system/spotelastic.service").read()
environment = dict(os.environ)
given = re.findall("^Environment=(.+?)=(.+)$", unit, re.M)
for optional in re.findall("^EnvironmentFile=-(.+)$", unit, re.M):
    if os.path.exists(optional):
        given += re.findall("^(.+?)=(.*)$", open(optional).read(), re.M)
for name, value in given:
    environment[name] = os.environ["HOME"] if name == "HOME" else value
command, = re.findall("^ExecStart=(.+)$", unit, re.M)
python = command.split()[0].replace("bin/spotelastic", "bin/python")
subprocess.run([python, "-c", "import spotelastic; print(spotelastic.__file__, flush=True)"])
subprocess.run(shlex.split(command), env=environment)
"""


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    programs = tmp_path / "bin"
    programs.mkdir()
    python = Path(sys.executable).resolve()
    scripts = {
        "aws": f"#!{sys.executable}\n{AWS}",
        "systemctl": f"#!{sys.executable}\n{SYSTEMCTL}",
        "python3.13": f'#!/bin/sh\nexec {python} "$@"\n',
        "mount": "#!/bin/sh\n",
    }
    for name, source in scripts.items():
        (programs / name).write_text(source)
        (programs / name).chmod(0o755)
    found = find_spec("boto3")
    assert found is not None and found.origin is not None
    dependencies = str(Path(found.origin).parent.parent)
    command = (
        "env",
        f"PATH={programs}:{os.environ['PATH']}",
        f"SPOTELASTIC_ROOT={tmp_path}/root",
        "SPOTELASTIC_BOOT_PAUSES=0",
        # pip finds there what the wheel needs, and has nothing else to turn to.
        f"PYTHONPATH={tmp_path}/shadow:{dependencies}",
        "PIP_NO_INDEX=1",
        *("bash", "-c", USER_DATA),
    )
    with running_cloud(tmp_path / "home", command) as info, environment(**cloud.environment(info)):
        laptop = Laptop(info)
        laptop.make_network()
        yield laptop


@pytest.mark.soak
def test_a_control_node_boots_from_the_bucket_alone(laptop: Laptop, tmp_path: Path) -> None:
    laptop.client("s3").create_bucket(Bucket=BUCKET)
    where_there_is_nothing_in_it_a_node_says_so_and_shuts_itself_down(laptop)
    objects = BucketObjects(Aws(laptop.info.region), BUCKET, CLUSTER)
    boot_artifacts.ship(objects, None, print)
    root = tmp_path / "root"

    has_torch_of_its_own(root)
    first = boot(laptop, before=behind_a_proxy(laptop))
    what_reaches_the_internet_is_told_of_the_proxy(root)
    assert f"{root}/opt/spotelastic/venv/lib" in first
    (visible,) = (root / "opt/spotelastic/venv/lib").glob("python*/site-packages/image.pth")
    assert visible.read_text() == f"{root}/opt/pytorch/lib\n"
    assert "control of demo" in first
    assert "the bucket has no job for the cluster demo" in first
    the_unit_is_filled_in(root, laptop.info.region)


@pytest.mark.soak
def test_a_worker_installs_torch_and_another_node_what_the_first_one_kept(
    laptop: Laptop, tmp_path: Path
) -> None:
    laptop.client("s3").create_bucket(Bucket=BUCKET)
    objects = BucketObjects(Aws(laptop.info.region), BUCKET, CLUSTER)
    boot_artifacts.ship(objects, None, print)
    root = tmp_path / "root"
    has_torch_of_its_own(root)
    assert "the bucket has no job for the cluster demo" in boot(laptop)

    a_worker_without_torch_installs_the_callers(laptop, objects, tmp_path)

    # Another one installs what the first one kept: of the wheel it reads its boot script alone.
    shutil.rmtree(root)
    (tmp_path / "bin/python3.13").write_text("#!/bin/sh\nexit 1\n")
    assert "the bucket has no job for the cluster demo" in boot(laptop)


def the_unit_is_filled_in(root: Path, region: str) -> None:
    unit = (root / "etc/systemd/system/spotelastic.service").read_text()
    told = dict(re.findall("^Environment=(.+?)=(.+)$", unit, re.M))
    home = root / "opt/spotelastic"
    assert (told["AWS_REGION"], told["AWS_DEFAULT_REGION"]) == (region, region)
    assert told["TMPDIR"] == f"{home}/tmp" and (home / "tmp").is_dir()
    assert told["PATH"].startswith(f"{home}/venv/bin:{root}/opt/pytorch/bin:")
    assert "@" not in unit


def a_worker_without_torch_installs_the_callers(
    laptop: Laptop, objects: BucketObjects, tmp_path: Path
) -> None:
    shadow = tmp_path / "shadow/sitecustomize.py"
    shadow.parent.mkdir()
    shadow.write_text("import sys; sys.modules['torch'] = None")
    (name,) = (name for name in objects.names("boot/") if name.endswith("constraints.txt"))
    assert (objects.get(name) or b"").decode() == f"torch=={torch.__version__.partition('+')[0]}\n"
    # What `up` says later on changes nothing. There is no such version, here or anywhere.
    objects.put(name, b"torch==0.0.1\n")
    boot_artifacts.ship(objects, None, print)
    assert "ERROR: Cannot install spotelastic[train]" in boot(laptop, "worker")
    shadow.unlink()


def behind_a_proxy(laptop: Laptop) -> str:
    """Nobody answers there: what is near has to be reached without it."""
    near = urlsplit(laptop.info.endpoint).hostname or ""
    given = AccountDemands(proxy=NOBODY, no_proxy=(near,), index_url="https://pypi.corp/simple")
    found = boot_variables.variables(given, (), ["127.0.0.0/8"], (), "us-east-1", "amazonaws.com")
    named = dict.fromkeys(ENCRYPTION.values(), "AES256")
    return boot_variables.exported(found | named)


def what_reaches_the_internet_is_told_of_the_proxy(root: Path) -> None:
    network = root / "opt/spotelastic/network"
    told = dict(line.split("=", 1) for line in network.read_text().splitlines())
    assert set(told) == set(boot_variables.NAMES) and told["https_proxy"] == NOBODY
    for service in ("amazon-ssm-agent", "docker"):
        more = root / f"etc/systemd/system/{service}.service.d/spotelastic.conf"
        assert more.read_text() == f"[Service]\nEnvironmentFile={network}\n"


def has_torch_of_its_own(root: Path) -> None:
    """As Deep Learning images do: a Python with packages elsewhere."""
    python = root / "opt/pytorch/bin/python"
    python.parent.mkdir(parents=True)
    told = f'case "$2" in *getsitepackages*) echo {root}/opt/pytorch/lib; exit;; esac'
    python.write_text(f'#!/bin/sh\n{told}\nexec {Path(sys.executable).resolve()} "$@"\n')
    python.chmod(0o755)


def where_there_is_nothing_in_it_a_node_says_so_and_shuts_itself_down(laptop: Laptop) -> None:
    worker, control = boot(laptop, "worker"), boot(laptop, "control")
    for console in (worker, control):
        assert "boot: download of current has failed (tries: 1," in console
        assert "Power down" in console


def test_the_unit_shuts_an_instance_down_for_one_exit_code_only(tmp_path: Path) -> None:
    """As systemd runs it, which replaces no variable within a quoted word."""
    unit = infra("boot/spotelastic.service").read_text()
    assert f"\nRestartPreventExitStatus={boot_command.SHUT_DOWN}\n" in unit
    assert hypervisor.SHUT_DOWN == boot_command.SHUT_DOWN == 78
    (line,) = re.findall("^ExecStopPost=(.+)$", unit, re.M)
    told = tmp_path / "systemctl"
    told.write_text('#!/bin/sh\necho "$@"\n')
    told.chmod(0o755)
    for code, expected in (("78", "poweroff\n"), ("1", ""), ("0", "")):
        done = subprocess.run(
            shlex.split(line),
            env={"EXIT_STATUS": code, "PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=PATIENT,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, expected)


def boot(laptop: Laptop, role: str = "control", before: str = "") -> str:
    """A node with the user data of all: what is on its console when that has ended."""
    # In place of a role's, which it would have from its profile.
    given = cloud.environment(laptop.info)
    keys = f"export {' '.join(f'{name}={given[name]}' for name in given if 'KEY' in name)}"
    tags = {"cluster": CLUSTER, "bucket": BUCKET, "role": role, "member": "a"}
    (instance,) = laptop.ec2.run_instances(
        ImageId="ami-12345678",
        MinCount=1,
        MaxCount=1,
        SubnetId=laptop.subnets[0],
        UserData=f"{keys}\n{before}{infra('boot/boot.sh').read_text()}",
        MetadataOptions={"InstanceMetadataTags": "enabled"},
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": f"spotelastic:{k}", "Value": v} for k, v in tags.items()],
            }
        ],
    )["Instances"]
    name = instance["InstanceId"]
    until(lambda: "exited with" in laptop.console(name), timeout=2 * PATIENT)
    return laptop.console(name)
