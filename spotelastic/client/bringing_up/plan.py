"""Makes the plan of an `up`, as a value, and refuses limits that contradict its prices (pure)."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from spotelastic.aws.compute.estimate import Line
from spotelastic.aws.planning.survey import Survey
from spotelastic.client.bringing_up import script_check
from spotelastic.client.config.differences import differences
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.client.targets.asleep import other_regions
from spotelastic.controller.decisions import limits
from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.errors import UsageError
from spotelastic.model.counting import counted, duration, usd
from spotelastic.model.job import JobSpec, Regions


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """What one of several regions offers for the job."""

    region: str
    refusal: str = ""
    """Why the job cannot be there; the rest is then not known."""
    instance_types: tuple[str, ...] = ()
    zone: str = ""
    """The best zone."""
    score: int = 0
    """Its placement score, 1 to 10: how likely all nodes are launched; 0 if not known."""
    usd: float = 0.0
    """US dollars an hour for a spot node there; 0 if not known."""
    usd_per_hour_at_max: float = 0.0
    warnings: tuple[str, ...] = ()
    chosen: str = ""
    """Why this region was chosen; empty for the others."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What `up` would do, and what it would cost."""

    name: str
    is_up: bool
    """Whether the cluster is already up."""
    changes: tuple[str, ...]
    """Differences from the request, if the cluster is already up."""
    resources: tuple[str, ...]
    """What the stack would consist of, if the cluster is new."""
    instance_types: tuple[str, ...]
    zones: tuple[str, ...]
    """Zones in the order in which they are tried."""
    lines: tuple[Line, ...]
    """The prices, one line for each kind of thing that is billed."""
    usd_per_hour_at_min: float
    usd_per_hour_at_max: float
    prices_of: str
    """Date of the on-demand prices."""
    warnings: tuple[str, ...]
    obstacles: tuple[str, ...]
    """What would keep nodes from working at all: `up` refuses it, but for `--force`."""
    regions: tuple[RegionPlan, ...] = ()
    """What was compared, if several regions were named, best first."""
    moves: Regions | None = None
    """When the job moves between regions by itself."""
    asleep: tuple[str, ...] = ()
    """The regions in which a cluster without instances waits for it."""
    usd_per_month_asleep: float = 0.0
    """US dollars a month for all these: disks, and NAT gateways where the types need them."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """How many times as much of a batch as one of the first type a node of each type is expected to
    compute; empty: as much.
    """


def planned(
    job: ValidatedJob,
    found: Survey,
    known: JobSpec | None,
    secrets: Collection[str],
    regions: tuple[RegionPlan, ...] = (),
    here: str = "",
) -> Planned:
    """Return the plan. `secrets` are the new and changed ones, `here` is the region."""
    wanted = job.cluster(found).job
    return Planned(
        name=job.name,
        is_up=known is not None,
        changes=() if known is None else tuple(differences(known, wanted, secrets)),
        resources=() if known is not None else tuple(found.resources),
        instance_types=tuple(kind.name for kind in found.types),
        zones=tuple(zone.name for zone in found.ranking) or tuple(found.zones),
        lines=found.estimate.lines,
        usd_per_hour_at_min=found.estimate.low,
        usd_per_hour_at_max=found.estimate.high,
        prices_of=found.prices_of,
        warnings=(*found.warnings, *script_check.findings(job)),
        obstacles=found.obstacles,
        regions=regions,
        moves=wanted.regions,
        asleep=(others := other_regions(wanted, here)),
        usd_per_month_asleep=len(others) * found.estimate.asleep_month,
        shares=found.speeds,
    )


def check_limits(job: ValidatedJob, found: Survey) -> None:
    """Raise `UsageError` if a limit contradicts the prices, or what is to be kept the time."""
    spec = job.spec
    if spec.capacity.keep_failed and spec.linger == 0:
        raise UsageError(
            "--keep-failed: with --linger 0 the cluster and its failed node end with the job: "
            "give a time to stay, such as --linger 3h"
        )
    _check_cost(spec.settings.min_nodes, spec.capacity.max_cost, found)


def _check_cost(minimum: int, limit: float | None, found: Survey) -> None:
    """Refuse a cost limit that would stop the job before it has trained.

    It must pay for booting the nodes and for ending the job. Unknown prices refuse nothing.
    """
    an_hour, policy = found.estimate.low, ControllerPolicy()
    least = limits.needed(an_hour, policy)
    if limit is None or not found.price or limit >= least:
        return
    minutes = limit / an_hour * 60.0
    raise UsageError(
        f"--max-cost {limit:g}: pays for {minutes:.1f} min of {counted(minimum, 'node')} (--min) "
        f"and the control nodes, {usd(an_hour)} an hour: {duration(policy.boots_in)} to boot and "
        f"{duration(policy.ends_within)} to end take {_up(least)} USD: give more than that"
    )


def _up(amount: float) -> str:
    """Round up, to two significant digits."""
    digits = max(2, 1 - math.floor(math.log10(amount)))
    return f"{math.ceil(amount * 10**digits) / 10**digits:.{digits}f}"
