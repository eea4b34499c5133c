"""The commit protocol over an object store (docs/explanation/protocols.md, Commit).

    <root>/LATEST                                    {owner, epoch, commit}
    <root>/<epoch>/step-<step>/__<rank>_<n>.distcp   a rank's shards, then
    <root>/<epoch>/step-<step>/manifests/<rank>.json its manifest, and when all are there
    <root>/<epoch>/step-<step>/.metadata             the commit record, created once

Must never happen: LATEST names a step that is not complete, or moves back, or is moved by a round
that another has fenced. So everything is written before what makes it count, LATEST is only ever
swapped, and a swap is given up when the epoch in it is not ours.

Synchronous, without retries: `StorageUnavailable` means that nothing is known and that the whole
call may be made again.
"""

import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.crash_points import Stage
from spotelastic_checkpoints.errors import (
    Fenced,
    RestoreFailed,
    StorageRefused,
    StorageUnavailable,
    SupersededByNewerEpoch,
)
from spotelastic_checkpoints.format import manifest, metadata
from spotelastic_checkpoints.format.manifest import Manifest
from spotelastic_checkpoints.storage.port import Storage, unseen
from spotelastic_checkpoints.types import Commit, EpochClaim

LATEST = "LATEST"
PROBE = "conditional-writes"
"""Created once; a store that lets it be created again ignores conditions."""
FEW, READ_AT_ONCE = 4, 8
"""Manifests that are not worth threads, and requests for manifests in flight."""
ACCEPT_WEAK = "SPOTELASTIC_WEAK_STORAGE"
_STEP = re.compile(r"(0|[1-9]\d*)/step-(\d{8}|[1-9]\d{8,})/(.+)")
"""As we name them: 1/step-5 is foreign."""


class Latest(msgspec.Struct, frozen=True):
    """Content of LATEST. `nonce` is new with every claim: it tells whose claim came through.

    What has no owner (an imported checkpoint) belongs to the first run that claims it.
    """

    owner: str
    epoch: int
    commit: Commit | None
    nonce: str
    begins: int = 0
    """The epoch from which on commits count: a run that began afresh left those before it alone."""


@dataclass(frozen=True, slots=True)
class StepFolder:
    """A step as listed: its file names, without the folder."""

    commit: Commit
    names: frozenset[str]

    @property
    def has_record(self) -> bool:
        return metadata.NAME in self.names

    @property
    def ranks(self) -> frozenset[int]:
        found = (manifest.rank_of(name) for name in self.names)
        return frozenset(rank for rank in found if rank is not None)

    @property
    def keys(self) -> list[str]:
        """Of everything but the commit record."""
        return [f"{folder(self.commit)}/{name}" for name in sorted(self.names - {metadata.NAME})]


def folder(commit: Commit) -> str:
    return f"{commit.epoch}/step-{commit.step:08d}"


def step_folders(keys: Iterable[str]) -> Mapping[Commit, StepFolder]:
    """What a listing shows, oldest first."""
    names: dict[Commit, set[str]] = defaultdict(set)
    for key in keys:
        match = _STEP.fullmatch(key)
        if match:
            names[Commit(int(match[1]), int(match[2]))].add(match[3])
    return {commit: StepFolder(commit, frozenset(names[commit])) for commit in sorted(names)}


