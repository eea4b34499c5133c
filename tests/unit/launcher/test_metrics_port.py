"""Where `spotelastic run` serves metrics: on this machine alone, unless an address is named."""

import pytest

from spotelastic.errors import UsageError
from spotelastic.launcher import options
from spotelastic.launcher.flags import parse


def metrics(text: str) -> tuple[str, int] | None:
    return options.metrics(parse(["--metrics-port", text, "train.py"], {}))


def test_none_are_served_unless_they_are_asked_for() -> None:
    assert options.metrics(parse(["train.py"], {})) is None


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("10.0.0.5:9464", ("10.0.0.5", 9464)),
        ("[fd00::5]:9464", ("fd00::5", 9464)),
    ],
)
def test_a_port_is_of_this_machine_alone_unless_an_address_is_named(
    text: str, where: tuple[str, int]
) -> None:
    assert metrics(text) == where


@pytest.mark.parametrize(
    "text", ["0.0.0.0:9464", "[::]:9464", "0", "65536", "-1", "x", "host:9464", "10.0.0.5:", ":"]
)
def test_what_is_no_port_or_is_open_to_everybody_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="--metrics-port") as caught:
        metrics(text)
    assert "\n" not in str(caught.value)
