"""Describes failures of a node's workers, as they are reported to the holder (pure).

`blank` is a failure of this node in the round, of no worker.
"""

from dataclasses import replace

from spotelastic.agent.state.values import WorkerExit, Workers
from spotelastic.agent.workers.trouble import WorkerTrouble
from spotelastic.model.job import Failure


def of_worker(
    blank: Failure, workers: Workers, first: WorkerExit, trouble: WorkerTrouble
) -> Failure:
    """Return the failure of a worker that has ended, or is about to."""
    return replace(
        _told(blank, trouble),
        rank=workers.first_rank + first.local_rank,
        local_rank=first.local_rank,
        at=first.at,
        exit_code=first.code,
        rests=workers.can_rest,
        attached=workers.attached,
    )


def of_collective(
    blank: Failure, workers: Workers, local_rank: int, trouble: WorkerTrouble
) -> Failure:
    """Return the failure of a collective, after which the worker rests."""
    return replace(
        _told(blank, trouble),
        rank=workers.first_rank + local_rank,
        local_rank=local_rank,
        exit_code=1,
        rests=workers.can_rest,
        attached=workers.attached,
        broken=True,
    )


def of_stall(blank: Failure, workers: Workers, trouble: WorkerTrouble) -> Failure:
    """Return the stall of workers, by the slowest of them."""
    pace = workers.pace
    return replace(
        _told(blank, trouble),
        rank=workers.first_rank + pace.behind,
        local_rank=pace.behind,
        at=pace.step_at,
        stalled=True,
    )


def _told(blank: Failure, trouble: WorkerTrouble) -> Failure:
    return replace(blank, message=trouble.message, traceback=trouble.traceback, log=trouble.log)