class Commits:
    """The store as one owner sees it."""

    def __init__(self, storage: Storage, owner: str) -> None:
        self.storage = storage
        self.owner = owner
        self._readers = ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="manifests")
        self._one_claim = threading.Lock()
        self._claiming: tuple[str, int] | None = None
        """Nonce of a claim that has not been answered to its end, and the epoch before it."""
        self._conditions_seen = False

    # -- epochs -----------------------------------------------------------------------------------

    def claim(self, *, take_over: bool = False) -> EpochClaim:
        """Fence every earlier round, and adopt what the last one finished but did not record.

        One at a time: a proposal that is replaced leaves its claim under way.
        """
        with self._one_claim:
            return self._claim(take_over)

    def _claim(self, take_over: bool) -> EpochClaim:
        if not self._conditions_seen:
            self.see_conditions()
        latest, etag = self._read_latest()
        self._check_owner(latest, take_over)
        if latest is None:
            latest = self._recovered()
        if self._claiming is None or self._claiming[0] != latest.nonce:
            # Before the swap, because we may die after it, and a round of our epoch that has
            # saved hides what came before. After it again, for what was finished meanwhile.
            newest = self._recorded(latest.epoch, latest.commit, latest.begins)
            claimed = Latest(
                self.owner, latest.epoch + 1, newest, os.urandom(8).hex(), latest.begins
            )
            self._claiming = claimed.nonce, latest.epoch
            if not self._write_latest(claimed, etag):
                return self._claim(take_over)
            latest = claimed
        crash_points.reached(Stage.EPOCH_CLAIMED)
        newest = self._recorded(self._claiming[1], latest.commit, latest.begins)
        if newest is not None and newest != latest.commit:
            self._advance(newest, latest.epoch)
        self._claiming = None
        return EpochClaim(latest.epoch, newest)

    def _check_owner(self, latest: Latest | None, take_over: bool) -> None:
        if latest is not None and latest.owner not in ("", self.owner) and not take_over:
            raise StorageRefused(
                f"{self.storage.url} belongs to the run {latest.owner}, not to {self.owner}: "
                "use another place, or take it over"
            )

    def begin_afresh(self, *, take_over: bool = False) -> Commit | None:
        """From now on nothing that is there counts. It is not deleted, and never collected.
        Returns the newest commit of before.

        Raises `StorageRefused` where the storage is another owner's.
        """
        while True:
            latest, etag = self._read_latest()
            self._check_owner(latest, take_over)
            if latest is None:
                latest = self._recovered()
            epoch = latest.epoch + 1
            fresh = Latest(self.owner, epoch, None, os.urandom(8).hex(), begins=epoch)
            if self._write_latest(fresh, etag):
                return latest.commit

    def see_conditions(self) -> None:
        """Refuse a store on which two rounds could both commit, unless it was accepted."""
        ignored = all(self.storage.create(PROBE, b"spotelastic") for _ in range(2))
        if ignored and os.environ.get(ACCEPT_WEAK) != "1":
            raise StorageRefused(
                f"{self.storage.url} ignores conditional writes (If-None-Match), so that two "
                f"rounds could both commit: use another store, or set {ACCEPT_WEAK}=1 and never "
                "run two clusters on it"
            )
        self._conditions_seen = True

    def _recovered(self) -> Latest:
        """What LATEST would say, from a listing."""
        folders = step_folders(self.storage.keys())
        commits = [
            commit for commit, found in folders.items() if found.has_record and self._alive(commit)
        ]
        highest = max((commit.epoch for commit in folders), default=0)
        return Latest(self.owner, highest, max(commits, default=None), "")

    def _recorded(self, epoch: int, newest: Commit | None, begins: int) -> Commit | None:
        """Records the steps that were complete when their last writer died, of an epoch and those
        before it; the newest commit then. What is before `begins` counts no more."""
        if epoch < begins:
            return newest
        for commit, found in self._last_written(epoch, newest).items():
            if commit.epoch < begins:
                continue
            if (newest is None or commit > newest) and found.ranks:
                # One that was retired or is damaged stays what it is, and holds nobody up.
                with suppress(Fenced, RestoreFailed):
                    if self._record(commit, found):
                        newest = commit
        return newest

    def _last_written(self, epoch: int, newest: Commit | None) -> Mapping[Commit, StepFolder]:
        """The steps of the last epoch up to this one that has any.

        A round that was replaced before it saved has claimed an epoch, too, and what was completed
        in the one before that is still to be recorded. Once a round has saved it has gone on from
        what it knew: what is completed before it since is recorded by itself, if it is its history.
        """
        folders = step_folders(self.storage.keys(f"{epoch}/"))
        if folders or epoch <= (newest.epoch if newest is not None else 0):
            return folders
        folders = step_folders(self.storage.keys())
        last = max((commit.epoch for commit in folders if commit.epoch < epoch), default=0)
        return {commit: found for commit, found in folders.items() if commit.epoch == last}

    # -- committing -------------------------------------------------------------------------------

    def has_manifest(self, commit: Commit, rank: int) -> bool:
        name = f"{folder(commit)}/{manifest.manifest_name(rank)}"
        return self.storage.get(name) is not None

    def put_shard(
        self,
        commit: Commit,
        name: str,
        data: memoryview,
        progress: Callable[[int], None] = unseen,
    ) -> None:
        def part_put(nbytes: int) -> None:
            crash_points.reached(Stage.SHARD_PART_PUT)
            progress(nbytes)

        self.storage.put(f"{folder(commit)}/{name}", data, part_put)
        crash_points.reached(Stage.SHARD_PUT)

    def put_manifest(self, content: Manifest) -> None:
        """After the shards, so that a manifest that exists vouches for them."""
        commit = Commit(content.epoch, content.step)
        name = f"{folder(commit)}/{manifest.manifest_name(content.rank)}"
        self.storage.put(name, memoryview(manifest.encode(content)))
        crash_points.reached(Stage.MANIFEST_PUT)

    def commit(self, commit: Commit, epoch: int) -> bool:
        """Record the step if all ranks' manifests are there, and move LATEST to it.

        `epoch` is the one that the daemon's current round holds. False: not complete yet. Raises
        `Fenced` when the step was retired, or the store belongs to a later round.
        """
        if not self._record(commit, self._look(commit)):
            return False
        self._advance(commit, epoch)
        return True

    def _look(self, commit: Commit) -> StepFolder:
        """Without the shards: they may be many, and some stores read them all to list them."""
        place = folder(commit)
        keys = self.storage.keys(f"{place}/{manifest.FOLDER}/")
        record = f"{place}/{metadata.NAME}"
        if self.storage.get(record) is not None:
            keys.append(record)
        return step_folders(keys).get(commit, StepFolder(commit, frozenset()))

    def _record(self, commit: Commit, found: StepFolder) -> bool:
        """True when the commit record is there, by us or another."""
        key = f"{folder(commit)}/{metadata.NAME}"
        if found.has_record:
            if not self._alive(commit):
                raise Fenced(f"step {commit.step} of epoch {commit.epoch} was retired")
            return True
        ranks = found.ranks
        if ranks != frozenset(range(len(ranks))):
            return False
        # One that was swept since it was listed is no error: the next look finds the tombstone.
        first = self._manifest(commit, 0) if ranks else None
        if first is None or len(ranks) < first.world_size:
            return False
        read = [first, *self._manifests(commit, sorted(ranks - {0}))]
        manifests = [content for content in read if content is not None]
        if len(manifests) < len(read) or manifest.complaint(manifests):
            return False
        crash_points.reached(Stage.STEP_COMPLETE)
        record = metadata.write(manifests)
        if not self.storage.create(key, record):
            there = self.storage.get(key)
            if there is None or metadata.unpinned(there.data) != record:
                raise Fenced(f"step {commit.step} of epoch {commit.epoch} was retired")
        crash_points.reached(Stage.RECORD_PUT)
        return True

    def _advance(self, commit: Commit, epoch: int) -> None:
        """LATEST moves forward only, and only while its epoch is ours."""
        while True:
            latest, etag = self._read_latest()
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
            if self._write_latest(msgspec.structs.replace(latest, commit=newest), etag):
                crash_points.reached(Stage.LATEST_MOVED)
                return

    # -- reading ----------------------------------------------------------------------------------

    def latest(self) -> Commit | None:
        latest, _ = self._read_latest()
        return latest.commit if latest is not None else None

    def begins(self) -> int:
        """The epoch from which on commits count."""
        latest, _ = self._read_latest()
        return latest.begins if latest is not None else 0

    def newest(self, *, step: int | None = None, before: Commit | None = None) -> Commit | None:
        """The newest commit that counts: at `step` alone, and older than `before`, where told."""
        begins = self.begins()
        for commit, found in sorted(step_folders(self.storage.keys()).items(), reverse=True):
            if commit.epoch < begins:
                return None
            asked = step in (None, commit.step) and (before is None or commit < before)
            if asked and found.has_record and self._alive(commit):
                return commit
        return None

    def manifests(self, commit: Commit, ranks: Iterable[int]) -> list[Manifest]:
        wanted = sorted(ranks)
        read = []
        for rank, content in zip(wanted, self._manifests(commit, wanted), strict=True):
            if content is None:
                name = f"{folder(commit)}/{manifest.manifest_name(rank)}"
                raise RestoreFailed(f"{self.storage.url}/{name} is missing")
            read.append(content)
        return read

    def _manifests(self, commit: Commit, ranks: Sequence[int]) -> list[Manifest | None]:
        if len(ranks) <= FEW:
            return [self._manifest(commit, rank) for rank in ranks]
        return list(self._readers.map(lambda rank: self._manifest(commit, rank), ranks))

    def _manifest(self, commit: Commit, rank: int) -> Manifest | None:
        name = f"{folder(commit)}/{manifest.manifest_name(rank)}"
        blob = self.storage.get(name)
        return manifest.decode(blob.data, name) if blob is not None else None

    def checkpoint(self, commit: Commit) -> Sequence[Manifest]:
        """The manifests of a committed step; raises `RestoreFailed` for any other."""
        place = f"{self.storage.url}/{folder(commit)}"
        if not self._alive(commit):
            raise RestoreFailed(f"{place} is not a committed checkpoint")
        manifests = self.manifests(commit, self._look(commit).ranks)
        if complaint := manifest.complaint(manifests):
            raise RestoreFailed(f"{place}: {complaint}")
        return manifests

    def _alive(self, commit: Commit) -> bool:
        # Of a large state it takes many MiB, which its beginning spares.
        begun = bytearray(len(metadata.TOMBSTONE))
        name = f"{folder(commit)}/{metadata.NAME}"
        there = self.storage.read(name, 0, memoryview(begun))
        return there > 0 and not metadata.is_tombstone(bytes(begun[:there]))

    # -- LATEST -----------------------------------------------------------------------------------

    def _read_latest(self) -> tuple[Latest | None, str]:
        blob = self.storage.get(LATEST)
        if blob is None:
            return None, ""
        try:
            return msgspec.json.decode(blob.data, type=Latest), blob.etag
        except msgspec.MsgspecError as error:
            # Where objects are written in place, others may look in the middle.
            if self.storage.weaker and not isinstance(error, msgspec.ValidationError):
                raise StorageUnavailable(
                    f"{self.storage.url}/{LATEST} is not whole: it is being written, or a write "
                    "was cut off; if it stays so, delete it, and the next round makes it again"
                ) from None
            raise StorageRefused(f"{self.storage.url}/{LATEST} is not ours: {error}") from None

    def _write_latest(self, latest: Latest, etag: str) -> bool:
        """Over the content named by `etag`, or anew where that is empty."""
        data = msgspec.json.encode(latest)
        if etag:
            written = self.storage.swap(LATEST, data, etag)
        else:
            written = self.storage.create(LATEST, data)
        if written:
            return True
        # A request that was repeated below us meets its own first try.
        now, _ = self._read_latest()
        return now == latest
