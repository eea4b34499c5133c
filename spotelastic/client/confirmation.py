"""Asks on a terminal before something is changed or paid for.

Without a terminal the command refuses, unless `--yes` was given.
"""

import sys

from spotelastic.errors import UsageError
from spotelastic.model.job import JobSpec
from spotelastic.wrapping import wrapped

YES = frozenset({"y", "yes"})
SHOWN, HIDDEN = "\x1b[?25h", "\x1b[?25l"
"""What terminals make of their cursor."""


def somebody_is_there() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, declined: str) -> None:
    """On a terminal. Raises `UsageError`, which says `declined`, for any other answer than yes."""
    # The live view colours what passes by it, and hides the cursor.
    seen = getattr(sys.stderr, "rich_proxied_file", None)
    to = seen or sys.stderr
    show, hide = (SHOWN, HIDDEN) if seen else ("", "")
    print(wrapped(f"{question} [y/N]", to), end=f" {show}", file=to, flush=True)
    try:
        answer = sys.stdin.readline()
        if not answer:  # Ctrl-D leaves the cursor where it is
            print(file=to)
    finally:
        print(hide, end="", file=to, flush=True)
    if answer.strip().lower() not in YES:
        raise UsageError(declined)


def confirm_other(what: str, question: str, instead: str, *, yes: bool) -> None:
    """For something that is somebody else's, perhaps: with nobody there only `yes` does it.

    Raises `UsageError` otherwise, which says `what` it is and what to do `instead`.
    """
    if yes:
        return
    if not somebody_is_there():
        raise UsageError(f"{what}: {instead}, or add --yes if that is meant")
    confirm(f"{what}. {question}", f"nothing was changed: {instead}")


def difference(job: JobSpec, script: str, folder: str) -> str | None:
    """What the job runs and what is here, where these are not the same; None where they are, or
    where it is not known: an older version did not keep the folder."""
    elsewhere = job.folder not in ("", folder)
    if job.script == script and not elsewhere:
        return None
    if elsewhere:
        return f"{job.script} of {job.folder}, not {script} of {folder}"
    return f"{job.script}, not {script}"
