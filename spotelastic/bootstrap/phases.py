"""Times the phases of a node's boot, and tells the run once how long each took.

A boot begins in a shell script and goes on in several processes. What is measured so far is handed
on in a variable, as in `machine=21 download=2 packages=41.5`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from spotelastic.bootstrap.reports import BootReports
from spotelastic.clock import steady

PHASES = "SPOTELASTIC_PHASES"
"""The variable that hands the phases on."""


@dataclass(slots=True)
class BootPhases:
    """The seconds of each phase so far, in order."""

    seconds: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = steady

    @classmethod
    def of_script(cls, file: Path) -> "BootPhases":
        """Return what `install.sh` has measured.

        The result is empty where no such script ran, as in the local cloud.
        """
        found = cls()
        with suppress(OSError):
            found._add(line.split() for line in file.read_text().splitlines())
        return found

    @classmethod
    def of_variables(cls, variables: Mapping[str, str]) -> "BootPhases":
        found = cls()
        found._add(word.split("=") for word in variables.get(PHASES, "").split())
        return found

    def _add(self, pairs: Iterator[list[str]]) -> None:
        for pair in pairs:
            with suppress(ValueError):  # it is only told
                name, seconds = pair
                self.seconds[name] = float(seconds)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done meanwhile."""
        begun = self.clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - begun

    def hand_on(self) -> None:
        """Hands the phases to the processes that this one starts or becomes."""
        told = (f"{name}={seconds:.1f}" for name, seconds in self.seconds.items())
        os.environ[PHASES] = " ".join(told)

    def tell_once(self, reports: BootReports, marker: Path) -> None:
        """Tells the run, unless `marker` says that it was told: an agent may be started again."""
        if marker.exists():
            return
        seconds = {name: round(value, 1) for name, value in self.seconds.items()}
        reports.tell(f"boot: {self}", {"phases": seconds})
        marker.touch()

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())
