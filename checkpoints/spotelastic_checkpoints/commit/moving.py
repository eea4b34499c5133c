"""Moves a run from one storage to another, by what their LATEST objects say.

    source               target
    claimed by the mover             `claim_to_move`: whoever commits has to claim again
    claimed by the mover copied      (copying.py)
    forward pointer      copied      `close`: nothing can ever be committed or claimed again
    forward pointer      LATEST      `open_here`: the run goes on

At most one of the two can be claimed at any time. So in between, the run is in neither of them,
but in both are its bytes. To undo a move, the target is closed and the source opened in the same
way.

Must never happen:

- A commit that was acknowledged is lost. `close` swaps exactly the LATEST that it was given, which
  names the commit that was copied. Any commit or claim since then makes it fail.
- Both storages can be claimed. `open_here` takes what closed the other one, and opens nothing that
  anybody has claimed, or closed later. So of two movers that go in opposite directions one fails.
"""

import os

from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import ForwardPointer, Latest, LatestObject
from spotelastic_checkpoints.errors import Fenced, StorageRefused
from spotelastic_checkpoints.storage.object_store import Storage

MOVER = "mover-"
"""Beginning of the nonce of a claim by a mover: nobody trains under it."""


def is_claimed_to_move(latest: Latest) -> bool:
    """Return whether a mover was the last that claimed this storage."""
    return latest.nonce.startswith(MOVER) and not isinstance(latest, ForwardPointer)


def claim_to_move(commits: Commits) -> Latest:
    """Claim the storage for a mover, and return what LATEST says then.

    Steps that are complete, but not recorded, are recorded first. Raises `StorageMoved` where the
    run was moved already, and `StorageRefused` where the storage belongs to another run.
    """
    latest = LatestObject(commits.storage)
    while True:
        epoch = commits.claim(mark=MOVER).epoch
        found, _ = latest.read()
        if found is not None and found.epoch == epoch and is_claimed_to_move(found):
            return found


def close(
    storage: Storage, expected: Latest | None, run: Latest, to: str, *, region: str = "", now: float
) -> ForwardPointer:
    """Replace LATEST by a forward pointer to the storage at the URL `to`.

    `expected` is what LATEST says, None where there is none. `run` is what it says in the storage
    that has, or had, the run: the pointer names its commit, under an epoch above both. Raises
    `Fenced`, and changes nothing, where LATEST is not what was expected.
    """
    latest = LatestObject(storage)
    found, etag = latest.read()
    pointer = ForwardPointer(
        run.owner,
        max(run.epoch, 0 if expected is None else expected.epoch) + 1,
        run.commit,
        _nonce(),
        run.begins,
        run_id=run.run_id,
        to=to,
        region=region,
        moved_at=now,
    )
    if found != expected or not latest.write(pointer, etag):
        raise Fenced(f"{storage.url} was claimed, or committed to, in the meantime")
    return pointer


def open_here(storage: Storage, pointer: ForwardPointer) -> Latest:
    """Open the storage for the run that `pointer`, in another storage, has closed there.

    Returns what LATEST says then. Can be repeated until the run has begun. Raises `StorageRefused`
    where somebody uses the storage, or where it was closed later than the other one.
    """
    latest = LatestObject(storage)
    while True:
        found, etag = latest.read()
        if found is not None and not isinstance(found, ForwardPointer):
            if found.nonce == pointer.nonce:
                return found
            raise StorageRefused(
                f"{storage.url} has checkpoints of a run {found.owner} that was not moved there"
            )
        if found is not None and found.epoch >= pointer.epoch:
            raise StorageRefused(f"{storage.url} was closed in the meantime, by another move")
        opened = Latest(
            pointer.owner,
            pointer.epoch + 1,
            pointer.commit,
            pointer.nonce,
            pointer.begins,
            run_id=pointer.run_id,
        )
        if latest.write(opened, etag):
            return opened


def _nonce() -> str:
    return MOVER + os.urandom(8).hex()
