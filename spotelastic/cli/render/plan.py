"""Renders the plan of `up`: instances, zones, prices and changes, before anything is created
(pure)."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from spotelastic.aws.artifacts.left_out import LeftOut
from spotelastic.aws.compute.estimate import Estimate, Line
from spotelastic.aws.planning.survey import Survey
from spotelastic.client.config.differences import differences
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.controller.decisions import limits
from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.errors import UsageError
from spotelastic.model.counting import duration, size
from spotelastic.model.job import Capacity, JobSpec

BESIDE = (
    "and outside of the stack: a launch template, two worker groups (spot and on-demand), and "
    "parameters with its certificates and secrets; once per account, a bucket and the role that "
    "deletes stacks"
)


def headline(job: ValidatedJob, found: Survey, price_label: str) -> Iterator[str]:
    """Yield script, types, zones and price with its label, then warnings.

    Raises `UsageError` before the first line if a limit contradicts the prices.
    """
    spec, (low, high) = job.spec, (job.spec.settings.min_nodes, job.spec.settings.max_nodes)
    _check_kept(spec)
    _check_cost(low, spec.capacity.max_cost, found)
    kind = found.types[0]
    gpus = f"{kind.gpus} {kind.gpu}" if kind.gpus else "no GPU"
    others = "".join(f", {each.name}" for each in found.types[1:])
    chosen = ", the cheapest in quota" if found.options else ""
    with_ = f" with {spec.environment.file}" if spec.environment else ""
    yield (
        f"{spec.script}{with_}: {_range(low, high)} spot {kind.name}{others} ({gpus} each{chosen})"
    )
    yield (
        f"in {_where(found)}: {_usd(found.price)} an hour each, "
        f"{_usd(found.estimate.high)} an hour for all with {_nodes(high)}"
        f"{price_label}"
    )
    if job.archive.left_out is not None:
        yield not_shipped(job.archive.left_out)
    for warning in found.warnings:
        yield f"warning: {warning}"
    yield from _too_dear(spec.capacity, found.price)


def not_shipped(left: LeftOut) -> str:
    """Return the note that files ignored by git are not shipped to the nodes."""
    more = "" if left.all else "more than "
    files = "file" if left.files == 1 else "files"
    largest = f"{left.largest} ({size(left.largest_size)})"
    which = largest if left.files == 1 else f"{size(left.size)}, the largest {largest}"
    return (
        f"{more}{left.files} {files} ignored by git will not be shipped to the nodes: {which}; a "
        f"line `{left.rule}` in .spotelasticignore ships that; put large data in a bucket (--read)"
    )


def _check_kept(spec: JobSpec) -> None:
    if spec.capacity.keep_failed and spec.linger == 0:
        raise UsageError(
            "--keep-failed: with --linger 0 the cluster and its failed node end with the job: "
            "give a time to stay, such as --linger 3h"
        )


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
        f"--max-cost {limit:g}: pays for {minutes:.1f} min of {_nodes(minimum)} (--min) and the "
        f"control nodes, {_usd(an_hour)} an hour: {duration(policy.boots_in)} to boot and "
        f"{duration(policy.ends_within)} to end take {_up(least)} USD: give more than that"
    )


def _too_dear(capacity: Capacity, price: float) -> Iterator[str]:
    """Warn of a price limit below today's price. It is no error: the price may fall."""
    limit = capacity.max_price
    if limit is None or price <= limit:
        return
    instead = " but those on demand" if capacity.on_demand != "never" or capacity.base else ""
    yield (
        f"warning: --max-price {limit:g} is below the current price of {_usd(price)}: "
        f"there will be no nodes{instead} until the price falls"
    )


def _where(found: Survey) -> str:
    if not found.ranking:
        return ", ".join(found.zones)
    best, *others = (zone.name for zone in found.ranking)
    return best + (f" (if that has no capacity, {', '.join(others)})" if others else "")


