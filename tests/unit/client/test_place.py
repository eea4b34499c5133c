"""Where commands look for clusters, and what they say of it."""

import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.cli.app import app
from spotelastic.cli.commands import up_on_terminal
from spotelastic.cli.commands.detach import LeftRunning
from spotelastic.cli.main import main
from spotelastic.client import commands
from spotelastic.client.cluster import Cluster
from spotelastic.client.commands import CommandResult
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.targets import local_target
from spotelastic.client.targets.account import AccountClusters
from spotelastic.client.targets.cloud_target import CloudEnded, CloudTarget
from spotelastic.client.targets.find import in_region
from spotelastic.errors import EnvironmentFailure, SpotelasticError, Unavailable
from spotelastic.local import cloud as local
from spotelastic.local.cloud import CloudInfo
from spotelastic.signals import Signals


def test_all_commands_look_where_up_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    assert in_region(None).aws.region == "us-west-2"
    (tmp_path / "spotelastic.toml").write_text('region = "eu-west-1"')
    assert in_region(None).aws.region == "eu-west-1"
    assert in_region("ap-south-1").aws.region == "ap-south-1"


REGIONS = ("flag", "SPOTELASTIC_REGION", "file", "AWS_REGION", "AWS_DEFAULT_REGION", "profile")
"""What may say it, the first first."""


@pytest.mark.parametrize("left", range(len(REGIONS) + 1))
def test_what_says_the_region_first_wins_in_every_command(
    left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = dict(
        zip(
            REGIONS,
            ("us-east-1", "us-east-2", "us-west-1", "us-west-2", "eu-west-1", "eu-west-2"),
            strict=True,
        )
    )
    said = {source: says[source] for source in REGIONS[left:]}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for variable in ("SPOTELASTIC_REGION", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
        if variable in said:
            monkeypatch.setenv(variable, said[variable])
    if "profile" in said:
        (tmp_path / "config").write_text(f"[default]\nregion = {said['profile']}\n")
    if "file" in said:
        (tmp_path / "spotelastic.toml").write_text(f"region = {said['file']!r}")
    flag = ("--region", said["flag"]) if "flag" in said else ()
    asked = list[CloudTarget]()
    monkeypatch.setattr(AccountClusters, "listing", _lists_nothing(asked))
    monkeypatch.setattr(up_on_terminal, "check", lambda config, _: config)
    monkeypatch.setattr(up_on_terminal, "carry_through", _takes_place(asked))
    for command in (("ls", "--aws"), ("up",)):
        script = ("train.py",) if command == ("up",) else ()
        assert app([*command, *flag, *script], standalone_mode=False) in (None, 0)
    for place in asked:
        if said:
            assert place.aws.region == next(iter(said.values()))
            continue
        with pytest.raises(EnvironmentFailure, match="no AWS region: give --region"):
            _ = place.aws.region
    assert len(asked) == 2


def _lists_nothing(asked: list[CloudTarget]) -> Callable[[CloudTarget], tuple[()]]:
    def listing(place: CloudTarget) -> tuple[()]:
        asked.append(place)
        return ()

    return listing


def _takes_place(asked: list[CloudTarget]) -> Callable[..., int]:
    """What `up` goes on with once it has checked what it can."""

    def carried_through(config: JobConfig, *_: object) -> int:
        asked.append(in_region(config.region))
        return 0

    return carried_through


@pytest.mark.parametrize(
    ("region", "it"), [(None, "demo"), ("eu-west-1", "demo --region eu-west-1")]
)
def test_how_to_come_back_names_the_region(region: str | None, it: str) -> None:
    told: list[str] = []
    LeftRunning("demo", in_region(region), None, ExitStack(), Signals(), told.append).leave()
    for command in ("status", "logs -f", "down"):
        assert f"spotelastic {command} {it}" in told[0]


def test_a_command_whose_local_cloud_ends_meanwhile_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its last job, for which the command was."""

    def stop(*_: object, **__: object) -> CommandResult:
        raise Unavailable("cannot read s3://...")

    def ended() -> None:
        raise CloudEnded("the local cloud has ended")

    here, elsewhere = (SimpleNamespace(check=check) for check in (ended, lambda: None))
    for place, told in ((here, "the local cloud has ended"), (elsewhere, "cannot read s3")):
        cluster = Cluster(cast(CloudTarget, place), cast(ClusterRecord, None))
        monkeypatch.setattr(commands, "stop", stop)
        with pytest.raises(SpotelasticError, match=told):
            cluster.stop()


def test_a_local_cloud_that_ends_under_a_command_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has been found, and takes no connection any more."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        ends = CloudInfo(
            endpoint, os.getpid(), str(tmp_path), "127.77.0.0/16", "us-east-1", ("us-east-1a",), 1
        )
        for name, value in local.environment(ends).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(local_target, "_used", None)
        monkeypatch.setattr(local, "find", lambda: ends)
        monkeypatch.setattr(sys, "argv", ["spotelastic", "status", "demo"])
        with pytest.raises(SystemExit) as ended:
            main()
    told = capsys.readouterr().err
    assert told == "spotelastic: the local cloud has ended, and its clusters with it\n"
    assert ended.value.code == 2
