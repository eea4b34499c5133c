"""Makes the plan of an `up` from list prices when no AWS account is configured."""

from spotelastic.aws.base.names import CONTROL_TYPE, MEMBERS
from spotelastic.aws.compute import instance_types
from spotelastic.aws.compute.estimate import WORKER_DISK_GIB, Estimate, Line, estimate
from spotelastic.aws.compute.prices import Table, shipped_table
from spotelastic.aws.compute.quotas import NodeDemand
from spotelastic.aws.planning import type_selection
from spotelastic.client.bringing_up import script_check
from spotelastic.client.bringing_up.plan import Planned
from spotelastic.client.config.validated_job import ValidatedJob
from spotelastic.errors import UsageError
from spotelastic.model.job import Settings

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
    costs = _estimate(job.spec.settings, types[0], table, disk)
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


def _estimate(settings: Settings, worker: str, table: Table, disk_gib: int) -> Estimate:
    prices, nodes = table.usd_per_hour, (settings.min_nodes, settings.max_nodes)
    costs = estimate(
        nodes=nodes,
        worker=worker,
        worker_usd=prices.get(worker, 0.0),
        control=CONTROL_TYPE,
        control_usd=prices[CONTROL_TYPE],
        controls=len(MEMBERS),
        nat_gateways=0,
        addresses=(nodes[0] + len(MEMBERS), nodes[1] + len(MEMBERS)),
        disk_gib=disk_gib,
    )
    first, *others = costs.lines
    note = "on demand" if worker in prices else "no list price here: not in the sum"
    return Estimate((Line(first.what, first.low, first.high, first.usd, note), *others))
