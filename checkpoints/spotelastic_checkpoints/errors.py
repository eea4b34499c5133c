"""Everything that the checkpoint service raises on purpose.

    CheckpointsError
    ├── DaemonUnavailable    the node's daemon did not answer in time, is gone, or new to the round
    ├── StorageUnavailable   the object store did not answer in time; a later try may succeed
    ├── StorageRefused       the store said no, or belongs to another owner; trying again is no use
    ├── Fenced               another round has claimed the store since; nothing may be committed
    │   └── SupersededByNewerEpoch  and it is a later round of the same run, which may commit it yet
    ├── RestoreFailed        the named source could not be read, or did not verify
    └── ArenaFull            the memory for the slots is not there; the message has the numbers

A message says what happened, to what, and what to do next.
"""


class CheckpointsError(Exception):
    """Base of every error raised on purpose."""


class DaemonUnavailable(CheckpointsError):
    """The daemon did not answer before its deadline, its connection was lost, or it has taken
    another's place and not been told of the round yet."""


class StorageUnavailable(CheckpointsError):
    """The object store did not answer before its deadline."""


class StorageRefused(CheckpointsError):
    """The object store answered, and the answer is no."""


class Fenced(CheckpointsError):
    """The storage epoch is no longer ours."""


class SupersededByNewerEpoch(Fenced):
    """A later round of the same run has claimed the store."""


class RestoreFailed(CheckpointsError):
    """The exact source that was asked for cannot be restored."""


class ArenaFull(CheckpointsError):
    """Shared memory is too small for the slots."""


BY_NAME: dict[str, type[CheckpointsError]] = {
    kind.__name__: kind
    for kind in (
        CheckpointsError,
        DaemonUnavailable,
        StorageUnavailable,
        StorageRefused,
        Fenced,
        SupersededByNewerEpoch,
        RestoreFailed,
        ArenaFull,
    )
}
"""How an error crosses the daemon's socket: by name and message."""
