"""Makes what is shown of a cluster that is gone from what it has stored last (pure).

The controller of a cluster that is taken down while its job trains has no time to write that it
ends. So the stored status says "running", its nodes train, and its bill is open.
"""

from dataclasses import replace

from spotelastic.model.job import ENDED, TAKEN_DOWN
from spotelastic.model.progress import Cost, NodeStatus, Report, Status

BILL = (
    *("node_hours", "cost_usd", "on_demand_usd", "usd_per_hour", "control_usd"),
    *("control_usd_per_hour", "total_usd", "total_usd_per_hour", "traffic_usd"),
    "traffic_usd_per_hour",
)
"""Fields that a report and a bill have under the same names."""


def last_status(stored: Status, committed: int) -> Status:
    """Return the status of a cluster that is gone.

    `committed` is the newest step in its storage, which may be newer than the stored status; 0: it
    is not known, or there is none. A job that had ended keeps its state and reason.
    """
    newest = committed or stored.committed
    has_ended = stored.state in ENDED
    return replace(
        stored,
        state=stored.state if has_ended else TAKEN_DOWN,
        reason=stored.reason if has_ended else _goes_on(newest),
        step=max(stored.step, newest),
        committed=newest,
        nodes=tuple(map(_gone, stored.nodes)),
        upload=None,
        replica=0,
        leader="",
        etcd_leader="",
        quiet="",
        short_since=None,
        slow=(),
        warnings=(),
        ends_at=stored.at,
        usd_per_hour=0.0,
    )


def _goes_on(committed: int) -> str:
    if not committed:
        return "it has left no checkpoint: the same `spotelastic up` begins again"
    return f"its checkpoints stay: the same `spotelastic up` goes on from step {committed}"


def _gone(node: NodeStatus) -> NodeStatus:
    return replace(node, state="gone", ranks=(), leaves_at=None)


def last_report(stored: Report, status: Status, cost: Cost) -> Report:
    """Return the report of a cluster that is gone.

    It has the state and steps of the cluster's last status, and its closed bill.
    """
    job = stored.job
    more = max(0, status.step - job.final_step)
    ended = replace(
        job, state=status.state, final_step=job.final_step + more, steps_run=job.steps_run + more
    )
    return replace(stored, job=ended, **{name: getattr(cost, name) for name in BILL})
