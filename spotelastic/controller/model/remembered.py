"""What the controller's decisions remember, folded from the events on record.

Whoever leads next has read the same events, so it remembers the same.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any

from spotelastic.controller.model import short_lives
from spotelastic.controller.model.observation import (
    REPLACED,
    LaunchFailures,
    Pool,
    Recalled,
    SlowReplacement,
    account,
)
from spotelastic.controller.model.short_lives import SHORT_LIFE, SHORT_LIFE_OVER, ShortLives
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.notice import SCHEDULED, Notice
from spotelastic.model.progress import Event

SAME_TRY = 10.0
"""Seconds within which failed launches are of one attempt: the cloud waits longer between two."""


@dataclass(slots=True)
class Remembered:
    """Takes in each event once, in the order in which they were recorded."""

    told: set[tuple[str, str, str]] = field(default_factory=set)
    failed: dict[Pool, LaunchFailures] = field(default_factory=dict)
    moved_at: int = 0
    zones_left: dict[str, float] = field(default_factory=dict)
    short_lives: dict[str, ShortLives] = field(default_factory=dict)
    given_back_at: int = 0
    slow_replaced: tuple[SlowReplacement, ...] = ()
    preparing: dict[str, float] = field(default_factory=dict)
    _schedule: dict[tuple[str, str, str], Notice] = field(default_factory=dict)
    """What was announced, by node, kind and the cloud's id of it."""

    def add(self, event: Event) -> None:
        """Take in an event."""
        again = account(event) in self.told
        self.told.add(account(event))
        step = int(event.data.get("committed", 0))
        match event.kind:
            case "launch":
                self._add_launch(event, again=again)
            case "prepare":
                self.preparing[event.node] = event.at
            case kind if kind == SCHEDULED:
                self._add_schedule(event)
            case "give-back":
                self.given_back_at = step
            case kind if kind == REPLACED:
                replaced = str(event.data.get("incarnation", "")), event.at, int(event.data["slot"])
                self.slow_replaced += (SlowReplacement(event.node, *replaced),)
            case "zone":
                self.moved_at = step
                if left := str(event.data.get("left", "")):
                    self.zones_left[left] = event.at
            case kind if kind in (SHORT_LIFE, SHORT_LIFE_OVER) and not again:
                self._add_life(event)

    def recalled(self) -> dict[str, Any]:
        """Return the fields of a `Recalled` by now."""
        return {each.name: copy(getattr(self, each.name)) for each in fields(Recalled)}

    @property
    def scheduled(self) -> Mapping[str, Notice]:
        """What was announced for each node, of several the next."""
        latest_first = sorted(self._schedule.values(), key=lambda each: -(each.deadline or 0.0))
        return {notice.node: notice for notice in latest_first}

    def _add_launch(self, event: Event, *, again: bool) -> None:
        pool = str(event.data.get("group", "")), str(event.data.get("zone", ""))
        if not event.data.get("failed"):
            self.failed.pop(pool, None)
        elif not again:  # else told twice: whoever did had no answer from etcd
            self.failed[pool] = _failed_again(self.failed.get(pool), event)

    def _add_life(self, event: Event) -> None:
        zone = str(event.data.get("zone", ""))
        lives = short_lives.after(self.short_lives.pop(zone, None), event)
        if lives is not None:
            self.short_lives[zone] = lives

    def _add_schedule(self, event: Event) -> None:
        data = event.data
        kind, id, deadline = str(data.get("kind", "")), data.get("scheduled"), data.get("deadline")
        if not isinstance(id, str) or not isinstance(deadline, int | float):
            return  # it tells what was done about something that was announced
        which = event.node, kind, id
        if data.get("called_off"):
            self._schedule.pop(which, None)
            return
        seen_at, source = float(data.get("seen_at", event.at)), data.get("source", "")
        self._schedule[which] = Notice(
            InterruptionKind(kind),
            event.node,
            source,
            float(data.get("at", event.at)),
            seen_at,
            float(deadline),
            str(data.get("action", "")),
            id,
        )


def _failed_again(before: LaunchFailures | None, event: Event) -> LaunchFailures:
    cause = str(event.data.get("cause", ""))
    if before is None:
        return LaunchFailures(1, event.at, event.message, cause)
    tries = before.tries + (event.at > before.at + SAME_TRY)
    return LaunchFailures(before.count + 1, event.at, event.message, cause, tries)
