"""Compares what the steps of two runs have left. All of it is pure.

Bit for bit is expected of the same ranks. What two runs without any interruption differ in is the
script's own noise. Another number of ranks computes the same up to rounding, if at all: how far two
plain runs with different numbers of ranks are apart says what to expect.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spotelastic.client.rehearsal.records import RecordedLine, StepRecord

INVARIANT = 0.02
"""How far apart runs with different numbers of ranks may be that compute the same: a share of what
training has changed.
"""
LEAST = 1e-3
MOST = 0.05
NOISES = 3.0
"""How often the script's own noise a difference may be."""
_OF_A_STEP = ("gradient of ", "requires_grad of ", "step.loss")
_RANDOM = "random numbers of "
_HASH = 34
"""Digits of the hash in a digest of a tensor; its type and shape follow."""
_FRACTION = re.compile(r"-?\d+(\.\d+(e[-+]?\d+)?|e[-+]?\d+)")
_OPTION = re.compile(r"^(.*)\.param_groups\.(?:(\d+)\.)?(?:.*\.)?(\w+)$")


@dataclass(frozen=True, slots=True)
class StepDifference:
    """Something that is not what it was in the plain run."""

    step: int
    rank: int
    name: str
    first: str = ""
    """The value in the plain run; empty where it is too long."""
    second: str = ""
    size: float | None = None
    """A share of what training has changed; None where no number tells."""

    def __str__(self) -> str:
        name = named(self.name)
        if self.first and self.second:
            return f"{name} is {self.second}, was {self.first}"
        if self.size is None or not math.isfinite(self.size):
            return f"{name} differs"
        return f"{name} differs by {self.size:.2g} of its change"


@dataclass(frozen=True, slots=True)
class Noise:
    """What two plain runs differ in, with the largest difference where a number tells it."""

    names: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """The largest difference of what is trained."""
        sizes = (size for name, size in self.names.items() if size is not None and is_state(name))
        return max(sizes, default=0.0)

    def allows(self, difference: StepDifference) -> bool:
        """Return whether a difference is the script's own."""
        if difference.name not in self.names:
            return False
        usual = self.names[difference.name]
        return usual is None or difference.size is None or difference.size <= NOISES * usual


def named(name: str) -> str:
    """Return a name as the script's user knows it: `lr of group 0`."""
    if found := _OPTION.match(name):
        optimizer, group, option = found.groups()
        of = "" if optimizer == "optimizer" else f" of {optimizer}"
        return f"{option} of group {group or 0}{of}"
    return name


def is_state(name: str) -> bool:
    """Return whether a name is part of what the Checkpointer restores for all ranks alike."""
    return not (name.startswith((*_OF_A_STEP, _RANDOM)) or name.endswith(".training"))


def noise(plain: StepRecord, again: StepRecord) -> Noise:
    """Return what two plain runs differ in."""
    found: dict[str, float | None] = {}
    for each in differences(plain, again.lines, Noise()):
        before = found.get(each.name, 0.0)
        found[each.name] = None if each.size is None or before is None else max(before, each.size)
    return Noise(found)


def differences(
    plain: StepRecord, lines: Iterable[RecordedLine], noise: Noise
) -> list[StepDifference]:
    """Return what differs from the plain run, on the same rank at the same step.

    A state that was restored is compared with the one at the end of its step, and counts for the
    next one. It may have what stands after a loop, or have yet to do that. All ranks may have
    restored what the first one had: buffers that torch copies from it.
    """
    places, ends = plain.by_place(), plain.by_place("ended")
    found = []
    for line in lines:
        step = places.get((line.rank, line.step)) if line.digests else None
        if step is not None and step.world == line.world:
            ours = step if line.kind == "step" else ends[line.rank, line.step]
            begin = places.get((line.rank, 1), ours)
            first = ends.get((0, line.step), ours)
            for each in _between(ours, line, begin):
                name = each.name
                known = [at.digests.get(name) for at in (step, first)]
                is_new = _is_restored(name, line) and line.digests.get(name) not in known
                counts = _is_shared(name) if line.kind == "ended" else line.kind == "step" or is_new
                if counts and not noise.allows(each):
                    found.append(each)
    return sorted(found, key=lambda each: (each.step, each.rank, _weight(each)))


