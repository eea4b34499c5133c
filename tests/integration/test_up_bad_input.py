"""What `up` says about an account that it cannot use: one line, exit code 2, nothing made."""

import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.clusters.local_cloud import Laptop, environment, running_cloud

from spotelastic.cli.main import main
from spotelastic.local import cloud

Up = Callable[..., str]
EXPIRED = (
    b"<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredToken</Code>"
    b"<Message>The security token included in the request is expired</Message></Error>"
    b"</ErrorResponse>"
)


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Up:
    """Runs `up` as one whose machine knows nothing of AWS; returns the one line that it says."""
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def run(*args: str) -> str:
        monkeypatch.setattr(sys, "argv", ["spotelastic", "up", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err
        assert ended.value.code == 2, told
        assert told.count("\n") == 1, told
        return told

    return run


def sign_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")


def test_without_credentials(up: Up) -> None:
    assert "no AWS credentials; run `aws configure`" in up("--region", "us-east-1")


def test_a_plan_without_an_account_has_list_prices_and_says_what_it_lacks(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` is there for the environment that it makes."""

    def planned(*flags: str) -> str:
        monkeypatch.setattr(sys, "argv", ["spotelastic", "up", "--plan", *flags])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    told = planned("--min", "2", "--max", "8", "--instance-types", "g5.xlarge")
    assert "no AWS account is configured" in told and "On-demand list prices of us-east-1" in told
    assert "worker, g5.xlarge" in told and "not known without an account: spot prices" in told
    assert "today" not in told
    assert "worker disk, 100 GiB" in told and "worker disk, 300 GiB" in planned("--disk", "300")
    found = json.loads(planned("--json"))
    assert found["instance_types"][0] == "g4dn.xlarge" and found["usd_per_hour_at_min"] > 0.5
    many = planned("--max", "8", "--instance-types", "p4d.24xlarge", "--zones", "spread")
    assert "NAT gateway" in many and "EFA does not reach other zones" in many
    addresses = next(line for line in many.splitlines() if "public IPv4 address" in line)
    assert addresses.split()[3:5] == ["4", "4"], "three control nodes, and the gateway"
    assert "no list price here" in planned("--instance-types", "x9.huge")
    large = planned("--max", "8", "--gpus", "8", "--gpu-memory", "40GB")
    assert "worker, p4d.24xlarge" in large and "not known without an account" in large
    needed = ("--gpus", "8", "--gpu-memory", "600GB")
    assert "--gpus 8 --gpu-memory 600GB: no type of the shipped price list" in up("--plan", *needed)
    (tmp_path / "train.py").write_text("import einops\n")
    assert "warning: train.py, line 1: imports einops, which nothing installs" in planned()
    assert "warning: train.py has no Checkpointer" in planned()


def test_with_a_profile_that_does_not_exist(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    for flags in ((), ("--region", "us-east-1"), ("--plan",)):
        assert up(*flags).startswith("spotelastic: AWS_PROFILE=nosuch: AWS's configuration has no")


def test_with_a_configuration_that_cannot_be_read(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("no section\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    told = up("--region", "us-east-1")
    assert told.startswith("spotelastic: AWS's configuration: Unable to parse config file")


def test_with_half_of_the_credentials(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    told = up("--region", "us-east-1")
    assert told.startswith("spotelastic: AWS credentials are incomplete: ") and "SECRET" in told


def test_without_a_region(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch)
    assert "no AWS region: give --region" in up()


def test_with_a_region_that_does_not_exist(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch)
    told = up("--region", "mars-north-1x")
    assert told == "spotelastic: --region mars-north-1x: AWS has no region of that name\n"


class Refuses(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(403)
        self.send_header("Content-Length", str(len(EXPIRED)))
        self.end_headers()
        self.wfile.write(EXPIRED)

    def log_message(self, *_: object) -> None:
        return


def test_with_credentials_that_have_expired(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    sign_in(monkeypatch)
    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
            told = up("--region", "us-east-1")
        finally:
            server.shutdown()
            thread.join()
    assert "the AWS credentials are invalid or expired: log in again" in told


class Hearing(io.StringIO):
    """A terminal's place that knows when a text was written to it."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.awaited, self.heard = awaited, threading.Event()

    def write(self, text: str) -> int:
        if self.awaited in text:
            self.heard.set()
        return super().write(text)


def test_a_network_that_is_silent_is_told_before_it_answers(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(monkeypatch)
    out = Hearing(": no answer for 3 s")

    class Late(Refuses):
        def do_POST(self) -> None:
            assert out.heard.wait(60)
            super().do_POST()

    with HTTPServer(("127.0.0.1", 0), Late) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(sys, "stdout", out)
        try:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
            told = up("--plan", "--region", "us-east-1")
        finally:
            server.shutdown()
            thread.join()
    assert out.heard.is_set()
    assert "the AWS credentials are invalid or expired: log in again" in told


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    with running_cloud(tmp_path_factory.mktemp("home")) as info:
        yield Laptop(info)


@pytest.fixture
def account(laptop: Laptop, up: Up) -> Iterator[Laptop]:
    """In which nothing is made: checked afterwards."""
    with environment(**cloud.environment(laptop.info)):
        yield laptop
        assert laptop.client("s3").list_buckets()["Buckets"] == []
        assert len(laptop.ec2.describe_vpcs()["Vpcs"]) == 1
        roles = laptop.client("iam").list_roles()["Roles"]
        assert not any(role["RoleName"].startswith("spotelastic") for role in roles)


def test_with_no_quota_for_the_family(account: Laptop, up: Up) -> None:
    account.faults.set_quota("L-3819A6DF", 0)
    try:
        told = up("--max", "8", "--instance-types", "g5.xlarge")
    finally:
        account.faults.set_quota("L-3819A6DF", 1000)
    assert (
        "too few nodes for --min 1: quota allows 0 of 8 spot g5.xlarge (G and VT: 0 vCPUs" in told
    )
    assert "--quota-code L-3819A6DF --desired-value 32" in told


def test_with_types_that_the_region_lacks(account: Laptop, up: Up) -> None:
    assert "us-east-1 has no such type" in up("--instance-types", "g99.xlarge")


def test_with_a_cost_that_pays_for_no_more_than_the_boot(account: Laptop, up: Up) -> None:
    told = up("--min", "2", "--instance-types", "m5.large", "--max-cost", "0.001")
    assert "--max-cost 0.001: pays for 0." in told and "min of 2 nodes (--min)" in told


def test_with_a_failed_node_that_is_to_be_kept_for_no_time(account: Laptop, up: Up) -> None:
    told = up("--instance-types", "m5.large", "--keep-failed", "--linger", "0")
    assert "--keep-failed: with --linger 0 the cluster and its failed node end with the job" in told


def test_with_types_that_must_not_share_a_group(account: Laptop, up: Up) -> None:
    told = up("--instance-types", "g5.xlarge,g6.xlarge")
    assert "g5.xlarge and g6.xlarge must not share a job: gpu A10G and L4" in told


def test_with_a_stack_of_that_name_that_is_not_ours(account: Laptop, up: Up) -> None:
    stacks = account.client("cloudformation")
    body = '{"Resources": {"Topic": {"Type": "AWS::SQS::Queue"}}}'
    stacks.create_stack(StackName="spotelastic-train", TemplateBody=body)
    try:
        told = up("--instance-types", "m5.large")
    finally:
        stacks.delete_stack(StackName="spotelastic-train")
    assert "train: the stack spotelastic-train was not made by spotelastic" in told


def test_with_a_container_on_types_whose_image_has_no_docker(account: Laptop, up: Up) -> None:
    told = up("--instance-types", "m5.large", "--image", "team/torch:2.9")
    assert "--image team/torch:2.9: nodes of m5.large have no docker: use types with GPUs" in told


def test_with_a_bucket_of_somebody_else(account: Laptop, up: Up) -> None:
    told = up("--instance-types", "m5.large", "--bucket", "not-there-at-all")
    assert told == "spotelastic: --bucket not-there-at-all: there is no such bucket\n"
