"""Carries out the steps of a job's move to another region. `move_decision.py` decides them.

Each step can be repeated: this process may be killed in it, or right after it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from threading import Event as Signal
from threading import Lock

import msgspec
from spotelastic_checkpoints import crash_points
from spotelastic_checkpoints.commit import moving
from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.commit.latest import ForwardPointer
from spotelastic_checkpoints.decoders import from_json
from spotelastic_checkpoints.errors import Fenced

from spotelastic.aws.base import account
from spotelastic.aws.clusters import asleep, copying
from spotelastic.aws.messaging.bucket import BucketObjects
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.aws.security import secrets
from spotelastic.client import commands
from spotelastic.client.moving import sleeping
from spotelastic.client.moving.move_decision import MoveSeen, MoveStep
from spotelastic.client.moving.two_regions import MoveRegions
from spotelastic.client.progress import Say, training
from spotelastic.client.storage import retried
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.clock import steady, wall
from spotelastic.cloud.bucket import CURVE, EARLIER, MEASURED, MOVING, REGIONS, STOPPING, USAGE
from spotelastic.controller.accounting.usage import Usage, closed
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.counting import size
from spotelastic.model.progress import Earlier, Moving, Status

TRANSFER = 0.02
"""US dollars for a GB that S3 copies between regions. (Some pairs of regions cost less or more.)"""
LOOK_EVERY = 0.5


@dataclass(frozen=True, slots=True)
class MovePolicy:
    """What a move waits for."""

    trains_within: float = 1200.0
    """Seconds within which the job should train in the new region."""
    led: bool = False
    """Whether it is over as soon as the target's cluster is led, whether it trains or not."""
    own: str = ""
    """The etcd member of the control node that this process is on; empty: it is on none."""


