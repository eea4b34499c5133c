"""Reads and writes LATEST, the object that names a storage's newest commit and current epoch.

A storage whose run was moved to another one has a forward pointer in its place. It is written like
a claim, under a new epoch and by compare-and-swap. So whoever wrote there before is fenced, and
nobody can claim the storage any more (`commit/moving.py`).
"""

import re
from contextlib import suppress
from operator import ne

import msgspec

from spotelastic_checkpoints import checksummed_json
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.protocol_version import FORMAT, of_newer_format
from spotelastic_checkpoints.storage.object_store import Blob, Storage, get_checked
from spotelastic_checkpoints.types import Commit

LATEST = "LATEST"
"""Key of the object that names the newest commit and the current epoch."""
POINTER_FORMAT = 2
"""Format number of forward pointers. Versions that do not know them refuse the storage."""


class Latest(msgspec.Struct, frozen=True):
    """The content of LATEST."""

    owner: str
    """Name of the run that the storage belongs to. An imported checkpoint has no owner, and belongs
    to the first run that claims it.
    """
    epoch: int
    """The newest epoch that was claimed."""
    commit: Commit | None
    """The newest commit; None if there is none that counts."""
    nonce: str
    """A random value, new with every claim: it tells whose claim succeeded."""
    begins: int = 0
    """The first epoch whose commits count. A fresh start (`--fresh`) leaves those before it stored,
    but ignored.
    """
    version: int = FORMAT
    run_id: str = ""
    """The run's id for experiment trackers. A fresh start gets a new one by its first claim."""


class ForwardPointer(Latest, frozen=True, kw_only=True):
    """What LATEST contains where the run was moved. `commit` is the one that it was moved with."""

    version: int = POINTER_FORMAT
    to: str
    """URL of the storage in which the run goes on."""
    region: str = ""
    """The cloud's region of that storage, where it has one."""
    moved_at: float = 0.0
    """When the run was moved (epoch seconds)."""

    @property
    def refusal(self) -> str:
        """Why the storage that the pointer lies in cannot be used, for people."""
        where = f" (region {self.region})" if self.region else ""
        return f"the run {self.owner} was moved to {self.to}{where}, and goes on there"


def decoded(data: bytes) -> Latest:
    """Return what LATEST says: a `ForwardPointer` where the run was moved.

    Raises `msgspec.DecodeError`, also for an object of a newer format.
    """
    found = checksummed_json.decode(data, Latest)
    if found.version != POINTER_FORMAT:
        return found
    return checksummed_json.decode(data, ForwardPointer)


_FIELDS = b'"owner":', b'"epoch":', b'"nonce":'
"""What each LATEST has. One that has all but one of them is not another program's."""


class DamagedLatest(StorageRefused):
    """LATEST is not what was written. A claim by its own run writes it again."""

    def __init__(self, url: str, blob: Blob, why: object) -> None:
        super().__init__(f"{url} is damaged: {why}")
        self.etag = blob.etag
        self._data = blob.data
        self._url = url

    @property
    def epoch(self) -> int:
        """The epoch that it seems to name; 0 where that cannot be told."""
        found = re.search(rb'"epoch":(\d{1,18}),', self._data)
        return int(found[1]) if found else 0

    def check_owner(self, owner: str) -> None:
        """Raise `StorageRefused` where it may say that nobody but another run may write here.

        One byte may differ from what a LATEST of this owner says.
        """
        named = re.search(rb'"owner":"(.*?)","epoch"', self._data)
        theirs, ours = named[1] if named else b"", msgspec.json.encode(owner)[1:-1]
        unlike = abs(len(theirs) - len(ours)) + sum(map(ne, theirs, ours))
        if b'"moved_at":' in self._data or b'"version":2' in self._data:
            raise StorageRefused(f"{self}; the run was moved from here, and may go on elsewhere")
        if theirs and owner and unlike > 1:
            name = theirs.decode(errors="replace")
            raise StorageRefused(f"{self}; it seems to be of the run {name}, not of {owner}")


class LatestObject:
    """LATEST of one storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def read(self) -> tuple[Latest | None, str]:
        """Return the content with its etag; None and "" where there is none.

        Raises `DamagedLatest`.
        """
        blob, url = (
            get_checked(self._storage, LATEST, _is_readable),
            f"{self._storage.url}/{LATEST}",
        )
        if blob is None:
            return None, ""
        if newer := of_newer_format(blob.data, url, POINTER_FORMAT):
            raise StorageRefused(newer)
        try:
            return decoded(blob.data), blob.etag
        except msgspec.MsgspecError as error:
            # Stores that write objects in place may show LATEST half written.
            if self._storage.weaker and not isinstance(error, msgspec.ValidationError):
                raise StorageUnavailable(
                    f"{url} is incomplete: it is being written, or a write was cut off; if it "
                    "stays so, delete it, and the next round writes it again"
                ) from None
            if sum(field in blob.data for field in _FIELDS) < len(_FIELDS) - 1:
                raise StorageRefused(f"{url} was not written by spotelastic: {error}") from None
            raise DamagedLatest(url, blob, error) from None

    def write(self, latest: Latest, etag: str) -> bool:
        """Write LATEST if its etag is still `etag`, or does not exist where `etag` is empty.

        Returns whether it now has this content.
        """
        data = checksummed_json.encode(latest)
        if etag:
            written = self._storage.swap(LATEST, data, etag)
        else:
            written = self._storage.create(LATEST, data)
        if written:
            return True
        # A request that was repeated below this layer finds the object that its own first try
        # wrote.
        now, _ = self.read()
        return now == latest


def _is_readable(data: bytes) -> bool:
    with suppress(msgspec.MsgspecError):
        decoded(data)
        return True
    return False
