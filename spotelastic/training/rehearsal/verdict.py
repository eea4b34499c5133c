"""Judges a rehearsed step: whether it is the same when it is made again, and by which way (pure).

    first     the step as it was made at first
    again     the step after a restore, begun again where peers were lost in it
    third     the step after another restore, with no loss in it; made only where `again` differs

Where only attempts that were undone differ, the run goes on by restores in their place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spotelastic.training.rehearsal.fingerprint import Difference, StepFingerprint, differences

ROUNDING = 0.05
"""Part of what a step changes up to which a difference may come from rounding: kernels that are not
deterministic add up in another order, and an optimizer that divides by small moments enlarges that.
"""
PAGE = "docs/how-to/in-place.md"
TOLD = 4
"""Most differences that are named."""


@dataclass(frozen=True, slots=True)
class RehearsalVerdict:
    """What a rehearsal has found."""

    restores: bool = False
    """Whether a step in which a peer is lost has to be made from a restored state."""
    differs: tuple[str, ...] = ()
    """What is not the same, in the words of the script; empty: nothing."""
    noise: float = 0.0
    """How large differences are that the script has without any fault; 0: it has none."""
    costs: tuple[str, ...] = ()
    """What makes a lost peer cost the steps since the last save."""

    @property
    def outcome(self) -> str:
        """One word: "equal", "noise" or "different"."""
        return "different" if self.differs else "noise" if self.noise else "equal"


def worst(verdicts: Sequence[RehearsalVerdict]) -> RehearsalVerdict:
    """Return what holds for all ranks together."""
    return RehearsalVerdict(
        any(each.restores for each in verdicts),
        tuple(dict.fromkeys(name for each in verdicts for name in each.differs))[:TOLD],
        max(each.noise for each in verdicts),
        tuple(dict.fromkeys(cost for each in verdicts for cost in each.costs)),
    )


def not_restored(before: StepFingerprint, restored: StepFingerprint) -> tuple[str, ...]:
    """Return what a restore has not brought back of what was saved."""
    found = differences(before, restored)
    return tuple(f"a restore changes {each}" for each in found if each.name in before.saved)


def between(end: StepFingerprint, begin: StepFingerprint) -> tuple[str, ...]:
    """Return what changes after the block of one step and before that of the next."""
    found = [each.name for each in differences(end, begin) if each.name in end.saved]
    return tuple(
        f"{name} changes between two blocks, so that what is saved of a step lacks that: change it "
        "within the block"
        for name in found
    )


def of_three(
    before: StepFingerprint, first: StepFingerprint, again: StepFingerprint, third: StepFingerprint
) -> RehearsalVerdict:
    """Judge a step of which `first` and `again` differ."""
    plain, struck = differences(first, third, before), differences(first, again, before)
    if not plain:
        return RehearsalVerdict(restores=True, differs=_named(struck))
    if not _larger(plain):  # The script has noise of its own.
        larger = _named(_larger(struck))
        return RehearsalVerdict(
            bool(larger), larger, max((each.size or 0.0 for each in plain), default=0.0)
        )
    # Two attempts without a fault differ: what they depend on is neither put back nor restored.
    return RehearsalVerdict(differs=_named(_larger(plain)))


def _larger(found: Iterable[Difference]) -> list[Difference]:
    """Return the differences that do not come from rounding."""
    return [each for each in found if each.size is None or each.size > ROUNDING]


def _named(found: Sequence[Difference]) -> tuple[str, ...]:
    return tuple(map(str, found))[:TOLD]


def line(found: RehearsalVerdict, step: int, world_size: int) -> str:
    """Return what people are told: in lines, which also read as one.

    Where the step differs: a heading, each difference, and at last what follows of it.
    """
    on = "1 rank" if world_size == 1 else f"{world_size} ranks"
    if not found.differs:
        same = f"the same within the script's own noise ({found.noise:.0e} of what it changes)"
        told = f"rehearsed at step {step} on {on}: {same if found.noise else 'bit-identical'}"
        return ";\n".join((told, *found.costs))
    ways = (
        "from now on, a step in which a peer is lost is repeated from the last save"
        if found.restores
        else "interruptions change what this run computes"
    )
    each = ";\n".join((*found.differs, *found.costs))
    return (
        f"step {step} was made twice on {on}, and differs:\n{each}.\n"
        f'So {ways}: see {PAGE}, "Steps that differ"'
    )
