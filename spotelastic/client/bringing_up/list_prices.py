"""Makes the plan of an `up` from list prices when no AWS account is configured."""

from collections.abc import Iterator

from spotelastic.aws.base.names import members_of
from spotelastic.aws.compute import instance_types
from spotelastic.aws.compute.estimate import WORKER_DISK_GIB, Estimate, Line, estimate
from spotelastic.aws.compute.prices import Table, shipped_table
from spotelastic.aws.compute.quotas import NodeDemand
from spotelastic.aws.planning import type_selection, zone_traffic
from spotelastic.client.bringing_up import script_check
from spotelastic.client.bringing_up.plan import Planned
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec

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

    Raises `UsageError` if no type of the shipped list has what is required.
    """
    table = shipped_table()
    types = job.spec.instance_types or _chosen(job, table)
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
            *script_check.findings(job),
            *(_of_traffic(job.spec, types[0])),
        ),
        obstacles=(),
    )


def _chosen(job: ValidatedJob, table: Table) -> tuple[str, ...]:
    """Return the types that `up` would choose if each of them had its list price and no quota."""
    kinds = [kind for kind in instance_types.shipped() if job.requirement.fits(kind)]
    found = type_selection.options(
        kinds, table.usd_per_hour, lambda type, *, spot: None, NodeDemand(0, 0)
    )
    if not found:
        raise UsageError(
            f"{job.requirement}: no type of the shipped price list has that; an AWS account "
            "(`aws configure`) is asked for all types, or name --instance-types"
        )
    return tuple(kind.name for kind in found[0].types)


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
