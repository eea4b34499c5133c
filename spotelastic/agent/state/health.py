"""Folds what befalls a node's GPUs into what its agent knows of them (pure).

A part of `observe.py`, which alone calls it.
"""

from dataclasses import replace

from spotelastic.agent.state import events
from spotelastic.agent.state.node_health import NodeHealth
from spotelastic.model.gpu import GpuFault


def following(health: NodeHealth, event: events.HealthEvent, now: float) -> NodeHealth:
    """Return the node's health after an event."""
    match event:
        case events.GpuCheckStarted():
            return replace(health, checking=True)
        case events.GpusChecked(gpus, fault, efa, plugin):
            found = replace(
                health, unchecked=False, checking=False, gpus=gpus, efa=efa, nccl_plugin=plugin
            )
            return _with(found, fault, now)
        case events.ExaminationStarted(round_):
            return replace(health, examined=round_, examining_at=now)
        case events.GpusExamined(fault):
            return _with(replace(health, examining_at=0.0), fault or health.suspect, now)
        case events.GpusMeasured(use):
            return replace(health, use=use)
        case events.XidSeen(fault, "sick"):
            return _with(health, fault, now)
        case events.XidSeen(fault, verdict):
            if all(fault.cause != known.cause for known in health.warnings):
                health = replace(health, warnings=(*health.warnings, fault))
            if verdict == "suspect":
                health = replace(health, suspect=health.suspect or fault)
            return health
    return health


def _with(health: NodeHealth, fault: GpuFault | None, now: float) -> NodeHealth:
    """Return the health with a fault. The first one counts."""
    if fault is None or health.fault is not None:
        return health
    return replace(health, fault=fault, ill_since=now)
