"""What only tests ask of a local cloud: other conditions, and regions that are cut off."""

from dataclasses import dataclass
from typing import Any

from support.unkind.conditions import Conditions, ConditionsInForce
from support.unkind.isolation import Isolation
from support.unkind.maintenance import HEALTH_CODES

from spotelastic.errors import UsageError
from spotelastic.local import fault_client


class FaultClient(fault_client.FaultClient):
    """Asks a cloud that `program.py` runs. Any other refuses what is not the product's."""

    def set_delivery(self, *delays: float) -> None:
        """Deliver one copy of each event after each of these delays; none: events are lost."""
        self._ask("set_delivery", delays=delays)

    def set_conditions(self, conditions: Conditions) -> None:
        """Let other conditions hold from now on."""
        self._ask("set_conditions", conditions=conditions.changed())

    def withdraw(self, instance: str) -> None:
        """Withdraw a notice: the instance stays."""
        self._ask("withdraw", instance=instance)

    def schedule(self, instance: str, code: str, seconds: float) -> None:
        """Schedule maintenance of an instance, which begins after that many seconds."""
        self._ask("schedule", instance=instance, code=code, seconds=seconds)

    def call_off(self, instance: str) -> None:
        """Call off what is scheduled for an instance."""
        self._ask("call_off", instance=instance)

    def end_block(self, instance: str, seconds: float) -> None:
        """End an instance's Capacity Block: it is ended after that many seconds."""
        self._ask("end_block", instance=instance, seconds=seconds)

    def isolate(self, *regions: str) -> None:
        """Cut these regions off from instances in others, and no others any more."""
        self._ask("isolate", regions=regions)

    def refuse_launches(self, code: str, message: str, *types: str) -> None:
        """Answer so to launches of these types, or of all; without a code, launch them again."""
        self._ask("refuse_launches", code=code, message=message, types=types)

    def unanswered(self) -> int:
        """Return how many calls did not reach their region because of that."""
        return int(self._ask("unanswered"))


@dataclass
class Delivery:
    """How events are delivered."""

    delays: tuple[float, ...] | None = None
    """Seconds until each copy of an event is delivered; None: as the conditions say."""


@dataclass(frozen=True, kw_only=True)
class Desk(fault_client.Desk):
    """The server side."""

    conditions: ConditionsInForce
    isolation: Isolation
    delivery: Delivery
    refusal: Any

    def set_delivery(self, delays: list[float]) -> None:
        self.delivery.delays = tuple(delays)

    def set_conditions(self, conditions: dict[str, Any]) -> None:
        self.conditions.set(Conditions(**conditions))

    def withdraw(self, instance: str) -> None:
        self.announced.withdraw(self._spot(instance))

    def schedule(self, instance: str, code: str, seconds: float) -> None:
        if code not in HEALTH_CODES:
            raise UsageError(f"EC2 schedules no {code}; it schedules {', '.join(HEALTH_CODES)}")
        self.announced.schedule(self._living(instance), code, seconds)

    def call_off(self, instance: str) -> None:
        self.announced.call_off(self._living(instance))

    def end_block(self, instance: str, seconds: float) -> None:
        self.announced.end_block(self._living(instance), seconds)

    @property
    def announced(self) -> Any:
        """The instances, to which maintenance can be announced."""
        return self.machines

    def isolate(self, regions: list[str]) -> None:
        self.isolation.regions = frozenset(regions)

    def refuse_launches(self, code: str, message: str, types: list[str]) -> None:
        its = self.refusal
        its.code, its.message, its.types = code, message, tuple(types)

    def unanswered(self) -> int:
        return self.isolation.unanswered
