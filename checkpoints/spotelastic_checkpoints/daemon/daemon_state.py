"""Keeps a checkpoint daemon's current round and recent storage epochs on disk for its successor.

The file lies in the arena, beside the slots, which outlive the daemon as well.
"""

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
