"""Runs the process of a local cloud that is as strict as AWS, and may be as unkind on a bad day.

`SPOTELASTIC_LOCAL_PROGRAM` names this file (`unkind`), and `SPOTELASTIC_LOCAL_CONDITIONS` the
conditions that hold from the start. Without any it is as kind as the product's
own.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])  # its own folder until now

from support.strict import Strictness, judging  # noqa: E402
from support.unkind import conditions, isolation, throttling  # noqa: E402
from support.unkind.conditions import ConditionsInForce  # noqa: E402
from support.unkind.fault_client import Delivery, Desk  # noqa: E402
from support.unkind.set_prices import SetPrices  # noqa: E402

from spotelastic.clock import wall  # noqa: E402
from spotelastic.local import __main__, server  # noqa: E402
from spotelastic.local.base.eventbridge_messages import BusEvent  # noqa: E402
from spotelastic.local.cloud import REGIONS  # noqa: E402
from spotelastic.local.moto_patches.patch import Patches  # noqa: E402


class UnkindServer(server.Server):
    """The local cloud, strict and under conditions."""

    def __init__(self, config: server.Config, lost: Callable[[], None]) -> None:
        self._conditions = ConditionsInForce(conditions.from_environment(os.environ))
        self._delivery = Delivery()
        self._strict = Strictness()
        server.prepare_environment(config)  # moto reads its environment at import
        from support.strict.instances import TroubledMetadata
        from support.unkind import detaching, refusing, stale
        from support.unkind.slow_parts import SlowGroups, SlowInstances

        from spotelastic.local.autoscaling import groups
        from spotelastic.local.instances import machines

        machines.MetadataServer = TroubledMetadata  # type: ignore[attr-defined, assignment]
        server.SpotMarket = SetPrices  # type: ignore[attr-defined]
        server.LocalInstances = partial(SlowInstances, self._conditions)  # type: ignore[attr-defined, assignment]
        groups.AutoScaling = partial(SlowGroups, self._conditions)  # type: ignore[assignment, misc]
        super().__init__(config, lost)
        patches, its = Patches(), self._machines
        assert isinstance(its, SlowInstances)
        known = partial(stale.is_known, self._conditions)
        self._strict.install(patches, self._desk.lock, its, known)
        detaching.install(patches, self._agenda, self._conditions)
        stale.install(patches, self._conditions)
        refusal = refusing.LaunchRefusal()
        refusing.install(patches, refusal)
        self._isolation = isolation.Isolation(its.region_of)
        parts = {each.name: getattr(self._desk, each.name) for each in fields(self._desk)}
        self._desk = Desk(
            **parts,
            strict=self._strict,
            conditions=self._conditions,
            isolation=self._isolation,
            delivery=self._delivery,
            refusal=refusal,
        )

    def _answering(self, moto: Callable[..., Any]) -> Callable[..., Any]:
        judged = judging.middleware(self._strict.authority, REGIONS[0], super()._answering(moto))
        refusing = throttling.middleware(self._conditions, judged)
        return isolation.middleware(self._isolation, refusing)

    def _emit(self, event: BusEvent) -> None:
        now, delays = wall(), self._delivery.delays
        for delay in self._conditions.deliveries() if delays is None else delays:
            deliver = partial(self._deliver, event, now)
            if delay:
                self._agenda.at(now + delay, deliver)
            else:
                deliver()


if __name__ == "__main__":
    __main__.Server = UnkindServer  # type: ignore[attr-defined]
    __main__.main()
