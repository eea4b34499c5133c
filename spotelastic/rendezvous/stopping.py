"""Decides how a job is stopped on request or at a limit, with its last steps saved (pure).

The members agree on a step, seal it, and wait there until it is committed; then the job ends
(`model.job.Ending`). A save that takes too long, or is not possible, does not delay the end: the
newest commit remains. Without a holder the controller ends the job a little later.
"""

from dataclasses import replace

from spotelastic.model.job import Ending, Job
from spotelastic.model.progress import newest_committed
from spotelastic.model.round import Round
from spotelastic.rendezvous import agreement
from spotelastic.rendezvous.decision import CloseRound, EndJob, Moment, RoundDecision, WriteProposal

WITHIN = 150.0
"""Seconds for the members to agree on the step, seal it and commit it."""
REASON = "the job is being ended"


def at_once(at: Moment) -> bool:
    """Whether the job can end at once, because nothing trains or is about to."""
    round_ = at.seen.round
    if round_ is None or round_.phase == "over":
        return True
    return round_.phase == "proposed" and len(round_.members) < at.settings.min_nodes


def save(at: Moment, round_: Round, ending: Ending) -> RoundDecision:
    """Return the next step towards the end of the started `round_`."""
    current = agreement.current_of(at.seen, round_)
    if current is not None and current.reason != REASON:
        return RoundDecision((WriteProposal(replace(current, cancelled=True)),), REASON)
    deadline = at.now + WITHIN if current is None else current.deadline
    standing = agreement.advance(at.seen, round_, REASON, deadline, at.now, at.new_id)
    if not standing.over:
        writes = (WriteProposal(standing.proposal),) if standing.proposal is not None else ()
        return RoundDecision(writes, standing.reason, standing.wake_at)
    if standing.agreed and current is not None and not _is_committed(at, round_, current.target):
        return RoundDecision(
            reason=f"waits for the commit of step {current.target}", wake_at=deadline
        )
    return end(at, ending)


def end(at: Moment, ending: Ending) -> RoundDecision:
    round_ = at.seen.round
    known = round_.known.step if round_ is not None and round_.known is not None else 0
    step = newest_committed(at.seen.progress.values()) or known
    saved = f"step {step} is committed" if step else "nothing is committed"
    job = Job(ending.state, at.now, f"{ending.reason}; {saved}", final_step=step)
    closed = (CloseRound(round_),) if round_ is not None and round_.phase == "started" else ()
    return RoundDecision((*closed, EndJob(job)), job.reason)


def _is_committed(at: Moment, round_: Round, step: int) -> bool:
    """Whether any node reports the step as committed under the round's epoch.

    A run that was sent back may have a higher step in the store, from an earlier epoch.
    """
    sought = (round_.epoch, step)
    told = at.seen.progress.values()
    return round_.epoch > 0 and any((each.epoch, each.committed) >= sought for each in told)
