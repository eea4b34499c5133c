"""What an agent and its workers tell each other so that workers outlive a round.

In-place recovery: when the members of a round change, workers that can do so leave their process
group, *rest*, and enter the next round in the same process. Each worker that can is connected to
its agent by a Unix socket of packets (SOCK_SEQPACKET), one JSON message each:

    worker → agent: Listening | SavesFirst | Resting | Present
    agent → worker: Rest | Enter | Ask

And what people are told of a step that was made again, to see whether it comes back as it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

Change = Literal["clean", "pending", "dirty"]
"""How a worker stands to the step after its last finished one.

"clean": it has changed nothing of the state. "pending": all ranks have given their gradients, and
no optimizer has stepped, so that the step can still be made, or be begun again. "dirty": the state
has changed in part.
"""


class Standing(msgspec.Struct, frozen=True):
    """Where a worker rests."""

    step: int
    """The last step that it has finished."""
    change: Change = "clean"


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The first message of a worker: it can rest from now on."""

    round: str
    """The round's incarnation."""
    local_rank: int


class SavesFirst(msgspec.Struct, frozen=True, tag=True):
    """The worker saves the step that it has into memory, and rests then."""

    round: str


class Resting(msgspec.Struct, frozen=True, tag=True):
    """The worker has left its group. It waits for a round, and enters no collective before."""

    round: str
    """The round that it was in."""
    standing: Standing
    broken: str = ""
    """Why it rests without having been asked: a collective failed with this message."""
    traceback: str = ""


class Present(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Enter` and `Ask`: the process runs."""

    round: str
    """The round that it was told of last."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Answer, if you run: the others cannot begin without you."""


class Rest(msgspec.Struct, frozen=True, tag=True):
    """Leave the group, which wakes what waits in its collectives, and rest."""


class Enter(msgspec.Struct, frozen=True, tag=True):
    """Go on in another round."""

    round: str
    step: int
    """The step that all ranks go on from. A worker that is one behind makes its pending step; one
    at this step with another one pending begins that again.
    """
    restores: bool
    """Whether this worker's own state does not count: it restores what the variables name."""
    variables: Mapping[str, str]
    """All variables of the environment that a new worker of that round would have."""


FromWorker = Listening | SavesFirst | Resting | Present
ToWorker = Rest | Enter | Ask


REHEARSE_MODES = ("auto", "off", "strict")
"""Values of `--rehearse`."""
FIRST = "first"
"""Value of `up --rehearse`: the first node rehearses the script before others are launched."""
REHEARSE = "SPOTELASTIC_REHEARSE"
"""Workers' environment variable with one of them. What the script says counts before it."""
EXACT = "SPOTELASTIC_EXACT"
"""Workers' environment variable: with 1 a run is to have the same bits on any nodes (`--exact`)."""
CUBLAS = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Variable without which products on a GPU are not deterministic, and its value."""
OUTCOMES = ("equal", "noise", "different")
REHEARSED = "rehearsed"
"""Kind of the events that tell of a step that was made again. Their data is a `Rehearsal`."""
PROVEN = "proven"
"""Kind of those that tell of the first commit, which was read back."""
FINGERPRINT = "fingerprint"
"""Kind of those that tell what a run with virtual ranks has come to. The outcome is a SHA-256."""

GUARD = "SPOTELASTIC_GUARD"
"""Workers' environment variable that is 1 with `--guard`. What the script says counts before it."""
AUDIT = "SPOTELASTIC_AUDIT"
"""The one with the number of steps of which one is audited, with `--audit`; empty: none is."""
AUDIT_PATTERN = r"|1/[1-9]\d{0,8}"
"""Values of `--audit`."""
AUDITED = "audited"
"""Kind of the events that tell of an audit that ranks differ in."""
SICK = "sick"
"""Outcome of such an audit, as the node tells whose result differs from those of the others."""
SKIPPED = "skipped"
"""Kind of the events that tell of a step that was skipped, or from which the run goes back."""
SCHEDULER = "learning-rate scheduler"
"""What `spotelastic rehearse` calls a variable of this kind: training depends on it."""
TOLD_KINDS = (REHEARSED, PROVEN, SKIPPED, AUDITED, FINGERPRINT)
"""Kinds of those that tell what was found of a step. A later version may tell of others."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A step that was made several times, or read back, and compared."""

    step: int
    ranks: int
    outcome: str
    """One of `OUTCOMES`: equal bits, within the script's noise, or not; or the fingerprint."""
    lines: tuple[str, ...] = ()
    """What people are told. Where it is different: a heading, each difference, what follows."""

    @property
    def differs(self) -> bool:
        return self.outcome == "different"

    @property
    def line(self) -> str:
        """All in one line."""
        return " ".join(self.lines)

    @property
    def text(self) -> str:
        """A line for each, below the first."""
        return "\n  ".join(self.lines)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Steps that were skipped, because their loss or gradients could not be right."""

    steps: int = 0
    """How many, those that were made again after the run had gone back included."""
    returns: int = 0
    """How often the run has gone back after several in a row."""
    at: float = 0.0
    """When the last one was skipped."""
    line: str = ""
    """What people are told of it."""

    @property
    def text(self) -> str:
        """In a line; empty if none was."""
        if not self.steps:
            return ""
        back = f", and the run has gone back (times: {self.returns})" if self.returns else ""
        return f"steps skipped by --guard: {self.steps}{back}; the last: {self.line}"