@dataclass(frozen=True, slots=True)
class Planned:
    """What `up` would do, for programs."""

    name: str
    is_up: bool
    changes: tuple[str, ...]
    """Differences from the request, if the cluster is already up."""
    resources: tuple[str, ...]
    """What the stack would consist of, if the cluster is new."""
    instance_types: tuple[str, ...]
    zones: tuple[str, ...]
    """Zones in the order in which they are tried."""
    lines: tuple[Line, ...]
    usd_per_hour_at_min: float
    usd_per_hour_at_max: float
    prices_of: str
    """Date of the on-demand prices."""
    warnings: tuple[str, ...]


def planned(
    job: ValidatedJob, found: Survey, known: JobSpec | None, secrets: Collection[str]
) -> Planned:
    """Return the plan for programs. `secrets` are the new and changed ones."""
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
        warnings=tuple(found.warnings),
    )


def plan(job: ValidatedJob, found: Survey, planned: Planned, about_prices: str) -> Iterator[str]:
    """Yield the lines that `--plan` shows; `about_prices` says what the prices are."""
    yield ""
    yield from _choice(job, found)
    yield from _zones(found)
    yield from price_table(found.estimate, about_prices)
    yield ""
    if not planned.is_up:
        yield f"would create the cluster {job.name}: {', '.join(planned.resources)}"
        yield BESIDE
    elif planned.changes:
        yield f"would change the cluster {job.name}: {'; '.join(planned.changes)}"
    else:
        yield (
            f"the job of {job.name} is already as requested: nothing would change, except that "
            "a stack made by another version of spotelastic is updated"
        )
    yield lingers(job.spec.linger)


def lingers(seconds: float | None) -> str:
    """Return how the cluster ends if it is not taken down."""
    if seconds is None:
        return "otherwise it never ends by itself (--linger)"
    return f"otherwise it ends by itself {duration(seconds)} after its job (--linger)"


def _choice(job: ValidatedJob, found: Survey) -> Iterator[str]:
    """Yield the kinds of nodes that were considered, and why each was or was not chosen."""
    if not found.options:
        return
    such = str(job.requirement)
    yield f"kinds of nodes{f' with {such}' if such else ''}, by hourly price of the cheapest type:"
    for option in found.options:
        first = option.types[0]
        names = ", ".join(kind.name for kind in option.types)
        taken = "more expensive" if option is not found.options[0] else "chosen: cheapest in quota"
        memory = f"{first.gpu_memory_mib * 2**20 / 1e9:.0f} GB"
        yield (
            f"  {_usd(option.usd):>10}  {first.gpus} {first.gpu} of {memory} ({names}): "
            f"{option.refusal or taken}"
        )
    yield ""


def _zones(found: Survey) -> Iterator[str]:
    """Yield the zones in the order in which they are tried, with the reasons."""
    if len(found.ranking) < 2:
        return
    yield "zones, in the order in which they are tried:"
    for zone in found.ranking:
        price = f"{_usd(zone.usd)} an hour" if zone.usd else "no spot price"
        yield f"  {zone.name}: {price}{f', placement score {zone.score}' if zone.score else ''}"
    yield ""


def price_table(costs: Estimate, about_prices: str) -> Iterator[str]:
    """Yield the lines of the price table, then `about_prices`."""
    width = max(len(line.what) for line in costs.lines)
    yield f"{'':{width}}  {'at --min':>8}  {'at --max':>8}  {'USD/h each':>10}"
    for line in costs.lines:
        yield (
            f"{line.what:{width}}  {line.low:>8}  {line.high:>8}  {line.usd:>10.4f}"
            f"  {line.note}".rstrip()
        )
    yield f"{'USD/h':{width}}  {costs.low:>8.2f}  {costs.high:>8.2f}"
    yield about_prices


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _up(amount: float) -> str:
    """Round up, to two significant digits."""
    digits = max(2, 1 - math.floor(math.log10(amount)))
    return f"{math.ceil(amount * 10**digits) / 10**digits:.{digits}f}"


def _usd(amount: float) -> str:
    return f"{amount:.2f} USD" if amount >= 0.1 else f"{amount:.3f} USD"
