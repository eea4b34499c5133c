"""What a worker that failed or stalled has left behind."""

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from spotelastic.agent.workers.standing import place

LINES = 12
"""Lines of a worker's output that are shown of its end."""
UNTOLD = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes of workers that were ended from outside, and said nothing of it."""
_MISMATCH = re.compile(r"op\.preamble|data size doesn't match|collective mismatch")
_SIZES = re.compile(r"(\d+) vs\.? (\d+)")
_THROWN = re.compile(r"^\s*what\(\):\s*(?:\[enforce fail at [^\]]*\]\s*)?(.*)", re.M)
_LAUNCHER = re.compile(r"spotelastic/agent/workers/|\"<string>\"")
_THREAD = re.compile(r"^(?:Current t|T)hread .*\n(?:  .*\n?)*", re.M)
"""The frames of one thread. Those of the main thread come last, unless it is the current one."""
_GLOO = re.compile(
    r"\[[^\]\s]*/gloo/[^\]\s]*:\d+\] (.*?)\.?\s+This is typically caused by .*?GLHF!( \S*)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class WorkerTrouble:
    """What a worker left behind that failed or stalled."""

    message: str
    traceback: str
    log: str
    """Path of what it wrote to stderr."""


def describe_exit(code: int) -> str:
    if code == 0:
        return "ended with exit code 0 before its Checkpointer was closed"
    if code > 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def without_advice(message: str) -> str:
    """Return what failed in a collective, without gloo's place in its source and its advice.

    The advice is to look at the worker that failed first, which is reported anyway.
    """
    return _GLOO.sub(r"\1", message)


def has_last_words(code: int) -> bool:
    """Whether a worker that ended so may have written why."""
    return code < 0 and code not in UNTOLD


def by_signal(code: int, written: str, dump: str, folder: Path) -> tuple[str, str]:
    """Return a message about a worker that a signal has ended, and where it was.

    They are made from what it wrote last, the dump of its stacks, and the script's folder.
    """
    stack = main_thread(dump)
    told = _why(code, written, place(stack, folder))
    return told, _trace(told, written, stack)


def _why(code: int, written: str, where: str) -> str:
    """Return in a line what ended the worker, and where it was.

    gloo ends a process in which a collective receives more than fits, because another rank has
    passed another shape.
    """
    told = f"{describe_exit(code)} at {where}" if where else describe_exit(code)
    thrown = _THROWN.findall(written)
    if code != -signal.SIGABRT or not thrown:
        return told
    why = thrown[-1].strip()
    if not _MISMATCH.search(why):
        return f"{told}: {why}"
    sizes = _SIZES.search(why)
    came = f": {sizes[1]} bytes came where {sizes[2]} were expected" if sizes else ""
    return (
        f"{told}: ranks passed different shapes or types to a collective, or called different "
        f"collectives{came}"
    )


def _trace(told: str, written: str, stack: str) -> str:
    """Return where the main thread was, what was written last, and why it ended."""
    last = written.splitlines()[-LINES:]
    output = ["It wrote last:", *(f"  {line}" for line in last)] if last else []
    return "\n".join([*([stack] if stack else []), *output, told])


def main_thread(dump: str) -> str:
    """Return the frames of the main thread in a dump, innermost call first.

    Those that started the script are left out. Empty if there is no main thread.
    """
    threads = _THREAD.findall(dump)
    current = [thread for thread in threads if thread.startswith("Current")]
    lines = "".join((current or threads)[-1:]).splitlines()
    return "\n".join(line for line in lines if not _LAUNCHER.search(line))
