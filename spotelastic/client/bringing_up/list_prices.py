"""Makes the plan of an `up` from list prices when no AWS account is configured."""

from collections.abc import Iterator

from spotelastic.aws.base.names import members_of
from spotelastic.aws.compute.estimate import WORKER_DISK_GIB, Estimate, Line, estimate
from spotelastic.aws.compute.prices import Table, shipped_table
from spotelastic.aws.planning import zone_traffic
from spotelastic.client.bringing_up.plan import Planned
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec

GPU_FAMILIES = ("g", "p")
SEVERAL_CARDS = frozenset(
    {
        "g6e.24xlarge",
        "g6e.48xlarge",
        "p4d.24xlarge",
        "p4de.24xlarge",
        "p5.48xlarge",
        "p5en.48xlarge",
    }
)
"""Types of the list with several network cards for EFA: they are in private subnets."""
UNKNOWN = (
    "spot prices, quotas and zones",
    "whether the region has these types",
    "whether a cluster of that name is up already",
)
"""What only an account can tell."""


def planned(job: ValidatedJob) -> Planned:
    """Return the plan.

    Raises `UsageError` if only an account can tell which instance types are meant.
    """
    table = shipped_table()
    types = job.spec.instance_types or (_cheapest(job, table),)
    disk = job.config.disk or WORKER_DISK_GIB
    costs = _estimate(job.spec, types[0], table, disk)
    return Planned(
        name=job.name,
        is_up=False,
        changes=(),
        resources=(),
        instance_types=types,
        zones=(),
        lines=costs.lines,
        usd_per_hour_at_min=costs.low,
        usd_per_hour_at_max=costs.high,
        prices_of=table.date,
        warnings=(
            *(f"not known without an AWS account: {what}" for what in UNKNOWN),
            *(_of_traffic(job.spec, types[0])),
        ),
        obstacles=(),
    )


def _cheapest(job: ValidatedJob, table: Table) -> str:
    """Return the cheapest GPU type; `up` takes the cheapest in quota if no type is given."""
    if str(job.requirement):
        flag = "--gpus" if job.config.gpus else "--gpu-memory"
        raise UsageError(
            f"{flag}: only an AWS account can tell which types have that: configure one "
            "(`aws configure`), or name --instance-types"
        )
    prices = table.usd_per_hour
    return min((name for name in prices if name.startswith(GPU_FAMILIES)), key=prices.__getitem__)


def _of_traffic(spec: JobSpec, worker: str) -> Iterator[str]:
    """Yield what is to be known of a job in several zones: in two at least."""
    if spec.capacity.zones == "spread":
        efa = worker in SEVERAL_CARDS
        yield from zone_traffic.warnings(spec.settings.max_nodes, 2, efa=efa)


def _estimate(job: JobSpec, worker: str, table: Table, disk_gib: int) -> Estimate:
    prices, nodes = table.usd_per_hour, (job.settings.min_nodes, job.settings.max_nodes)
    private, controls = worker in SEVERAL_CARDS, len(members_of(job))
    public = controls + private
    costs = estimate(
        nodes=nodes,
        worker=worker,
        worker_usd=prices.get(worker, 0.0),
        control=job.control_type,
        control_usd=prices.get(job.control_type, 0.0),
        controls=controls,
        nat_gateways=int(private),
        addresses=(public, public) if private else (nodes[0] + public, nodes[1] + public),
        disk_gib=disk_gib,
    )
    first, *others = costs.lines
    note = "on demand" if worker in prices else "no list price here: not in the sum"
    return Estimate((Line(first.what, first.low, first.high, first.usd, note), *others))
