"""Asks nvidia-smi about the GPUs of this node, and judges its answer.

A hung driver hangs nvidia-smi too, and may keep it from being killed. So it has a deadline, after
which it is left to itself.
"""

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spotelastic.agent.health import bounded
from spotelastic.model.counting import counted
from spotelastic.model.gpu import GpuFault, GpuReading
from spotelastic.model.progress import GpuUse

ANSWER_WITHIN = 10.0
PROGRAM = "nvidia-smi"
FIELDS = (
    "index",
    "pci.bus_id",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.pending",
    "remapped_rows.failure",
)
USE_FIELDS = (*FIELDS[:2], "utilization.gpu", "memory.used", "memory.total")
"""What is asked for how busy they are."""
_NEEDED = 2
"""How many of the fields every driver has."""
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')


@dataclass(frozen=True, slots=True)
class SmiAnswer:
    """What nvidia-smi answered."""

    readings: tuple[GpuReading, ...] = ()
    trouble: str = ""
    """Why there are no readings; empty: there are."""
    hung: bool = False
    """Whether it did not end in time."""
    is_there: bool = True
    """Whether it is installed."""


def ask(
    environ: Mapping[str, str],
    within: float = ANSWER_WITHIN,
    asked: Sequence[str] = FIELDS,
) -> SmiAnswer:
    """Asks nvidia-smi about all GPUs. Takes at most `within` seconds for each of two tries."""
    fields = list(asked)
    while True:
        command = [PROGRAM, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            code, out, err = bounded.run(command, environ, within)
        except subprocess.TimeoutExpired:
            return SmiAnswer(trouble=f"{PROGRAM} has not answered within {within:g} s", hung=True)
        except OSError as error:
            return SmiAnswer(trouble=f"{PROGRAM}: {error.strerror}", is_there=False)
        unknown = _UNKNOWN_FIELD.search(out + err)
        if unknown is not None and unknown[1] in fields[_NEEDED:]:  # an older driver
            fields.remove(unknown[1])
            continue
        readings = parse(out, fields)
        if code != 0 or not readings:
            said = (err.strip() or out.strip() or f"ended with {code}").splitlines()[0]
            return SmiAnswer(readings if code == 0 else (), f"{PROGRAM}: {said}")
        return SmiAnswer(readings)


def parse(table: str, fields: Sequence[str] = FIELDS) -> tuple[GpuReading, ...]:
    """Return the readings of an answer, one line a GPU. Lines that are no reading are left out."""
    found = []
    for line in table.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(fields) or not values[0].isdigit():
            continue
        told = dict(zip(fields, values, strict=True))
        found.append(
            GpuReading(
                told["index"],
                told["pci.bus_id"],
                _number(told.get(FIELDS[2], "")),
                _answer(told.get(FIELDS[3], "")),
                _answer(told.get(FIELDS[4], "")),
                *(_number(told.get(field, "")) for field in USE_FIELDS[_NEEDED:]),
            )
        )
    return tuple(found)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _answer(text: str) -> bool | None:
    if text.isdigit():
        return text != "0"
    return {"yes": True, "no": False}.get(text.lower())


def use(answer: SmiAnswer, addresses: Collection[str]) -> GpuUse | None:
    """Return how busy the GPUs at these addresses are, as the kernel writes them; without any, all.

    None: the answer does not tell.
    """
    ours = [
        each
        for each in answer.readings
        if not addresses or any(each.address.lower().endswith(f"{at}.0") for at in addresses)
    ]
    told = [(e.busy, e.used, e.total) for e in ours if None not in (e.busy, e.used, e.total)]
    if not told:
        return None
    busy, used, total = (sum(each or 0 for each in its) for its in zip(*told, strict=True))
    return GpuUse(len(told), busy / len(told) / 100, used << 20, total << 20)


def judge(before: Sequence[GpuReading], answer: SmiAnswer) -> GpuFault | None:
    """Return the fault that an answer shows, compared with that of an earlier time; None: none.

    What was so before is no news: the node has passed its check with it. Without an earlier answer
    nothing can be told.
    """
    if answer.hung:
        return GpuFault(answer.trouble, "nvidia-smi", "nvidia-smi hangs")
    if not before or not answer.is_there:
        return None
    if len(answer.readings) < len(before):
        return _fewer(before, answer)
    known = {reading.address: reading for reading in before}
    for reading in answer.readings:
        fault = _worse(known.get(reading.address), reading)
        if fault is not None:
            return fault
    return None


def _fewer(before: Sequence[GpuReading], answer: SmiAnswer) -> GpuFault:
    left = {reading.address for reading in answer.readings}
    gone = [reading.index for reading in before if reading.address not in left]
    had = f"{len(answer.readings)} of {counted(len(before), 'GPU')}"
    why = f": {answer.trouble}" if answer.trouble else ""
    return GpuFault(f"nvidia-smi sees {had}{why}", "nvidia-smi", "gpus missing", ", ".join(gone))


def _worse(before: GpuReading | None, now: GpuReading) -> GpuFault | None:
    more = (now.uncorrected or 0) - ((before.uncorrected if before else 0) or 0)
    if more > 0:
        what = f"{counted(more, 'uncorrected memory error')} since the node joined"
        return GpuFault(what, "nvidia-smi", "uncorrected errors", now.index)
    if now.failed and not (before and before.failed):
        return GpuFault("its memory cannot be repaired", "nvidia-smi", "repair failed", now.index)
    if now.pending and not (before and before.pending):
        what = "a part of its memory waits for a reset to be replaced"
        return GpuFault(what, "nvidia-smi", "repair pending", now.index)
    return None
