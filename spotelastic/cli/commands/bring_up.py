"""Carries out `up`: checks, brings the cluster up, watches the job, reports, takes the cluster
down.

Nothing is started before all checks have passed. Whatever is started registers at once how it is
undone, so an error, a signal and an ordinary end share one clean-up path.

With `--detach` or `--keep` the cluster outlives the command. On AWS it also keeps running if the
command is interrupted while it watches or changes the cluster (detach.py).
"""

import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from spotelastic import wrapping
from spotelastic.aws.artifacts.boot_artifacts import ETCD
from spotelastic.aws.clusters import lifecycle
from spotelastic.aws.clusters.lifecycle import Cluster
from spotelastic.aws.planning.plan import ClusterSpec
from spotelastic.aws.planning.survey import Survey, survey
from spotelastic.aws.security import secrets
from spotelastic.cli.commands import earlier_run, failure_report
from spotelastic.cli.commands.detach import LeftRunning
from spotelastic.cli.commands.watch import JobOutcome, ended, outcome, training, watch
from spotelastic.cli.render import list_prices, loss_curve, tables
from spotelastic.cli.render import plan as render_plan
from spotelastic.cli.render.progress import ProgressView, view
from spotelastic.client import confirmation, local_data, preflight
from spotelastic.client.config.differences import differences
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob, check
from spotelastic.client.target import CloudTarget, aws_is_configured
from spotelastic.clock import steady
from spotelastic.errors import SpotelasticError
from spotelastic.local import cloud, joining
from spotelastic.local.drill import Drill, DrillPlan
from spotelastic.local.fault_client import FaultClient
from spotelastic.local.joining import CloudUse
from spotelastic.model.counting import counted
from spotelastic.model.progress import Status
from spotelastic.signals import Signals

Say = Callable[[str], None]


def launch(config: JobConfig) -> int:
    """Run `up` and return the command's exit code."""
    job = check(config, Path.cwd())
    if config.plan and not config.local and not aws_is_configured():
        plan = list_prices.planned(job)
        lines = (tables.to_json(plan),) if config.json else list_prices.shown(plan)
        for line in lines:
            wrapping.say(line)
        return 0
    with Signals() as signals:
        try:
            with ExitStack() as undo:
                return _carry_through(job, undo, signals)
        except KeyboardInterrupt:
            return signals.exit_code
        except SpotelasticError as error:
            if not signals.stopping:
                raise
            print(f"spotelastic: {error}", file=sys.stderr)  # from the clean-up, not from the job
            return signals.exit_code


# -- from nothing to the report ------------------------------------------------------------------


def _carry_through(job: ValidatedJob, undo: ExitStack, signals: Signals) -> int:
    config = job.config
    with view() as shown:
        say = _to_stderr if config.json else shown.say
        region = None if config.local else config.region
        stays = LeftRunning(job.name, job.spec.linger, undo, signals, shown.say, region)
        target = _find_target(config, stays, say)
        stays = replace(stays, use=target.use)
        known = preflight.find(target, job)
        earlier_run.check(config, known)
        if known is not None:
            job = job.beside(known.spec)
        with stays.changed() if known is not None and not config.plan else nullcontext():
            found = _survey(job, known, target)
            for line in (*render_plan.headline(job, found), *preflight.versions(known)):
                say(line)
            if config.plan:
                _show_plan(job, found, known, target, say)
                return 0
            if known is None and target.cloud is None:
                _confirm_cost(job, found, say)
            began, told = steady(), _earlier(known, shown.say)
            if known is None:
                earlier_run.begin(target, job, shown.say)
            cluster = _bring_up(job, found, known, target, stays, shown.say)
        drill = _drill(config, target, shown.say)
        first = _FirstStep(began, shown.say) if known is None else None
        stays = replace(stays, owned=target.use is not None and known is None and not config.keep)
        watchers = [each for each in (drill.feed if drill else None, first) if each is not None]
        status = _watch(config, cluster, target, stays, shown, watchers, told)
        if config.detach and not ended(status):
            _detach(stays, first, shown.say)
            return 0
        result = outcome(cluster, status)
        log = failure_report.keep_log(cluster, result) if failure_report.failed(result) else None
    return _conclude(config, result, log, drill, replace(stays, say=wrapping.say))


