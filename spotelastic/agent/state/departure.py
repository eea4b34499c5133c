"""Folds notices of a node's end into what it knows of its departure (pure)."""

from dataclasses import replace

from spotelastic.agent.state.values import NodeDeparture
from spotelastic.model.notice import Notice


def noticed(departure: NodeDeparture, notice: Notice, now: float) -> NodeDeparture:
    """Records a notice. The first one counts, unless a later one leaves less time; one that does
    not drain is only a hint. What lies ahead waits until its time has come.
    """
    others = tuple(
        each for each in departure.scheduled if (each.kind, each.id) != (notice.kind, notice.id)
    )
    told = (*departure.untold, notice)
    if notice.called_off or notice.is_ahead(now):
        scheduled = others if notice.called_off else (*others, notice)
        return replace(departure, scheduled=scheduled, untold=told)
    departure = replace(departure, scheduled=others)
    current = departure.notice
    if current is not None and not notice.kind.traits.drains:
        return departure if current.kind.traits.drains else replace(departure, untold=told)
    if current is not None and current.kind.traits.drains and not _is_sooner(notice, current):
        return departure
    return replace(departure, notice=notice, drained=False)


def _is_sooner(notice: Notice, current: Notice) -> bool:
    if notice.deadline is None:
        return False
    return current.deadline is None or notice.deadline < current.deadline - 0.5
