"""Defines what `doctor` finds: one line for each thing it has looked at, and what to do."""

from collections.abc import Sequence
from dataclasses import dataclass

from spotelastic.model.protocol import Word

FindingState = Word["ok", "note", "warning", "missing", "no answer"]
"""How it is: `note` lacks something that nothing asked for needs; `warning` works, but not well;
`no answer` could not be found out in time.
"""
Part = Word["this machine", "local cloud", "AWS"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one thing is."""

    state: FindingState
    found: str
    """What is there, or is missing."""
    advice: str = ""
    """What to do; empty where nothing has to be done."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, and how it is."""

    part: Part
    check: str
    """What was looked at, in one or two words."""
    state: FindingState
    found: str
    """What is there, or is missing."""
    advice: str = ""
    """What to do; empty where nothing has to be done."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was found."""

    findings: tuple[Finding, ...]
    exit_code: int


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 2 if something is missing, else 1 if something did not answer, else 0."""
    states = {finding.state for finding in findings}
    return 2 if "missing" in states else 1 if "no answer" in states else 0
