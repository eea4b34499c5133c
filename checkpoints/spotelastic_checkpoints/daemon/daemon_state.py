"""What outlives a daemon, beside the slots: the round, and what storage epochs rounds had."""

from pathlib import Path

import msgspec

from spotelastic_checkpoints.types import RoundInfo

EPOCHS_KEPT = 64
_NAME = "round.json"


class DaemonState(msgspec.Struct, frozen=True):
    round: RoundInfo | None = None
    epochs: dict[str, int] = {}
    """Storage epochs of recent rounds, by incarnation."""

    def begun(self, round_: RoundInfo) -> "DaemonState":
        """With this round as the current one."""
        epochs = dict(list(self.epochs.items())[-EPOCHS_KEPT:])
        if round_.epoch:
            epochs[round_.incarnation] = round_.epoch
        return DaemonState(round_, epochs)


def keep(folder: Path, remembered: DaemonState) -> None:
    """Replaces what was kept before as a whole."""
    path = folder / _NAME
    path.with_suffix(".new").write_bytes(msgspec.json.encode(remembered))
    path.with_suffix(".new").rename(path)


def recall(folder: Path) -> DaemonState:
    """Nothing where there is nothing that can be read."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=DaemonState)
    except (FileNotFoundError, msgspec.MsgspecError):
        return DaemonState()
