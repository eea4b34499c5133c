"""Interrupts one node as AWS would, through AWS's Fault Injection Service or the local cloud."""

from dataclasses import dataclass

from spotelastic.aws.clusters import fault_injection
from spotelastic.aws.clusters.lifecycle import Cluster
from spotelastic.aws.compute import autoscaling
from spotelastic.client.target import CloudTarget, status_of
from spotelastic.errors import UsageError
from spotelastic.local.fault_client import FaultClient
from spotelastic.model.interruption_kind import InterruptionKind

KINDS = {
    "notice": InterruptionKind.SPOT_INTERRUPTION,
    "rebalance": InterruptionKind.REBALANCE,
    "loss": InterruptionKind.LOSS,
}
"""What can be caused, as people type it. Its own name, as reports have it, does as well."""


def kind_named(word: object) -> InterruptionKind | None:
    """The kind that a word on the command line or in a plan means; None: it cannot be caused."""
    if not isinstance(word, str):
        return None
    return KINDS.get(word) or next((kind for kind in KINDS.values() if kind == word), None)


@dataclass(frozen=True, slots=True)
class InterruptionRequest:
    """An interruption of one node. `seconds` of notice apply to the kind "notice"."""

    node: str
    kind: InterruptionKind = InterruptionKind.SPOT_INTERRUPTION
    seconds: float = fault_injection.WARNING

    def __post_init__(self) -> None:
        if self.kind is InterruptionKind.LOSS and self.seconds not in (0, fault_injection.WARNING):
            raise UsageError(
                f"--kind loss --in {self.seconds:g}: a loss comes without notice: remove --in, or "
                "use --kind notice"
            )

    @property
    def warns(self) -> bool:
        """Whether the node is told before it goes."""
        match self.kind:
            case InterruptionKind.REBALANCE:
                return True
            case InterruptionKind.LOSS:
                return False
            case _:
                return self.seconds > 0

    @classmethod
    def asked(cls, node: str, kind: str, seconds: float) -> "InterruptionRequest":
        """Return the request that was typed.

        Raises `UsageError` for a kind that cannot be caused.
        """
        known = kind_named(kind)
        if known is None:
            raise UsageError(f"--kind {kind}: expected {', '.join(KINDS)}")
        return cls(node, known, seconds)


def interrupt(target: CloudTarget, cluster: Cluster, what: InterruptionRequest) -> str:
    """Cause the interruption; return what will happen, for people.

    Raises `UsageError` for what cannot be done.
    """
    known = [node.id for node in status_of(cluster).nodes if node.state != "gone"]
    if what.node not in known:
        raise UsageError(f"{cluster.name} has no node {what.node}; it has {', '.join(known)}")
    if what.warns:
        _check_spot(cluster, what.node)
    return (
        _on_aws(cluster, what) if target.cloud is None else _here(FaultClient(target.cloud), what)
    )


def caused(target: CloudTarget, what: InterruptionRequest) -> dict[str, object]:
    """Return the interruption for programs. `seconds`: until the node goes; None if it stays."""
    seconds: float | None = what.seconds if what.warns else 0.0
    if what.kind is InterruptionKind.REBALANCE:
        seconds = fault_injection.LONGEST if target.cloud is None else None
    return {"node": what.node, "kind": what.kind.value, "seconds": seconds}


def _here(faults: FaultClient, what: InterruptionRequest) -> str:
    if not what.warns:
        faults.kill(what.node)
        return f"{what.node} is taken away without notice"
    if what.kind is InterruptionKind.REBALANCE:
        faults.rebalance(what.node)
        return f"{what.node} gets a rebalance recommendation, and stays"
    faults.interrupt(what.node, what.seconds)
    return f"{what.node} will be taken away in {what.seconds:g} s"


def _on_aws(cluster: Cluster, what: InterruptionRequest) -> str:
    aws, seconds = cluster.aws, what.seconds
    if not what.warns:
        autoscaling.end(aws, (what.node,))
        return f"{what.node} is taken away without notice"
    if what.kind is InterruptionKind.REBALANCE:
        seconds = fault_injection.LONGEST
    elif seconds != fault_injection.WARNING:
        raise UsageError(
            f"--in {seconds:g}: AWS always gives {fault_injection.WARNING:g} s of notice "
            "(or none: --kind loss)"
        )
    fault_injection.interrupt(aws, what.node, seconds)
    is_recommended = what.kind is InterruptionKind.REBALANCE
    first = "gets a rebalance recommendation, and " if is_recommended else ""
    return f"{what.node} {first}will be taken away in {seconds:g} s"


def _check_spot(cluster: Cluster, node: str) -> None:
    found = {machine.id: machine for machine in autoscaling.instances(cluster.aws, cluster.name)}
    if node in found and not found[node].spot:
        raise UsageError(
            f"{node} is on-demand: AWS gives such instances no notice (use --kind loss)"
        )
