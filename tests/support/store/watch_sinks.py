"""A sink for store watches that a test can wait on."""

import threading
from collections.abc import Callable, Sequence

from support.processes.patience import PATIENT

from spotelastic.store.port import Change, Health, Reset, StoredValue, WatchItem


class Recorder:
    """Keeps every item; `wait` returns as soon as a condition on them holds."""

    def __init__(self) -> None:
        self.items: list[WatchItem] = []
        self._arrived = threading.Condition()

    def __call__(self, items: Sequence[WatchItem]) -> None:
        with self._arrived:
            self.items.extend(items)
            self._arrived.notify_all()

    def wait(self, condition: Callable[["Recorder"], object], timeout: float = PATIENT) -> None:
        with self._arrived:
            held = self._arrived.wait_for(lambda: condition(self), timeout)
        assert held, f"not seen within {timeout:g} s; seen: {self.items}"

    @property
    def changes(self) -> list[Change]:
        """Each once: a put whose answer was late is repeated by its client, and told again."""
        found: list[Change] = []
        last: dict[str, tuple[bytes, int] | None] = {}
        for item in self.items:
            if isinstance(item, Change):
                value = (item.value.data, item.value.lease) if item.value else None
                if item.key not in last or last[item.key] != value:
                    found.append(item)
                last[item.key] = value
        return found

    @property
    def resets(self) -> list[Reset]:
        return [item for item in self.items if isinstance(item, Reset)]

    @property
    def health(self) -> list[bool]:
        return [item.healthy for item in self.items if isinstance(item, Health)]

    @property
    def told(self) -> list[tuple[str, bytes | None]]:
        """(key, data or None for a deletion) of each change."""
        return [(item.key, item.value.data if item.value else None) for item in self.changes]

    def state(self) -> dict[str, StoredValue]:
        """What a reader that follows the items would hold."""
        held: dict[str, StoredValue] = {}
        for item in self.items:
            if isinstance(item, Reset):
                held = {value.key: value for value in item.values}
            elif isinstance(item, Change) and item.value is None:
                held.pop(item.key, None)
            elif isinstance(item, Change) and item.value is not None:
                held[item.key] = item.value
        return held
