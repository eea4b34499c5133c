"""Simulates the controllers of a cluster in virtual time, as far as they account for interruptions.

Real: the mirror of etcd, what is told of losses, the ledger and its events. There is one controller
at a time, and none for a while after it was killed.
"""

from typing import TYPE_CHECKING

from spotelastic.controller.accounting import ledger
from spotelastic.controller.accounting.ledger_events import entries
from spotelastic.controller.decisions.interruptions import losses
from spotelastic.controller.etcd.etcd_mirror import Mirror
from spotelastic.controller.model.observation import Observation, Records, account
from spotelastic.model.job import ENDED, Job
from spotelastic.model.progress import Event, Interruption, Report
from spotelastic.rendezvous.membership import record

if TYPE_CHECKING:
    from support.simulation.virtual_cluster import World

EVERY = 0.5
"""Seconds between two turns."""


class VirtualController:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._leads_at = world.now
        self._mirror = Mirror(world.keys, lambda: None, lambda: world.now)
        world.store.watch(world.keys.root, self._mirror)
        self._turn()

    def kill(self, seconds: float) -> None:
        """The next one, which has stood by, leads after so many seconds."""
        self._leads_at = self._world.now + seconds

    @property
    def _leads(self) -> bool:
        return self._world.now >= self._leads_at

    def _turn(self) -> None:
        world = self._world
        if not world.done:
            world.after(EVERY, self._turn)
        if not self._leads:
            return
        records = self._mirror.records()
        seen = Observation(
            desired=len(world.nodes),
            since=0.0,
            job=records.job,
            nodes=records.nodes,
            left=records.left,
            lost=records.lost,
            joined=records.joined,
            drains=records.drains,
            told=records.told,
        )
        for tell in losses(seen, world.now):
            record(world.store, world.keys, tell.event)
        known = records.told
        for event in entries(self.report(records), world.now):
            if account(event) not in known:
                record(world.store, world.keys, event)

    def report(self, records: Records) -> Report:
        return report(self._world, records, records.events)

    def rows(self) -> tuple[Interruption, ...] | None:
        """Those of now; None while no controller leads."""
        return self.report(self._mirror.records()).interruptions if self._leads else None


def report(world: "World", records: Records, events: tuple[Event, ...]) -> Report:
    """The report of what is on record, with these events."""
    running = Job("running", world.now)
    job = records.job if records.job is not None and records.job.state in ENDED else running
    return ledger.report(records.history, records.round, job, events, world.points, (), world.now)


def records_of(world: "World") -> Records:
    """What etcd has, as a controller reads it that has just begun."""
    mirror = Mirror(world.keys, lambda: None, lambda: world.now)
    world.store.watch(world.keys.root, mirror).close()
    return mirror.records()
