"""Finds the reservations of capacity that a job's workers are launched in first (`--reservations`).

All that a job uses are of one type, one kind and, unless it is spread, one zone, where its other
workers are then as well: one group has them. Must never happen: a reservation that is kept for
others is used without being named. So `open` takes those alone that take any instance that fits.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spotelastic.aws.base.clients import Aws, calling, listed, optional
from spotelastic.aws.compute import autoscaling
from spotelastic.errors import UsageError
from spotelastic.model.job import Capacity, JobSpec, Reservation

OPEN = "open"
"""What `--reservations` takes in place of ids: all that take any instance that fits."""
BLOCK, INTERRUPTIBLE = "capacity-block", "interruptible-capacity-reservation"
"""EC2's types of markets besides spot and on demand."""


def named(given: Sequence[str]) -> tuple[Reservation, ...]:
    """Return what `--reservations` names, not looked up yet. Raises `UsageError`."""
    for each in given:
        if each != OPEN and not each.startswith("cr-"):
            raise UsageError(f"--reservations {each}: expected ids (cr-...), or {OPEN}")
    if OPEN in given and len(given) > 1:
        raise UsageError(f"--reservations {','.join(given)}: give ids, or {OPEN}")
    return tuple(map(Reservation, given))


def resolved(aws: Aws, job: JobSpec) -> JobSpec:
    """Return the job with its reservations as the account has them now.

    Raises `UsageError` for those that it cannot use.
    """
    bought = job.capacity
    if not bought.reservations:
        return job
    ids, flag = tuple(each.id for each in bought.reservations), _flag(bought)
    if job.regions is not None:
        raise UsageError(f"{flag}: they are of one region, and --regions names several")
    if not job.instance_types:
        raise UsageError(f"{flag}: name their type as well, --instance-types")
    found = {each.id: each for each in _of_job(aws, job, _items(aws, job.instance_types))}
    if unknown := [each for each in ids if each != OPEN and each not in found]:
        raise UsageError(
            f"{flag}: the account has no active reservation {unknown[0]} of "
            f"{', '.join(job.instance_types)} for Linux"
        )
    fits = [found[each] for each in ids if each in found]
    if ids == (OPEN,):
        fits = _best([each for each in found.values() if each.open and not each.market], bought)
    _check(flag, fits, bought)
    return replace(job, capacity=replace(bought, reservations=tuple(fits)))


def within(bought: Capacity, zones: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the cluster's zones that its workers may be in.

    Raises `UsageError` for a reservation in another one.
    """
    outside = [each for each in bought.reservations if each.zone not in zones]
    if outside:
        raise UsageError(
            f"{_flag(bought)}: {outside[0].id} is in {outside[0].zone}, where the cluster has no "
            f"workers ({', '.join(zones)})"
        )
    return bought.kept_in(zones)


def _flag(bought: Capacity) -> str:
    return f"--reservations {','.join(each.id for each in bought.reservations)}"


def offered(aws: Aws, job: JobSpec, asked: Sequence[Reservation]) -> tuple[str, ...]:
    """Return what a job without reservations leaves unused, for people.

    `asked` are those of `--reservations`.
    """
    if job.capacity.reservations:
        return ()
    if asked:
        return (f"--reservations {asked[0].id}: the account has none that fits and is {OPEN}",)
    with optional():
        return tuple(
            f"the account has {described(each)}: --reservations {each.id}"
            for each in _of_job(aws, job, _items(aws, job.instance_types))
            if each.count
        )
    return ()


def described(its: Reservation) -> str:
    """Return a reservation as a plan shows it."""
    kinds = {"": "reserved", BLOCK: "a capacity block of", INTERRUPTIBLE: "interruptibly reserved"}
    free = f"{its.count} {kinds[its.market]} {its.type} in {its.zone} free"
    return f"{free}, paid anyway" if its.paid else f"{free}, shared by {its.owner}"


def _check(flag: str, fits: Sequence[Reservation], bought: Capacity) -> None:
    if len({(each.type, each.market) for each in fits}) > 1:
        raise UsageError(f"{flag}: they differ in type or kind, and one group has them: name alike")
    if bought.zones == "pack" and len({each.zone for each in fits}) > 1:
        raise UsageError(f"{flag}: they are in several zones: name those of one, or --zones spread")
    if any(each.market for each in fits) and bought.base:
        raise UsageError(f"{flag}: its instances are of one kind: remove --on-demand")
    if bought.on_demand == "fallback":
        raise UsageError(
            f"{flag}: with --on-demand fallback what it lacks would be bought at once, and not "
            "after --spot-patience: give base=N, or remove one of them"
        )


def _best(found: Sequence[Reservation], bought: Capacity) -> list[Reservation]:
    """Return those of the type, and the zone if all workers are in one, that has most."""
    alike: dict[tuple[str, str], list[Reservation]] = defaultdict(list)
    for each in found:
        alike[each.type, each.zone if bought.zones == "pack" else ""].append(each)
    return max(alike.values(), key=lambda group: sum(each.count for each in group), default=[])


def _items(aws: Aws, types: Sequence[str]) -> list[dict[str, Any]]:
    wanted = {
        "instance-platform": ["Linux/UNIX"],
        "instance-type": list(types),
        "state": ["active"],
        "tenancy": ["default"],
    }
    with calling("look for reservations of capacity"):
        filters = [{"Name": name, "Values": values} for name, values in wanted.items()]
        call, key = "describe_capacity_reservations", "CapacityReservations"
        return list(listed(aws.ec2, call, key, Filters=filters))


def _of_job(aws: Aws, job: JobSpec, items: Sequence[dict[str, Any]]) -> list[Reservation]:
    """Return the reservations. What the job's own instances use is free for it."""
    if not items:
        return []
    own = [each.reservation for each in autoscaling.instances(aws, job.cluster, "worker")]
    return [
        _reservation(each, own.count(each["CapacityReservationId"]), aws.account)
        for each in items
        if not each.get("PlacementGroupArn")
    ]


def _reservation(item: dict[str, Any], own: int, account: str) -> Reservation:
    block = item.get("ReservationType") == BLOCK
    market = BLOCK if block else INTERRUPTIBLE if item.get("Interruptible") else ""
    owner = str(item.get("OwnerId", account))
    return Reservation(
        id=item["CapacityReservationId"],
        type=item["InstanceType"],
        zone=item["AvailabilityZone"],
        count=item["AvailableInstanceCount"] + own,
        market=market,
        # Of a shared one the owner pays for what is unused alone; blocks are paid beforehand.
        owner="" if block or owner == account else owner,
        open=item.get("InstanceMatchCriteria", "open") == "open",
    )
