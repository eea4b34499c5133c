"""Defines the errors that the checkpoint service raises on purpose.

    CheckpointsError
    ├── DaemonUnavailable    the node's daemon did not answer in time, is gone, or new to the round
    ├── StorageUnavailable   the object store did not answer in time; a later try may succeed
    ├── StorageRefused       the object store said no; do not try again
    │   ├── StorageOwned     the storage belongs to another run
    │   └── StorageMoved     the run goes on in another storage, to which it was moved
    ├── Fenced               another round has claimed the storage; nothing may be committed
    │   └── SupersededByNewerEpoch  a later round of the same run has, and may commit it yet
    ├── ProtocolRefused      the daemon is of another version; do not try again
    ├── RestoreFailed        the named source could not be read, or did not match its checksums
    └── ArenaFull            the memory for the slots is missing; the message has the numbers

A message says what happened, to what, and what to do next.
"""

from collections.abc import Iterator


class CheckpointsError(Exception):
    """Base of every error that the checkpoint service raises on purpose."""


class DaemonUnavailable(CheckpointsError):
    """The checkpoint daemon did not answer before the deadline, or its connection was lost.

    Also raised by a daemon that has replaced another and has not been told of the round yet.
    """


class StorageUnavailable(CheckpointsError):
    """The object store did not answer before the deadline. A later try may succeed."""


class StorageRefused(CheckpointsError):
    """The object store answered with a refusal. Another try is of no use."""


class StorageOwned(StorageRefused):
    """The storage belongs to another run, and nobody has said that this one may take it over."""


class StorageMoved(StorageRefused):
    """The run was moved to another storage, and can never go on in this one."""


class Fenced(CheckpointsError):
    """Another round has claimed the storage since, so nothing may be committed any more."""


class SupersededByNewerEpoch(Fenced):
    """A later round of the same run has claimed the storage, and may still commit this save."""


class ProtocolRefused(CheckpointsError):
    """The daemon is of another version of spotelastic; trying again is no use."""


class RestoreFailed(CheckpointsError):
    """The exact source that was asked for cannot be restored."""


class ArenaFull(CheckpointsError):
    """There is not enough shared memory for the slots."""


def _kinds(of: type[CheckpointsError]) -> Iterator[type[CheckpointsError]]:
    yield of
    for each in of.__subclasses__():
        yield from _kinds(each)


BY_NAME = {each.__name__: each for each in _kinds(CheckpointsError)}
"""The errors by name. One crosses the daemon's socket as its name and message."""
