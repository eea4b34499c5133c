"""States of a node for tests of decisions, given field by field, whichever part a field is in."""

from dataclasses import fields, replace
from typing import Any

from spotelastic.agent.state.values import NEW, NodeState

WORKERS = ("workers", "resting")
"""Parts that are not there at the beginning, and are given as a whole."""
_PARTS = {
    each.name: part.name
    for part in fields(NodeState)
    if part.name not in WORKERS
    for each in fields(getattr(NEW, part.name))
}
"""The part of each field, by the field's name: no two parts have one of the same name."""


def changed(local: NodeState, **values: Any) -> NodeState:
    """The state with these fields, `workers` and `resting` among them."""
    for name, value in values.items():
        if name in WORKERS:
            local = replace(local, **{name: value})
        else:
            part = _PARTS[name]
            local = replace(local, **{part: replace(getattr(local, part), **{name: value})})
    return local


def node_state(**values: Any) -> NodeState:
    return changed(NEW, **values)