def tolerance(plain: StepRecord, other: StepRecord) -> float | None:
    """Return how far a run whose ranks change may be apart from the plain one.

    None where what the script computes depends on the number of ranks.
    """
    begin, pairs = _first(plain, 1), [(line, _first(other, line.step)) for line in plain.steps]
    gaps = [
        _gap(begin, a, b) for a, b in pairs if a.rank == 0 and begin is not None and b is not None
    ]
    known = [gap for gap in gaps if gap is not None]
    if not known or max(known) > INVARIANT:
        return None
    return min(MOST, max(LEAST, 10 * max(known)))


def is_exact(plain: StepRecord, other: StepRecord) -> bool:
    """Return whether another number of ranks computes the same bits, as virtual ranks do."""
    return bool(other.steps) and not any(map(_is_shared, _varying(plain, other)))


def of_other_ranks(
    plain: StepRecord, other: StepRecord, lines: Iterable[RecordedLine], allowed: float | None
) -> list[StepDifference]:
    """Return what differs in a run whose ranks change: values, and tensors by more than allowed.

    Values count that do not depend on the number of ranks, and whose text is known: a hash alone
    does not tell rounding from another value. All count where the bits do not depend on it. Without
    `allowed`, tensors are compared only where they were restored: with those that the same run had
    at that step.
    """
    found: list[StepDifference] = []
    begin, varying, exact = _first(plain, 1), _varying(plain, other), is_exact(plain, other)
    recorded = [line for line in lines if line.digests]
    had: dict[int, list[RecordedLine]] = {}
    for line in recorded:
        if line.kind != "restored":
            had.setdefault(line.step, []).append(line)
    for line in recorded:
        ours = _first(plain, line.step)
        if line.kind == "restored" and line.step in had:
            before = had[line.step]
            found += [
                each
                for each in _between(before[0], line, before[0])
                if _is_shared(each.name)
                and _is_restored(each.name, line)
                and line.digests[each.name] not in [one.digests.get(each.name) for one in before]
                and is_alike(before[0].digests.get(each.name, ""), line.digests[each.name])
            ]
        elif ours and begin and line.kind != "ended":
            found += [
                each
                for each in _between(ours, line, begin)
                if _is_shared(each.name)
                and (line.kind == "step" or _is_restored(each.name, line))
                and each.name not in varying
                and (exact or (each.name in line.shown and not _is_rounded(each, allowed)))
            ]
            gap = _gap(begin, ours, line)
            if allowed is not None and gap is not None and gap > allowed:
                found.append(StepDifference(line.step, line.rank, "what is trained", size=gap))
    return sorted(found, key=lambda each: (each.step, each.rank, _weight(each)))


def carried(record: StepRecord, again: StepRecord) -> dict[str, str]:
    """Return the variables that the loop carries and nobody saves, with their kinds.

    They change from step to step, and two plain runs agree on them: a clock is left out.
    """
    lines, others = [line for line in record.steps if line.rank == 0], again.by_place()
    found: dict[str, str] = {}
    own: set[str] = set()
    for before, line in itertools.pairwise(lines):
        other = others.get((0, line.step))
        for name, (kind, digest, _) in line.outside.items():
            earlier = before.outside.get(name)
            if earlier is not None and earlier[1] != digest:
                found[name] = kind
            theirs = other.outside.get(name) if other else None
            if theirs is not None and theirs[1] != digest:
                own.add(name)
    return {name: kind for name, kind in found.items() if name not in own}


