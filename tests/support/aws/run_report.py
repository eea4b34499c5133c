"""Writes one page about a first run on AWS: what was found, how long each phase took, what it cost,
and what AWS does otherwise than the cloud that the tests emulate.

The page is made of the file that the stages write, in which secrets are replaced already.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.unkind.conditions import BOOT, PENDING

FAILED, PASSED, NOT_THERE = "FAILED", "passed", "not there"
ASSUMED = {"machine": (PENDING[0], PENDING[1] + BOOT[1])}
"""Seconds that the emulation takes for phases of a boot, the shortest and the longest."""
AWS_ALONE = ("principal", "region", "subnets")
"""Facts that differ between any two accounts."""

LONGEST = 200
"""Characters of a fact that the page shows."""

Stages = Mapping[str, Mapping[str, Any]]


def page(found: Mapping[str, Any], emulated: Stages) -> str:
    """Return the page, in Markdown. `emulated` are the stages that the emulated account has made:
    of all others it is expected that each check passes.
    """
    stages: Stages = found["stages"]
    lines = [
        "# A first run on AWS",
        "",
        f"spotelastic {found['spotelastic']}, Python {found['python'].partition(' ')[0]}; "
        f"{_spent(stages):.2f} USD by its own bill.",
        "",
        "| stage | minutes | passed | failed | not there | USD |",
        "|---|---|---|---|---|---|",
        *map(_row, stages.items()),
        "",
        "## What AWS does otherwise than the emulation",
        "",
        *(list(differences(stages, emulated)) or ["Nothing."]),
        "",
        "## Times",
        "",
        "| stage | phase | seconds |",
        "|---|---|---|",
        *(f"| {stage} | {what} | {seconds:g} |" for stage, what, seconds in times(stages)),
    ]
    return "\n".join(lines) + "\n"


def differences(stages: Stages, emulated: Stages) -> Iterator[str]:
    """Yield what differs: results of checks, facts that both have seen, and times of boots."""
    for name, stage in stages.items():
        known = emulated.get(name, {})
        for check, note in stage["checks"].items():
            expected = known.get("checks", {}).get(check, {"result": PASSED})["result"]
            if note["result"] not in (expected, PASSED if expected == NOT_THERE else expected):
                why = str(note.get("why", "")).strip().rpartition("\n")[2]
                told = f"- stage {name}, {check}: {note['result']}, emulated {expected}. {why}"
                yield told.rstrip()
        facts = known.get("facts", {})
        for fact, its in stage["facts"].items():
            if fact in facts and fact not in AWS_ALONE and its["value"] != facts[fact]["value"]:
                seen, expected = (str(each["value"])[:LONGEST] for each in (its, facts[fact]))
                yield f"- stage {name}, {fact}: {seen}, emulated {expected}"
    for name, what, seconds in times(stages):
        short, long = ASSUMED.get(what.rpartition(", ")[2], (seconds, seconds))
        if not short <= seconds <= long:
            yield f"- stage {name}, {what}: {seconds:g} s, emulated {short:g} to {long:g} s"


def times(stages: Stages) -> Iterator[tuple[str, str, float]]:
    """Yield the stage, the phase and its seconds, of checks, of the stack's parts and of boots."""
    for name, stage in stages.items():
        yield from (
            (name, check, note.get("took_s", 0.0)) for check, note in stage["checks"].items()
        )
        for part, seconds in _value(stage, "seconds of each resource", {}).items():
            yield name, f"stack, {part}", seconds
        for event in _value(stage, "events", []):
            for phase, seconds in event.get("data", {}).get("phases", {}).items():
                yield name, f"boot of {event.get('node', '')}, {phase}", seconds


def _row(named: tuple[str, Mapping[str, Any]]) -> str:
    name, stage = named
    results: Sequence[str] = [each["result"] for each in stage["checks"].values()]
    after = max((each["after_s"] for each in stage["checks"].values()), default=0.0)
    counts = " | ".join(str(results.count(each)) for each in (PASSED, FAILED, NOT_THERE))
    return f"| {name} | {after / 60.0:.1f} | {counts} | {_cost(stage):.2f} |"


def _spent(stages: Stages) -> float:
    return sum(map(_cost, stages.values()))


def _cost(stage: Mapping[str, Any]) -> float:
    return float(_value(stage, "cost", {}).get("total_usd", 0.0))


def _value(stage: Mapping[str, Any], fact: str, default: Any) -> Any:
    found = stage["facts"].get(fact, {}).get("value", default)
    return found if isinstance(found, type(default)) else default