def _survey(job: ValidatedJob, known: Cluster | None, target: CloudTarget) -> Survey:
    """Look up what the account offers for the job."""
    return survey(
        target.aws,
        job.spec,
        job.requirement,
        placed=bool(job.config.placement),
        known=None if known is None else known.spec,
    )


def _show_plan(
    job: ValidatedJob, found: Survey, known: Cluster | None, target: CloudTarget, say: Say
) -> None:
    """Show what would be created or changed, as JSON or for people."""
    spec = known.spec if known else None
    planned = render_plan.planned(job, found, spec, _other_secrets(target, job, known))
    if job.config.json:
        print(tables.to_json(planned))
        return
    for line in render_plan.plan(job, found, planned):
        say(line)
    say("nothing was created or changed")


def _watch(
    config: JobConfig,
    cluster: Cluster,
    target: CloudTarget,
    stays: LeftRunning,
    shown: ProgressView,
    watchers: Sequence[Callable[[Status], None]],
    told: int,
) -> Status:
    """Show the job until it has ended, or with --detach until it trains; return the last status."""

    def look(status: Status) -> None:
        for watcher in watchers:
            watcher(status)

    with nullcontext() if stays.owned else stays.watched():
        return watch(
            cluster,
            shown,
            until=training if config.detach else ended,
            look=look,
            alive=target.check,
            silent=target.where_to_look,
            told=told,
        )


def _detach(stays: LeftRunning, first: "_FirstStep | None", say: Say) -> None:
    """Leave the cluster running with its job."""
    if first is not None and not first.told:
        say(f"no training step reported yet: `spotelastic status {stays.named}` shows the progress")
    if stays.use is not None:
        stays.use.works_on(stays.name, stays=True)
    stays.leave()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def _confirm_cost(job: ValidatedJob, found: Survey, say: Say) -> None:
    """Ask before the first dollar is spent. Without a terminal to ask on, go ahead."""
    if job.config.yes or not confirmation.somebody_is_there():
        return
    for line in render_plan.plan(job, found, render_plan.planned(job, found, None, ())):
        say(line)
    confirmation.confirm("Create it for this price?", "nothing was created")


def _earlier(known: Cluster | None, say: Say) -> int:
    """Return how many events a running cluster has already; they are not shown again."""
    count = 0 if known is None else len(known.objects.events())
    if known is not None and count:
        before = counted(count, "event")
        say(f"{known.name} has {before} from before: see spotelastic events {known.name}")
    return count


class _FirstStep:
    """Reports once how long it took from the command to the first step.

    The status of a round that resumes shows the checkpoint's step before any new step. A first step
    is known by a loss, a step time or a further step.
    """

    def __init__(self, began: float, say: Say) -> None:
        self._began = began
        self._say = say
        self._from: int | None = None
        self.told = False

    def __call__(self, status: Status) -> None:
        if self._from is None and (status.step or training(status)):
            self._from = status.step
        further = self._from is not None and status.step > self._from
        if not self.told and (further or status.loss is not None or status.step_time):
            self.told = True
            self._say(f"first step {steady() - self._began:.0f} s after the command")


def _find_target(config: JobConfig, stays: LeftRunning, say: Say) -> CloudTarget:
    """Return AWS, or the local cloud: a running one if there is one, else a new one.

    The local cloud lives as long as a command or a cluster uses it.
    """
    if not config.local:
        return CloudTarget.find(False, config.region)
    use, new = joining.join(lambda: say("starting the local cloud"))
    last = _to_stderr if config.json else wrapping.say
    stays.undo.callback(_undoing(stays.signals, lambda: _leave(use, last)))
    if new:
        say(f"local cloud at {use.info.endpoint}: {', '.join(use.info.zones)}")
    else:
        say(f"using the running local cloud at {use.info.endpoint}")
    return replace(CloudTarget.of(use.info), use=use)


def _leave(use: CloudUse, say: Say) -> None:
    """Stop using the local cloud; its cluster ends too unless it is kept or another command uses
    it."""
    if use.leave(say) != "nothing" and use.cluster:
        local_data.tell(use.cluster, say)


