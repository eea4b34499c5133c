"""Separates the script's arguments from the flags of `up`, and warns of flags in the wrong place.

Everything after the script is the script's, as with `run`, torchrun and python itself.
"""

from collections.abc import Iterable, Sequence

from spotelastic.errors import UsageError

GUARDS = frozenset(
    {"--local", "--plan", "--drill", "--max-cost", "--max-price", "--deadline", "--linger"}
)
"""Flags that protect from spending money. If one is passed to the script by mistake, `up` refuses
to start."""


def split(typed: Sequence[str], flags: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the script's arguments, and those among them that look like flags of `up`.

    A `--` right after the script says that everything is the script's; it is not passed on. Raises
    `UsageError` for a flag in `GUARDS`.
    """
    if typed and typed[0] == "--":
        return without_guard(typed), ()
    known = set(flags)
    named = (word.partition("=")[0] for word in typed if word.startswith("--") and word != "--")
    ours = tuple(dict.fromkeys(name for name in named if name in known))
    for name in ours:
        if name in GUARDS:
            raise UsageError(
                f"{name} comes after the script, so it would go to the script: put it before the "
                "script, or put -- between them if the script needs it"
            )
    return tuple(typed), ours


def without_guard(typed: Sequence[str]) -> tuple[str, ...]:
    """Return the script's arguments without a `--` right after the script."""
    return tuple(typed[1:] if typed and typed[0] == "--" else typed)


def note(ours: Sequence[str]) -> str:
    """Return the note for flags that go to the script but look like flags of `up`."""
    names = ", ".join(ours)
    goes = "goes" if len(ours) == 1 else "go"
    return f"{names} after the script {goes} to the script; flags of `up` come before it"
