"""What stands after the script on the command line of `up`: the script's arguments, as with `run`,
torchrun and python itself."""

from collections.abc import Iterable, Sequence

from spotelastic.errors import UsageError

GUARDS = frozenset(
    {"--local", "--plan", "--drill", "--max-cost", "--max-price", "--deadline", "--linger"}
)
"""Without these a command may spend money that somebody did not mean to spend."""


def divided(typed: Sequence[str], flags: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The script's arguments, and which of them look like flags of `up`.

    A `--` right after the script says that all of it is the script's, and is not passed on. Raises
    `UsageError` for a flag that `up` must not miss.
    """
    if typed and typed[0] == "--":
        return tuple(typed[1:]), ()
    known = set(flags)
    named = (word.partition("=")[0] for word in typed if word.startswith("--") and word != "--")
    ours = tuple(dict.fromkeys(name for name in named if name in known))
    for name in ours:
        if name in GUARDS:
            raise UsageError(
                f"{name} stands after the script, whose argument it would be: put it before the "
                "script, or -- between them if it is the script's"
            )
    return tuple(typed), ours


def note(ours: Sequence[str]) -> str:
    names = ", ".join(ours)
    goes = "goes" if len(ours) == 1 else "go"
    return f"{names} after the script {goes} to the script; flags of `up` come before it"
