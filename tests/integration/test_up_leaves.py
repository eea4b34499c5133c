"""What ends a command that shows or changes a cluster does not end the cluster, and is told so."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from support.aws.account import CTRL_C, EXPIRED, Laptop, account
from support.aws.cluster_requests import request

from spotelastic.aws.base.clients import Aws, SignedOut
from spotelastic.aws.clusters import lifecycle as clusters
from spotelastic.aws.compute import autoscaling
from spotelastic.cli.commands.detach import LeftRunning
from spotelastic.cli.main import main
from spotelastic.client import watch
from spotelastic.client.targets import aws_target, find
from spotelastic.client.targets.aws_target import AwsTarget
from spotelastic.cloud.bucket import STATUS
from spotelastic.errors import EnvironmentFailure
from spotelastic.model.progress import Status
from spotelastic.signals import Signals

pytestmark = pytest.mark.timeout(120)  # a watch that nothing ends lasts for ever

NAME = "quokka"
Told = tuple[int, str, str]
"""Exit code, standard output and standard error."""


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """Of an account in which the cluster is up, and says that it trains."""
    with account(tmp_path_factory.mktemp("account")):
        laptop = Laptop()
        made = clusters.create(request(NAME, 2), lambda _: None, laptop.aws)
        made.objects.put(STATUS, msgspec.json.encode(Status(NAME, "running", 0.0)))
        yield laptop


@pytest.fixture
def up(
    laptop: Laptop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[..., Told]]:
    """Runs `up` on the cluster, which is there as before afterwards."""
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(find, "in_region", lambda _: AwsTarget(laptop.aws))
    monkeypatch.setattr(aws_target, "ETCD", None)  # it would be fetched
    monkeypatch.setattr(watch, "EVERY", 0.01)

    def run(*flags: str) -> Told:
        monkeypatch.setattr(sys, "argv", ["spotelastic", "up", "--yes", "--name", NAME, *flags])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    yield run
    assert len(autoscaling.instances(laptop.aws, NAME)) == 5


def test_credentials_that_expire_while_the_job_is_watched_are_one_line(
    laptop: Laptop, up: Callable[..., Told]
) -> None:
    with laptop.trial(EXPIRED, at=40, of="s3.GetObject"):
        code, out, err = up("--max", "2")
    assert code == 2
    assert "quokka is up already" in out and "stays up" not in out
    assert err.count("\n") == 1
    assert "the AWS credentials are invalid or expired: log in again; quokka keeps running" in err
    assert "the same `spotelastic up` shows it again, `spotelastic down quokka` ends it" in err


def test_credentials_that_expire_while_it_is_changed_are_one_line(
    laptop: Laptop, up: Callable[..., Told]
) -> None:
    with laptop.trial(EXPIRED, at=1, of="autoscaling.UpdateAutoScalingGroup"):
        code, _, err = up("--max", "3")
    assert code == 2
    assert err.count("\n") == 1
    assert "log in again; quokka keeps running, and may be partly changed" in err


def test_credentials_that_expire_while_it_is_taken_down_leave_the_rest_to_down() -> None:
    stays = LeftRunning(NAME, AwsTarget(Aws()), None, ExitStack(), Signals(), print)
    left = "log in again; remove what is left of quokka with `spotelastic down quokka`"
    with pytest.raises(EnvironmentFailure, match=left), stays.ended():
        raise SignedOut("cannot delete the stack: log in again", "ExpiredToken")


@pytest.mark.parametrize(
    ("of", "at", "told"),
    [
        ("autoscaling.UpdateAutoScalingGroup", 1, "quokka stays up, and may be partly changed"),
        ("s3.GetObject", 40, "quokka stays up: spotelastic status quokka"),
    ],
    ids=["changed", "watched"],
)
def test_a_signal_ends_the_command_alone_and_says_how_to_come_back(
    laptop: Laptop, up: Callable[..., Told], of: str, at: int, told: str
) -> None:
    with laptop.trial(CTRL_C, at, of):
        code, out, err = up("--max", "2")
    assert (code, err) == (130, "\nleaving\n")
    assert told in out
    assert "the same `spotelastic up`" in out
    assert "end it with spotelastic down quokka" in out
