"""Brings clusters up, plans, finds and lists them: what `spotelastic.client` offers."""

from pathlib import Path

from spotelastic.client.bringing_up import bring_up, list_prices, region_choice, script_check
from spotelastic.client.bringing_up.plan import Planned
from spotelastic.client.cluster import Cluster
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import check
from spotelastic.client.confirmation import Confirm, agreed, nobody_asked
from spotelastic.client.kubernetes.kube_job import kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator import apply as pods
from spotelastic.client.progress import FirstStepTimer, OnUpdate, ignored, saying, training
from spotelastic.client.published import GONE_FOR, by_urgency
from spotelastic.client.targets import find as targets
from spotelastic.client.targets.choice import chosen
from spotelastic.client.targets.find import Place
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.clock import steady, wall
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

    With a `PodConfig` that has `kube=True` the nodes are pods of a Kubernetes cluster. Prices are
    not asked about there, and the cluster outlives this process, too.
    """
    _check_for_programs(config)
    if isinstance(config, PodConfig) and config.kube:
        return _up_in_pods(config, agreed if yes or config.yes else confirm, on_update)
    job = script_check.with_virtual_ranks(check(config, Path.cwd()))
    say = saying(on_update)
    for line in script_check.findings(job):
        say(f"warning: {line}")
    answer = agreed if yes or config.yes else confirm
    target, compared = region_choice.enter(job, say)
    cluster = None
    try:
        known = bring_up.look(target, job, answer)
        prepared = bring_up.prepare(target, job, known, compared)
        cluster = bring_up.carry_out(prepared, answer, on_update)
        if config.keep or config.detach:
            cluster.keep()
        _until_it_trains(cluster, on_update)
    except BaseException as error:
        if not target.leave(say) and cluster is not None:
            error.add_note(_stays(job.name))
        raise
    target.hold()
    return cluster


def _up_in_pods(config: PodConfig, confirm: Confirm, on_update: OnUpdate) -> Cluster:
    job, began = kube_job(config, Path.cwd()), steady()
    target = KubeTarget(KubePlace(config.context, config.namespace))
    known = pods.look(target, job, confirm)
    record = pods.carry_out(target, job, known, saying(on_update))
    told = () if known is None else known.objects.events()
    first = FirstStepTimer(began) if known is None else None
    cluster = Cluster(target, record, told=told, first=first)
    try:
        _until_it_trains(cluster, on_update)
    except BaseException as error:
        place = {"context": config.context, "namespace": config.namespace}
        given = "".join(f", {name}={value!r}" for name, value in place.items() if value)
        error.add_note(_stays(job.name, f", kube=True{given}"))
        raise
    return cluster


def _until_it_trains(cluster: Cluster, on_update: OnUpdate) -> None:
    for update in cluster.updates():
        on_update(update)
        if isinstance(update, Status) and training(update):
            return


def _stays(name: str, where: str = "") -> str:
    return (
        f"{name} stays up: spotelastic.client.find({name!r}{where}) finds it again, and its "
        "down() ends it"
    )


def plan(config: JobConfig, *, on_update: OnUpdate = ignored) -> Planned:
    """Return what `up` would create or change, and its price. Nothing is created or changed.

    Without an AWS account the plan is made from list prices, and says what it cannot know. Raises
    `UsageError` for pods, whose prices nobody knows.
    """
    if isinstance(config, PodConfig) and config.kube:
        raise UsageError(
            "plan: prices of pods are not known: `spotelastic up --kube --plan` lists "
            "what would be created"
        )
    job = script_check.with_virtual_ranks(check(config, Path.cwd()))
    cloud = chosen(config)
    if not cloud.has_account():
        return list_prices.planned(job)
    say = saying(on_update)
    target, compared = region_choice.enter(job, say)
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
    kube: bool = False,
    context: str | None = None,
    namespace: str | None = None,
    gone: bool = False,
) -> Cluster:
    """Return the cluster of that name; without a name, the only one there is.

    `local`: True looks in the local cloud, False on AWS. By default it is the local cloud if one
    runs and no `region` is named. `kube` looks on Kubernetes: in `namespace` of `context`, by
    default the current ones of the kubeconfig. `gone`: also find one that was taken down, whose
    last status and report are still stored. Raises `UsageError` if there is none.
    """
    where = _place(local, region, KubePlace(context, namespace) if kube else None)
    return Cluster(*targets.found(name, where, region, _say_nothing, gone=gone))


def clusters(
    *,
    local: bool | None = None,
    region: str | None = None,
    kube: bool = False,
    context: str | None = None,
    namespace: str | None = None,
    gone: bool = False,
) -> tuple[ClusterSummary, ...]:
    """Return a summary of every cluster; the arguments are those of `find`.

    `gone`: also of those that have ended within 14 days, the most urgent first: what has failed
    within a day, then what is there, then what is gone.
    """
    where = _place(local, region, KubePlace(context, namespace) if kube else None)
    if not gone:
        return targets.find(where, region, _say_nothing).listing()
    at, now = targets.looked_at(where, region, _say_nothing), wall()
    return tuple(by_urgency((*at.listing(), *at.ended(now - GONE_FOR)), now))


def _place(local: bool | None, region: str | None, kube: KubePlace | None) -> Place:
    """Return the place, which is AWS if only a region is named."""
    if kube is not None and region is not None:
        raise UsageError("region and kube name two places: give one")
    return kube or (False if local is None and region is not None else local)


def _say_nothing(line: str) -> None: ...


def _check_for_programs(config: JobConfig) -> None:
    """Refuse what only the command line does, so that nothing is silently left out."""
    for field, instead in ONLY_TYPED.items():
        if getattr(config, field):
            raise UsageError(f"JobConfig({field}=...) is for the command line: {instead}")
