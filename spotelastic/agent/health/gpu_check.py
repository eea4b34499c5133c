"""Checks a node's GPUs before it joins: in a process of its own, which a hung driver may keep.

Must never happen: a check that cannot be made counts as a sick GPU. A torch without CUDA, a GPU
that another program uses, an import that takes long: the node joins, and its log says why it was
not checked. On a machine whose type promises GPUs, a GPU that is missing is sick.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotelastic_checkpoints import isolated

from spotelastic.agent.health import bounded
from spotelastic.model.counting import counted
from spotelastic.model.gpu import GpuFault

MODULE = "spotelastic.agent.health.gpu_work"
IMPORT_WITHIN = 180.0
"""Seconds for the import of torch, from a cold disk."""
WORK_WITHIN = 30.0
"""Seconds for the work, of which starting CUDA takes most."""


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """The result of a check."""

    gpus: int = 0
    """How many GPUs torch sees."""
    fault: GpuFault | None = None
    note: str = ""
    """Why something was not checked, for people."""
    addresses: frozenset[str] = frozenset()
    """PCI addresses of the GPUs, as the kernel writes them; empty: not known."""


@dataclass(slots=True)
class _Told:
    """What the process has told so far."""

    work_within: float
    devices: int | None = None
    cuda: bool = True
    why: str = ""
    each: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, line: str) -> float | None:
        try:
            told = json.loads(line)
        except ValueError:  # what a library prints
            return None
        if not isinstance(told, dict):
            return None
        if "devices" in told:
            self.devices, self.cuda = int(told["devices"]), bool(told["cuda"])
            self.why = str(told.get("why", ""))
            return self.work_within
        if "device" in told:
            self.each[str(told["device"])] = told
        return None


def check(
    python: str,
    environ: Mapping[str, str],
    promised: int,
    devices: Sequence[str] = (),
    import_within: float = IMPORT_WITHIN,
    work_within: float = WORK_WITHIN,
) -> GpuCheck:
    """Make the GPUs that torch sees work once.

    `promised`: how many there should be at least; 0: not known. `devices`: torch's names of others
    to check in place of them.
    """
    told = _Told(work_within)
    try:
        process = subprocess.Popen(
            isolated.command(MODULE, *devices, python=python),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return GpuCheck(note=f"GPUs are not checked: {python}: {error.strerror}")
    ended = bounded.lines(process, told.take, import_within)
    bounded.give_up(process)
    return _judged(told, promised, ended=ended)


def _judged(told: _Told, promised: int, *, ended: bool) -> GpuCheck:
    if told.devices is None:
        why = "it ended at once" if ended else "importing torch takes too long"
        return GpuCheck(note=f"GPUs are not checked: {why}")
    if not told.cuda:
        return GpuCheck(note="GPUs are not checked: this torch was built without CUDA")
    gpus = told.devices
    addresses = frozenset(filter(None, (str(d.get("address", "")) for d in told.each.values())))
    if gpus < promised:
        what = f"torch sees {gpus} of {counted(promised, 'GPU')} that this machine should have"
        what += f": {told.why}" if told.why else ""
        return GpuCheck(gpus, GpuFault(what, "check", "gpus missing"), "", addresses)
    for name, each in sorted(told.each.items()):
        if each.get("wrong"):
            fault = GpuFault(str(each["wrong"]), "check", "wrong result", _index(name))
            return GpuCheck(gpus, fault, "", addresses)
    missing = gpus - len(told.each)
    if missing and not ended:
        silent = [str(n) for n in range(gpus) if f"cuda:{n}" not in told.each]
        what = f"no result within {told.work_within:g} s"
        fault = GpuFault(what, "check", "no result", ", ".join(silent))
        return GpuCheck(gpus, fault, "", addresses)
    if missing:
        return GpuCheck(gpus, None, "GPUs are not checked: the check has crashed", addresses)
    busy = [f"GPU {_index(name)}: {d['busy']}" for name, d in told.each.items() if d.get("busy")]
    return GpuCheck(gpus, None, "; ".join(busy), addresses)


def _index(device: str) -> str:
    return device.rpartition(":")[2]
