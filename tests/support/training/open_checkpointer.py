"""What tests see of an open `Checkpointer`, and set in it, beyond what it has for scripts.

Only this file uses its private parts.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from spotelastic_checkpoints.protocol.worker_client import WorkerClient
from support.processes.patience import PATIENT

from spotelastic.training.checkpointer import Checkpointer
from spotelastic.training.save import saving
from spotelastic.training.save.overlap import Copying, DeviceCopy, InMemory


def client_of(checkpoint: Checkpointer) -> WorkerClient:
    """Of the node's daemon."""
    assert checkpoint._client is not None
    return checkpoint._client


def copying_of(checkpoint: Checkpointer) -> Copying | None:
    """The save that is being copied beside training."""
    return checkpoint._beside.copying


def parts_of(checkpoint: Checkpointer) -> Sequence[DeviceCopy]:
    """The copy that is made beside training, of each device's tensors."""
    assert checkpoint._beside.copying is not None
    return checkpoint._beside.copying._parts


def tensors_copied(checkpoint: Checkpointer) -> int:
    """How many are being copied beside training, in memory."""
    return sum(len(part._held[0]) for part in parts_of(checkpoint) if isinstance(part, InMemory))


def restarted(checkpoint: Checkpointer) -> None:
    """As under an agent, where a start may be a restart that nobody asked for."""
    assert checkpoint._session is not None
    checkpoint._session = replace(checkpoint._session, restarts=True)


def wait_for_slots(seconds: float = PATIENT) -> None:
    """Periodic saves of this process wait for a free slot: a busy machine may be late with it."""
    saving.PATIENCE = seconds  # type: ignore[attr-defined]


def slots_are_waited_for(patch: pytest.MonkeyPatch, seconds: float = PATIENT) -> None:
    """The same, until the test's end."""
    patch.setattr(saving, "PATIENCE", seconds)
