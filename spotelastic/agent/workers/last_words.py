"""Says why a signal ended a worker, from what it wrote last (pure)."""

import re
import signal

from spotelastic.agent.workers.trouble import describe_exit

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


def message(code: int, written: str, where: str) -> str:
    """Returns in a line what ended the worker, and where it was. gloo ends a process in which a
    collective receives more than fits, because another rank has passed another shape.
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


def trace(told: str, written: str, stack: str) -> str:
    """Returns where the main thread was, what was written last, and why it ended."""
    last = written.splitlines()[-LINES:]
    output = ["It wrote last:", *(f"  {line}" for line in last)] if last else []
    return "\n".join([*([stack] if stack else []), *output, told])


def main_thread(dump: str) -> str:
    """Returns the frames of the main thread in a dump, innermost call first, without those that
    started the script; empty if there is none.
    """
    threads = _THREAD.findall(dump)
    current = [thread for thread in threads if thread.startswith("Current")]
    lines = "".join((current or threads)[-1:]).splitlines()
    return "\n".join(line for line in lines if not _LAUNCHER.search(line))
