"""What a rehearsal has found, and what is said about it. All of it is pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spotelastic.client.rehearsal.compare import StepDifference, is_state
from spotelastic.client.rehearsal.records import StepRecord
from spotelastic.client.rehearsal.runs import Played, RehearsedScript

State = Literal[
    "equal", "noise", "rounding", "restored", "different", "failed", "not compared", "not tried"
]
"""`restored`: it goes on from the right state, and its steps depend on the number of ranks."""
SHOWN = 3
"""Differences of a step that are told."""
DATA = "docs/how-to/data.md"


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one act."""

    act: str
    state: State
    since: int = 0
    """The first step that was different."""
    what: tuple[str, ...] = ()
    """What differs there, or why it failed or was not compared."""
    cause: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class LostVariable:
    """A variable that the loop carries, and nobody saves."""

    name: str
    kind: str
    step: int = 0
    """The step after a restart at which it was another; 0: not seen."""
    was: str = ""
    now: str = ""

    def __str__(self) -> str:
        if not self.step:
            return f"{self.name} ({self.kind})"
        values = f": {self.now}, was {self.was}" if self.was and self.now else ""
        return f"{self.name} ({self.kind}) is another at step {self.step} after a restart{values}"


@dataclass(frozen=True, slots=True)
class RehearsalAnswer:
    """All that a rehearsal has found."""

    script: str
    ranks: int
    steps: int
    rows: tuple[Row, ...]
    variables: tuple[LostVariable, ...] = ()
    files: tuple[str, ...] = ()
    """Files that the script writes where only its node has them."""
    first_step: float = 0.0
    """Seconds from the start of a node to the first step."""
    memory: int = 0
    """Largest number of bytes that a rank has had."""
    gpu: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether nothing was different, and nothing failed."""
        return not any(row.state in ("different", "failed") for row in self.rows)


@dataclass(frozen=True, slots=True)
class CauseFacts:
    """What causes are concluded from."""

    names: frozenset[str] = frozenset()
    """Names in the state."""
    has_sampler: bool = False
    files: tuple[str, ...] = ()
    loads: bool = False
    """Whether the script has a loader."""
    restarts: bool = True
    """Whether the script was started again, on a node without its files."""

    @classmethod
    def of(
        cls, plain: StepRecord, source: str, files: Sequence[str], *, restarts: bool
    ) -> "CauseFacts":
        """Return the facts that a plain run and the script's text tell."""
        names = frozenset(name for line in plain.steps for name in line.digests if is_state(name))
        loads = "DataLoader" in source or ".batches(" in source
        has_sampler = any(name for line in plain.steps for name in line.epochs)
        return cls(names, has_sampler, tuple(files), loads, restarts)


def judged(
    act: str,
    found: Sequence[StepDifference],
    steps: Sequence[int],
    variables: Sequence[StepDifference],
    facts: CauseFacts,
    equal: State,
) -> Row:
    """Return the row of an act that concerns the steps from one to another."""
    since, until = steps
    earlier = [each for each in found if each.step < since]
    within = [each for each in found if since <= each.step <= until]
    if earlier:
        return Row(act, "not compared", what=(f"differed before, since step {earlier[0].step}",))
    if not within:
        return Row(act, equal)
    first = [each for each in within if each.step == within[0].step]
    told = tuple(dict.fromkeys(map(str, first)))
    more = (f"and {len(told) - SHOWN} more",) if len(told) > SHOWN else ()
    cause, advice = because(first, [v for v in variables if v.step <= first[0].step], facts)
    return Row(act, "different", first[0].step, (*told[:SHOWN], *more), cause, advice)


def because(
    first: Sequence[StepDifference], variables: Sequence[StepDifference], facts: CauseFacts
) -> tuple[str, str]:
    """Return the probable cause of the first differences, and what to do."""
    names = [each.name for each in first]
    if variables:
        known = sorted(variables, key=lambda each: (each.second == "", each.name))
        listed = ", ".join(f"`{each.name}`" for each in known[:4])
        return (
            f"the loop carries {listed} from step to step, and nothing saves it",
            f"keep it in the state, and take it from there: state[{known[0].name!r}]",
        )
    options = [name for name in names if ".param_groups." in name]
    if options and not any(name.endswith((".last_epoch", "._last_lr")) for name in facts.names):
        option = options[0].rpartition(".")[2]
        return (
            f"nothing in the state holds what {option} depends on",
            "put the scheduler into the state",
        )
    if facts.loads and not facts.has_sampler:
        return (
            "the batches are others: nothing in the state says how far the data were read",
            f"take an ElasticSampler, and put it into the state ({DATA})",
        )
    if facts.restarts and facts.files:
        return (
            "it reads what it has written itself, which another node does not have: "
            + ", ".join(facts.files[:SHOWN]),
            "keep that in the state, or in a place that all nodes share",
        )
    if any(name.startswith("random numbers") for name in names):
        return (
            "more random numbers, or fewer, are drawn when a step is made after a restart",
            "seed before the Checkpointer, and draw none between restore and the first step",
        )
    if facts.restarts:
        return (
            "what the script makes before its first step is another at each start",
            "seed what draws or shuffles data before the loop, and sort what has no order",
        )
    return "", ""


def whole(
    job: RehearsedScript,
    ranks: int,
    plain: Played,
    rows: tuple[Row, ...],
    variables: tuple[LostVariable, ...],
) -> RehearsalAnswer:
    """Return all that was found, with what the plain run tells."""
    steps = plain.record.steps
    return RehearsalAnswer(
        " ".join((job.script, *job.args)),
        ranks,
        plain.record.last,
        rows,
        variables,
        plain.files,
        min((line.at for line in steps), default=plain.since) - plain.since,
        max((line.memory for line in steps), default=0),
        max((line.gpu for line in steps), default=0),
    )


def variables_told(
    kinds: Mapping[str, str], lost: Sequence[StepDifference]
) -> tuple[LostVariable, ...]:
    """Return all variables that nobody saves, those that a restart has changed first."""
    seen = {each.name: each for each in lost}
    told = []
    for name, kind in kinds.items():
        its = seen.get(name, StepDifference(0, 0, name))
        told.append(LostVariable(name, kind, its.step, its.first, its.second))
    return tuple(sorted(told, key=lambda each: (each.step == 0, each.name)))
