"""Checks what must hold in a run's storage, whatever happened to the run."""

import itertools
from collections.abc import Sequence

import msgspec
from spotelastic_checkpoints.catalog.catalog import Catalog
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import Latest
from spotelastic_checkpoints.storage.object_store import unseen
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.types import Commit


def verified(url: str) -> list[Commit]:
    """All commits, each of them read to the last byte. LATEST names the newest."""
    storage = open_storage(url)
    catalog = Catalog(storage)
    committed = []
    for entry in catalog.entries():
        assert entry.state != "damaged", entry
        if entry.state == "committed":
            complaints = catalog.verify(catalog.find(entry.step, entry.epoch), unseen)
            assert complaints == [], entry
            committed.append(Commit(entry.epoch, entry.step))
    assert catalog.find(None).commit == max(committed)
    storage.close()
    return committed


def nothing_is_half_uploaded(url: str) -> None:
    storage = open_storage(url)
    left = storage.unfinished()
    assert left == [], left
    storage.close()


def never_went_back(contents: Sequence[bytes]) -> None:
    """Of everything that was ever written to LATEST."""
    told = [msgspec.json.decode(content, type=Latest) for content in contents]
    order = [(latest.epoch, latest.commit or Commit(0, 0)) for latest in told]
    assert all(before <= after for before, after in itertools.pairwise(order)), order


def committed(storage: str) -> Commit | None:
    """What LATEST names, after a check that it is complete."""
    commits = Commits(open_storage(storage), "test")
    latest = commits.latest()
    if latest is not None:
        commits.checkpoint(latest)
    return latest
