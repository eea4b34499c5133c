"""Decides what a rehearsal tries, and at which steps. Nothing here starts anything."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

FEWEST = 9
"""Steps below which there is no room for all faults."""
STEPS = 20
"""Steps that are usually made."""
CHEAP = 30.0
"""Seconds within which the first epoch is made whole."""
ACTS = ("stopped", "killed", "nodes", "longer")
"""What can be tried."""
STAGES = {
    "forward": "in forward",
    "backward": "in backward",
    "vote": "before the optimizer",
    "optimizer": "after the optimizer",
    "end": "at a step's end",
}
"""Where in a step a worker is killed (`training/rehearsal/recording.py`), and for people."""
_MEETS = re.compile(r"init_process_group|Accelerator|Trainer|Fabric|deepspeed|ElasticCallback")
_STEPS = ("steps", "max_steps", "num_steps", "total_steps", "max_iters", "iterations", "iters")
_EPOCHS = ("epochs", "num_epochs", "num_train_epochs", "max_epochs")


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps after which something happens. 0: it is not tried."""

    last: int
    """The last step of each act."""
    stop: int
    """The run is stopped after it, in mid-epoch, and started again."""
    epoch: int
    """The same at an epoch's end."""
    kills: tuple[tuple[int, str], ...]
    """Steps in which a worker is killed, and the stage."""
    loses: int
    """A node is killed after it."""
    comes: tuple[int, int]
    """A node comes after each of these."""
    leaves: int
    """A node leaves with a notice after it."""


def reach(steps: int, epoch: int, seconds: float) -> int:
    """Return how many steps are made: past the end of the first epoch, if that costs little.

    A step takes so many seconds. Otherwise there are `steps` of them.
    """
    whole = epoch + FEWEST
    return whole if epoch and steps < whole and whole * seconds <= CHEAP else steps


def made(last: int, epoch: int) -> Plan:
    """Return the plan for runs of `last` steps, of which an epoch has so many (0: not known)."""
    stop = last // 3
    if epoch and stop % epoch == 0:
        stop += 1
    between = epoch if 0 < epoch < last else 0
    gap = (last - 4) // len(STAGES)
    kills = tuple((3 + number * gap, stage) for number, stage in enumerate(STAGES))
    quarter = last // 4
    middle = max(last // 2, quarter + 1)
    leaves = max(3 * last // 4, middle + 2)
    return Plan(last, stop, between, kills, quarter, (middle, middle + 1), leaves)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Arguments with which a script makes fewer steps, and then more."""

    short: tuple[str, ...]
    long: tuple[str, ...]
    told: str
    """What is changed, for people."""


def lengths(args: Sequence[str], source: str, plan: Plan, more: str) -> Lengths | None:
    """Return how a run is made longer after its end; None if no argument says how long it is.

    `more` are the arguments of the longer run, where the user has given them.
    """
    given = tuple(args)
    if more:
        longer = given
        words = more.split()
        for flag, wanted in zip(words[::2], words[1::2], strict=False):
            longer = _with(longer, flag, wanted)
        return Lengths(given, longer, more)
    for names, value in ((_STEPS, plan.last // 2), (_EPOCHS, 1 if plan.epoch else 0)):
        for name in names:
            for flag in (f"--{name.replace('_', '-')}", f"--{name}"):
                present = _value(flag, given, source)
                if value and present is not None and present > value:
                    return Lengths(_with(given, flag, str(value)), given, f"{flag} {value}")
    return None


def ranks(source: str, gpus: int, wanted: int) -> int:
    """Return with how many ranks a script is rehearsed."""
    if wanted:
        return wanted
    return min(2, gpus or 2) if _MEETS.search(source) else 1


def _value(flag: str, args: Sequence[str], source: str) -> int | None:
    """Return the number that a flag has on the command line, or else by default in the source."""
    for at, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name == flag:
            return _number(value if equals else next(iter(args[at + 1 :]), ""))
    default = re.search(
        rf"""add_argument\([^()]*["']{re.escape(flag)}["'][^()]*default=([\d_]+)""", source
    )
    return _number(default[1]) if default else None


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _with(args: Sequence[str], flag: str, value: str) -> tuple[str, ...]:
    found: list[str] = []
    skips = False
    for word in args:
        if skips:
            skips = False
        elif word == flag:
            skips = True
        elif not word.startswith(f"{flag}="):
            found.append(word)
    return *found, flag, value
