"""Keeps the state in slots for a rehearsal, and restores it from there as after an interruption.

The slots are of an incarnation that no round has. So nothing is ever resumed from them, and they
are the first to be overwritten.
"""

from dataclasses import replace

from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from spotelastic_checkpoints.types import REHEARSAL, Holder, Resume

from spotelastic.training.restore.own_values import OwnValues
from spotelastic.training.restore.resuming import open_exactly
from spotelastic.training.runtime.session import WorkerSession
from spotelastic.training.save.save_plan import AGREED_PATIENCE, SavePlan
from spotelastic.training.save.saver import LayoutChanged
from spotelastic.training.state.state import State


def keep(session: WorkerSession, client: WorkerClient, plan: SavePlan, step: int) -> Resume | None:
    """Keep the state as it is, and return where from it is restored. All ranks call this.

    Returns None on all where one of them cannot.
    """
    ranks = session.ranks
    if any(ranks.gather(plan.is_made and not plan.fits())):
        plan.make(step)
    incarnation = session.round + REHEARSAL
    layout = _sealed(client, plan, step, incarnation)
    status = client.status() if layout else None
    told = ranks.gather((layout, ranks.node, status.listen if status is not None else ""))
    if not all(layout for layout, *_ in told):
        return None
    listens = {node: listen for _, node, listen in told if listen}
    holders = tuple(
        Holder(node, listens.get(node, ""), _ranks_of(node, [each for _, each, _ in told]))
        for node in dict.fromkeys(node for _, node, _ in told)
    )
    return Resume("memory", step, incarnation, layout, holders)


def restore(
    session: WorkerSession, client: WorkerClient, state: State, own: OwnValues, source: Resume
) -> None:
    """Restore what was kept. All ranks call this. Raises `SpotelasticError` where that fails."""
    restored = open_exactly(replace(session, resume=source), client, state)
    restored.load(state)
    own.restore(session.ranks, restored, None)
    client.restored(restored.ident)


def _sealed(client: WorkerClient, plan: SavePlan, step: int, incarnation: str) -> str:
    """Copy this rank's part into a slot. Returns its layout; empty where that is not possible."""
    if not plan.is_made or not plan.find_room():
        return ""
    plan.saver.wait()
    slot = client.open_slot(AGREED_PATIENCE)
    if slot is None:
        return ""
    try:
        plan.follow()
        plan.saver.begin(slot, step, due=False, overlaps=False, incarnation=incarnation)
    except LayoutChanged:
        return ""
    finally:
        client.reserve()
    return plan.saver.layout_hash


def _ranks_of(node: str, nodes: list[str]) -> tuple[int, ...]:
    return tuple(rank for rank, each in enumerate(nodes) if each == node)
