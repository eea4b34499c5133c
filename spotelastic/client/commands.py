"""Sends the commands `stop`, `restart` and `scale` to a cluster's controller.

It waits for the answer to each.

Each can be interrupted and repeated at any point: what is already done is not an error.
"""

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from spotelastic import validation
from spotelastic.aws.artifacts import code_archive, requirements
from spotelastic.client import confirmation
from spotelastic.client.config.capacity_policy import seconds_left, with_deadline
from spotelastic.client.confirmation import Confirm
from spotelastic.client.published import cost_of, status_of
from spotelastic.client.targets.cloud_target import ClusterTarget
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.clock import steady, wall
from spotelastic.cloud.bucket import STOPPING
from spotelastic.controller.decisions import limits
from spotelastic.controller.model.observation import ControllerPolicy
from spotelastic.errors import EnvironmentFailure, UsageError
from spotelastic.model.counting import dollars
from spotelastic.model.job import ENDED, JobSpec
from spotelastic.model.progress import Cost, Status
from spotelastic.model.requests.command import ANSWERED_WITHIN, Command, CommandKind

LOOK_EVERY = 0.25
BEGINS_WITHIN = 20.0
"""Seconds within which the status shows that a job was restarted."""
ENDS_WITHIN = 200.0
"""Seconds that a job may take to save and end."""

Say = Callable[[str], None]
Change = Callable[[JobSpec], JobSpec]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command has achieved."""

    name: str
    command: CommandKind
    text: str
    state: str
    """State of the job, as last seen."""


def stop(cluster: ShownCluster, *, wait: bool, say: Say, reason: str = "") -> CommandResult:
    """Stop the job. With `wait`, returns once it has ended. `reason` stands in its status."""
    text = give(cluster, Command(uuid.uuid4().hex, "stop", reason=reason))
    status = status_of(cluster)
    if wait and status.state not in ENDED:
        say(f"{cluster.name} {text}")
        status = _ended(cluster)
    if status.state in ENDED:
        text = f"has {status.state}: {status.reason}"
    return CommandResult(cluster.name, "stop", text, status.state)


def restart(
    cluster: ShownCluster,
    folder: Path,
    *,
    same_code: bool,
    environment: str | None,
    deadline: str | None,
    max_cost: float | None,
    confirm: Confirm,
) -> CommandResult:
    """Restart a job that has ended, with the code in `folder` unless `same_code`.

    `confirm` is asked if the job was started in another folder.
    """
    status = status_of(cluster)
    if status.state in ENDED:
        limits = changed_limits(cluster, deadline, max_cost)
        if same_code:
            cluster.change(limits)
        else:
            check_meant(cluster, folder, confirm)
            ship(cluster, limits, folder, environment)
    elif deadline is not None or max_cost is not None:
        raise UsageError(
            f"{cluster.name} has not ended, and nothing was changed: to give a job that runs "
            "another --deadline or --max-cost, run `spotelastic up` again with it"
        )
    return restart_same(cluster)


def restart_same(cluster: ShownCluster) -> CommandResult:
    """Restart a job that has ended, as its description says."""
    text = give(cluster, Command(uuid.uuid4().hex, "restart"))
    return CommandResult(cluster.name, "restart", text, _begun(cluster).state)


def scale(
    target: ClusterTarget,
    cluster: ShownCluster,
    minimum: int | None,
    maximum: int | None,
    *,
    say: Say,
) -> CommandResult:
    """Change the job's numbers of nodes."""
    settings = cluster.spec.settings
    if minimum is None and maximum is None:
        raise UsageError("scale: give --min, --max or both")
    low = settings.min_nodes if minimum is None else minimum
    high = settings.max_nodes if maximum is None else maximum
    validation.sizes(minimum=low, maximum=high, per_node=None)
    base = cluster.spec.capacity.base
    if base > high:
        raise UsageError(f"--max {high} is less than the {base} nodes of --on-demand base={base}")
    if high > settings.max_nodes:
        target.check_room(high, settings.workers)
    target.allow(cluster.spec, high, say)
    text = give(cluster, Command(uuid.uuid4().hex, "scale", minimum, maximum))
    return CommandResult(cluster.name, "scale", text, status_of(cluster).state)


# -- one command ---------------------------------------------------------------------------------


