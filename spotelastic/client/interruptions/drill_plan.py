"""Reads and carries out a plan of interruptions, for `spotelastic interrupt --plan FILE`.

Each entry is due at a time or a step:

    [[interruption]]
    after = "30s"        # from the beginning of the drill; or: step = 100
    kind = "notice"      # notice (the default), rebalance, loss or by-hand
    node = "any"         # any node that trains (the default), "rank 0", or a node's name
    in = 15              # seconds of notice; a loss has none

In JSON: a list of such objects, or an object with the list as "interruption".
"""

import json
import random
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotelastic.aws.clusters.fault_injection import WARNING
from spotelastic.client.interruptions.choice import victim
from spotelastic.client.interruptions.interrupt import (
    AT_ONCE,
    KINDS,
    InterruptionRequest,
    interrupt,
    kind_named,
)
from spotelastic.client.published import status_of
from spotelastic.client.targets.cloud_target import ClusterTarget
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.clock import steady
from spotelastic.errors import JobFailed, SpotelasticError, UsageError
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.interval import Interval
from spotelastic.model.job import ENDED
from spotelastic.model.progress import Status

LOOK_EVERY = 0.25
LIST = "interruption"
KEYS = ("after", "step", "kind", "node", "in")

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class PlannedInterruption:
    """One interruption of the plan."""

    after: float | None
    """Seconds from the beginning of the drill; None if it is due at a step."""
    step: int
    kind: InterruptionKind
    node: str
    """"any", "rank N", or a node's name."""
    seconds: float
    """Seconds of notice."""


@dataclass(frozen=True, slots=True)
class Caused:
    """One interruption that was caused."""

    kind: InterruptionKind
    node: str
    step: int
    after: float
    """Seconds from the beginning of the drill."""


# -- the plan (pure) -----------------------------------------------------------------------------


def read(file: Path) -> tuple[PlannedInterruption, ...]:
    """Read and check a plan.

    Raises `UsageError` that names the file, the entry, and what was expected.
    """
    where = f"--plan {file}"
    try:
        text = file.read_text()
    except OSError as error:
        example = 'after = "30s"'
        raise UsageError(
            f"{where}: cannot be read: {error.strerror}; write there what is to be interrupted, "
            f"such as [[{LIST}]] with {example} below it (see `spotelastic interrupt --help`)"
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: cannot be read: it is not a text file") from None
    try:
        parsed = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: line {error.lineno}: {error.msg}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    entries = parsed.get(LIST) if isinstance(parsed, dict) else parsed
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{where}: expected a list of [[{LIST}]] entries")
    return tuple(_entry(f"{where}: {LIST} {n}", each) for n, each in enumerate(entries, 1))


def _entry(where: str, given: Any) -> PlannedInterruption:
    if not isinstance(given, dict):
        raise UsageError(f"{where}: expected a table with {', '.join(KEYS)}")
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise UsageError(f"{where}: there is no key {unknown[0]}; expected {', '.join(KEYS)}")
    if ("after" in given) == ("step" in given):
        raise UsageError(f"{where}: expected either after (a time) or step (a number)")
    word, node = given.get("kind", "notice"), given.get("node", "any")
    kind = kind_named(word)
    if kind is None:
        raise UsageError(f"{where}: kind {word!r}: expected {', '.join(KINDS)}")
    if not isinstance(node, str) or not node:
        raise UsageError(f'{where}: node {node!r}: expected "any", "rank N" or a name')
    seconds = _number(where, given, "in", 0 if kind in AT_ONCE else int(WARNING))
    if kind in AT_ONCE and seconds:
        raise UsageError(
            f"{where}: in {seconds}: {AT_ONCE[kind]} comes without notice: remove `in`, or set "
            'kind = "notice"'
        )
    return PlannedInterruption(
        after=_after(where, given["after"]) if "after" in given else None,
        step=_number(where, given, "step", 0),
        kind=kind,
        node=node,
        seconds=seconds,
    )


def _after(where: str, given: object) -> float:
    try:
        seconds = Interval.parse(given).seconds if isinstance(given, str) else None
    except ValueError:
        seconds = None
    if seconds is None:
        raise UsageError(f'{where}: after {given!r}: expected a time, such as "30s" or "5m"')
    return seconds


def _number(where: str, given: Mapping[str, Any], key: str, default: int) -> int:
    value = given.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{where}: {key} {value!r}: expected a whole number")
    return value


def is_due(entry: PlannedInterruption, status: Status, elapsed: float) -> bool:
    """Whether the time or step of an interruption has come."""
    if entry.after is not None:
        return elapsed >= entry.after
    return status.step >= entry.step


# -- effects -------------------------------------------------------------------------------------


def run(
    target: ClusterTarget,
    cluster: ShownCluster,
    plan: Sequence[PlannedInterruption],
    seed: int,
    say: Say,
) -> tuple[Caused, ...]:
    """Cause the interruptions one after another, in the plan's order.

    Raises `UsageError` for a plan with what the target cannot do, before anything is done, and
    `JobFailed` if the job ends before the plan does.
    """
    check(target, plan)
    draw, began = random.Random(seed), steady()
    done: list[Caused] = []
    while len(done) < len(plan):
        entry = plan[len(done)]
        status, elapsed = status_of(cluster), steady() - began
        if status.state in ENDED:
            raise JobFailed(
                f"{cluster.name} has {status.state} after {len(done)} of {len(plan)} interruptions"
            )
        going = {each.node for each in done if each.kind is not InterruptionKind.REBALANCE}
        node = victim(entry.node, status, draw, going) if is_due(entry, status, elapsed) else None
        if node is None:
            threading.Event().wait(LOOK_EVERY)
            continue
        told = _cause(target, cluster, _request(entry, node))
        say(f"{elapsed:6.1f} s, step {status.step}: {told}")
        done.append(Caused(entry.kind, node, status.step, round(elapsed, 3)))
    return tuple(done)


def check(target: ClusterTarget, plan: Sequence[PlannedInterruption]) -> None:
    """Raise `UsageError` for the first entry with what the target can do to no node."""
    for number, entry in enumerate(plan, 1):
        try:
            target.check_kind(_request(entry, entry.node))
        except UsageError as error:
            raise UsageError(f"the drill's plan, {LIST} {number}: {error}") from None


def _request(entry: PlannedInterruption, node: str) -> InterruptionRequest:
    return InterruptionRequest(node, entry.kind, entry.seconds)


def _cause(target: ClusterTarget, cluster: ShownCluster, what: InterruptionRequest) -> str:
    try:
        return str(interrupt(target, cluster, what))
    except UsageError as error:
        raise SpotelasticError(f"the drill cannot continue: {error}") from None
