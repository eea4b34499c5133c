"""Goes through an agent's recorded events again, and compares its decisions (pure).

`observe` and `decide` are the product's own. So a log shows why a node did what it did, and whether
this version would do the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from support.event_files import LogFile, LogRecord
from support.event_values import Unreadable, build, hints, named
from support.event_wording import action_line, event_line, store_lines

from spotelastic.agent.decide import AgentDecision, decide
from spotelastic.agent.event_log import log
from spotelastic.agent.event_log.codec import decode, encode
from spotelastic.agent.observe import observe
from spotelastic.agent.state.events import LocalEvent
from spotelastic.agent.state.values import NEW, NodeState
from spotelastic.rendezvous.view import RunState, fold
from spotelastic.store.keys import Keys
from spotelastic.store.port import WatchItem

EVENTS = named(LocalEvent)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One decision, or the end of what was recorded."""

    at: float
    because: tuple[str, ...]
    """What had happened since the decision before."""
    actions: tuple[str, ...]
    """What was decided, as recorded."""
    difference: str = ""
    """In what this version decides otherwise; empty: in nothing."""
    closed: str | None = None
    """With what the agent ended: a traceback, or "" where it ended as decided; None: it goes on."""


def replay(files: Sequence[LogFile]) -> Iterator[Replayed]:
    """Yields each decision. The first one with a difference is the last: what follows from it is
    of no use.
    """
    before: LogFile | None = None
    reader = _Reader()
    for each in files:
        opened, *records = each.records
        if before is not None and each.follows(before):
            if difference := reader.compare_state(opened):
                yield Replayed(opened.at, (), (), difference)
                return
        else:
            reader = _Reader()
            reader.open(opened)
        for found in reader.read(records):
            yield found
            if found.difference:
                return
        before = each


class _Reader:
    """The state of a node, as far as its log was read."""

    def __init__(self) -> None:
        self._state, self._seen, self._keys = NEW, RunState(), Keys("")
        self._because: list[str] = []

    def open(self, opened: LogRecord) -> None:
        header, state, seen = opened.told
        self._keys = Keys(header["run"])
        self._state, self._seen = build(NodeState, state), build(RunState, seen)

    def compare_state(self, opened: LogRecord) -> str:
        """Returns where the state at the beginning of the next file is another; empty: nowhere."""
        _, state, seen = opened.told
        for mine, recorded in ((self._state, state), (self._seen, seen)):
            known: Mapping[str, Any] = decode(encode(mine))
            for name, value in recorded.items():
                if _unordered(known.get(name)) != _unordered(value):
                    return _where(name, known.get(name), value)
        return ""

    def read(self, records: Iterable[LogRecord]) -> Iterator[Replayed]:
        for record in records:
            try:
                found = self._take(record)
            except Unreadable as error:
                found = Replayed(record.at, (), (), f"this version cannot read it: {error}")
            if found is not None:
                self._because.clear()
                yield found

    def _take(self, record: LogRecord) -> Replayed | None:
        told, at = record.told, record.at
        match record.kind:
            case log.EVENT:
                self._observe(told[0], told[1], at)
            case log.STORE:
                items = tuple(build(WatchItem, item) for item in told[1])
                self._seen = fold(self._seen, items, self._keys, at, told[0])
                self._because += store_lines(items, self._keys)
            case log.STATE:
                self._state = _changed(self._state, told[0])
            case log.SEEN:
                self._seen = _changed(self._seen, told[0])
            case log.DECIDED:
                return self._decide(at, *told)
            case log.LOST:
                return self._result(at, (), f"an event was not recorded: {told[0]}")
            case log.CLOSED:
                return Replayed(at, tuple(self._because), (), closed=told[0])
        return None

    def _observe(self, name: str, plain: Any, at: float) -> None:
        if name not in EVENTS:
            raise Unreadable(f"it knows no event {name}")
        event = build(EVENTS[name], plain)
        self._state = observe(self._state, event, at)
        told = {key: value for key, value in plain.items() if key != "type"}  # it has its name
        self._because.append(event_line(name, told))

    def _decide(self, at: float, wake_at: float, actions: Any, ids: Sequence[str]) -> Replayed:
        given = iter(ids)
        decision = decide(self._state, self._seen, at, lambda: next(given, "no id was recorded"))
        lines = tuple(action_line(name, plain) for name, plain in actions)
        return self._result(at, lines, _difference(decision, wake_at, actions))

    def _result(self, at: float, actions: tuple[str, ...], difference: str = "") -> Replayed:
        return Replayed(at, tuple(self._because), actions, difference)


def _where(name: str, mine: Any, recorded: Any) -> str:
    """Returns the first field in which two states differ."""
    if isinstance(mine, Mapping) and isinstance(recorded, Mapping):
        for inner, value in recorded.items():
            if _unordered(mine.get(inner)) != _unordered(value):
                return _where(f"{name}.{inner}", mine.get(inner), value)
    return f"{name} was {recorded!r:.200}, and is {mine!r:.200} here"


def _changed(value: Any, told: Mapping[str, Any]) -> Any:
    kind: Any = type(value)
    kinds = hints(kind)
    known = {each.name for each in fields(value)}
    if unknown := told.keys() - known:
        raise Unreadable(f"a node's state has no {', '.join(sorted(unknown))}")
    return replace(value, **{name: build(kinds[name], item) for name, item in told.items()})


def _difference(decision: AgentDecision, wake_at: float, actions: Any) -> str:
    mine = decode(encode([(type(each).__name__, each) for each in decision.actions]))
    if _unordered(mine) != _unordered(actions):
        here = ", ".join(action_line(name, plain) for name, plain in mine)
        there = ", ".join(action_line(name, plain) for name, plain in actions)
        if here == there:
            return f"recorded was {actions!r:.400}, and this version decides {mine!r:.400}"
        return f"recorded was {there or 'nothing'}, and this version decides {here or 'nothing'}"
    if decision.wake_at != wake_at:
        return f"recorded was to wake at {wake_at}, and this version wakes at {decision.wake_at}"
    return ""


def _unordered(plain: Any) -> Any:
    """Returns the value with lists of names in order: a set is written in any."""
    if isinstance(plain, dict):
        return {key: _unordered(value) for key, value in plain.items()}
    if isinstance(plain, list):
        items = [_unordered(value) for value in plain]
        return sorted(items) if items and all(isinstance(each, str) for each in items) else items
    return plain