def _bring_up(
    job: ValidatedJob,
    found: Survey,
    known: Cluster | None,
    target: CloudTarget,
    stays: LeftRunning,
    say: Say,
) -> Cluster:
    """Create the cluster, or change the known one where its job differs."""
    wanted = job.cluster(found)
    if target.cloud is None:
        wanted = replace(wanted, etcd=ETCD)
    else:  # local instances run on this machine, which has an etcd
        wanted = replace(wanted, network=target.cloud.net)
    if known is not None:
        hidden = _other_secrets(target, job, known)
        changes = "; ".join(differences(known.spec, wanted.job, hidden))
        say(f"{job.name} is up already; changes: {changes or 'none'}")
    if target.use is not None:
        return _bring_up_here(job.config, wanted, target, target.use, say, new=known is None)
    cluster = lifecycle.create(wanted, say, target.aws)

    def down() -> None:
        with stays.ended():
            target.down(job.name, wrapping.say)

    stays.undo.callback(_undoing(stays.signals, down))
    return cluster


def _bring_up_here(
    config: JobConfig,
    wanted: ClusterSpec,
    target: CloudTarget,
    use: CloudUse,
    say: Say,
    *,
    new: bool,
) -> Cluster:
    """Create the cluster in the local cloud, which takes it down however this command ends."""
    with cloud.making(lambda: say("waiting for another `up` to create its cluster")):
        new = new and target.known(wanted.name) is None  # another `up` may have been faster
        use.works_on(wanted.name, stays=False if new else None)
        cluster = lifecycle.create(wanted, say, target.aws)
    if config.keep:
        use.works_on(wanted.name, stays=True)
    return cluster


def _other_secrets(
    target: CloudTarget, job: ValidatedJob, known: Cluster | None
) -> Collection[str]:
    """Return the secrets that the known cluster lacks or has with another value."""
    return () if known is None else secrets.differing(target.aws, job.name, job.secrets)


def _undoing(signals: Signals, undo: Callable[[], None]) -> Callable[[], None]:
    def undone() -> None:
        signals.ignore()
        undo()

    return undone


def _drill(config: JobConfig, target: CloudTarget, say: Say) -> Drill | None:
    if not config.drill or target.cloud is None:
        return None
    return Drill(DrillPlan(nodes=config.most), FaultClient(target.cloud), say)


# -- the end -------------------------------------------------------------------------------------


def _conclude(
    config: JobConfig,
    result: JobOutcome,
    log: Path | None,
    drill: Drill | None,
    cluster: LeftRunning,
) -> int:
    """Show and write the report, then decide what happens to the cluster; return the exit code.

    Reports come first, so that a failing clean-up cannot cost the report.
    """
    tables.display(tables.report_table(result.report))
    written = _write(config, result)
    kept = [node.id for node in result.status.nodes if node.state == "failed"]
    stays = result.status.state == "stopped" or (config.keep_failed and kept)
    if config.keep or (stays and not cluster.owned):
        cluster.leave()  # it was stopped to go on later, or its failed node is to be inspected
    elif cluster.use is not None:
        cluster.use.works_on(cluster.name, stays=False)
    for node in kept if config.keep_failed else ():
        wrapping.say(f"{node} is kept: inspect it with spotelastic shell {node}")
    missed = drill.missing if drill else ()
    if missed:
        left = ", ".join(kind.traits.label for kind in missed)
        print(
            f"spotelastic: training ended before the drill did: it lacks {left}; "
            "give the script more steps",
            file=sys.stderr,
        )
    if failure_report.failed(result):
        print(f"spotelastic: {failure_report.describe(result, log)}", file=sys.stderr)
        return 1
    return 0 if written and not missed else 1


def _write(config: JobConfig, result: JobOutcome) -> bool:
    """Write the files that were asked for; return False if one could not be written."""
    try:
        if config.report:
            report = Path(config.report)
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(tables.to_json(result.report) + "\n")
        if config.curve:
            loss_curve.draw(result.points, result.report.interruptions, Path(config.curve))
    except OSError as error:
        print(f"spotelastic: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return False
    return True
