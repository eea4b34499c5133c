"""The two regions of a move: where a job is, where it goes, and what is seen there."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
from spotelastic_checkpoints.commit.latest import LATEST, ForwardPointer, Latest, decoded
from spotelastic_checkpoints.storage.object_store import Storage

from spotelastic.aws.clusters import asleep, copying
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.client.moving.move_decision import MoveSeen, RegionSide
from spotelastic.client.progress import training
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.cloud.bucket import CHECKPOINTS, STOPPING
from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class MoveRegions:
    """A job with the two regions."""

    spec: JobSpec
    """The job as the source's bucket has it."""
    source: CloudTarget
    target: CloudTarget
    bucket: str
    """The source's bucket."""

    @property
    def name(self) -> str:
        """The cluster's name, which is the same in both regions."""
        return self.spec.cluster

    @property
    def here(self) -> BucketObjects:
        """The objects of the source's cluster."""
        return BucketObjects(self.source.aws, self.bucket, self.name)

    @property
    def there(self) -> BucketObjects:
        """The objects of the target's cluster."""
        return BucketObjects(self.target.aws, self.target.bucket, self.name)

    @property
    def run_here(self) -> BucketObjects:
        """The objects of the run in the source."""
        return BucketObjects(self.source.aws, self.bucket, self.spec.run)

    @property
    def run_there(self) -> BucketObjects:
        """The objects of the run in the target."""
        return BucketObjects(self.target.aws, self.target.bucket, self.spec.run)

    @property
    def cluster(self) -> ClusterRecord:
        """The source's cluster."""
        return ClusterRecord(self.source.aws, self.spec, self.bucket)

    def storage_here(self) -> Storage:
        """Open the source's storage."""
        return self.source.storage(self.url_here)

    def storage_there(self) -> Storage:
        """Open the target's storage."""
        return self.target.storage(self.url_there)

    @property
    def url_there(self) -> str:
        """URL of the target's storage."""
        return _url(self.run_there)

    @property
    def url_here(self) -> str:
        """URL of the source's storage."""
        return _url(self.run_here)

    @property
    def sleeps(self) -> bool:
        """Whether the job has a cluster in both regions, of which one is asleep."""
        its = () if self.spec.regions is None else self.spec.regions.names
        return {self.source.aws.region, self.target.aws.region} <= {*its}

    def look(self) -> MoveSeen:
        """Return what both regions show now."""
        source = _side(self.source, self.here, self.run_here, sleeps=self.sleeps)
        target = _side(self.target, self.there, self.run_there, sleeps=self.sleeps)
        commit = source.commit
        copied = commit is None or copying.is_copied(self.run_there, commit)
        moving = self.here.moving()
        begun = moving is not None and moving.region == self.target.aws.region
        reason = moving.reason if moving is not None else ""
        return MoveSeen(self.name, source, target, copied, begun, reason)


def latest_of(run: BucketObjects) -> Latest | None:
    """Return what LATEST of a run says; None where there is none."""
    data = run.get(f"{CHECKPOINTS}{LATEST}")
    try:
        return None if data is None else decoded(data)
    except msgspec.DecodeError as error:
        raise UsageError(f"{run.url(CHECKPOINTS)}{LATEST} cannot be read: {error}") from None


def find(home: CloudTarget, name: str | None, region: str | None, note: Say) -> MoveRegions:
    """Return the regions of a move of that cluster, or of the only one, to `region`.

    Without a `region` it is the one to which the job is being, or was, moved last. `home` is where
    the search begins: forward pointers lead from there to where the job is.
    """
    if name is None:
        name = home.only_one()
    source, seen = home, {home.aws.region}
    while True:
        at = _of(source, name)
        pointer = None if at is None else latest_of(at.run_here)
        if at is None:
            raise UsageError(f"there is no cluster named {name} in {source.aws.region}")
        if not isinstance(pointer, ForwardPointer) or pointer.region in (region, *seen):
            break
        if region is None and at.here.moving() is not None:
            break  # the move that is to be undone
        source = source.in_region(pointer.region)
        seen |= {pointer.region}
    if region is None:
        moving = at.here.moving()
        if moving is None:
            raise UsageError(f"there is no move of {name} to undo: give --region to begin one")
        region = moving.region
    elif region == source.aws.region:
        return _from_before(at, note)
    return replace(at, target=source.in_region(region))


def _from_before(at: MoveRegions, note: Say) -> MoveRegions:
    """Return the regions of the move by which the job came to where it is."""
    earlier, region = at.here.earlier(), at.source.aws.region
    if earlier is None:
        raise UsageError(f"{at.name} is in {region} already")
    before = _of(at.source.in_region(earlier.region), at.name)
    if before is None:
        raise UsageError(f"{at.name} is in {region} already")
    return replace(before, target=at.source)


def _of(target: CloudTarget, name: str) -> MoveRegions | None:
    """Return the job with its region; None if it was never there."""
    known = target.known(name) or target.left(name)
    if known is None:
        return None
    return MoveRegions(known.spec, target, target, known.bucket)


def _side(
    target: CloudTarget, objects: BucketObjects, run: BucketObjects, *, sleeps: bool
) -> RegionSide:
    up = name_is_up(target, objects.cluster)
    if up == "up" and sleeps and not asleep.is_awake(target.aws, objects.cluster):
        return RegionSide(target.aws.region, latest_of(run), "asleep", sleeps=True)
    status = objects.status() if up == "up" else None
    return RegionSide(
        target.aws.region,
        latest_of(run),
        up,
        sleeps,
        objects.has(STOPPING),
        "" if status is None else status.state,
        status is not None and training(status),
        0 if status is None else status.step,
        "" if status is None else status.reason,
    )


def name_is_up(target: CloudTarget, name: str) -> Literal["none", "left", "up"]:
    """Return whether there is a cluster of that name, or parts of one."""
    if target.known(name) is not None:
        return "up"
    return "left" if name in target.names() else "none"


def _url(run: BucketObjects) -> str:
    return run.url(CHECKPOINTS.rstrip("/"))
