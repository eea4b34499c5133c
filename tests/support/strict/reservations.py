"""Patches moto's EC2 and Auto Scaling to have reservations of capacity, as AWS describes them.

An instance runs in a reservation if its group, or its launch, names that, or if it is open; if its
type and its zone are the same; and if its market is the one that the launch template names.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moto.autoscaling.models import FakeAutoScalingGroup
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance, InstanceBackend
from moto.ec2.responses.instances import InstanceResponse

from spotelastic.local.moto_patches import ec2
from spotelastic.local.moto_patches.patch import Patches

BLOCK, INTERRUPTIBLE = "capacity-block", "interruptible-capacity-reservation"
GROUP = "aws:autoscaling:groupName"


@dataclass(frozen=True, slots=True)
class Reserved:
    """A reservation that was set."""

    id: str
    type: str
    zone: str
    count: int
    market: str = ""
    """EC2's type of market of its instances; "" is on demand."""
    match: str = "targeted"
    owner: str = ""
    """The account that shares it; "": this one."""
    used: int = 0
    """Instances in it that are somebody else's."""


def install(patches: Patches, given: Mapping[str, Reserved]) -> None:
    """Apply the patches. `given` are the reservations, by id."""
    patches.addition(Instance, "capacity_reservation_id", "what an instance runs in")(None)
    wishes: dict[str, Mapping[str, Any]] = {}
    """What groups say of reservations, by their names."""

    @patches.method(InstanceResponse, "describe_capacity_reservations", "those that were set")
    def describe(original: Callable[..., Any], response: Any) -> ActionResult:
        filters = {
            each["Name"]: each.get("Values") or each.get("Value") or ()
            for each in response._get_param("Filters", [])
        }
        account = response.ec2_backend.account_id
        shown = [
            _shown(each, account, _free(response.ec2_backend, each))
            for each in given.values()
            if each.type in filters.get("instance-type", (each.type,))
        ]
        return ActionResult({"CapacityReservations": shown})

    def remembering(original: Callable[..., Any], response: Any) -> Any:
        wish = response._get_param("CapacityReservationSpecification")
        if wish:
            _check(wish, given)
            wishes[response._get_param("AutoScalingGroupName")] = wish
        return original(response)

    for call in ("create_auto_scaling_group", "update_auto_scaling_group"):
        patches.method(AutoScalingResponse, call, "moto ignores reservations")(remembering)

    patches.addition(FakeAutoScalingGroup, "capacity_reservation_specification", "as it was told")(
        property(lambda group: wishes.get(group.name))
    )

    @patches.method(InstanceBackend, "run_instances", "moto has no reservations")
    def run_instances(
        original: Callable[..., Any],
        backend: Any,
        image: str,
        count: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        wanted = dict(kwargs)
        template = ec2.template_data(backend, wanted.get("launch_template"))
        spot = ec2.apply_template(wanted, template)
        if not wanted.get("subnet_id"):
            return original(backend, image, count, *args, **kwargs)
        zone = backend.get_subnet(wanted["subnet_id"]).availability_zone
        group = (kwargs.get("tags") or {}).get("instance", {}).get(GROUP, "")
        market = template.get("InstanceMarketOptions", {}).get("MarketType", "")
        wish = {} if spot else wishes.get(group, {})
        found = _chosen(backend, given.values(), wish, wanted["instance_type"], zone, market)
        reservation = original(backend, image, count, *args, **kwargs)
        if found is not None and not spot:
            for instance in reservation.instances:
                instance.capacity_reservation_id = found.id
        return reservation


def _check(wish: Mapping[str, Any], given: Mapping[str, Reserved]) -> None:
    ids = wish.get("CapacityReservationTarget", {}).get("CapacityReservationIds", [])
    if unknown := [each for each in ids if each not in given]:
        raise EC2ClientError(
            "InvalidCapacityReservationId.NotFound",
            f"The capacity reservation ID '{unknown[0]}' does not exist",
        )


def _chosen(
    backend: Any,
    given: Iterable[Reserved],
    wish: Mapping[str, Any],
    type: str,
    zone: str,
    market: str,
) -> Reserved | None:
    """Return the reservation of the launch; None if it has none. Refuses what has to have one."""
    preference = wish.get("CapacityReservationPreference", "default")
    ids = wish.get("CapacityReservationTarget", {}).get("CapacityReservationIds", ())
    named = [each for each in given if (each.id in ids if ids else each.match == "open")]
    if ids and market != (named[0].market if named else ""):
        raise EC2ClientError(
            "InvalidParameterValue", "The market type (purchasing) option is not valid"
        )
    fits = [
        each
        for each in named
        if (each.type, each.zone, each.market) == (type, zone, market) and _free(backend, each)
    ]
    if not fits and (market in (BLOCK, INTERRUPTIBLE) or preference.endswith("only")):
        raise EC2ClientError(
            "ReservationCapacityExceeded",
            "The requested reservation does not have sufficient compatible and available capacity "
            "for this request.",
        )
    return fits[0] if fits and preference != "none" else None


def _free(backend: Any, reserved: Reserved) -> int:
    its = [
        instance
        for instance in backend.all_instances()
        if instance.capacity_reservation_id == reserved.id
        and instance._state.name not in ("terminated", "shutting-down")
    ]
    return max(0, reserved.count - reserved.used - len(its))


def _shown(its: Reserved, account: str, free: int) -> dict[str, Any]:
    return {
        "CapacityReservationId": its.id,
        "OwnerId": its.owner or account,
        "InstanceType": its.type,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": its.zone,
        "Tenancy": "default",
        "TotalInstanceCount": its.count,
        "AvailableInstanceCount": free,
        "State": "active",
        "InstanceMatchCriteria": its.match,
        "ReservationType": BLOCK if its.market == BLOCK else "default",
        "Interruptible": its.market == INTERRUPTIBLE,
    }
