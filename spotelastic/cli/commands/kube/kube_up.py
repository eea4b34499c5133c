"""Runs `up --kube` on a terminal: creates the cluster, shows the job and its report.

The cluster outlives this command if that is interrupted while the job runs, as on AWS.
"""

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from spotelastic import wrapping
from spotelastic.cli.commands import up_on_terminal as on_a_terminal
from spotelastic.cli.commands.detach import LeftRunning
from spotelastic.cli.render import tables
from spotelastic.cli.render.confirmation import asking
from spotelastic.cli.render.progress_view import view
from spotelastic.client.cluster import Cluster
from spotelastic.client.kubernetes.kube_job import KubeJob, kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator import apply
from spotelastic.client.progress import FirstStepTimer
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.clock import steady
from spotelastic.signals import Signals


def launch(config: PodConfig) -> int:
    """Run `up --kube` and return the command's exit code."""
    job = kube_job(config, Path.cwd())
    target = KubeTarget(KubePlace(config.context, config.namespace))
    if config.plan:
        _show_plan(job, target)
        return 0
    return on_a_terminal.guarded(partial(_carry_through, job, target))


def _carry_through(job: KubeJob, target: KubeTarget, undo: ExitStack, signals: Signals) -> int:
    config = job.config
    with view() as shown:
        stays = LeftRunning(job.name, target, job.spec.linger, undo, signals, shown.say)
        began = steady()
        known = apply.look(target, job, asking(yes=config.yes))
        with stays.changed() if known is not None else nullcontext():
            record = apply.carry_out(target, job, known, shown.say)
        told = () if known is None else known.objects.events()
        first = FirstStepTimer(began) if known is None else None
        cluster = Cluster(target, record, told=told, first=first)
        result = on_a_terminal.shown_to_the_end(config, cluster, stays, shown)
    if result is None:
        return 0
    return on_a_terminal.conclude(config, cluster, result, replace(stays, say=wrapping.say))


def _show_plan(job: KubeJob, target: KubeTarget) -> None:
    """Show what would be created, as JSON or for people."""
    if job.config.json:
        print(tables.to_json(apply.manifest(job, {"sha256": job.spec.code})))
        return
    known = target.known(job.name) is not None
    wrapping.say(
        f"{job.name} in the namespace {target.api.namespace}: {'is up' if known else 'new'}"
    )
    wrapping.say(f"  an ElasticJob {job.name}, whose operator makes the pods")
    settings = job.spec.settings
    wrapping.say(
        f"  {settings.min_nodes} to {settings.max_nodes} pods of {job.pods.image}, which train "
        f"{job.spec.script} with checkpoints in {job.spec.storage}"
    )
    wrapping.say("nothing was created or changed")
