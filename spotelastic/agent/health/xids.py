"""Reads NVIDIA's messages in the kernel's log, and says what each means for a node (pure).

The driver reports trouble as `NVRM: Xid (PCI:0000:1b:00): 79, …`, and that of a switch between
GPUs as `SXid`. NVIDIA's catalog says what to do about each number. Here are three answers:

- sick: the GPU, or its memory, bus or firmware, needs a reset. A cloud's nodes are replaced for it.
- suspect: work on it may go on, as NVIDIA says. If a worker of the node fails, it is to blame.
- script: it is what a program does to itself, e.g. by a wrong address.

A number that is not here is told, and changes nothing.
"""

import re
from dataclasses import dataclass
from typing import Literal

from spotelastic.model.gpu import GpuFault

Verdict = Literal["sick", "suspect", "script"]
MEANINGS: dict[int, tuple[Verdict, str]] = {
    8: ("script", "the GPU has stopped processing a program's work"),
    13: ("script", "a kernel of the program has caused an exception"),
    31: ("script", "the program has used a wrong address"),
    32: ("script", "the program's commands are damaged"),
    43: ("script", "the GPU has stopped the program's work"),
    45: ("script", "the program's work was removed, after an earlier error or its end"),
    46: ("sick", "the GPU has stopped processing"),
    48: ("sick", "a memory error of two bits"),
    61: ("suspect", "a warning of its microcontroller"),
    62: ("sick", "its microcontroller has halted"),
    63: ("suspect", "a part of its memory is to be replaced at the next reset"),
    64: ("sick", "a part of its memory could not be replaced"),
    68: ("script", "an exception of the video decoder"),
    69: ("script", "the program has used the graphics engine wrongly"),
    74: ("sick", "an error of NVLink"),
    79: ("sick", "the GPU has fallen off the bus"),
    92: ("suspect", "many corrected memory errors"),
    94: ("sick", "a memory error that has ended the program which used it"),
    95: ("sick", "a memory error that may have damaged any program's data"),
    109: ("suspect", "a program's work could not be switched in time"),
    110: ("sick", "a fault of its security"),
    119: ("sick", "its firmware (GSP) does not answer"),
    120: ("sick", "its firmware (GSP) has failed"),
    136: ("sick", "a link of NVLink could not be trained"),
    137: ("script", "the program has used another GPU's memory without a right to"),
    140: ("sick", "a memory error that could not be recovered from"),
    143: ("sick", "the GPU could not be started"),
    156: ("suspect", "a part of the GPU is to be retired at the next reset"),
    157: ("sick", "a part of the GPU could not be retired"),
    158: ("sick", "the GPU does not answer in time"),
}
"""By number: what it means for the node, and in words."""
RECOVERY = 154
"""The driver names the action that it needs; the words after the last number tell."""
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)[^)]*\): (?P<xid>\d+)(?:, (?P<rest>.*))?"
)
_SXID = re.compile(
    r"SXid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)\): (?P<xid>\d+), (?P<fatal>Fatal|Non-fatal)\b"
    r"(?P<rest>.*)"
)
_RECOVERY = re.compile(r"to 0x[0-9a-fA-F]+ \((?P<action>[^)]*)\)")


@dataclass(frozen=True, slots=True)
class KernelReport:
    """A message of NVIDIA's driver, and what it means for the node."""

    fault: GpuFault
    verdict: Verdict | None
    """None: the number is not known here."""
    of_switch: bool = False
    """Whether it is about a switch between GPUs."""


def read(line: str) -> KernelReport | None:
    """Return what a line of the kernel's log says of a GPU; None: nothing."""
    if match := _SXID.search(line):
        sick = match["fatal"] == "Fatal"
        words = "an error of the switch between GPUs" + (match["rest"] or "").rstrip()
        fault = _fault(int(match["xid"]), match["gpu"], words, "SXid")
        return KernelReport(fault, "sick" if sick else None, of_switch=True)
    match = _XID.search(line)
    if match is None:
        return None
    xid, rest = int(match["xid"]), (match["rest"] or "").strip()
    if xid == RECOVERY:
        return _recovery(match["gpu"], rest)
    verdict, words = MEANINGS.get(xid, (None, rest or "not known here"))
    return KernelReport(_fault(xid, match["gpu"], words), verdict)


def _recovery(gpu: str, rest: str) -> KernelReport | None:
    """Return what the driver says that it needs. `None` is its word for nothing."""
    match = _RECOVERY.search(rest)
    action = match["action"].strip() if match is not None else rest
    if action in ("", "None"):
        return None
    verdict: Verdict = "suspect" if action == "Drain P2P" else "sick"
    return KernelReport(_fault(RECOVERY, gpu, f"the driver asks for: {action}"), verdict)


def _fault(xid: int, gpu: str, words: str, name: str = "Xid") -> GpuFault:
    number = f"{name} {xid}"
    return GpuFault(f"{number}, {words}", "kernel", number.lower(), gpu.lower(), xid)
