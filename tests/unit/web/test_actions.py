"""What the buttons do: the same as the commands."""

from typing import Any, cast

import pytest

from spotelastic.client.cluster import Cluster
from spotelastic.client.commands import CommandResult
from spotelastic.client.interrupt import CausedInterruption
from spotelastic.errors import UsageError
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.validation import sizes
from spotelastic.web.server.actions import ACTIONS


class Commanded:
    """A cluster that remembers what it was told."""

    name = "demo"

    def __init__(self) -> None:
        self.told: list[Any] = []

    def interrupt(self, node: str, *, kind: str, seconds: float) -> CausedInterruption:
        self.told.append(("interrupt", node, kind, seconds))
        return CausedInterruption(node, InterruptionKind.SPOT_INTERRUPTION, seconds)

    def scale(self, **given: Any) -> CommandResult:
        given.pop("on_update")("a note")
        self.told.append(("scale", given))
        return CommandResult("demo", "scale", "has 3 nodes", "running")

    def stop(self, **given: Any) -> CommandResult:
        self.told.append(("stop", given))
        return CommandResult("demo", "stop", "is to stop", "running")

    def restart(self, **given: Any) -> CommandResult:
        self.told.append(("restart", given))
        return CommandResult("demo", "restart", "goes on", "pending")

    def down(self, **given: Any) -> None:
        given.pop("on_update")("deleting its groups")
        self.told.append(("down", given))


@pytest.mark.parametrize(
    ("action", "given", "told", "line"),
    [
        (
            "interrupt",
            {"node": "i-1", "kind": "notice", "seconds": "15"},
            ("interrupt", "i-1", "notice", 15.0),
            "i-1 will be taken away in 15 s",
        ),
        (
            "interrupt",
            {"node": "i-1", "kind": "loss", "seconds": ""},
            ("interrupt", "i-1", "loss", 120.0),
            "i-1",
        ),
        ("scale", {"min": "1", "max": ""}, ("scale", {"min": 1, "max": None}), "demo has 3 nodes"),
        ("stop", {}, ("stop", {"wait": False}), "demo is to stop"),
        ("restart", {}, ("restart", {"same_code": True}), "demo goes on"),
        ("down", {"typed": "demo"}, ("down", {}), "demo is taken down; its checkpoints stay"),
    ],
)
def test_a_button_does_what_its_command_does(
    action: str, given: dict[str, Any], told: Any, line: str
) -> None:
    cluster = Commanded()
    done = ACTIONS[action](cast(Cluster, cluster), given, lambda _: None)
    assert cluster.told == [told]
    assert line in done


@pytest.mark.parametrize(
    ("action", "given", "message"),
    [
        ("interrupt", {"seconds": "5"}, "choose a node"),
        (
            "interrupt",
            {"node": "i-1", "seconds": "soon"},
            "Seconds of notice: 'soon' is not a number",
        ),
        (
            "interrupt",
            {"node": "i-1", "seconds": "nan"},
            "Seconds of notice: 'nan' is not a number",
        ),
        ("scale", {"min": "1.5"}, "Minimum: '1.5' is not a number"),
        ("scale", {"max": ["2"]}, "is not a number"),
        ("down", {}, "type the cluster's name, demo"),
        ("down", {"typed": "Demo"}, "type the cluster's name, demo"),
        ("down", {"typed": ["demo"]}, "type the cluster's name, demo"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_done(
    action: str, given: dict[str, Any], message: str
) -> None:
    cluster = Commanded()
    with pytest.raises(UsageError, match=message):
        ACTIONS[action](cast(Cluster, cluster), given, lambda _: None)
    assert cluster.told == []


def test_a_mistake_in_sizes_is_told_in_the_words_of_the_page() -> None:
    class Refusing(Commanded):
        def scale(self, **given: Any) -> CommandResult:
            sizes(minimum=given["min"], maximum=given["max"], per_node=None)
            return super().scale(**given)

    for low, high, told in (
        (5, 1, "Minimum 5 is above Maximum 1"),
        (1, 1001, "Maximum 1001: at most"),
    ):
        with pytest.raises(UsageError, match=told):
            ACTIONS["scale"](cast(Cluster, Refusing()), {"min": low, "max": high}, lambda _: None)
