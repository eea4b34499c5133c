"""Finds what a script does by hand to go on where it ended, which the Checkpointer replaces."""

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from spotelastic.client.adapt.loops import TrainingLoop
from spotelastic.client.adapt.source import Source, calls, found, is_name


@dataclass(frozen=True, slots=True)
class ResumedByHand:
    """The statements that load a state and a number to begin with."""

    loading: tuple[cst.BaseStatement, ...]
    """Removed: an `if` that loads a state, if its file is there."""
    beginning: tuple[cst.SimpleStatementLine, ...]
    """Removed: what sets the number to 0 before."""


def resumed_by_hand(source: Source, loop: TrainingLoop) -> ResumedByHand | None:
    """Return how the script resumes, if its loop begins with a number that is loaded.

    Raises `NotUnderstood` if it is not clear where that number comes from.
    """
    over = loop.epochs_over or loop.over
    name = over.start
    if not over.is_range or not name.isidentifier():
        return None
    scope = source.scope(loop.outermost)
    loading: list[cst.BaseStatement] = []
    beginning: list[cst.SimpleStatementLine] = []
    for each in source.assigned(name, scope):
        holder = next(_statements(source, each.statement), None)
        within = [node for node in source.around(each.statement) if isinstance(node, cst.If)]
        if within and calls(within[-1], "load_state_dict", "load") and within[-1].orelse is None:
            loading.append(within[-1])
        elif source.code(each.value) == "0" and holder is not None and not within:
            beginning.append(holder)
        else:
            raise source.not_understood(
                each.statement,
                f"the loop begins with {name}, which is set here by more than a load",
            )
    if not loading or not beginning:
        raise source.not_understood(
            over.source,
            f"the loop begins with {name}: let it begin with 0, and remove what loads it",
        )
    outside = {id(node) for part in (*loading, *beginning) for node in found(part, cst.Name)}
    used = [node for node in found(scope, cst.Name) if is_name(node, name)]
    for node in used:
        is_bound = any(each is over.source for each in source.around(node))
        if id(node) not in outside and not is_bound:
            raise source.not_understood(node, f"{name} is also used here, and is no longer loaded")
    return ResumedByHand(tuple(dict.fromkeys(loading)), tuple(beginning))


def _statements(source: Source, node: cst.CSTNode) -> Iterator[cst.SimpleStatementLine]:
    """Yield the line of an assignment that stands alone."""
    for each in source.around(node):
        if isinstance(each, cst.SimpleStatementLine) and len(each.body) == 1:
            yield each


def saved_by_hand(source: Source, loop: TrainingLoop) -> list[int]:
    """Return the lines within the loop that save a state by hand, which stay."""
    root = loop.outermost
    regions: list[cst.CSTNode] = [root, loop.loop, loop.region]
    lines = {source.line(call) for region in regions for call in calls(region, "save")}
    return sorted(lines)
