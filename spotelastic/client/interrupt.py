"""Interrupts one node as AWS would; each cloud has its own means for that (targets)."""

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spotelastic.aws.clusters import fault_injection
from spotelastic.client.published import status_of
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.errors import UsageError
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.progress import Status

if TYPE_CHECKING:
    from spotelastic.client.targets.cloud_target import ClusterTarget

KINDS = {
    "notice": InterruptionKind.SPOT_INTERRUPTION,
    "rebalance": InterruptionKind.REBALANCE,
    "loss": InterruptionKind.LOSS,
    "by-hand": InterruptionKind.BY_HAND,
}
"""What can be caused, as people type it. Its own name, as reports have it, does as well."""
AT_ONCE = {InterruptionKind.LOSS: "a loss", InterruptionKind.BY_HAND: "an end by hand"}
"""Kinds of which a node is not told before, as people call them."""
OF_SPOT = frozenset({InterruptionKind.SPOT_INTERRUPTION, InterruptionKind.REBALANCE})
"""Kinds that only a spot node can meet."""


def node_named(wanted: str, status: Status) -> str:
    """Return the node that is meant: "any" that trains, that of "rank N", or the one named.

    Raises `UsageError` if no such node trains.
    """
    rank = re.fullmatch(r"rank (\d+)", wanted)
    if wanted != "any" and rank is None:
        return wanted
    found = [
        node.id
        for node in status.nodes
        if node.state == "training" and (node.ranks if rank is None else int(rank[1]) in node.ranks)
    ]
    if not found:
        which = "no node" if rank is None else f"no node with {wanted}"
        raise UsageError(f"{which} of {status.name} trains now: its job is {status.state}")
    return random.choice(found)


@dataclass(frozen=True, slots=True)
class InterruptionRequest:
    """An interruption of one node. `seconds` of notice apply to the kind "notice"."""

    node: str
    kind: InterruptionKind = InterruptionKind.SPOT_INTERRUPTION
    seconds: float = fault_injection.WARNING

    def __post_init__(self) -> None:
        if self.kind in AT_ONCE and self.seconds not in (0, fault_injection.WARNING):
            raise UsageError(
                f"--kind {self.typed} --in {self.seconds:g}: {AT_ONCE[self.kind]} comes without "
                "notice: remove --in, or use --kind notice"
            )

    @property
    def warns(self) -> bool:
        """Whether the node is told before it goes."""
        if self.kind in AT_ONCE:
            return False
        return self.kind is not InterruptionKind.SPOT_INTERRUPTION or self.seconds > 0

    @property
    def typed(self) -> str:
        """The kind as people type it."""
        return next(word for word, kind in KINDS.items() if kind is self.kind)

    @classmethod
    def asked(cls, node: str, kind: str, seconds: float) -> "InterruptionRequest":
        """Return the request that was typed.

        Raises `UsageError` for a kind that cannot be caused.
        """
        known = KINDS | {each.value: each for each in KINDS.values()}
        if kind not in known:
            raise UsageError(f"--kind {kind}: expected {', '.join(KINDS)}")
        return cls(node, known[kind], seconds)


@dataclass(frozen=True, slots=True)
class CausedInterruption:
    """An interruption that was caused."""

    node: str
    kind: InterruptionKind
    seconds: float | None
    """Seconds until the node goes; None if it stays. On Kubernetes a loss has one."""

    def __str__(self) -> str:
        if self.seconds == 0:
            return f"{self.node} is taken away without notice"
        if self.kind is InterruptionKind.LOSS:
            return f"{self.node} has one second, the least that Kubernetes gives"
        is_recommended = self.kind is InterruptionKind.REBALANCE
        first = "gets a rebalance recommendation, and " if is_recommended else ""
        then = "stays" if self.seconds is None else f"will be taken away in {self.seconds:g} s"
        return f"{self.node} {first}{then}"


def interrupt(
    target: "ClusterTarget", cluster: ShownCluster, what: InterruptionRequest
) -> CausedInterruption:
    """Cause the interruption. Raises `UsageError` for what cannot be done."""
    target.check_kind(what)
    known = [node.id for node in status_of(cluster).nodes if node.state != "gone"]
    if what.node not in known:
        raise UsageError(f"{cluster.name} has no node {what.node}; it has {', '.join(known)}")
    if what.warns and what.kind in OF_SPOT:
        target.check_spot(cluster.name, what.node)
    return CausedInterruption(what.node, what.kind, target.interrupt(what, cluster.spec.demands))