class Mover:
    """Carries out steps between two regions."""

    def __init__(self, regions: MoveRegions, say: Say, policy: MovePolicy) -> None:
        self._regions, self._say, self._policy = regions, say, policy
        its = regions
        self._steps: Mapping[MoveStep, Callable[[MoveSeen], None]] = {
            MoveStep.STOP: self._stop,
            MoveStep.CLAIM: self._claim,
            MoveStep.COPY: self._copy,
            MoveStep.CLOSE: self._close,
            MoveStep.OPEN: self._open,
            MoveStep.MAKE: lambda _: self._make(its.target, its.there),
            MoveStep.WAKE: lambda _: self._wake(its.target, its.there),
            MoveStep.AWAIT: self._await,
            MoveStep.END_SOURCE: lambda _: self._take_down(its.source, its.bucket),
            MoveStep.SLEEP: self._source_sleeps,
            MoveStep.CLOSE_TARGET: self._close_target,
            MoveStep.REOPEN: self._reopen,
            MoveStep.END_TARGET: lambda _: self._take_down(its.target, its.target.bucket),
            MoveStep.TARGET_SLEEPS: lambda _: asleep.put_to_sleep(its.target.aws, its.name),
            MoveStep.DROP: self._drop,
            MoveStep.RESUME: self._resume,
            MoveStep.REMAKE: self._remake,
            MoveStep.SOURCE_WAKES: lambda _: self._wake(its.source, its.here),
        }

    def carry_out(self, step: MoveStep, seen: MoveSeen) -> None:
        """Carry one step out. What another process did meanwhile is for the next look."""
        crash_points.reached_in(step, "begun")
        try:
            self._steps[step](seen)
        except Fenced as error:
            self._say(f"{error}: looking again")
        crash_points.reached_in(step, "done")

    def note(self, reason: str = "") -> None:
        """Record in the source where the job goes, and the `reason` if it moves by itself."""
        region = self._regions.target.aws.region
        self._regions.here.put(MOVING, msgspec.json.encode(Moving(region=region, reason=reason)))

    def forget(self) -> None:
        """Record in the source that the job is not being moved."""
        self._regions.here.delete(MOVING)

    # -- forward ---------------------------------------------------------------------------------

    def _stop(self, seen: MoveSeen) -> None:
        self._say(f"stopping {seen.name} in {seen.source.region}: it commits its last step")
        moving = self._regions.here.moving()
        reason = moving.reason if moving is not None else ""
        reason = reason or f"it is being moved to {seen.target.region}"
        commands.stop(self._regions.cluster, wait=True, say=self._say, reason=reason)

    def _claim(self, seen: MoveSeen) -> None:
        with retried(self._regions.storage_here, self._say) as storage:
            claimed = moving.claim_to_move(Commits(storage, self._regions.spec.run))
        step = 0 if claimed.commit is None else claimed.commit.step
        self._say(f"step {step} is the last one in {seen.source.region}")

    def _copy(self, seen: MoveSeen) -> None:
        its, commit = self._regions, seen.source.commit
        assert commit is not None
        self._ensure_bucket(seen)
        with retried(its.storage_here, self._say) as storage:
            manifests = Commits(storage, its.spec.run).checkpoint(commit)
        files = copying.files_of(commit, manifests)
        self._hand_over(seen, files.nbytes / 1e9 * TRANSFER if its.source.costs_money else 0.0)
        progress = _Progress(files.nbytes, f"to {its.target.aws.region}", self._say)
        # Before the commit, which says that everything is there.
        copying.copy_kept_files(its.run_here, its.run_there)
        copying.copy(its.run_here, its.run_there, files, progress.add)

    def _ensure_bucket(self, seen: MoveSeen) -> None:
        its = self._regions
        if seen.target.cluster == "none":  # with a cluster comes a bucket
            account.ensure_bucket(its.target.aws, its.target.bucket, its.spec.demands.tags)

    def _hand_over(self, seen: MoveSeen, copied_usd: float) -> None:
        """Copy what the source's cluster has recorded: events, curve, report and bill."""
        if seen.target.cluster not in ("none", "asleep"):
            return  # it has begun to record by itself
        here, there = self._regions.here, self._regions.there
        curve, commit = here.curve(), seen.source.commit
        earlier = Earlier(
            region=seen.source.region,
            to=seen.target.region,
            step=0 if commit is None else commit.step,
            copied_usd=copied_usd,
            last_step=curve[-1].step if curve else 0,
            first_step_at=min((point.at for point in curve), default=0.0),
            last_step_at=max((point.at for point in curve), default=0.0),
            events=tuple(here.events()),
            report=here.report(),
        )
        there.put(EARLIER, msgspec.json.encode(earlier))
        there.put(CURVE, msgspec.json.encode(curve))
        there.put(MEASURED, msgspec.json.encode(here.measured()))
        bill = from_json(here.get(USAGE) or b"[]", list[Usage])
        ended = closed({item.instance: item for item in bill}, wall())
        there.put(USAGE, msgspec.json.encode(list(ended.values())))
        if (history := here.get(REGIONS)) is not None:
            there.put(REGIONS, history)

    def _close(self, seen: MoveSeen) -> None:
        its, latest = self._regions, seen.source.latest
        assert latest is not None
        self._ensure_bucket(seen)
        # Also where there was nothing to copy: the commit may have come from there.
        self._hand_over(seen, self._copied_usd(seen))
        if seen.source.cluster == "up" and not its.sleeps:
            its.here.put(STOPPING, b"")  # it ends by itself: nobody restarts the job there
        with retried(its.storage_here, self._say) as storage:
            moving.close(
                storage, latest, latest, its.url_there, region=seen.target.region, now=wall()
            )
        self._say(f"{seen.source.region} is closed: nothing can be committed there any more")

    def _copied_usd(self, seen: MoveSeen) -> float:
        """Return what the copy has cost, as it was noted with that; 0 if there was none."""
        noted, commit = self._regions.there.earlier(), seen.source.commit
        if noted is None or commit is None or noted.region != seen.source.region:
            return 0.0
        return noted.copied_usd if noted.step == commit.step else 0.0

    def _open(self, seen: MoveSeen) -> None:
        with retried(self._regions.storage_there, self._say) as storage:
            moving.open_here(storage, _pointer(seen.source.latest))

    def _make(self, at: CloudTarget, objects: BucketObjects, *, undone: bool = False) -> None:
        """Create the cluster in a region, and wait until it is led."""
        spec = at.fitted(cluster_spec(self._regions, at, undone=undone))
        at.keep(self._regions.name)
        at.create(spec, self._say, new=False)
        self._wait_for(at, objects, lambda status: bool(status.state))

    def _wake(self, at: CloudTarget, objects: BucketObjects) -> None:
        self._say(f"waking {self._regions.name} in {at.aws.region}")
        sleeping.wake(self._regions.spec, self._regions.here, objects)

    def _await(self, seen: MoveSeen) -> None:
        if self._policy.led:
            self._wait_for(self._regions.target, self._regions.there, lambda it: bool(it.state))
            return
        self._say(f"waiting until {seen.name} trains in {seen.target.region}")
        self._wait_for(self._regions.target, self._regions.there, training)
        self._say(f"{seen.name} trains in {seen.target.region}")

    def _wait_for(
        self, target: CloudTarget, objects: BucketObjects, reached: Callable[[Status], bool]
    ) -> None:
        """Wait for a status of the cluster in a region."""
        name, region = self._regions.name, target.aws.region
        until = steady() + self._policy.trains_within
        while True:
            target.check()
            status = objects.status()
            if status is not None and reached(status):
                return
            if steady() > until:
                raise EnvironmentFailure(
                    f"{name} does not train in {region} yet: "
                    f"{'there is no status yet' if status is None else status.reason}. Nothing is "
                    "lost, but its control nodes cost money meanwhile. Run the same command again "
                    f"to continue waiting, or `spotelastic move {name} --back`, after which you "
                    "can move it to another region"
                )
            Signal().wait(LOOK_EVERY)

    def _take_down(self, target: CloudTarget, bucket: str) -> None:
        """Take the cluster down in a region. It may have ended by itself meanwhile."""
        name = self._regions.name
        try:
            target.delete(name, self._say, keep_data=True, bucket=bucket)
        except UsageError:
            if name in target.names():
                raise

    def _source_sleeps(self, seen: MoveSeen) -> None:
        self._say(f"putting {seen.name} to sleep in {seen.source.region}")
        asleep.put_to_sleep(self._regions.source.aws, seen.name, self._policy.own)

    # -- back ------------------------------------------------------------------------------------

    def _close_target(self, seen: MoveSeen) -> None:
        its, pointer = self._regions, _pointer(seen.source.latest)
        self._ensure_bucket(seen)
        with retried(its.storage_there, self._say) as storage:
            moving.close(
                storage,
                seen.target.latest,
                pointer,
                its.url_here,
                region=seen.source.region,
                now=wall(),
            )

    def _reopen(self, seen: MoveSeen) -> None:
        with retried(self._regions.storage_here, self._say) as storage:
            moving.open_here(storage, _pointer(seen.target.latest))
        self._say(f"{seen.name} can train in {seen.source.region} again")

    def _drop(self, seen: MoveSeen) -> None:
        its, commit = self._regions, seen.source.commit
        assert commit is not None
        copying.drop(its.run_there, commit)
        for name in (EARLIER, CURVE, MEASURED, USAGE):
            its.there.delete(name)

    def _resume(self, seen: MoveSeen) -> None:
        self._say(f"restarting {seen.name} in {seen.source.region}")
        commands.restart_same(self._regions.cluster)

    def _remake(self, seen: MoveSeen) -> None:
        its = self._regions
        if seen.source.stopping or seen.source.cluster == "left":
            self._take_down(its.source, its.bucket)
        self._make(its.source, its.here, undone=True)


