"""Saves one rank's part of a step while the other ranks cannot be reached any more."""

from spotelastic_checkpoints.protocol.worker_client import WorkerClient

from spotelastic.training.save.save_plan import SavePlan
from spotelastic.training.save.saver import LayoutChanged

PATIENCE = 1.0
"""Seconds to wait for a slot. An older save gives up its own."""


def save_alone(client: WorkerClient, plan: SavePlan, step: int) -> bool:
    """Save a step into this node's memory, by the plan that there is. Returns whether it was saved.

    Nothing is asked of the other ranks or of their store, which may be gone without an answer.
    """
    if not plan.is_made or not plan.find_room():
        return False
    plan.saver.wait()
    slot = client.open_slot(PATIENCE, urgent=True)
    if slot is None:
        return False

    def sealed() -> None:
        client.sealed(slot, step, waiting=False, due=False)

    try:
        plan.follow()
        plan.saver.begin(slot, step, due=False, overlaps=False, sealed=sealed)
    except LayoutChanged:
        return False
    return True