def counters(record: StepRecord) -> set[str]:
    """Return the variables that count steps or epochs, as a loop does from where it goes on."""
    lines = [line for line in record.steps if line.rank == 0]

    def counts(name: str, line: RecordedLine, every: int) -> bool:
        near = {str((line.step + each) // every) for each in (-1, 0, 1)}
        return name in line.outside and line.outside[name][2] in near

    return {
        name
        for every in (1, record.epoch or 1)
        for name in (lines[0].outside if lines else ())
        if all(counts(name, line, every) for line in lines)
    }


def lost(
    plain: StepRecord, lines: Iterable[RecordedLine], names: Mapping[str, str]
) -> list[StepDifference]:
    """Return those of these variables that differ, each where it does so first."""
    places, found = plain.by_place(), dict[str, StepDifference]()
    for line in lines:
        ours = places.get((line.rank, line.step))
        for name in names if ours is not None and line.kind == "step" else ():
            was, now = ours.outside.get(name), line.outside.get(name)  # type: ignore[union-attr]
            if was is not None and now is not None and was[1] != now[1]:
                found.setdefault(name, StepDifference(line.step, line.rank, name, was[2], now[2]))
    return list(found.values())


def _between(
    ours: RecordedLine, theirs: RecordedLine, begin: RecordedLine
) -> Iterator[StepDifference]:
    names = [*ours.digests, *(name for name in theirs.digests if name not in ours.digests)]
    for name in names:
        if theirs.kind == "restored" and name not in theirs.digests:
            continue
        if ours.digests.get(name) != theirs.digests.get(name):
            yield StepDifference(
                theirs.step + (theirs.kind == "restored"),
                theirs.rank,
                name,
                _shown(ours, name),
                _shown(theirs, name),
                _size(begin, ours, theirs, (name,)),
            )


def _is_rounded(difference: StepDifference, allowed: float | None) -> bool:
    """Return whether two numbers with a fraction are as close as rounding makes them.

    A number that is trained, as a bias of one element, is judged as tensors are.
    """
    texts = difference.first, difference.second
    if texts == ("", ""):
        return allowed is None or difference.size is None or difference.size <= allowed
    if not all(_FRACTION.fullmatch(text) for text in texts):
        return False
    first, second = map(float, texts)
    return math.isclose(first, second, rel_tol=allowed or 0.0)


def _varying(plain: StepRecord, other: StepRecord) -> set[str]:
    """Return what depends on the number of ranks."""
    found: set[str] = set()
    for line in other.steps:
        ours = _first(plain, line.step)
        if ours is not None:
            found |= {each.name for each in _between(ours, line, ours)}
    return found


def _shown(line: RecordedLine, name: str) -> str:
    """Return a value. A number that is trained tells no more than a tensor."""
    if name not in line.digests:
        return "nothing"
    value = line.shown.get(name, "")
    is_trained = ".state." in name or any(
        each.replace(".module.", ".") == f"gradient of {name}" for each in line.digests if value
    )
    return "" if is_trained else value


def _is_restored(name: str, line: RecordedLine) -> bool:
    """Return whether something is there right after a restore.

    Objects of libraries may take up their values later, with the next step.
    """
    is_tensor = len(line.digests.get(name, "")) > _HASH
    return name.startswith(_RANDOM) or (is_state(name) and is_tensor)


def _is_shared(name: str) -> bool:
    return is_state(name) and not name.startswith(_RANDOM)


def _first(record: StepRecord, step: int) -> RecordedLine | None:
    """Return what the first rank recorded of a step."""
    return next((line for line in record.steps if (line.rank, line.step) == (0, step)), None)


def is_alike(one: str, other: str) -> bool:
    """Return whether two digests are of tensors of one type and shape, or of values.

    Ranks have other parts of what is sharded, and on another number of ranks too.
    """
    return one[_HASH:] == other[_HASH:]


def _gap(begin: RecordedLine, ours: RecordedLine, theirs: RecordedLine) -> float | None:
    """Return how far all tensors together are apart; None where there are none to compare."""
    names = [
        name
        for name in ours.samples
        if is_state(name)
        and name not in ours.shown
        and ".state." not in name
        and is_alike(ours.digests[name], theirs.digests.get(name, ""))
    ]
    return _size(begin, ours, theirs, names)


def _size(
    begin: RecordedLine, ours: RecordedLine, theirs: RecordedLine, names: Sequence[str]
) -> float | None:
    gap = whole = 0.0
    seen = False
    for name in names:
        one, other = ours.samples.get(name), theirs.samples.get(name)
        start = begin.samples.get(name) if begin is not ours else None
        if one is None or other is None or len(one) != len(other):
            continue
        if start is None or len(start) != len(one):
            start = [0.0] * len(one)
        seen = True
        gap += sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
        whole += sum((a - b) ** 2 for a, b in zip(one, start, strict=True))
    if not seen or not math.isfinite(gap):
        return None
    return math.sqrt(gap / whole) if whole else math.inf if gap else 0.0


def _weight(difference: StepDifference) -> tuple[int, float]:
    """Sort by how much a difference tells: a value says more than the tensors that follow it."""
    name, size = difference.name, difference.size or 0.0
    if difference.first and is_state(name):
        return 0, 0.0
    if name.startswith(_RANDOM):
        return 1, 0.0
    if name == "step.loss":
        return 2, 0.0
    return (3 if is_state(name) else 4), -size
