"""Instances and groups of the local cloud that take their time, where the conditions say so."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from support.strict.groups import StrictGroups
from support.unkind.conditions import ConditionsInForce
from support.unkind.maintenance import MaintainedInstances

from spotelastic.clock import wall
from spotelastic.local.autoscaling.groups import RETRY
from spotelastic.local.instances.machines import (
    PENDING,
    RUNNING,
    SHUTTING_DOWN,
    LocalInstance,
)

RETRY_AT_MOST = 300.0
"""Longest time, in seconds, after which a group of a slow cloud tries a launch again."""


class SlowInstances(MaintainedInstances):
    """Instances that boot, end and detach as slowly as the conditions say."""

    def __init__(self, conditions: ConditionsInForce, **parts: Any) -> None:
        super().__init__(**parts)
        self.conditions = conditions
        self._late = set[str]()
        """Instances whose end was put off."""
        self._at_once = False

    def interrupt(self, machine: LocalInstance, seconds: float) -> None:
        """Under the condition `together` others of its pool get their notice within the second."""
        super().interrupt(machine, seconds)
        for other in self._alike(machine)[: self.conditions.now.together]:
            at = wall() + self.conditions.apart()
            self._agenda.at(at, partial(super().interrupt, other, seconds))

    def _alike(self, machine: LocalInstance) -> list[LocalInstance]:
        """The other spot instances of its type and zone that run without a notice."""
        return [
            each
            for each in self._machines.values()
            if each is not machine
            and each.spot
            and each.state == RUNNING
            and not each.notices.interruption
            and each.it.instance_type == machine.it.instance_type
            and each.it.availability_zone == machine.it.availability_zone
        ]

    def settle(self, instances: Iterable[Any]) -> None:
        self._at_once = True
        try:
            super().settle(instances)
        finally:
            self._at_once = False

    def _boot(self, machine: LocalInstance) -> None:
        boot = partial(super()._boot, machine)
        if not self.conditions.now.slow or machine.state != PENDING:
            boot()
            return
        runs_at = wall() + self.conditions.pending()
        self._agenda.at(runs_at, partial(self._is_on, machine))
        self._agenda.at(runs_at + self.conditions.boot(), boot)

    def _is_off(self, machine: LocalInstance) -> None:
        lasts = self.conditions.end(str(machine.it.instance_type))
        if not lasts or self._at_once or machine.id in self._late:
            super()._is_off(machine)
            return
        self._late.add(machine.id)
        self._agenda.at(wall() + lasts, partial(self._is_off, machine))

    def _release(self, machine: LocalInstance) -> None:
        lasts = self.conditions.detach()
        if not lasts or self._at_once or machine.state != SHUTTING_DOWN:
            super()._release(machine)
        else:
            self._agenda.at(wall() + lasts, partial(super()._release, machine))


class SlowGroups(StrictGroups):
    """Groups that find out late what has become of an instance, and try launches again late."""

    def __init__(self, conditions: ConditionsInForce, **parts: Any) -> None:
        super().__init__(**parts)
        self._conditions = conditions
        self._found_out: dict[str, float] = {}
        """When the health check sees that an instance is gone."""
        self._failures: dict[int, int] = {}
        """Tries in a row that have failed, by the ledger of a group."""

    def capacity_changed(self) -> None:
        if self._conditions.now.slow:
            self.wake()
        else:
            super().capacity_changed()

    def _is_found_out(self, member: Any, machine: LocalInstance | None) -> bool:
        name = member.instance_id
        if name not in self._found_out:
            gone_at = self._machines.gone_at.get(name, wall())  # type: ignore[attr-defined]
            self._found_out[name] = gone_at + self._conditions.health_check()
            self._agenda.at(self._found_out[name], self.wake)
        return wall() >= self._found_out[name]

    def _put_in_service(self, group: Any, member: Any) -> None:
        self._failures.pop(id(self._ledger(group.name)), None)
        super()._put_in_service(group, member)

    def _launch_failed(self, ledger: Any, now: float) -> None:
        super()._launch_failed(ledger, now)
        failures = self._failures[id(ledger)] = self._failures.get(id(ledger), 0) + 1
        if slow := self._conditions.now.slow:
            longer = min(RETRY * 2 ** (failures - 1), RETRY_AT_MOST)
            ledger.retry_at = now + longer * slow
            self._agenda.at(ledger.retry_at, self.wake)
