"""What AWS announces ahead: maintenance, and the end of a Capacity Block.

Sources: "Monitor Capacity Blocks using EventBridge" (EC2 user guide), "AWS Health events Amazon
EventBridge schema" (AWS Health user guide).
"""

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from functools import partial
from typing import Any

from support.strict.instances import StrictInstances

from spotelastic.clock import wall
from spotelastic.local.base.eventbridge_messages import BusEvent
from spotelastic.local.instances.machines import RUNNING, LocalInstance
from spotelastic.local.instances.metadata import META

HEALTH_CODES = {
    "system-reboot": "AWS_EC2_SYSTEM_REBOOT_MAINTENANCE_SCHEDULED",
    "instance-reboot": "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED",
    "system-maintenance": "AWS_EC2_INSTANCE_NETWORK_MAINTENANCE_SCHEDULED",
    "instance-retirement": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
    "instance-stop": "AWS_EC2_INSTANCE_STOP_SCHEDULED",
}
"""By EC2's word for maintenance, what AWS Health calls it."""

REBOOTS = frozenset({"system-reboot", "instance-reboot", "system-maintenance"})
"""Maintenance after which an instance runs again."""
BLOCK_ENDS_AHEAD = 1800.0
"""Seconds before the end of a Capacity Block at which its instances are ended."""


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Something that EC2 has scheduled for an instance."""

    id: str
    code: str
    """EC2's word: system-reboot, instance-retirement, ..."""
    begins: float
    """In epoch seconds."""

    def document(self) -> dict[str, str]:
        """Return the entry of the metadata document."""
        return {
            "NotBefore": _http_date(self.begins),
            "NotAfter": _http_date(self.begins + MAINTENANCE_LASTS),
            "Code": self.code,
            "Description": f"scheduled {self.code}",
            "EventId": self.id,
            "State": "active",
        }


MAINTENANCE_LASTS = 7200.0
"""Seconds within which EC2 promises to be done."""


def scheduled_change(
    region: str, instance: str, change: str, code: str, begins: float, *, closed: bool = False
) -> BusEvent:
    """Return AWS Health's event of a scheduled change of an instance, or of its end."""
    starts = formatdate(begins, usegmt=True)
    return BusEvent(
        "aws.health",
        "AWS Health Event",
        (instance,),
        {
            "eventArn": f"arn:aws:health:{region}::event/EC2/{code}/{change}",
            "service": "EC2",
            "eventTypeCode": code,
            "eventTypeCategory": "scheduledChange",
            "eventScopeCode": "ACCOUNT_SPECIFIC",
            "startTime": starts,
            "endTime": formatdate(begins + 7200.0, usegmt=True),
            "statusCode": "closed" if closed else "upcoming",
            "eventRegion": region,
            "affectedEntities": [{"entityValue": instance, "status": "PENDING"}],
            "page": "1",
            "totalPages": "1",
        },
    )


def block_expires(account: str, region: str, reservation: str, ends: float) -> BusEvent:
    """Return the warning that a Capacity Block ends."""
    date = datetime.fromtimestamp(ends, UTC)
    return BusEvent(
        "aws.ec2",
        "Capacity Block Reservation Expiration Warning",
        (f"arn:aws:ec2:{region}:{account}:capacity-reservation/{reservation}",),
        {"capacity-reservation-id": reservation, "end-date": f"{date:%Y-%m-%dT%H:%M:%SZ}"},
    )


def _http_date(at: float) -> str:
    """Format a time as EC2 does in this document, and nowhere else."""
    return datetime.fromtimestamp(at, UTC).strftime("%d %b %Y %H:%M:%S GMT").lstrip("0")


class MaintainedInstances(StrictInstances):
    """Instances to which maintenance can be announced."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._scheduled: dict[str, tuple[Maintenance, ...]] = {}

    def read(self, instance: str, path: str) -> str | None:
        if path == f"{META}events/maintenance/scheduled":
            return json.dumps([each.document() for each in self._scheduled.get(instance, ())])
        return super().read(instance, path)

    def withdraw(self, machine: LocalInstance) -> None:
        """Withdraw the notice."""
        machine.notices.interruption = 0.0

    def schedule(self, machine: LocalInstance, code: str, seconds: float) -> None:
        """Schedule maintenance, and begin it when its time has come."""
        begins = wall() + seconds
        event = Maintenance(f"instance-event-{secrets.token_hex(8)}", code, begins)
        self._scheduled[machine.id] = (*self._scheduled.get(machine.id, ()), event)
        self._tell_health(machine, event)
        self._agenda.at(begins, partial(self._maintain, machine, event))

    def call_off(self, machine: LocalInstance) -> None:
        """Call off all maintenance that is scheduled."""
        for event in self._scheduled.pop(machine.id, ()):
            self._tell_health(machine, event, closed=True)

    def end_block(self, machine: LocalInstance, seconds: float) -> None:
        """End the Capacity Block that the instance runs in; it is ended after so many seconds."""
        instance = machine.it
        instance.capacity_reservation_id = reservation = f"cr-{instance.id.removeprefix('i-')}"
        ends = wall() + seconds
        self._emit(
            block_expires(
                instance.owner_id, instance.region_name, reservation, ends + BLOCK_ENDS_AHEAD
            )
        )
        self._agenda.at(ends, partial(self.terminate, instance, "Server.InternalError"))

    def _tell_health(
        self, machine: LocalInstance, event: Maintenance, *, closed: bool = False
    ) -> None:
        self._emit(
            scheduled_change(
                machine.it.region_name,
                machine.id,
                event.id,
                HEALTH_CODES[event.code],
                event.begins,
                closed=closed,
            )
        )

    def _maintain(self, machine: LocalInstance, event: Maintenance) -> None:
        known = self._scheduled.get(machine.id, ())
        if event not in known or machine.state != RUNNING:
            return
        self._scheduled[machine.id] = tuple(each for each in known if each != event)
        if event.code in REBOOTS:
            self._reboot(machine)
        else:
            self.terminate(machine.it, "Server.ScheduledStop")  # as its group does, once it stops

    def _reboot(self, machine: LocalInstance) -> None:
        """Switch the instance off and on again, which EC2 calls running all the time."""
        off = self._power.shut_down(machine.id)
        self._agenda.after(off, partial(self._back_on, machine))

    def _back_on(self, machine: LocalInstance) -> None:
        if machine.state == RUNNING:
            self._power.on(machine.id, self._endpoint(machine))
