"""Reads the first commit of a run back, in a process of its own, and compares it.

    python -m spotelastic.training.rehearsal.reading_back STORAGE EPOCH STEP NOTE...

The checkpoint daemon starts it. Every byte of what the ranks with a NOTE have saved is read from
the store. Each tensor and value is made of that, and has to be what the rank had in its memory. The
process with the first rank's note does so for all ranks, and makes the whole state, with its
containers, where memory allows. It prints a `Proof`.

What a script's own load_state_dict() makes of it is seen by a rehearsal, not here.
"""

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import torch
from msgspec.structs import replace
from spotelastic_checkpoints.catalog.catalog import Catalog, Checkpoint, StoredItem
from spotelastic_checkpoints.commit.commit_protocol import folder
from spotelastic_checkpoints.commit.first_save import FirstSave, key
from spotelastic_checkpoints.daemon.proving import Proof
from spotelastic_checkpoints.errors import CheckpointsError, RestoreFailed, StorageUnavailable
from spotelastic_checkpoints.format.layout import aligned
from spotelastic_checkpoints.memory import free_memory
from spotelastic_checkpoints.restore.contents import Piece
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Commit, Item

from spotelastic.errors import SpotelasticError, UsageError
from spotelastic.training.restore.saved_items import SavedItems
from spotelastic.training.save.saver import tensor_at
from spotelastic.training.state import values
from spotelastic.training.state.rank_agreement import digest_of_tensor, digest_of_value
from spotelastic.training.state.value_entries import OWN

SHARE = 4
"""Part of the free memory that a copy of the whole state may take: one in so many."""


class WholeCopy:
    """A copy of the whole state, made of what is stored as a restore makes it."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._file = os.memfd_create("first-commit")
        self._end = 0
        self._pieces: list[Piece] = []

    def add(self, item: Item, data: memoryview) -> None:
        """Add an item, with its bytes."""
        os.pwrite(self._file, data, self._end)
        self._pieces.append(Piece(f"/proc/self/fd/{self._file}", replace(item, offset=self._end)))
        self._end = aligned(self._end + item.length)

    def pieces(self) -> Iterator[Piece]:
        """Yield all items, as the contents of a restore do."""
        yield from self._pieces

    def problems(self) -> Iterator[str]:
        """Make the state, and yield what cannot be made."""
        saved = SavedItems(self)
        held = {path[2] for path in saved.own_paths if path[:2] == (OWN, "structure")}
        for name in sorted({path[0] for path in saved.paths} - {OWN}, key=str):
            try:
                if name in held:
                    saved.nested(str(name))
                else:
                    ours = [fqn for fqn, of in saved.pieces.items() if of[0].item.path[0] == name]
                    for fqn in ours:
                        saved.whole(fqn)
            except Exception as error:  # whatever making it raises is the answer
                yield f"{name} cannot be made of what is stored: {type(error).__name__}: {error}"


def prove(catalog: Catalog, checkpoint: Checkpoint, notes: Mapping[int, FirstSave]) -> Proof:
    """Return what is wrong with what these ranks have saved, and how much there is.

    Raises `StorageUnavailable`.
    """
    wrong = catalog.check_records(checkpoint)
    stored = {key(placed.item.fqn, placed.item.offsets) for placed in checkpoint.items}
    for note in notes.values():
        wrong += [
            f"{name} is not in the checkpoint" for name in sorted(note.digests.keys() - stored)
        ]
    whole = _copy_of(checkpoint) if 0 in notes else None
    tensors = counted = 0
    for rank, placed in _items(checkpoint):
        if whole is None and rank not in notes:
            continue
        try:
            data = catalog.read(placed)
        except RestoreFailed as error:
            wrong.append(str(error))
            continue
        if problem := problem_of(placed.item, data, notes.get(rank)):
            wrong.append(problem)
        tensors += placed.item.is_tensor
        counted += not placed.item.is_tensor
        if whole is not None:
            whole.add(placed.item, data)
    if whole is not None and not wrong:
        wrong += whole.problems()
        catalog.note(checkpoint, wrong, datetime.now(UTC))
    return Proof(len(checkpoint.manifests), tensors, counted, tuple(wrong), leads=0 in notes)


def _items(checkpoint: Checkpoint) -> Iterator[tuple[int, StoredItem]]:
    """Yield all items, each with the rank that saved it."""
    for manifest in checkpoint.manifests:
        for shard in manifest.shards:
            for item in shard.items:
                yield manifest.rank, StoredItem(f"{folder(checkpoint.commit)}/{shard.name}", item)


def _proof(catalog: Catalog, commit: Commit, notes: Mapping[int, FirstSave]) -> Proof:
    try:
        return prove(catalog, catalog.find(commit.step, commit.epoch), notes)
    except RestoreFailed as error:
        return Proof(wrong=(str(error),))


def _copy_of(checkpoint: Checkpoint) -> WholeCopy | None:
    """Return an empty copy where there is memory for the whole state, else None."""
    room = free_memory.room(Path("/dev/shm")).free
    fits = checkpoint.item_bytes * SHARE <= room
    return WholeCopy(checkpoint.commit.step) if fits else None


def problem_of(item: Item, data: memoryview, note: FirstSave | None) -> str:
    """Return what is wrong with an item whose bytes are as its manifest says; empty if nothing."""
    name = key(item.fqn, item.offsets)
    wanted = b"" if note is None else note.digests.get(name, b"")
    try:
        if item.is_tensor:
            tensor = tensor_at(data, replace(item, offset=0))
            same = not wanted or digest_of_tensor(tensor, like=wanted) == wanted
        else:
            value = values.decode(item.fqn, data)
            same = not wanted or digest_of_value(value) in (None, wanted)
    except UsageError as error:
        # A class that only the script knows is there again when the script is started again.
        is_known = note is not None and all(map(_is_known, note.allowed))
        return str(error) if is_known else ""
    if note is None or same:
        return ""
    return f"{name} is not what rank {note.rank} had at its save"


def _is_known(name: str) -> bool:
    return name.partition(":")[0] in sys.modules and not name.startswith("__main__:")


def allow(note: FirstSave) -> None:
    """Let values refer to what the script lets them, as far as this process can import it."""
    sys.path[:] = [*sys.path, *(each for each in note.search_path if each not in sys.path)]
    for name in note.allowed:
        module, _, attribute = name.partition(":")
        if module == "__main__":
            continue
        with contextlib.suppress(Exception):  # importing what is the user's may raise anything
            found: object = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
            torch.serialization.add_safe_globals([found])  # type: ignore[list-item]


def _end_with_daemon() -> None:
    """End this process when the daemon that has started it is gone."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    threading.Thread(target=wait, name="proof", daemon=True).start()


def main() -> None:
    """Entry point."""
    _end_with_daemon()
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy")  # its arrays are data, as they are for a script
    storage, epoch, step, *paths = sys.argv[1:]
    notes = {note.rank: note for note in map(FirstSave.read, map(Path, paths))}
    for note in notes.values():
        allow(note)
    commit = Commit(int(epoch), int(step))
    try:
        catalog = Catalog(open_storage(storage), at_once=1)
        proof = _proof(catalog, commit, notes)
        if proof.wrong and not catalog.has(commit):
            proof = Proof(unavailable="it has been collected meanwhile")
    except (StorageUnavailable, CheckpointsError, SpotelasticError) as error:
        proof = Proof(unavailable=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(proof))
    sys.stdout.buffer.flush()
    os._exit(0)  # a thread of the store's must not delay the end


if __name__ == "__main__":
    main()
