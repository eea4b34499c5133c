"""The objects of a cluster in its bucket: everything under `<cluster>/`.

A provider stores bytes by name; what the objects mean is the same for all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, ClassVar, TypeVar

import msgspec
from spotelastic_checkpoints.decoders import from_json

from spotelastic.errors import EnvironmentFailure, OtherVersion, Unavailable
from spotelastic.model.job import JobSpec
from spotelastic.model.measured import Series
from spotelastic.model.progress import Earlier, Event, Moving, Point, Report, Status
from spotelastic.model.protocol import keeping_unknown, unfit
from spotelastic.model.requests.command import Answer

CHECKPOINTS = "checkpoints/"
JOB = "job.json"
STATUS = "status.json"
EVENTS = "events.jsonl"
CURVE = "curve.json"
REPORT = "report.json"
MEASURED = "measured.json"
"""What the script logs, and how busy GPUs are, over the run's time."""
USAGE = "usage.json"
EARLIER = "earlier.json"
"""What the job has done in the regions that it was in before."""
MOVING = "moving.json"
"""Where the job is being, or was, moved to."""
REGIONS = "regions.json"
"""What a job that moves by itself has met in its regions, and what was decided about that last."""
STOPPING = "stopping"
"""An empty object that exists while, and after, the cluster is being taken down."""

TRIES = 20
"""Attempts to change an object that others change too."""

T = TypeVar("T")


class ClusterBucket(ABC):
    """The objects of one cluster.

    Reads return None for a missing object. All methods raise `Unavailable` if the bucket does not
    answer.
    """

    __slots__ = ()

    is_left: ClassVar[bool] = False
    """Whether a cluster that is gone has left them, so that no controller writes them any more."""
    cluster: str

    @abstractmethod
    def url(self, name: str) -> str:
        """Return the object's URL."""

    @abstractmethod
    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return an object and its version, which differs after each write."""

    @abstractmethod
    def put(self, name: str, data: bytes | IO[bytes]) -> None:
        """Write an object."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Create an object; return False if it exists. Of several creators one succeeds."""

    @abstractmethod
    def replace(self, name: str, data: bytes, version: str) -> bool:
        """Write an object that has this version; return False if it has another, or is gone."""

    @abstractmethod
    def names(self, prefix: str) -> tuple[str, ...]:
        """Return the names of all objects with this prefix, in order."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether the object exists."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object; a missing one is not an error."""

    def create_from(self, name: str, file: Path) -> bool:
        """Create an object from a file; return False if it exists."""
        return self.create(name, file.read_bytes())

    def download(self, name: str, file: Path) -> None:
        """Read an object into a file. Raises `EnvironmentFailure` if there is none."""
        data = self.get(name)
        if data is None:
            raise EnvironmentFailure(f"{self.url(name)} does not exist")
        file.write_bytes(data)

    def get(self, name: str) -> bytes | None:
        """Return an object, or None."""
        found = self.read(name)
        return None if found is None else found[0]

    # -- the objects that the user's machine reads -----------------------------------------------

    def job(self) -> JobSpec | None:
        """Return the description of the cluster's job, or None."""
        return self._decoded(JOB, JobSpec)

    def change_job(self, change: Callable[[JobSpec], JobSpec]) -> JobSpec:
        """Change the job's description, keeping what others write at the same time.

        `change` may be called several times, and may refuse by raising. Raises `EnvironmentFailure`
        if there is no job.
        """
        for _ in range(TRIES):
            found = self.read(JOB)
            if found is None:
                raise EnvironmentFailure(f"{self.url(JOB)} is missing: {self.cluster} has no job")
            data, version = found
            changed = change(self._decode(JOB, data, JobSpec))
            if self.replace(JOB, keeping_unknown(data, changed), version):
                return changed
        raise Unavailable(f"cannot change {self.url(JOB)}: other processes keep changing it")

    def status(self) -> Status | None:
        """Return the published status, or None."""
        return self._decoded(STATUS, Status)

    def report(self) -> Report | None:
        """Return the published report, or None."""
        return self._decoded(REPORT, Report)

    def earlier(self) -> Earlier | None:
        """Return what the job did in the region that it was moved from, or None."""
        return self._decoded(EARLIER, Earlier)

    def moving(self) -> Moving | None:
        """Return where the job is being, or was, moved to; None if nowhere."""
        return self._decoded(MOVING, Moving)

    def curve(self) -> list[Point]:
        """Return the points of the loss curve."""
        return self._decoded(CURVE, list[Point]) or []

    def measured(self) -> dict[str, Series]:
        """Return what was logged and measured, by name."""
        return self._decoded(MEASURED, dict[str, Series]) or {}

    def events(self) -> list[Event]:
        """Return all events so far."""
        data = self.get(EVENTS) or b""
        return [from_json(line, Event) for line in data.splitlines() if line]

    def put_answer(self, answer: Answer) -> None:
        """Store the answer to a command."""
        self.put(_answer(answer.id), msgspec.json.encode(answer))

    def answer_to(self, id: str) -> Answer | None:
        """Return the answer to a command; None while there is none."""
        data = self.get(_answer(id))
        return None if data is None else from_json(data, Answer)

    def _decoded(self, name: str, kind: type[T]) -> T | None:
        data = self.get(name)
        return None if data is None else self._decode(name, data, kind)

    def _decode(self, name: str, data: bytes, kind: type[T]) -> T:
        if reason := unfit(data, f"the cluster {self.cluster}"):
            raise OtherVersion(
                f"{self.url(name)}: {reason}; or run `spotelastic down {self.cluster}`, and `up` "
                "again, which goes on from its checkpoints"
            )
        try:
            return from_json(data, kind)
        except msgspec.MsgspecError as error:
            raise EnvironmentFailure(
                f"{self.url(name)} is not what this version of spotelastic writes: {error}"
            ) from error


def _answer(id: str) -> str:
    return f"commands/{id}.json"
