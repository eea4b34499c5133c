"""What only tests ask of a local cloud: other conditions, prices, quotas, and cut-off regions."""

from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from support.strict import Strictness
from support.strict.authority import Call
from support.strict.instances import Trouble
from support.unkind.conditions import Conditions, ConditionsInForce
from support.unkind.isolation import Isolation
from support.unkind.maintenance import HEALTH_CODES
from support.unkind.set_prices import SetPrices

from spotelastic.errors import UsageError
from spotelastic.local import fault_client
from spotelastic.local.base import processes


class FaultClient(fault_client.FaultClient):
    """Asks a cloud that `program.py` runs. Any other refuses what is not the product's."""

    def processes(self, instance: str) -> list[processes.LocalProcess]:
        """Return the processes of an instance."""
        found = self._ask("processes", instance=instance)
        return [processes.LocalProcess(**process) for process in found]

    def calls(self) -> list[Call]:
        """Return the AWS calls of roles and users so far, each kind of call once."""
        return msgspec.convert(self._ask("calls"), list[Call])

    def set_disk_key(self, name: str, *, granted: bool) -> None:
        """Set the key of new disks, and whether Auto Scaling's role may use it."""
        self._ask("set_disk_key", name=name, granted=granted)

    def set_metadata(self, instance: str, trouble: Trouble) -> None:
        """Disturb the next requests to an instance's metadata service."""
        self._ask("set_metadata", instance=instance, trouble=trouble)

    def set_spot_price(self, type: str, zone: str, usd_per_hour: float) -> None:
        """Set the spot price of a type in a zone."""
        self._ask("set_spot_price", type=type, zone=zone, usd_per_hour=usd_per_hour)

    def set_on_demand_price(self, type: str, usd_per_hour: float) -> None:
        """Set the on-demand price that the Pricing API answers."""
        self._ask("set_on_demand_price", type=type, usd_per_hour=usd_per_hour)

    def set_quota(self, code: str, value: int) -> None:
        """Set a quota, by its code: L-3819A6DF (vCPUs), L-F678F1CE (networks), ..."""
        self._ask("set_quota", code=code, value=value)

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
    strict: Strictness

    def processes(self, instance: str) -> list[dict[str, Any]]:
        self._living(instance)
        return [asdict(process) for process in processes.marked(self.cloud, instance)]

    def calls(self) -> Any:
        return msgspec.to_builtins(self.strict.authority.calls)

    def set_disk_key(self, name: str, granted: bool) -> None:
        self.strict.disk_key.name, self.strict.disk_key.granted = name, granted

    def set_metadata(self, instance: str, trouble: Trouble) -> None:
        self.announced.set_metadata(self._living(instance), trouble)

    def set_spot_price(self, type: str, zone: str, usd_per_hour: float) -> None:
        self._market.prices[type, zone] = usd_per_hour

    def set_on_demand_price(self, type: str, usd_per_hour: float) -> None:
        self._market.listed[type] = usd_per_hour

    def set_quota(self, code: str, value: int) -> None:
        self.strict.quotas[code] = value

    @property
    def _market(self) -> SetPrices:
        assert isinstance(self.market, SetPrices)
        return self.market

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
