"""Pure: the end of a job that somebody, or a limit, has asked for (`model.job.Ending`).

All agree on a step, seal it, and wait there until it is committed; then the job ends. What takes
too long, or cannot be saved at all, does not keep it: the newest commit is what stays. When nobody
holds the rounds, the controller ends the job by itself a little later.
"""

from dataclasses import replace

from spotelastic.model.job import Ending, Job
from spotelastic.model.progress import newest_committed
from spotelastic.model.round import Round
from spotelastic.rendezvous import agreement
from spotelastic.rendezvous.decision import CloseRound, EndJob, Moment, RoundDecision, WriteProposal

WITHIN = 150.0
"""Seconds for the step to be agreed on, sealed and committed."""
REASON = "the job is being ended"


def at_once(at: Moment) -> bool:
    """Whether nothing trains that could be saved, or soon will."""
    round_ = at.seen.round
    if round_ is None or round_.phase == "over":
        return True
    return round_.phase == "proposed" and len(round_.members) < at.settings.min_nodes


def save(at: Moment, round_: Round, ending: Ending) -> RoundDecision:
    """The next step towards the end of the started `round_`."""
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
    """By any node's account. Of a run that was sent back a higher step may be in the store, which
    an earlier epoch has committed. Nodes that are gone, or have just come back, tell nothing."""
    sought = (round_.epoch, step)
    told = at.seen.progress.values()
    return round_.epoch > 0 and any((each.epoch, each.committed) >= sought for each in told)
