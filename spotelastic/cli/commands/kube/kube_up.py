"""Runs `up --kube` on a terminal: creates the cluster, shows the job and its report.

The cluster outlives this command if that is interrupted while the job runs, as on AWS.
"""

import sys
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

from spotelastic import wrapping
from spotelastic.cli.commands import up_on_terminal as on_a_terminal
from spotelastic.cli.commands.detach import LeftRunning
from spotelastic.cli.render import tables
from spotelastic.cli.render.confirmation import asking
from spotelastic.cli.render.progress_view import view
from spotelastic.client import failure_log
from spotelastic.client.cluster import Cluster
from spotelastic.client.kubernetes.kube_job import KubeJob, kube_job
from spotelastic.client.kubernetes.pod_config import PodConfig
from spotelastic.client.operator import apply
from spotelastic.client.progress import FirstStepTimer, Say, ended
from spotelastic.client.targets.kube_target import KubePlace, KubeTarget
from spotelastic.client.watch import outcome
from spotelastic.clock import steady
from spotelastic.errors import SpotelasticError
from spotelastic.signals import Signals


def launch(config: PodConfig) -> int:
    """Run `up --kube` and return the command's exit code."""
    job = kube_job(config, Path.cwd())
    target = KubeTarget(KubePlace(config.context, config.namespace))
    if config.plan:
        _show_plan(job, target)
        return 0
    with Signals() as signals:
        try:
            with ExitStack() as undo:
                return _carry_through(job, target, undo, signals)
        except KeyboardInterrupt:
            return signals.exit_code
        except SpotelasticError as error:
            if not signals.stopping:
                raise
            print(f"spotelastic: {error}", file=sys.stderr)  # from the clean-up
            return signals.exit_code


def _carry_through(job: KubeJob, target: KubeTarget, undo: ExitStack, signals: Signals) -> int:
    config = job.config
    with view() as shown:
        say: Say = shown.say
        stays = LeftRunning(job.name, target, job.spec.linger, undo, signals, say)
        began = steady()
        known = apply.look(target, job, asking(yes=config.yes))
        with stays.changed() if known is not None else nullcontext():
            record = apply.carry_out(target, job, known, say)
        told = () if known is None else known.objects.events()
        first = FirstStepTimer(began) if known is None else None
        cluster = Cluster(target, record, told=told, first=first)
        finish = on_a_terminal.undoing(signals, partial(on_a_terminal.finish, stays, wrapping.say))
        if known is None:
            undo.callback(finish)
        status = on_a_terminal.watch(config, cluster, stays, shown, None)
        if config.detach and not ended(status):
            on_a_terminal.detach(cluster, stays, say)
            return 0
        if config.keep:
            undo.pop_all()
        elif known is not None:
            undo.callback(finish)
        result = outcome(cluster.record, status)
        log = failure_log.keep(cluster.record, result) if failure_log.failed(result) else None
    on_a_terminal.fetch_files(config, cluster, wrapping.say)
    page = partial(on_a_terminal.page, cluster)
    last = LeftRunning(job.name, target, job.spec.linger, undo, signals, wrapping.say)
    return on_a_terminal.conclude(config, result, page, log, None, last)


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
