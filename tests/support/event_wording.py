"""Tells people of the events and actions in an agent's event log, one line for each (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any

from spotelastic.store.keys import Keys
from spotelastic.store.port import Change, Health, Reset, WatchItem

LONGEST = 160
"""Most characters of one value."""


def event_line(name: str, plain: Any) -> str:
    """Returns an event's name with its values."""
    return _line(name, plain)


def action_line(name: str, plain: Any) -> str:
    """Returns an action's name with its values. What the holder writes is told by its reason."""
    return _line(name, plain)


def store_lines(items: Iterable[WatchItem], keys: Keys) -> list[str]:
    """Returns what etcd has delivered, by the names of the keys."""
    lines: list[str] = []
    for item in items:
        match item:
            case Change(key, value):
                gone = " is gone" if value is None else ""
                lines.append(f"{key.removeprefix(keys.root)}{gone}")
            case Reset(values):
                names = [value.key.removeprefix(keys.root) for value in values]
                lines.append(f"etcd as it is ({', '.join(names) or 'empty'})")
            case Health(healthy):
                lines.append("etcd answers again" if healthy else "etcd does not answer")
    return lines


def _line(name: str, plain: Any) -> str:
    values = [text for key, value in _items(plain) if (text := _value(key, value))]
    return " ".join((name, *values))


def _items(plain: Any) -> Iterable[tuple[str, Any]]:
    return plain.items() if isinstance(plain, Mapping) else ()


def _value(key: str, value: Any) -> str:
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, Mapping):
        return f"({_short(_summary(key, value))})"
    if isinstance(value, list):
        inner = [_summary(key, each) if isinstance(each, Mapping) else str(each) for each in value]
        return f"{key}=[{_short(', '.join(inner))}]"
    return f"{key}={_short(str(value))}"


def _summary(key: str, value: Mapping[str, Any]) -> str:
    """Returns what tells a nested value from others: a round's number and reason, for instance."""
    if "incarnation" in value and "cause" in value:
        return f"round {value['number']}, {value['phase']}: {value['reason']}"
    telling = ("number", "kind", "step", "epoch", "state", "reason", "node", "message", "target")
    inner = [f"{name} {value[name]}" for name in telling if value.get(name) not in (None, "", 0)]
    nested = [_summary(name, each) for name, each in value.items() if isinstance(each, Mapping)]
    return ", ".join(inner or nested) or key


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
