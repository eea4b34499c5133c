"""Publishes the values that a script logs, without making training wait for a GPU.

Must never happen:

* A value that is wrong on one rank ends that rank alone, or makes it wait for others that do not
  log it: all ranks check alike, and what would need the other ranks is refused.
* A value that is NaN or infinite ends the training: a norm may be that in a step that is skipped.
"""

import re
from typing import Any

import torch
from spotelastic_checkpoints.memory.worker_page import LONGEST_NAME, MOST_LOGGED, WorkerPage

from spotelastic.errors import UsageError
from spotelastic.training.runtime.losses import Arriving, arriving

EVERY = 1.0
"""Seconds between two publications. Of what is logged between them the newest counts."""
_NAME = re.compile(rf"[A-Za-z_][\w./-]{{0,{LONGEST_NAME - 1}}}", re.ASCII)


class LoggedValues:
    """The newest value of each name, until it is published with the step that it belongs to."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        """The names, in the order in which they were logged first."""
        self._waiting: dict[str, float | Arriving] = {}
        self._leaving: dict[str, float | Arriving] = {}
        self._left_at = 0.0
        """When the last ones left, which are published once all of them have arrived."""

    def take(self, values: dict[str, Any], *, counts: bool) -> None:
        """Keep these values, if they count: those of another rank are only checked.

        Raises `UsageError` for a name or a value that cannot be shown.
        """
        for name, value in values.items():
            number = _number(name, value)
            if name not in self._numbers:
                self._name(name)
            if counts:
                self._waiting[name] = number

    def _name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"checkpoint.log({name}=...): a name has at most {LONGEST_NAME} letters, digits, "
                "and characters of “_./-”, and begins with a letter"
            )
        if len(self._numbers) == MOST_LOGGED:
            raise UsageError(
                f"checkpoint.log({name}=...): {MOST_LOGGED} other names were logged before, and "
                "more cannot be shown: send them to an experiment tracker"
            )
        self._numbers[name] = len(self._numbers)

    def publish(self, page: WorkerPage, now: float) -> None:
        """Publish what is waiting, if it is due. A step was counted."""
        if not self._leaving:
            if not self._waiting or self._left_at <= now < self._left_at + EVERY:
                return
            self._leaving, self._waiting, self._left_at = self._waiting, {}, now
        if all(each.copied.query() for each in _on_their_way(self._leaving)):
            self._write(page)

    def finish(self, page: WorkerPage, now: float) -> None:
        """Publish all that is left, at the end of the script."""
        for its in (self._leaving, self._waiting):
            for each in _on_their_way(its):
                each.copied.synchronize()
        self._leaving, self._waiting, self._left_at = self._leaving | self._waiting, {}, now
        self._write(page)

    def _write(self, page: WorkerPage) -> None:
        for name, value in self._leaving.items():
            number = float(value.value) if isinstance(value, Arriving) else value
            page.log(self._numbers[name], name, number, self._left_at)
        self._leaving = {}


def _on_their_way(values: dict[str, float | Arriving]) -> list[Arriving]:
    return [each for each in values.values() if isinstance(each, Arriving)]


def _number(name: str, value: Any) -> float | Arriving:
    if isinstance(value, torch.Tensor):
        if hasattr(value, "full_tensor"):
            raise UsageError(
                f"checkpoint.log({name}=...) is given a tensor that is spread over ranks: log its "
                "full_tensor(), which all ranks call"
            )
        if value.numel() != 1 or value.is_complex():
            shape = f"{tuple(value.shape)}, {value.dtype}"
            raise UsageError(f"checkpoint.log({name}=...) takes one number, not a tensor {shape}")
        if not value.is_cuda:
            return float(value.item())
        return arriving(value)
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        kind = type(value).__name__
        raise UsageError(f"checkpoint.log({name}=...) takes a number, not a {kind}") from None
