"""The acts of a script without a Checkpointer: it is judged by what it saves and prints itself."""

import time
from pathlib import Path

from spotelastic.client.rehearsal import answer, runs
from spotelastic.client.rehearsal.answer import RehearsalAnswer, Row
from spotelastic.client.rehearsal.runs import Played, Runs

ADAPT = "put a Checkpointer in: `spotelastic adapt {script}` shows the lines"
SETTLES = 0.3
"""Seconds after its first file, after which the script is killed."""


def play(runs: Runs, plain: Played, again: Played) -> RehearsalAnswer:
    """Kill the script once it has saved something, start it again, and compare what is left."""
    noise = {name for name in {*plain.files, *again.files} if name not in _same(plain, again)}
    twice = Row("nothing: two plain runs", "equal")
    if noise:
        twice = Row(twice.act, "noise", what=(f"{', '.join(sorted(noise)[:3])} differs",))
    rows = [twice, _killed(runs, plain, noise)]
    if plain.files:
        why = "it begins at its start again, and what it has saved is gone"
        rows.append(Row("a node lost with its files", "not compared", what=(why,)))
    return answer.whole(runs.job, runs.ranks, plain, tuple(rows), ())


def _killed(runs: Runs, plain: Played, noise: set[str]) -> Row:
    act = "killed after it has saved, and started again with its files"
    if not plain.files:
        why = "it saves nothing: each start begins anew"
        return Row(act, "failed", what=(why,), advice=_advice(runs))
    launch = runs.launch("killed")
    begun: list[float] = []

    def has_saved(_: object) -> bool:
        if not begun and any((launch.workdir / name).exists() for name in plain.files):
            begun.append(time.monotonic())
        return bool(begun) and time.monotonic() > begun[0] + SETTLES

    runs.say(act)
    first = runs.run(launch, has_saved)
    if first.ended or first.failed:
        return Row(act, "not compared", what=(first.failed or "it had ended before",))
    second = runs.run(runs.launch("killed-again", workdir=launch.workdir, seed=2))
    if second.failed:
        return Row(act, "failed", what=(second.failed,))
    same = _same(plain, second)
    other = [f"{name} differs" for name in plain.files if name not in same and name not in noise]
    if plain.last_line != second.last_line and not noise:
        other.append(f"its last line is {second.last_line!r}, was {plain.last_line!r}")
    if not other:
        return Row(act, "noise" if noise else "equal")
    why = "what it saves is not all that its steps depend on"
    return Row(act, "different", what=tuple(other[:3]), cause=why, advice=_advice(runs))


def _same(plain: Played, other: Played) -> set[str]:
    """Return the files that have the same content: the same bytes, or the same for `torch.load`."""
    same: set[str] = set()
    unlike: list[tuple[str, Path, Path]] = []
    for name in plain.files:
        ours, theirs = plain.workdir / name, other.workdir / name
        if theirs.is_file() and ours.read_bytes() == theirs.read_bytes():
            same.add(name)
        elif theirs.is_file():
            unlike.append((name, ours, theirs))
    if unlike:
        told = runs.read_by_torch([path for _, *paths in unlike for path in paths])
        for name, ours, theirs in unlike:
            if isinstance(told[str(ours)], str) and told[str(ours)] == told[str(theirs)]:
                same.add(name)
    return same


def _advice(runs: Runs) -> str:
    return ADAPT.format(script=runs.job.script)
