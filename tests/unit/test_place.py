"""Where commands look for clusters, and what they say of it."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from spotelastic.cli.place import Place
from spotelastic.cli.signals import Signals
from spotelastic.cli.staying import Staying


def test_all_commands_look_where_up_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    assert Place.find(False).aws.region == "us-west-2"
    (tmp_path / "spotelastic.toml").write_text('region = "eu-west-1"')
    assert Place.find(False).aws.region == "eu-west-1"
    assert Place.find(False, "ap-south-1").aws.region == "ap-south-1"


@pytest.mark.parametrize(
    ("region", "it"), [(None, "demo"), ("eu-west-1", "demo --region eu-west-1")]
)
def test_how_to_come_back_names_the_region(region: str | None, it: str) -> None:
    told: list[str] = []
    Staying("demo", None, ExitStack(), Signals(), told.append, region).leave()
    for command in ("status", "logs -f", "down"):
        assert f"spotelastic {command} {it}" in told[0]
