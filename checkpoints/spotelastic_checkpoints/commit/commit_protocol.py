"""Implements the commit protocol over an object store: epochs, shards, manifests and LATEST.

    <root>/LATEST                                    {owner, epoch, commit}: latest.py
    <root>/<epoch>/step-<step>/__<rank>_<n>.distcp   a rank's shards, then
    <root>/<epoch>/step-<step>/manifests/<rank>.json its manifest, and when all are there
    <root>/<epoch>/step-<step>/.metadata             the commit record, created once

LATEST must never name an incomplete step, move back, or be moved by a round that a later one has
fenced. Therefore everything is written before the object that makes it count. LATEST is changed by
compare-and-swap only, and never while its epoch is another's (docs/explanation/protocols.md,
Commits).

All calls block and none retries. `StorageUnavailable` means that the outcome is unknown and that
the whole call may be repeated.
"""

import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.commit.latest import (
    DamagedLatest,
    ForwardPointer,
    Latest,
    LatestObject,
)
from spotelastic_checkpoints.errors import (
    Fenced,
    RestoreFailed,
    StorageMoved,
    StorageOwned,
    StorageRefused,
    SupersededByNewerEpoch,
)
from spotelastic_checkpoints.format import manifest, metadata
from spotelastic_checkpoints.format.manifest import Manifest
from spotelastic_checkpoints.storage.object_store import Storage, get_checked, unseen
from spotelastic_checkpoints.storage.outage_retry import OutageRetry
from spotelastic_checkpoints.storage.retrying import RetryingStorage
from spotelastic_checkpoints.types import Commit, EpochClaim

PROBE = "conditional-writes"
"""Key of an object that is created once, to test conditional writes. A store that lets it be
created twice ignores them.
"""
UNNAMED = ("default", "standalone")
"""What runs are called that nobody has named, with an agent and without one. They have their
storage by the name of the script, however it is started.
"""
RUN_RECORD = "spotelastic-run.json"
"""Key of the record of what made the checkpoints (provenance.py)."""
UNKNOWN_CLAIMS = 1000
"""More epochs than are ever claimed one after the other without a save."""
FEW = 4
"""Up to this number, manifests are read one after the other, without threads."""
READ_AT_ONCE = 8
"""Requests for manifests in flight at the same time."""
ACCEPT_WEAK = "SPOTELASTIC_WEAK_STORAGE"
"""Environment variable that allows a store without conditional writes."""
_STEP = re.compile(r"(0|[1-9]\d*)/step-(\d{8}|[1-9]\d{8,})/(.+)")
"""Matches the keys of a step's objects exactly as this module names them: `1/step-5/...` is
foreign.
"""


History = Mapping[int, float]
"""The last step of each epoch that a claiming round goes on from, as far as that is known."""


@dataclass(frozen=True, slots=True)
class StepFolder:
    """A step as found in a listing: the names of its objects, relative to its folder."""

    commit: Commit
    names: frozenset[str]

    @property
    def has_record(self) -> bool:
        """Whether a commit record, or the tombstone in its place, exists."""
        return metadata.NAME in self.names

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks whose manifests exist."""
        found = (manifest.rank_of(name) for name in self.names)
        return frozenset(rank for rank in found if rank is not None)

    @property
    def keys(self) -> list[str]:
        """Keys of all objects of the step except the commit record."""
        return [f"{folder(self.commit)}/{name}" for name in sorted(self.names - {metadata.NAME})]


def folder(commit: Commit) -> str:
    """Return the key prefix of a step's objects, without a slash at its end."""
    return f"{commit.epoch}/step-{commit.step:08d}"


def step_folders(keys: Iterable[str]) -> Mapping[Commit, StepFolder]:
    """Group listed keys by step, oldest first. Keys that are not a step's are ignored."""
    names: dict[Commit, set[str]] = defaultdict(set)
    for key in keys:
        match = _STEP.fullmatch(key)
        if match:
            names[Commit(int(match[1]), int(match[2]))].add(match[3])
    return {commit: StepFolder(commit, frozenset(names[commit])) for commit in sorted(names)}


