"""Asks the user on the terminal before something is changed or paid for.

Without a terminal the command refuses, unless `--yes` was given.
"""

import sys

from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec
from spotelastic.wrapping import wrapped

YES = frozenset({"y", "yes"})
SHOWN, HIDDEN = "\x1b[?25h", "\x1b[?25l"
"""Terminal sequences that show and hide the cursor."""


def somebody_is_there() -> bool:
    """Whether a user can be asked: stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, declined: str) -> None:
    """Ask on the terminal. Raises `UsageError(declined)` for any answer but yes."""
    # The live view colours text that passes through it, and hides the cursor: write past it.
    seen = getattr(sys.stderr, "rich_proxied_file", None)
    to = seen or sys.stderr
    show, hide = (SHOWN, HIDDEN) if seen else ("", "")
    print(wrapped(f"{question} [y/N]", to), end=f" {show}", file=to, flush=True)
    try:
        answer = sys.stdin.readline()
        if not answer:  # Ctrl-D leaves the cursor on the same line
            print(file=to)
    finally:
        print(hide, end="", file=to, flush=True)
    if answer.strip().lower() not in YES:
        raise UsageError(declined)


def confirm_other(what: str, question: str, instead: str, *, yes: bool) -> None:
    """Ask before changing something that may be someone else's; without a terminal only `yes`
    allows it.

    Raises `UsageError`, which says `what` it is and what to do `instead`.
    """
    if yes:
        return
    if not somebody_is_there():
        raise UsageError(f"{what}: {instead}, or add --yes if that is meant")
    confirm(f"{what}. {question}", f"nothing was changed: {instead}")


def difference(job: JobSpec, script: str, folder: str) -> str | None:
    """Return how the job's script or folder differs from those given here; None if they are the
    same.

    Also None if the folder is not known: older versions did not record it.
    """
    elsewhere = job.folder not in ("", folder)
    if job.script == script and not elsewhere:
        return None
    if elsewhere:
        return f"{job.script} of {job.folder}, not {script} of {folder}"
    return f"{job.script}, not {script}"
