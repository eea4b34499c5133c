"""Where commands look for clusters, and what they say of it."""

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spotelastic.cli import lifecycle
from spotelastic.cli.orders import Done
from spotelastic.cli.place import CloudEnded, Place
from spotelastic.cli.signals import Signals
from spotelastic.cli.staying import Staying
from spotelastic.errors import SpotelasticError, Unavailable


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


def test_a_command_whose_local_cloud_ends_meanwhile_says_so() -> None:
    """With its last job, for which the command was."""

    def stop() -> Done:
        raise Unavailable("cannot read s3://...")

    def ended() -> None:
        raise CloudEnded("the local cloud has ended")

    here, elsewhere = (SimpleNamespace(check=check) for check in (ended, lambda: None))
    for place, told in ((here, "the local cloud has ended"), (elsewhere, "cannot read s3")):
        with pytest.raises(SpotelasticError, match=told):
            lifecycle._tell(stop, cast(Place, place), "demo", as_json=False)
