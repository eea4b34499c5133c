"""Runs the fault tests repeatedly: `python tests/support/repo/soak.py TURNS PYTEST_OPTIONS…`.

TURNS is how many turns, or which (6-10). Each turn gives the random tests its own seeds, by
SOAK_TURN. A failed turn does not stop the others. Failures are listed at the end with their turn,
and the exit code is then 1.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

BUILD = Path("build")
RARITY = 3
"""Turns that meet every call once."""


@dataclass(frozen=True)
class Turn:
    number: int
    passed: bool
    tests: int
    failed: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        told = "passed" if self.passed else "FAILED"
        return f"turn {self.number}: {told}, {self.tests} tests, {self.seconds:.0f} s"


def seeds(turn: int) -> list[int]:
    """Of the random sequences of one turn; those of no other."""
    return [100 * turn + index for index in range(5)]


def meets(at: int, number: int, kinds: int, turn: int) -> bool:
    """Whether the `at`-th call of a test meets the fault of that number, of so many kinds.

    Of all such pairs one in RARITY * kinds is tried in a turn. Each three turns from a multiple of
    three meet every call once, and the next three with another fault.
    """
    shift = kinds * turn + turn // RARITY
    return (at + number + shift) % (RARITY * kinds) == 0


def main(arguments: list[str], run: Callable[[int], Turn]) -> int:
    low, _, high = arguments[0].rpartition("-")
    first, last, done = int(low or 1), int(high), list[Turn]()
    turns = last - first + 1
    for number in range(first, last + 1):
        told = ", ".join(map(str, seeds(number)))
        print(f"soak: {number} of {last} (random sequences {told})", flush=True)
        done.append(run(number))
    print("\nsoak: summary")
    for turn in done:
        print(turn)
    for turn in done:
        for name in turn.failed:
            print(f"turn {turn.number} failed: SOAK_TURN={turn.number} pytest '{name}'")
    passed = sum(turn.passed for turn in done)
    print(f"soak: {passed} of {turns} passed")
    return 0 if passed == turns else 1


def pytest(options: Sequence[str], number: int) -> Turn:
    """One turn."""
    BUILD.mkdir(exist_ok=True)
    report = BUILD / f"soak-{number}.xml"
    report.unlink(missing_ok=True)
    begun = time.monotonic()
    taken = "faults or soak or in_part or hypothesis"
    command = [sys.executable, "-m", "pytest", "-q", "-m", taken]
    command += [f"--junit-xml={report}"]
    command += ["-o", "junit_family=xunit1", *options]  # this one tells each test's file
    ended = subprocess.run(command, env={**os.environ, "SOAK_TURN": str(number)}, check=False)
    return account(number, ended.returncode, report, time.monotonic() - begun)


def account(number: int, code: int, report: Path, seconds: float) -> Turn:
    """From pytest's exit code and its report in JUnit's format."""
    cases = _cases(report)
    failed = tuple(_name(each) for each in cases if _bad(each))
    return Turn(number, code == 0, len(cases), failed, seconds)


def _cases(report: Path) -> list[ElementTree.Element]:
    try:
        return list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return []  # pytest itself was ended


def _bad(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('file')}::{case.get('name')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], partial(pytest, sys.argv[2:])))
