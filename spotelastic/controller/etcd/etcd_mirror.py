"""Mirrors the run's keys in etcd for a controller, parsed once, as they change.

A controller that does not lead keeps its mirror too, so that it can lead at once, and knows the
loss of every step that was published.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import msgspec
from spotelastic_checkpoints.types import TimedValue

from spotelastic.clock import Clock, unbroken
from spotelastic.controller.model.observation import DepartedNode, Records
from spotelastic.controller.model.remembered import Remembered
from spotelastic.model.job import ENDED, Ending, Job, Settings
from spotelastic.model.measured import (
    GPU_USE,
    GPUS_EVERY,
    MOST_NAMES,
    Series,
    extended,
    of_gpus,
)
from spotelastic.model.node import Node
from spotelastic.model.notice import Drain
from spotelastic.model.progress import Event, Point, Progress, SlowNode
from spotelastic.model.round import Round, RoundRecord
from spotelastic.store.codec import decode
from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Reset, StoredValue, WatchItem

COMPARED = 20_000
"""Newest steps that are known by their round: what nodes tell of a step comes within seconds."""


class Mirror:
    """Follows the watch on a run's keys. `records` may be called from any thread."""

    def __init__(self, keys: Keys, changed: Callable[[], None], clock: Clock = unbroken) -> None:
        """Make an empty mirror.

        `changed` is called after each batch of changes, on the watch's thread.
        """
        self._keys = keys
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, Any]] = {name: {} for name in _kinds(keys)}
        self._prefixes = _kinds(keys)
        self._left: dict[str, DepartedNode] = {}
        self._lost: dict[str, DepartedNode] = {}
        self._joined: dict[str, int] = {}
        self._progress: dict[str, Progress] = {}
        self._points: list[Point] = []
        """Executed steps, in order. A long job has a million, and each turn asks for them."""
        self._by_step: dict[tuple[int, int], Point] = {}
        """The newest of them, by round and step."""
        self._measured: dict[str, Series] = {}
        self._remembered = Remembered()
        self._leader = ""
        self._controllers: frozenset[str] = frozenset()
        self._unreadable: dict[str, str] = {}
        self._records: Records | None = None
        """All of it, until something changes: a leader asks several times a turn."""

    # -- in --------------------------------------------------------------------------------------

    def __call__(self, items: Sequence[WatchItem]) -> None:
        """Take in a batch of changes from the watch."""
        with self._lock:
            self._records = None
            for item in items:
                self._apply(item)
        self._changed()

    def remember(self, points: Sequence[Point], measured: Mapping[str, Series]) -> None:
        """Add what was published before this mirror began: steps, and what was measured."""
        with self._lock:
            self._records = None
            self._add_points(points)
            for name, before in measured.items():
                since = self._measured.get(name, ())
                self._measured[name] = reduce(extended, since, before)

    def _apply(self, item: WatchItem) -> None:
        match item:
            case Reset(values):
                present = {value.key for value in values}
                for key in [key for key in self._all_keys() if key not in present]:
                    self._drop(key)
                for value in values:
                    self._take(value)
            case Change(key, None):
                self._drop(key)
            case Change(_, value) if value is not None:
                self._take(value)

    def _take(self, value: StoredValue) -> None:
        if value.key == self._keys.leader:
            self._leader = value.data.decode()
        elif value.key.startswith(self._keys.controller()):
            name = value.key.removeprefix(self._keys.controller())
            self._controllers |= {name}
        elif found := self._find(value.key):
            name, kind = found
            self._unreadable.pop(value.key, None)
            try:
                self._put(name, value.key, decode(value.data, kind), value.created)
            except msgspec.MsgspecError as error:
                # Of another version: not ours to judge.
                self._unreadable[value.key] = str(error)

    def _put(self, name: str, key: str, value: Any, created: int) -> None:
        if name == "events" and key not in self._values[name]:
            self._remembered.add(value)
        elif name == "job" and value.state not in ENDED:
            self._left.clear()  # a job that goes on after its end has lost nobody yet
            self._lost.clear()
        self._values[name][key] = value
        if name == "nodes":
            self._left.pop(value.id, None)
            self._joined[value.id] = created
        elif name == "progress":
            self._progress[value.node] = value
            self._add_told(value)
            self._extend(value.logged)
            known = self._measured.get(GPU_USE)
            if value.gpu is not None and (not known or value.at >= known[-1].at + GPUS_EVERY):
                uses = [it.gpu for it in self._values[name].values() if it.gpu is not None]
                self._extend(of_gpus(uses, value.at))

    def _drop(self, key: str) -> None:
        if key == self._keys.leader:
            self._leader = ""
        elif key.startswith(self._keys.controller()):
            self._controllers -= {key.removeprefix(self._keys.controller())}
        elif found := self._find(key):
            self._unreadable.pop(key, None)
            gone = self._values[found[0]].pop(key, None)
            if found[0] == "nodes" and gone is not None:
                joined = self._joined.pop(gone.id, 0)
                left = DepartedNode(gone.incarnation, self._clock(), joined)
                self._left[gone.id] = left
                if all(drain.node != gone.id for drain in self._values["drains"].values()):
                    self._lost[gone.id] = left

    def _add_told(self, told: Progress) -> None:
        """Add the steps that a node tells of, each once in a round.

        All nodes tell of each step. Ranks may have losses of their own: those of the group's first
        node count, and others only where it does not tell.
        """
        round_ = self._values["round"].get(self._keys.round)
        first = next((m.node for m in round_.members if m.slot == 0), "") if round_ else ""
        for point in told.points:
            known = self._by_step.get((told.round, point.step))
            if known is not None and told.node != first:
                continue
            if known is not None:
                at = bisect_left(self._points, _moment(known), key=_moment)
                if self._points[at : at + 1] == [known]:
                    del self._points[at]
            self._by_step[told.round, point.step] = point
            self._add_points([point])
        while len(self._by_step) > COMPARED:
            del self._by_step[next(iter(self._by_step))]

    def _add_points(self, points: Sequence[Point]) -> None:
        for point in points:
            at = bisect_left(self._points, _moment(point), key=_moment)
            again = at < len(self._points) and _moment(self._points[at]) == _moment(point)
            self._points[at : at + again] = [point]

    def _extend(self, values: Mapping[str, TimedValue]) -> None:
        for name, new in values.items():
            if name in self._measured or len(self._measured) < MOST_NAMES:
                self._measured[name] = extended(self._measured.get(name, ()), new)

    def _find(self, key: str) -> tuple[str, Any] | None:
        for name, (prefix, kind) in self._prefixes.items():
            if key.startswith(prefix):
                return name, kind
        return None

    def _all_keys(self) -> Iterator[str]:
        for values in self._values.values():
            yield from values
        yield from (self._keys.controller(name) for name in self._controllers)
        yield from tuple(self._unreadable)
        if self._leader:
            yield self._keys.leader

    # -- out -------------------------------------------------------------------------------------

    @property
    def leader(self) -> str:
        with self._lock:
            return self._leader

    def records(self) -> Records:
        with self._lock:
            if self._records is None:
                self._records = self._read()
            return self._records

    def _read(self) -> Records:
        return Records(
            **self._remembered.recalled(),
            job=self._one("job"),
            ending=self._one("ending"),
            settings=self._one("settings"),
            round=self._one("round"),
            leader=self._leader,
            controllers=self._controllers,
            nodes={node.id: node for node in self._values["nodes"].values()},
            left=dict(self._left),
            lost=dict(self._lost),
            joined=dict(self._joined),
            drains={drain.node: drain for drain in self._values["drains"].values()},
            progress=dict(self._progress),
            history=tuple(value for _, value in sorted(self._values["history"].items())),
            events=tuple(value for _, value in sorted(self._values["events"].items())),
            slow={slow.node: slow for slow in self._values["slow"].values()},
            points=tuple(self._points),
            measured=dict(self._measured),
            unreadable={
                key.removeprefix(self._keys.root): why for key, why in self._unreadable.items()
            },
        )

    def _one(self, name: str) -> Any:
        return next(iter(self._values[name].values()), None)


def _moment(point: Point) -> tuple[float, int]:
    return point.at, point.step


def _kinds(keys: Keys) -> dict[str, tuple[str, Any]]:
    """Return, by name, the prefix of a kind's keys and the type of its values."""
    return {
        "job": (keys.job, Job),
        "ending": (keys.ending, Ending),
        "settings": (keys.settings, Settings),
        "round": (keys.round, Round),
        "nodes": (keys.live(), Node),
        "drains": (keys.drain(), Drain),
        "progress": (keys.progress(), Progress),
        "slow": (keys.slow(), SlowNode),
        "history": (keys.history(), RoundRecord),
        "events": (keys.event(), Event),
    }
