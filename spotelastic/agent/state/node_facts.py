"""Puts together what metrics tell of a node, from what its agent knows (pure)."""

from spotelastic.agent.config import AgentConfig
from spotelastic.agent.state.values import NodeState
from spotelastic.metrics.node import NodeFacts
from spotelastic.model.progress import Progress


def node_facts(config: AgentConfig, local: NodeState, progress: Progress | None) -> NodeFacts:
    """Returns what is known of the node. `progress` is what it published last."""
    workers = local.workers or (local.resting.workers if local.resting is not None else None)
    return NodeFacts(
        node=config.node,
        zone=config.zone,
        type=config.type,
        registered=local.membership.registered,
        workers=0 if workers is None else len(workers.alive),
        daemon=bool(local.store.daemon),
        notice=local.departure.notice,
        sick=local.health.fault is not None,
        progress=progress,
    )
