"""Renders the plan of `up` for people: instances, zones, prices and changes (pure)."""

from collections.abc import Iterator

from spotelastic.aws.artifacts.left_out import LeftOut
from spotelastic.aws.compute.estimate import Estimate
from spotelastic.aws.compute.prices import shipped_table
from spotelastic.aws.planning.survey import Survey
from spotelastic.aws.planning.zone_traffic import usd_per_step
from spotelastic.client.bringing_up.list_prices import UNKNOWN
from spotelastic.client.bringing_up.plan import Planned, RegionPlan
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.model.counting import counted, duration, size, usd
from spotelastic.model.job import Capacity, JobSpec

BESIDE = (
    "and outside of the stack: a launch template, two worker groups (spot and on-demand), and "
    "parameters with its certificates and secrets; once per account, a bucket and the role that "
    "deletes stacks"
)


def headline(job: ValidatedJob, found: Survey, price_label: str) -> Iterator[str]:
    """Yield script, types, zones and price with its label, then warnings."""
    spec, (low, high) = job.spec, (job.spec.settings.min_nodes, job.spec.settings.max_nodes)
    kind = found.types[0]
    kinds = (f"{each.gpus} {each.gpu}" if each.gpus else "no GPU" for each in found.types)
    gpus = " or ".join(dict.fromkeys(kinds))
    least, most = ("from ", "at most ") if found.speeds else ("", "")
    others = "".join(f", {each.name}" for each in found.types[1:])
    chosen = ", the cheapest in quota" if found.options else ""
    with_ = f" with {spec.environment.file}" if spec.environment else ""
    yield (
        f"{spec.script}{with_}: {_range(low, high)} spot {kind.name}{others} ({gpus} each{chosen})"
    )
    yield (
        f"in {_where(found)}: {least}{usd(found.price)} an hour each, "
        f"{most}{usd(found.estimate.high)} an hour for all with {counted(high, 'node')}"
        f"{price_label}"
    )
    if job.archive.left_out is not None:
        yield not_shipped(job.archive.left_out)
    for warning in found.warnings:
        yield f"warning: {warning}"
    for obstacle in found.obstacles:
        yield f"cannot work: {obstacle}"
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


def _too_dear(capacity: Capacity, price: float) -> Iterator[str]:
    """Warn of a price limit below today's price. It is no error: the price may fall."""
    limit = capacity.max_price
    if limit is None or price <= limit:
        return
    instead = " but those on demand" if capacity.on_demand != "never" or capacity.base else ""
    yield (
        f"warning: --max-price {limit:g} is below the current price of {usd(price)}: "
        f"there will be no nodes{instead} until the price falls"
    )


def _where(found: Survey) -> str:
    if not found.ranking:
        return ", ".join(found.zones)
    best, *others = (zone.name for zone in found.ranking)
    return best + (f" (if that has no capacity, {', '.join(others)})" if others else "")


def plan(job: ValidatedJob, found: Survey, planned: Planned, about_prices: str) -> Iterator[str]:
    """Yield the lines that `--plan` shows; `about_prices` says what the prices are."""
    yield ""
    yield from regions(planned.regions)
    yield from _choice(job, found)
    yield from _zones(found)
    yield from _shares(found)
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
    yield from _moves(planned)
    yield from _replicas(job.spec)
    yield lingers(job.spec.linger)


def _moves(planned: Planned) -> Iterator[str]:
    """Yield when the job moves by itself, and what waits for it in the other regions."""
    its = planned.moves
    if its is None:
        return
    after = () if its.patience is None else (f"after {duration(its.patience)} below --min",)
    worth = ("when another one is worth more for long",) if its.prefer_capacity else ()
    yield (
        f"moves between {', '.join(its.names)} by itself: {', and '.join((*after, *worth))}; at "
        f"most {its.moves_per_day} times a day"
    )
    each = " in each" if len(planned.asleep) > 1 else ""
    yield (
        f"asleep in {', '.join(planned.asleep)} meanwhile: a cluster without instances, for about "
        f"{usd(planned.usd_per_month_asleep / len(planned.asleep))} a month{each}"
    )


def _replicas(spec: JobSpec) -> Iterator[str]:
    """Yield which nodes keep no replicas of each other's shards, and why."""
    if spec.settings.replicate.on and spec.capacity.zones == "spread":
        yield (
            "shards of a sharded model are copied between nodes of one zone, which costs nothing; "
            "a node that is alone in its zone has no partner for that (--zones pack)"
        )


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
            f"  {usd(option.usd):>10}  {first.gpus} {first.gpu} of {memory} ({names}): "
            f"{option.refusal or taken}"
        )
    yield ""


def regions(compared: tuple[RegionPlan, ...]) -> Iterator[str]:
    """Yield the regions that were compared, and why each was or was not chosen."""
    if not compared:
        return
    yield "regions, best first:"
    for each in compared:
        if each.refusal:
            yield f"  {each.region}: not possible: {each.refusal}"
            continue
        price = f"{usd(each.usd)} an hour each" if each.usd else "no spot price"
        score = f", placement score {each.score}" if each.score else ""
        types = f" ({', '.join(each.instance_types)})" if each.instance_types else ""
        why = f": chosen: {each.chosen}" if each.chosen else ""
        yield f"  {each.zone or each.region}: {price}{types}{score}{why}"
        yield from (f"    {warning}" for warning in each.warnings if not each.chosen)
    yield ""


def _zones(found: Survey) -> Iterator[str]:
    """Yield the zones in the order in which they are tried, with the reasons."""
    if len(found.ranking) < 2:
        return
    yield "zones, in the order in which they are tried:"
    for zone in found.ranking:
        price = f"{usd(zone.usd)} an hour" if zone.usd else "no spot price"
        yield f"  {zone.name}: {price}{f', placement score {zone.score}' if zone.score else ''}"
    yield (
        "  while it leaves one that ran dry the job trains across two, and pays for what it sends "
        f"between them: {usd(usd_per_step(1.0, 2, 2))} a step or more for each GB of gradients"
    )
    yield ""


def _shares(found: Survey) -> Iterator[str]:
    """Yield how unlike nodes share a batch, and what limits a share."""
    if not found.speeds:
        return
    smallest = min(found.types, key=lambda kind: kind.gpu_memory_mib)
    parts = ", ".join(f"{name} {speed:.2g}" for name, speed in found.speeds.items())
    yield f"shares of a batch, by peak rates of GPUs (measured while it trains): {parts}"
    memory = f"{smallest.gpu_memory_mib * 2**20 / 1e9:.0f} GB"
    yield f"a virtual rank has to fit into {memory}, the memory of a GPU of {smallest.name}"
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


def without_account(plan: Planned) -> Iterator[str]:
    """Yield the lines of a plan that was made from list prices."""
    table = shipped_table()
    yield (
        "no AWS account is configured (`aws configure`, AWS_PROFILE): this plan uses list prices"
    )
    yield ""
    yield from price_table(
        Estimate(plan.lines),
        f"On-demand list prices of {table.region}, {table.date}; spot nodes cost less. Traffic and "
        "storage come on top.",
    )
    yield ""
    yield from (f"warning: {each}" for each in plan.warnings[len(UNKNOWN) :])
    yield f"not known without an account: {'; '.join(UNKNOWN)}"
    yield f"would create the cluster {plan.name}; nothing was created"
