"""Compares what ranks came to in an audit, and says how far a run goes back (`--audit`).

What is right is kept: a restore after an audit in which ranks differ takes a save from before the
last one in which they agreed. Nothing is known of those in between.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from spotelastic_checkpoints.messages import HELD

from spotelastic.errors import SpotelasticError
from spotelastic.model.in_place import AUDITED, SICK
from spotelastic.training.data import audit
from spotelastic.training.data.audit import AuditPlan
from spotelastic.training.in_place.meeting import LoopParts
from spotelastic.training.runtime.session import Ranks
from spotelastic.training.state import rank_agreement
from spotelastic.training.state.state import State

RETURNS = 3
"""How often a run goes back without an audit in between that finds all right."""


class Auditing:
    """The audits of one loop."""

    def __init__(self, loop: LoopParts) -> None:
        self._loop = loop
        self._differed = 0
        """How often the run has gone back since an audit has found all right."""
        self._held = self._limit = math.inf
        """The last step up to which an audit has found all right, and the one after which nothing
        is restored; infinite: none.
        """

    def compare(self, step: int, plan: AuditPlan, told: Sequence[bytes]) -> str:
        """Compare what all ranks came to in a step. Returns what is wrong; empty if nothing is.

        All ranks call it, and come to the same.
        """
        ranks = self._loop.ranks()
        found = ranks.gather((ranks.node, tuple(told), copies(self._loop.state)))
        asked = {rank: answers for rank, (_, answers, _) in enumerate(found) if answers}
        their = {rank: (copy,) for rank, (*_, copy) in enumerate(found)}
        lines, sick = list[str](), set[int]()
        for what, answers in (
            (f"gradient of virtual rank {plan.leaf}", asked),
            ("copy of parameters and moments", their),
        ):
            if not audit.all_agree(answers):
                wrong = audit.wrong(answers)
                sick.update(wrong)
                who = ", ".join(f"rank {rank} ({found[rank][0]})" for rank in wrong)
                lines.append(f"{who or 'one that cannot be told'} has another {what}")
        if not lines:
            self._held, self._differed = step - 1, 0
            self._loop.tell(HELD, step - 1, "equal", "")
            return ""
        # Without a name the same would be found again. But copies become equal by a restore.
        back = bool(sick) or not audit.all_agree(their)
        line = f"step {step}: ranks differ (--audit): {'; '.join(lines)}"
        if back:
            known = not math.isinf(self._held)
            to = f"a save up to step {self._held}" if known else "its newest save"
            line += f"; the run goes back to {to}"
            self._limit, self._differed = self._held, self._differed + 1
        if ranks.rank in sick:
            its = f"rank {ranks.rank} computes other results than the rest (--audit, step {step})"
            self._loop.tell(AUDITED, step, SICK, its)
        if ranks.rank == min({*range(len(found))} - sick, default=0):
            self._loop.tell(AUDITED, step, "different", line)
        if self._differed > RETURNS:
            raise SpotelasticError(
                f"{line}: that was so {RETURNS} times before. Is something random in the script "
                "besides its virtual ranks' own numbers? `spotelastic rehearse` shows it"
            )
        return line if back else ""

    def limit(self, ranks: Ranks) -> float:
        """Return the step after which nothing is restored now, on all ranks alike."""
        limit, self._limit = min(ranks.gather(self._limit)), math.inf
        self._held = min(self._held, limit)
        return limit


def copies(state: State) -> bytes:
    """Return a hash of the parameters and moments that this rank has, which all have alike."""
    view = state.view()
    trained = {
        name
        for name, value in state.values.items()
        if isinstance(value, torch.nn.Module | torch.optim.Optimizer)
    }
    chunks = (
        each
        for each in view.chunks
        if each.fqn not in view.sharded and each.fqn.partition(".")[0] in trained
    )
    found = hashlib.sha256()
    for key, digest in sorted(rank_agreement.digests_of(chunks).items()):
        found.update(f"{key}".encode() + (digest or b""))
    return found.digest()
