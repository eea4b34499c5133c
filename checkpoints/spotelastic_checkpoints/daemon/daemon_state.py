"""Keeps a checkpoint daemon's current round and recent storage epochs on disk for its successor.

The file lies in the arena, beside the slots, which outlive the daemon as well.
"""

import math
from collections.abc import Collection
from pathlib import Path

import msgspec

from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.protocol_version import PROTOCOL, ProtocolVersion
from spotelastic_checkpoints.types import RoundInfo

EPOCHS_KEPT = 64
"""Number of rounds whose epochs are kept."""
_NAME = "round.json"


class DaemonState(msgspec.Struct, frozen=True):
    """What a daemon has to know after a restart."""

    round: RoundInfo | None = None
    """The round that the daemon was told of last."""
    epochs: dict[str, int] = {}
    """Storage epochs of recent rounds, by incarnation."""
    protocol: ProtocolVersion = PROTOCOL

    def begun(self, round_: RoundInfo) -> "DaemonState":
        """Return the state with this round as the current one."""
        epochs = dict(list(self.epochs.items())[-EPOCHS_KEPT:])
        if round_.epoch:
            epochs[round_.incarnation] = round_.epoch
        return DaemonState(round_, epochs)

    def history(self, rounds: Collection[str]) -> dict[int, float]:
        """Return the last step of each epoch that the current round has gone on from.

        The round's own epoch is included, and any step of it counts.

        Empty where the current round is none of `rounds`: it has been left behind meanwhile.
        """
        if self.round is None or self.round.incarnation not in rounds:
            return {}
        bounds = {branch.incarnation: float(branch.step) for branch in self.round.lineage}
        bounds[self.round.incarnation] = math.inf
        return {self.epochs[each]: last for each, last in bounds.items() if each in self.epochs}


def keep(folder: Path, remembered: DaemonState) -> None:
    """Write the state. Replaces the file in one step."""
    path = folder / _NAME
    path.with_suffix(".new").write_bytes(msgspec.json.encode(remembered))
    path.with_suffix(".new").rename(path)


def recall(folder: Path) -> DaemonState:
    """Read the state; an empty one where no file can be read, or where another major wrote it."""
    try:
        found = from_json((folder / _NAME).read_bytes(), DaemonState)
    except (FileNotFoundError, msgspec.MsgspecError):
        return DaemonState()
    return found if found.protocol.major == PROTOCOL.major else DaemonState()