def give(cluster: ShownCluster, command: Command) -> str:
    """Send a command and return the answer's text.

    Raises `UsageError` if the controller refuses it.
    """
    if cluster.objects.has(STOPPING):
        raise UsageError(f"{cluster.name} is being taken down")
    cluster.send(command)
    give_up = steady() + ANSWERED_WITHIN
    while (answer := cluster.objects.answer_to(command.id)) is None:
        if steady() > give_up:
            raise EnvironmentFailure(
                f"no controller of {cluster.name} has answered within "
                f"{ANSWERED_WITHIN:g} s, and the command has expired: see "
                f"`spotelastic status {cluster.name}`, and try again"
            )
        threading.Event().wait(LOOK_EVERY)
    if not answer.accepted:
        raise UsageError(f"{cluster.name} {answer.text}")
    return answer.text


def _begun(cluster: ShownCluster) -> Status:
    """Return the status once it shows that the job goes on; it may be published a little later.

    Who waits for the job's end right after a restart would else see the end before it.
    """
    return _awaited(cluster, BEGINS_WITHIN, has_ended=False)


def _ended(cluster: ShownCluster) -> Status:
    status = _awaited(cluster, ENDS_WITHIN, has_ended=True)
    if status.state not in ENDED:
        raise EnvironmentFailure(
            f"{cluster.name} has not ended within {ENDS_WITHIN:g} s: see "
            f"`spotelastic status {cluster.name}`"
        )
    return status


def _awaited(cluster: ShownCluster, within: float, *, has_ended: bool) -> Status:
    """Return the status once the job has ended, or has not, or else the last one."""
    give_up = steady() + within
    while ((status := status_of(cluster)).state in ENDED) != has_ended and steady() < give_up:
        threading.Event().wait(LOOK_EVERY)
    return status


# -- what goes before ----------------------------------------------------------------------------


def check_meant(cluster: ShownCluster, folder: Path, confirm: Confirm) -> None:
    """Ask before the code is taken from another folder, whose script may only share the name."""
    spec = cluster.spec
    if not (folder / spec.script).exists():
        raise UsageError(
            f"{cluster.name} runs {spec.script}, which is not in this folder: change to its "
            "folder, or add --same-code"
        )
    validation.script(Path(spec.script), folder)
    other = confirmation.difference(spec, spec.script, str(folder.resolve()))
    if other is not None:
        confirmation.ensure_other(
            "other job",
            f"{cluster.name} ran {other}",
            "Restart it with the code of this folder?",
            "change to its folder, or add --same-code",
            confirm,
        )


def ship(cluster: ShownCluster, limits: Change, folder: Path, environment: str | None) -> None:
    """Upload the code of `folder`, with its environment file."""
    spec = cluster.spec
    archive = code_archive.pack(folder)
    # Missing packages may be why the job ended: an environment file may be new.
    before = spec.environment.file if spec.environment is not None else None
    found = requirements.find(folder, environment or before, archive.sha256)

    def shipped(spec: JobSpec) -> JobSpec:
        here = str(folder.resolve())
        return replace(limits(spec), code=archive.sha256, environment=found, folder=here)

    cluster.change(shipped, archive.data)


def changed_limits(cluster: ShownCluster, deadline: str | None, max_cost: float | None) -> Change:
    """Return the change that sets the job's new limits.

    Raises `UsageError` for one already reached.
    """
    now, capacity, within = wall(), cluster.spec.capacity, seconds_left(deadline)
    if within is None and capacity.deadline is not None and capacity.deadline <= now:
        raise UsageError(
            f"the deadline of {cluster.name} has passed: give a new one, such as --deadline 8h"
        )
    limit = capacity.max_cost if max_cost is None else max_cost
    if limit is not None:
        _check_cost(cost_of(cluster), limit, cluster.spec.settings.min_nodes)

    def change(spec: JobSpec) -> JobSpec:
        new = replace(spec.capacity, max_cost=limit)
        return replace(spec, capacity=new if within is None else with_deadline(new, within, now))

    return change


def _check_cost(cost: Cost, limit: float, nodes: int) -> None:
    """Check that the job can train before a cost limit stops it.

    Assumes `nodes` nodes, each at its average cost so far.
    """
    hours = cost.spot_hours + cost.on_demand_hours
    workers = nodes * cost.cost_usd / hours if hours else 0.0
    least = cost.total_usd + limits.needed(cost.control_usd_per_hour + workers, ControllerPolicy())
    if limit <= least:
        raise UsageError(
            f"--max-cost {limit:g}: {cost.name} has cost {dollars(cost.total_usd)} already, and "
            "would be stopped before it trains: give a limit for the whole job, above "
            f"{dollars(least)}"
        )
