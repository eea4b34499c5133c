"""Brings clusters up, plans, finds and lists them: what `spotelastic.client` offers."""

from pathlib import Path

from spotelastic.client.bringing_up import bring_up, list_prices, regions
from spotelastic.client.bringing_up.plan import Planned
from spotelastic.client.cluster import Cluster
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check
from spotelastic.client.confirmation import Confirm, agreed, nobody_asked
from spotelastic.client.progress import OnUpdate, ignored, saying, training
from spotelastic.client.targets import find as targets
from spotelastic.client.targets.choice import chosen
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.errors import UsageError
from spotelastic.model.progress import ClusterSummary, Status

ONLY_TYPED = {
    "plan": "call spotelastic.client.plan(config)",
    "json": "encode what spotelastic.client.plan(config) returns",
    "drill": "call Cluster.interrupt",
    "report": "write what Cluster.report returns",
    "curve": "call Cluster.plot(file)",
}
"""Fields of `JobConfig` that only the command line can use, by what a program does instead."""


def up(
    config: JobConfig,
    *,
    yes: bool = False,
    confirm: Confirm = nobody_asked,
    on_update: OnUpdate = ignored,
) -> Cluster:
    """Bring up a cluster and start the job on it; return as soon as the job trains.

    The script is one of the current folder, which is shipped to the nodes. If a cluster of that
    name is up already, it gets what has changed: nodes, code, types.

    `confirm` is asked before a cluster that costs money is created, and before what another script
    has made is changed. By default `NotConfirmed` is raised then; `yes` answers it. `on_update` is
    called with what is new meanwhile: lines for people, events, and each status.

    Raises `UsageError` and `EnvironmentFailure` before anything is created. If creating a new
    cluster fails or is interrupted, what was created is deleted. Once it is created, a cluster on
    AWS keeps running, whatever happens to this process; a local one ends with the process, unless
    `config.keep` or `config.detach` is set.
    """
    _check_for_programs(config)
    job = check(config, Path.cwd())
    say = saying(on_update)
    answer = agreed if yes or config.yes else confirm
    target, compared = regions.enter(job, say)
    cluster = None
    try:
        known = bring_up.look(target, job, answer)
        prepared = bring_up.prepare(target, job, known, compared)
        cluster = bring_up.carry_out(prepared, answer, on_update)
        if config.keep or config.detach:
            cluster.keep()
        for update in cluster.updates():
            on_update(update)
            if isinstance(update, Status) and training(update):
                break
    except BaseException as error:
        if not target.leave(say) and cluster is not None:
            error.add_note(
                f"{job.name} stays up: spotelastic.client.find({job.name!r}) finds it again, and "
                "its down() ends it"
            )
        raise
    target.hold()
    return cluster


def plan(config: JobConfig, *, on_update: OnUpdate = ignored) -> Planned:
    """Return what `up` would create or change, and its price. Nothing is created or changed.

    Without an AWS account the plan is made from list prices, and says what it cannot know.
    """
    job = check(config, Path.cwd())
    cloud = chosen(config)
    if not cloud.has_account():
        return list_prices.planned(job)
    say = saying(on_update)
    target, compared = regions.enter(job, say)
    try:
        known = bring_up.look(target, job, agreed)
        return bring_up.prepare(target, job, known, compared).plan()
    finally:
        target.leave(say)


def find(
    name: str | None = None,
    *,
    local: bool | None = None,
    region: str | None = None,
    gone: bool = False,
) -> Cluster:
    """Return the cluster of that name; without a name, the only one there is.

    `local`: True looks in the local cloud, False on AWS. By default it is the local cloud if one
    runs and no `region` is named. `gone`: also find one that was taken down, whose last status and
    report are still stored. Raises `UsageError` if there is none.
    """
    return Cluster(*targets.located(_target(local, region), name, _say_nothing, gone=gone))


def list(*, local: bool | None = None, region: str | None = None) -> tuple[ClusterSummary, ...]:
    """Return a summary of every cluster; `local` and `region` as for `find`."""
    return _target(local, region).listing()


def _target(local: bool | None, region: str | None) -> CloudTarget:
    if local is None and region is not None:
        local = False
    return targets.account(local, region, _say_nothing)


def _say_nothing(line: str) -> None: ...


def _check_for_programs(config: JobConfig) -> None:
    """Refuse what only the command line does, so that nothing is silently left out."""
    for field, instead in ONLY_TYPED.items():
        if getattr(config, field):
            raise UsageError(f"JobConfig({field}=...) is for the command line: {instead}")
