"""Moves a job to another region, or undoes that: tells the price, and takes step after step."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from spotelastic_checkpoints.commit.commit_protocol import Commits
from spotelastic_checkpoints.errors import CheckpointsError

from spotelastic.aws.clusters import copying
from spotelastic.aws.planning.survey import survey
from spotelastic.client.confirmation import Confirm, ConfirmationRequest, ensure
from spotelastic.client.moving import two_regions
from spotelastic.client.moving.carry_out import TRANSFER, MovePolicy, Mover
from spotelastic.client.moving.move_decision import MoveSeen, decide, is_closed
from spotelastic.client.moving.two_regions import MoveRegions
from spotelastic.client.progress import Say
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.errors import UsageError
from spotelastic.model.counting import duration, size, usd

BYTES_PER_SECOND = 400e6
"""What S3 copies between two regions, in parts, as a careful estimate."""
BOOTS_IN = 300.0
"""Seconds until a new cluster trains, roughly."""
POLICY = MovePolicy()


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What a move has achieved."""

    name: str
    region: str
    """Where the job is now."""
    step: int
    """The step that it goes on from."""
    text: str


def move(
    home: CloudTarget,
    name: str | None,
    region: str | None,
    *,
    back: bool,
    confirm: Confirm,
    say: Say,
    policy: MovePolicy = POLICY,
) -> MoveResult:
    """Move the job to `region`, or with `back` undo a move where nothing was trained there yet.

    Returns when it trains there and the old cluster is gone. A move that ended early, by an error
    or with its process, is gone on with by the same call. Raises `UsageError` for what cannot be
    moved, before anything is changed.
    """
    its = two_regions.find(home, name, region, say)
    seen = its.look()
    first = decide(seen, back=back)
    mover = Mover(its, say, policy)
    if first is not None and not back and not is_closed(seen):
        _check(its)
        price = _price(its)
        say(price.what)
        ensure(price, confirm)
    if first is not None:
        mover.note()
    seen = carry_on(its, mover, back=back)
    if back:
        mover.forget()
    at = seen.source if back else seen.target
    commit = seen.source.commit
    moved = 0 if commit is None else commit.step
    text = f"{'is back in' if back else 'has moved to'} {at.region}, from step {moved}"
    return MoveResult(its.name, at.region, moved, text)


def carry_on(
    its: MoveRegions,
    mover: Mover,
    *,
    back: bool = False,
    led: bool = False,
    goes_on: Callable[[], bool] = lambda: True,
) -> MoveSeen:
    """Take one step after the other until there is none, and return what is seen then.

    It also ends where `goes_on`, which is asked before each step, says so. Raises `UsageError`
    where the move cannot go on.
    """
    while True:
        seen = its.look()
        if not goes_on():
            return seen
        step = decide(seen, back=back, led=led)
        if step is None:
            return seen
        mover.carry_out(step, seen)


def _check(its: MoveRegions) -> None:
    """Raise `UsageError` for a job that cannot be in another region as it is."""
    spec = its.spec
    if spec.vpc:
        raise UsageError(
            f"{its.name} is in the network {spec.vpc}, which is of {its.source.aws.region} alone: "
            "take it down, and use `up --region` with a network of the other region"
        )
    demands = spec.demands
    for flag, given in (
        ("kms-key", demands.key),
        ("data-key", ",".join(demands.data_keys)),
        ("worker-image", demands.worker_image),
        ("control-image", demands.control_image),
    ):
        if given:
            raise UsageError(
                f"{its.name} was made with --{flag} {given}, which is of {its.source.aws.region} "
                "alone: take it down, and use `up --region` with one of the other region"
            )


def _price(its: MoveRegions) -> ConfirmationRequest:
    """Return the question that tells what the move costs, and how long nothing trains.

    The target is surveyed for that: what it cannot offer is told before anything is changed.
    """
    there = survey(its.target.aws, replace(its.spec, subnets=()))
    nbytes = nbytes_of(its)
    takes = 60 * math.ceil((BOOTS_IN + nbytes / BYTES_PER_SECOND) / 60)
    label = its.target.price_label
    return ConfirmationRequest(
        about="price",
        what=(
            f"moving {its.name} from {its.source.aws.region} to {its.target.aws.region} copies "
            f"{size(nbytes)} for about {usd(nbytes / 1e9 * TRANSFER)}, and nothing trains for "
            f"about {duration(takes)}; there it costs up to {usd(there.estimate.high)} an hour"
            f"{label}"
        ),
        question="Move it?",
        declined="nothing was changed",
    )


def nbytes_of(its: MoveRegions) -> int:
    """Return the size of the newest commit; that of the next one is alike."""
    try:
        commits = Commits(its.storage_here(), its.spec.run)
        commit = commits.latest()
        if commit is None:
            return 0
        return copying.files_of(commit, commits.checkpoint(commit)).nbytes
    except CheckpointsError:
        return 0
