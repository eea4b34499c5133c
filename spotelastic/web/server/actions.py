"""What the buttons of a page do: the same as the commands of these names."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from spotelastic.client.cluster import Cluster
from spotelastic.client.progress import Say
from spotelastic.errors import UsageError

ButtonAction: TypeAlias = Callable[[Cluster, Mapping[str, Any], Say], str]
"""Does it, and returns what was done, in one line. Raises `UsageError` for a mistake."""
LABELS = {"min": "Minimum", "max": "Maximum", "seconds": "Seconds of notice"}
"""What the page calls what is given."""


def _interrupt(cluster: Cluster, given: Mapping[str, Any], say: Say) -> str:
    node = str(given.get("node", ""))
    if not node:
        raise UsageError("choose a node")
    seconds = _number(given, "seconds", float)
    kind = str(given.get("kind", "notice"))
    return str(cluster.interrupt(node, kind=kind, seconds=120.0 if seconds is None else seconds))


def _scale(cluster: Cluster, given: Mapping[str, Any], say: Say) -> str:
    low, high = _number(given, "min", int), _number(given, "max", int)
    try:
        done = cluster.scale(min=low, max=high, on_update=lambda update: say(str(update)))
    except UsageError as error:  # it names the flags of the command
        raise UsageError(re.sub(r"--(min|max)\b(?!-)", _label, str(error))) from None
    return f"{done.name} {done.text}"


def _stop(cluster: Cluster, given: Mapping[str, Any], say: Say) -> str:
    done = cluster.stop(wait=False)
    return f"{done.name} {done.text}"


def _restart(cluster: Cluster, given: Mapping[str, Any], say: Say) -> str:
    # With its earlier code: the folder in which the dashboard was started may be any.
    done = cluster.restart(same_code=True)
    return f"{done.name} {done.text}"


def _down(cluster: Cluster, given: Mapping[str, Any], say: Say) -> str:
    if given.get("typed") != cluster.name:
        raise UsageError(f"type the cluster's name, {cluster.name}, to take it down")
    cluster.down(on_update=lambda update: say(str(update)))
    return f"{cluster.name} is taken down; its checkpoints stay"


ACTIONS: Mapping[str, ButtonAction] = {
    "interrupt": _interrupt,
    "scale": _scale,
    "stop": _stop,
    "restart": _restart,
    "down": _down,
}


def _number(given: Mapping[str, Any], key: str, kind: Callable[[Any], Any]) -> Any:
    """Return a number that was typed; None if nothing was."""
    value = given.get(key)
    if value in (None, ""):
        return None
    try:
        number = kind(value)
        if math.isfinite(number):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(f"{LABELS.get(key, key)}: {value!r} is not a number")


def _label(flag: re.Match[str]) -> str:
    return LABELS[flag[1]]
