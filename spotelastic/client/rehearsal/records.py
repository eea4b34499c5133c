"""Reads what the processes of an act have recorded (`training/rehearsal/recording.py`)."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_HEAD = re.compile(
    rb'\{"kind": "(\w+)", "at": [\d.]+, "rank": (\d+), "world": (\d+)'
    rb'(?:, "step": (\d+))?'
)

Variable = tuple[str, str, str]
"""Kind, digest and shown value of a variable outside of the state."""


@dataclass(frozen=True, slots=True)
class RecordedLine:
    """What one process recorded at one moment: a step that counts, or a state that it restored."""

    kind: str
    """"begin", "restored", "step", "ended" (with what stands after its loop) or "done"."""
    at: float
    rank: int
    world: int
    step: int = 0
    digests: Mapping[str, str] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, Sequence[str]] = field(default_factory=dict)
    memory: int = 0
    gpu: int = 0
    epochs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """All lines of an act, in the order of time."""

    lines: tuple[RecordedLine, ...] = ()

    @property
    def steps(self) -> list[RecordedLine]:
        """The steps that counted."""
        return [line for line in self.lines if line.kind == "step"]

    @property
    def last(self) -> int:
        """The last step that counted; 0 for none."""
        return max((line.step for line in self.steps), default=0)

    @property
    def epoch(self) -> int:
        """After how many steps the first epoch or loop ends; 0 where nothing tells."""
        return min((n for line in self.lines for n in line.epochs.values()), default=0)

    @property
    def pace(self) -> float:
        """Seconds that a step has taken."""
        times = [line.at for line in self.steps]
        return (times[-1] - times[0]) / self.last

    def by_place(self, *more: str) -> dict[tuple[int, int], RecordedLine]:
        """Return the last recording of each step, by rank and step; of `more` kinds, too."""
        kinds = ("step", *more)
        return {(line.rank, line.step): line for line in self.lines if line.kind in kinds}


def read(folders: Iterable[Path]) -> StepRecord:
    """Return what was recorded in these folders."""
    found = []
    for folder in folders:
        for file in folder.glob("*.jsonl"):
            written = file.read_text().splitlines(keepends=True)
            # A process may have been killed while it wrote.
            found += [RecordedLine(**json.loads(text)) for text in written if text.endswith("\n")]
    return StepRecord(tuple(sorted(found, key=lambda line: line.at)))


class SeenSteps:
    """What is recorded in a folder, while it is being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.heads: list[RecordedLine] = []
        """How far each process is: of each line only its beginning."""

    def look(self) -> "SeenSteps":
        """Read what is new."""
        for path in self._folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                if found := _HEAD.match(line):
                    rank, world, step = (int(each or 0) for each in found.groups()[1:])
                    self.heads.append(RecordedLine(found[1].decode(), 0.0, rank, world, step))
        return self

    def reached(self, step: int, ranks: int) -> bool:
        """Return whether so many ranks have recorded the step."""
        made = {each.rank for each in self.heads if each.kind == "step" and each.step >= step}
        return len(made) >= ranks

    def waits(self, ranks: int) -> bool:
        """Return whether so many ranks wait to be ended."""
        return len({each.rank for each in self.heads if each.kind == "done"}) >= ranks

    @property
    def world(self) -> int:
        """The largest number of ranks that any process has recorded."""
        return max((each.world for each in self.heads), default=0)