class _Progress:
    """Tells how much is copied, at most once for each tenth."""

    def __init__(self, total: int, where: str, say: Say) -> None:
        self._total, self._where, self._say = total, where, say
        self._done, self._told = 0, 0
        self._lock = Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            tenth = 10 * self._done // self._total if self._total else 10
            if tenth > self._told:
                self._told = tenth
                self._say(f"copied {size(self._done)} of {size(self._total)} {self._where}")


def cluster_spec(its: MoveRegions, at: CloudTarget, *, undone: bool = False) -> ClusterSpec:
    """Return the cluster that the job will have in a region.

    Raises `UsageError` where secrets are in neither region.
    """
    spec = its.spec
    code = its.here.get(f"code/{spec.code}.tar.gz")
    if code is None:
        raise EnvironmentFailure(f"{its.here.url('code/')} lacks the code of {its.name}")
    return ClusterSpec(
        job=replace(spec, demands=replace(spec.demands, key="")),
        archive=code,
        secrets=_secrets(its, at, spec.secrets, "secrets"),
        build_secrets=_secrets(its, at, spec.build_secrets, "build"),
        notify=_secrets(its, at, spec.notify, "notify"),
        moved=True,
        undone=undone,
    )


def _secrets(
    its: MoveRegions, at: CloudTarget, names: Mapping[str, int], use: secrets.Use
) -> dict[str, str]:
    for where in (its.source, its.target):
        found = {
            name: value[0]
            for name in names
            if (value := secrets.known(where.aws, its.name, (name,), use))
        }
        if len(found) == len(names):
            return found
    raise UsageError(
        f"the secrets {', '.join(names)} of {its.name} are gone with its cluster: run "
        f"`spotelastic up --region {at.aws.region}` with them, which goes on from there"
    )


def _pointer(latest: object) -> ForwardPointer:
    assert isinstance(latest, ForwardPointer)
    return latest