class Commits:
    """The checkpoints of one storage, as the run `owner` reads and writes them."""

    def __init__(self, storage: Storage, owner: str, readers: Executor | None = None) -> None:
        """`readers` read manifests; by default, threads of its own."""
        self.storage = storage
        self.owner = owner
        self._latest = LatestObject(storage)
        self._readers = readers or ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="manifests")
        self._one_claim = threading.Lock()
        self._claiming: tuple[str, int] | None = None
        """Nonce of a claim whose outcome is not known yet, and the epoch before it."""
        self._conditions_seen = False
        """Whether the store was found to honour conditional writes."""
        self.damage = ""
        """What of LATEST was found to be damaged last; empty if nothing was."""

    def patient(self, retry: OutageRetry) -> "Commits":
        """Return the same checkpoints to read, each request of which is repeated by itself.

        What has come is kept: at 1 % of failures, reading all 512 manifests anew for each of them
        would hardly ever end.
        """
        return Commits(RetryingStorage(self.storage, retry), self.owner, self._readers)

    # -- epochs -----------------------------------------------------------------------------------

    def claim(
        self,
        *,
        take_over: bool = False,
        history: History | None = None,
        run_id: str = "",
        mark: str = "",
    ) -> EpochClaim:
        """Claim the next epoch, which fences every earlier round.

        Returns the epoch and the newest commit. Steps that the last round completed but did not
        record are recorded first, and so are those of `history`. Claims run one at a time, because
        a proposal that was replaced leaves its claim under way. `run_id` is for a storage that has
        none. The claim's nonce begins with `mark`. Raises `StorageOwned` where the storage
        belongs to another run, unless `take_over`, and `StorageMoved` where the run was moved.
        """
        with self._one_claim:
            return self._claim(take_over, history or {}, run_id, mark)

    def _claim(self, take_over: bool, history: History, run_id: str, mark: str) -> EpochClaim:
        if not self._conditions_seen:
            self.see_conditions()
        latest, etag = self._read_latest()
        self._check_owner(latest, take_over)
        if latest is None:
            latest = self._recovered()
        if self._claiming is None or self._claiming[0] != latest.nonce:
            # Complete steps are recorded before the swap, because this process may die after it,
            # and a round of the new epoch that has saved hides what came before. They are recorded
            # again after the swap, for steps that were completed meanwhile.
            newest = self._recorded(latest, latest.epoch, history)
            nonce, run_id = mark + os.urandom(8).hex(), latest.run_id or run_id
            claimed = Latest(
                self.owner, latest.epoch + 1, newest, nonce, latest.begins, run_id=run_id
            )
            self._claiming = claimed.nonce, latest.epoch
            if not self._latest.write(claimed, etag):
                return self._claim(take_over, history, run_id, mark)
            latest = claimed
        crash_points.reached("epoch-claimed")
        newest = self._recorded(latest, self._claiming[1], history)
        if newest is not None and newest != latest.commit:
            self._advance(newest, latest.epoch)
        self._claiming = None
        return EpochClaim(latest.epoch, newest, latest.run_id)

    def check_owner(self, *, take_over: bool = False) -> None:
        """Raise what `claim` would raise because of whose storage this is."""
        latest, _ = self._read_latest()
        self._check_owner(latest, take_over)

    def _check_owner(self, latest: Latest | None, take_over: bool) -> None:
        if isinstance(latest, ForwardPointer):
            raise StorageMoved(f"{self.storage.url}: {latest.refusal}")
        own = (self.owner,) if self.owner not in UNNAMED else UNNAMED
        if latest is not None and latest.owner not in ("", *own) and not take_over:
            other = f", not to {self.owner}" if self.owner else ""  # an import has no run
            raise StorageOwned(
                f"{self.storage.url} belongs to the run {latest.owner}{other}: "
                "use another storage, or take it over"
            )

    def begin_afresh(self, *, take_over: bool = False) -> Commit | None:
        """Make all existing commits stop counting, and return the newest of them.

        Nothing is deleted now or collected later. Raises `StorageOwned` where the storage belongs
        to another run, unless `take_over`.
        """
        while True:
            latest, etag = self._read_latest()
            self._check_owner(latest, take_over)
            if latest is None:
                latest = self._recovered()
            epoch = latest.epoch + 1
            fresh = Latest(self.owner, epoch, None, os.urandom(8).hex(), begins=epoch)
            if self._latest.write(fresh, etag):
                return latest.commit

    def see_conditions(self) -> None:
        """Raise `StorageRefused` where the store ignores conditional writes.

        Such a store is accepted if that is allowed.

        On such a store two rounds could both commit.
        """
        ignored = all(self.storage.create(PROBE, b"spotelastic") for _ in range(2))
        if ignored and os.environ.get(ACCEPT_WEAK) != "1":
            raise StorageRefused(
                f"{self.storage.url} ignores conditional writes (If-None-Match), so that two "
                f"rounds could both commit: use another store, or set {ACCEPT_WEAK}=1 and never "
                "run two jobs on it"
            )
        self._conditions_seen = True

    def _read_latest(self) -> tuple[Latest | None, str]:
        """Return LATEST with its etag. One that is damaged is made up for from a listing.

        A round that is not known here may have claimed an epoch and saved nothing yet. No epoch
        may be claimed twice, so the next claim is far beyond what is listed.
        """
        try:
            return self._latest.read()
        except DamagedLatest as error:
            error.check_owner(self.owner)
            self.damage = f"{error}: its content is taken from a listing"
            latest = self._recovered()
            if error.epoch != latest.epoch:
                latest = msgspec.structs.replace(latest, epoch=latest.epoch + UNKNOWN_CLAIMS)
            return latest, error.etag

    def _recovered(self) -> Latest:
        """Return what LATEST would contain, reconstructed from a listing."""
        folders = step_folders(self.storage.keys())
        commits = [
            commit
            for commit, found in folders.items()
            if found.has_record and self.is_alive(commit)
        ]
        highest = max((commit.epoch for commit in folders), default=0)
        return Latest(self.owner, highest, max(commits, default=None), "")

    def _recorded(self, latest: Latest, epoch: int, history: History) -> Commit | None:
        """Record complete steps that have no record, and return the newest commit.

        Their last writer died before it could, or is in no round any more. Looks at the last epoch
        up to `epoch` that has steps, and at those of `history`; what is before `begins` is ignored.
        """
        newest, begins = latest.commit, latest.begins
        if epoch < begins:
            return newest
        folders = {**self._of_history(epoch, newest, history), **self._last_written(epoch, newest)}
        for commit, found in sorted(folders.items(), key=lambda item: item[0]):
            if commit.epoch < begins:
                continue
            if (newest is None or commit > newest) and found.ranks:
                # A step that was retired or is damaged is left as it is, and does not stop the
                # claim.
                with suppress(Fenced, RestoreFailed):
                    if self._record(commit, found):
                        newest = commit
        return newest

    def _of_history(
        self, epoch: int, newest: Commit | None, history: History
    ) -> Mapping[Commit, StepFolder]:
        """Return the steps of `history` that may be newer than the newest commit.

        They may have been completed after later rounds had begun to save.
        """
        oldest = newest.epoch if newest is not None else 0
        found: dict[Commit, StepFolder] = {}
        for past in (past for past in history if oldest <= past < epoch):
            folders = step_folders(self.storage.keys(f"{past}/"))
            found |= {
                commit: each for commit, each in folders.items() if commit.step <= history[past]
            }
        return found

    def _last_written(self, epoch: int, newest: Commit | None) -> Mapping[Commit, StepFolder]:
        """Return the steps of the last epoch, up to `epoch`, in which anything was saved.

        A round that was replaced before it saved has claimed an epoch as well. What was completed
        in the epoch before that is still to be recorded. A round that has saved has gone on from
        what it knew. Steps that are completed below earlier epochs after that count only if they
        are part of its history.
        """
        folders = step_folders(self.storage.keys(f"{epoch}/"))
        if folders or epoch <= (newest.epoch if newest is not None else 0):
            return folders
        folders = step_folders(self.storage.keys())
        last = max((commit.epoch for commit in folders if commit.epoch < epoch), default=0)
        return {commit: found for commit, found in folders.items() if commit.epoch == last}

    # -- committing -------------------------------------------------------------------------------

    def has_manifest(self, commit: Commit, rank: int) -> bool:
        """Return whether the rank's manifest of this step is stored, and whole."""
        blob = self.storage.get(f"{folder(commit)}/{manifest.manifest_name(rank)}")
        return blob is not None and manifest.is_readable(blob.data)

    def put_shard(
        self,
        commit: Commit,
        name: str,
        data: memoryview,
        progress: Callable[[int], None] = unseen,
    ) -> None:
        """Upload one shard. `progress` is called with the bytes of each part that was sent."""

        def part_put(nbytes: int) -> None:
            crash_points.reached("shard-part-put")
            progress(nbytes)

        self.storage.put(f"{folder(commit)}/{name}", data, part_put)
        crash_points.reached("shard-put")

    def put_manifest(self, content: Manifest) -> None:
        """Upload a rank's manifest, after its shards: a manifest that exists vouches for them."""
        commit = Commit(content.epoch, content.step)
        name = f"{folder(commit)}/{manifest.manifest_name(content.rank)}"
        self.storage.put(name, memoryview(manifest.encode(content)))
        crash_points.reached("manifest-put")

    def commit(self, commit: Commit, epoch: int) -> bool:
        """Record the step if all ranks' manifests are there, and move LATEST to it.

        `epoch` is the epoch of the daemon's current round. Returns False while the step is
        incomplete. Raises `Fenced` when the step was retired or the storage belongs to a later
        round.
        """
        if not self._record(commit, self._look(commit)):
            return False
        self._advance(commit, epoch)
        return True

    def _look(self, commit: Commit) -> StepFolder:
        """Return the step's manifests and record.

        Shards are not listed: there may be many, and some stores read each object to list it.
        """
        place = folder(commit)
        keys = self.storage.keys(f"{place}/{manifest.FOLDER}/")
        record = f"{place}/{metadata.NAME}"
        if self.storage.get(record) is not None:
            keys.append(record)
        return step_folders(keys).get(commit, StepFolder(commit, frozenset()))

    def _record(self, commit: Commit, found: StepFolder) -> bool:
        """Return whether the commit record exists, after creating it if the step is complete.

        Raises `Fenced` where the step was retired.
        """
        key = f"{folder(commit)}/{metadata.NAME}"
        if found.has_record:
            if not self.is_alive(commit):
                raise Fenced(f"step {commit.step} of epoch {commit.epoch} was retired")
            return True
        ranks = found.ranks
        if ranks != frozenset(range(len(ranks))):
            return False
        # A manifest that was swept since the listing is no error: the next look finds the
        # tombstone.
        first = self._manifest(commit, 0) if ranks else None
        if first is None or len(ranks) < first.world_size:
            return False
        read = [first, *self._manifests(commit, sorted(ranks - {0}))]
        manifests = [content for content in read if content is not None]
        if len(manifests) < len(read) or manifest.complaint(manifests):
            return False
        crash_points.reached("step-complete")
        record = metadata.write(manifests)
        if not self.storage.create(key, record):
            there = self.storage.get(key)
            if there is None or metadata.is_tombstone(there.data):
                raise Fenced(f"step {commit.step} of epoch {commit.epoch} was retired")
            if not metadata.agrees(there.data, record):
                raise RestoreFailed(f"{self.storage.url}/{key} does not agree with the manifests")
        crash_points.reached("record-put")
        return True

    def _advance(self, commit: Commit, epoch: int) -> None:
        """Move LATEST forward to the commit.

        Raises `Fenced` where its epoch is no longer `epoch`.
        """
        while True:
            latest, etag = self._read_latest()
            if isinstance(latest, ForwardPointer):
                raise Fenced(f"{self.storage.url}: {latest.refusal}")
            if latest is None:
                latest, etag = self._recovered(), ""
                latest = msgspec.structs.replace(latest, epoch=max(latest.epoch, epoch))
            if latest.owner != self.owner or latest.epoch != epoch:
                ours = latest.owner == self.owner and latest.epoch > epoch
                raise (SupersededByNewerEpoch if ours else Fenced)(
                    f"{self.storage.url} is at epoch {latest.epoch} of {latest.owner}; "
                    f"this node's round has epoch {epoch}"
                )
            if latest.commit is not None and latest.commit >= commit and etag:
                return
            newest = max(filter(None, (latest.commit, commit)))
            if self._latest.write(msgspec.structs.replace(latest, commit=newest), etag):
                crash_points.reached("latest-moved")
                return

    # -- reading ----------------------------------------------------------------------------------

    def latest(self) -> Commit | None:
        """Return the commit that LATEST names, or None."""
        latest, _ = self._read_latest()
        return latest.commit if latest is not None else None

    def begins(self) -> int:
        """Return the first epoch whose commits count."""
        latest, _ = self._read_latest()
        return latest.begins if latest is not None else 0

    def newest(self, *, step: int | None = None, before: Commit | None = None) -> Commit | None:
        """Return the newest commit that counts, or None.

        `step` restricts the search to that step, `before` to commits older than that one.
        """
        begins = self.begins()
        for commit, found in sorted(step_folders(self.storage.keys()).items(), reverse=True):
            if commit.epoch < begins:
                return None
            asked = step in (None, commit.step) and (before is None or commit < before)
            if asked and found.has_record and self.is_alive(commit):
                return commit
        return None

    def manifests(self, commit: Commit, ranks: Iterable[int]) -> list[Manifest]:
        """Return the manifests of these ranks, by rank.

        Raises `RestoreFailed` where one is missing.
        """
        wanted = sorted(ranks)
        read = []
        for rank, content in zip(wanted, self._manifests(commit, wanted), strict=True):
            if content is None:
                name = f"{folder(commit)}/{manifest.manifest_name(rank)}"
                raise RestoreFailed(
                    f"{self.storage.url}/{name} does not exist: the checkpoint is damaged"
                )
            read.append(content)
        return read

    def _manifests(self, commit: Commit, ranks: Sequence[int]) -> list[Manifest | None]:
        if len(ranks) <= FEW:
            return [self._manifest(commit, rank) for rank in ranks]
        return list(self._readers.map(lambda rank: self._manifest(commit, rank), ranks))

    def _manifest(self, commit: Commit, rank: int) -> Manifest | None:
        name = f"{folder(commit)}/{manifest.manifest_name(rank)}"
        blob = get_checked(self.storage, name, manifest.is_readable)
        if blob is None:
            return None
        place = f"{self.storage.url}/{name}"
        content = manifest.decode(blob.data, place)
        if (content.epoch, content.step, content.rank) != (commit.epoch, commit.step, rank):
            raise RestoreFailed(f"{place} is damaged: it is the manifest of another save")
        return content

    def checkpoint(self, commit: Commit) -> Sequence[Manifest]:
        """Return all manifests of a committed step. Raises `RestoreFailed` for any other step."""
        place = f"{self.storage.url}/{folder(commit)}"
        if not self.is_alive(commit):
            raise RestoreFailed(f"{place} is not a committed checkpoint")
        # A second look tells a listing that was wrong once from a manifest that is missing.
        for _ in range(2):
            manifests = self.manifests(commit, self._look(commit).ranks)
            complaint = manifest.complaint(manifests)
            if not complaint:
                return manifests
        raise RestoreFailed(f"{place} is damaged: {complaint}")

    def is_alive(self, commit: Commit) -> bool:
        """Return whether the step has a commit record that is no tombstone."""
        # Only the beginning is read: the record of a large state takes many MiB.
        begun = bytearray(len(metadata.TOMBSTONE))
        name = f"{folder(commit)}/{metadata.NAME}"
        there = self.storage.read(name, 0, memoryview(begun))
        return there > 0 and not metadata.is_tombstone(bytes(begun[:there]))
