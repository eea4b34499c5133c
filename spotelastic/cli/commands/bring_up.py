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
from spotelastic.aws.clusters.lifecycle import ClusterRecord
from spotelastic.aws.planning.survey import Survey, survey
from spotelastic.aws.security import secrets
from spotelastic.cli.commands.detach import LeftRunning
from spotelastic.cli.render import list_prices, loss_curve, tables
from spotelastic.cli.render import plan as render_plan
from spotelastic.cli.render.confirmation import asking, somebody_is_there
from spotelastic.cli.render.progress import ProgressView, show, view
from spotelastic.client import confirmation, failure_log
from spotelastic.client.bringing_up import earlier_run, preflight
from spotelastic.client.config.differences import differences
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob, check
from spotelastic.client.confirmation import ConfirmationRequest
from spotelastic.client.progress import FirstStep
from spotelastic.client.targets import find as targets
from spotelastic.client.targets.cloud_target import CloudTarget
from spotelastic.client.watch import JobOutcome, ended, outcome, training, updates
from spotelastic.clock import steady
from spotelastic.errors import SpotelasticError
from spotelastic.local.drill import Drill, DrillPlan
from spotelastic.model.counting import counted
from spotelastic.model.progress import Status
from spotelastic.signals import Signals

Say = Callable[[str], None]


def launch(config: JobConfig) -> int:
    """Run `up` and return the command's exit code."""
    job = check(config, Path.cwd())
    if config.plan and not config.local and not targets.aws_is_configured():
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
        target = targets.to_bring_up(local=config.local, region=config.region, say=say)
        last = _to_stderr if config.json else wrapping.say
        undo.callback(_undoing(signals, lambda: target.leave(last)))
        stays = LeftRunning(job.name, target, job.spec.linger, undo, signals, shown.say)
        known = preflight.find(target, job, asking(yes=config.yes))
        earlier_run.check(config, known)
        if known is not None:
            job = job.beside(known.spec)
        with stays.changed() if known is not None and not config.plan else nullcontext():
            found = _survey(job, known, target)
            headline = render_plan.headline(job, found, target.price_label)
            for line in (*headline, *preflight.versions(known)):
                say(line)
            if config.plan:
                _show_plan(job, found, known, target, say)
                return 0
            if known is None and target.costs_money:
                _confirm_cost(job, found, target, say)
            began, told = steady(), _earlier(known, shown.say)
            if known is None:
                earlier_run.begin(target, job, shown.say)
            cluster = _bring_up(job, found, known, target, shown.say)
        drill = _drill(config, target, shown.say)
        first = _FirstStep(began, shown.say) if known is None else None
        finish = _undoing(signals, lambda: _finish(stays, wrapping.say))
        if config.keep:
            target.keep(job.name)
        if known is None:
            undo.callback(finish)
        watchers = [each for each in (drill.feed if drill else None, first) if each is not None]
        status = _watch(config, cluster, target, stays, shown, watchers, told)
        if config.detach and not ended(status):
            _detach(stays, first, shown.say)
            return 0
        if config.keep:
            undo.pop_all()
        elif known is not None:
            undo.callback(finish)
        result = outcome(cluster, status)
        log = failure_log.keep(cluster, result) if failure_log.failed(result) else None
    return _conclude(config, result, log, drill, replace(stays, say=wrapping.say))


def _survey(job: ValidatedJob, known: ClusterRecord | None, target: CloudTarget) -> Survey:
    """Look up what the account offers for the job."""
    return survey(
        target.aws,
        job.spec,
        job.requirement,
        placed=bool(job.config.placement),
        known=None if known is None else known.spec,
    )


def _show_plan(
    job: ValidatedJob, found: Survey, known: ClusterRecord | None, target: CloudTarget, say: Say
) -> None:
    """Show what would be created or changed, as JSON or for people."""
    spec = known.spec if known else None
    planned = render_plan.planned(job, found, spec, _other_secrets(target, job, known))
    if job.config.json:
        print(tables.to_json(planned))
        return
    for line in render_plan.plan(job, found, planned, target.about_prices(found.prices_of)):
        say(line)
    say("nothing was created or changed")


def _watch(
    config: JobConfig,
    cluster: ClusterRecord,
    target: CloudTarget,
    stays: LeftRunning,
    shown: ProgressView,
    watchers: Sequence[Callable[[Status], None]],
    told: int,
) -> Status:
    """Show the job until it has ended, or with --detach until it trains; return the last status."""

    until, last = training if config.detach else ended, None
    with nullcontext() if target.owns(cluster.name) else stays.watched():
        for update in updates(target, cluster, told=told):
            show(shown, update)
            if isinstance(update, Status):
                last = update
                for watcher in watchers:
                    watcher(update)
                if until(update):
                    break
    assert last is not None, "the updates end with the status of a job that has ended"
    return last


def _finish(stays: LeftRunning, say: Say) -> None:
    """End a cluster whose job is over."""
    with stays.ended():
        stays.target.finish(stays.name, say)


def _detach(stays: LeftRunning, first: "_FirstStep | None", say: Say) -> None:
    """Leave the cluster running with its job."""
    if first is not None and not first.told:
        say(f"no training step reported yet: `spotelastic status {stays.named}` shows the progress")
    stays.target.keep(stays.name)
    stays.leave()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def _confirm_cost(job: ValidatedJob, found: Survey, target: CloudTarget, say: Say) -> None:
    """Ask before the first dollar is spent. Without a terminal to ask on, go ahead."""
    if job.config.yes or not somebody_is_there():
        return
    planned = render_plan.planned(job, found, None, ())
    for line in render_plan.plan(job, found, planned, target.about_prices(found.prices_of)):
        say(line)
    question = "Create it for this price?"
    what = f"creating {job.name} costs money"
    confirmation.ensure(
        ConfirmationRequest("price", what, question, "nothing was created"), asking(yes=False)
    )


def _earlier(known: ClusterRecord | None, say: Say) -> int:
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
            self._say(str(FirstStep(steady() - self._began)))


def _bring_up(
    job: ValidatedJob,
    found: Survey,
    known: ClusterRecord | None,
    target: CloudTarget,
    say: Say,
) -> ClusterRecord:
    """Create the cluster, or change the known one where its job differs."""
    wanted = target.fitted(job.cluster(found))
    if known is not None:
        hidden = _other_secrets(target, job, known)
        changes = "; ".join(differences(known.spec, wanted.job, hidden))
        say(f"{job.name} is up already; changes: {changes or 'none'}")
    return target.create(wanted, say, new=known is None)


def _other_secrets(
    target: CloudTarget, job: ValidatedJob, known: ClusterRecord | None
) -> Collection[str]:
    """Return the secrets that the known cluster lacks or has with another value."""
    return () if known is None else secrets.differing(target.aws, job.name, job.secrets)


def _undoing(signals: Signals, undo: Callable[[], object]) -> Callable[[], None]:
    def undone() -> None:
        signals.ignore()
        undo()

    return undone


def _drill(config: JobConfig, target: CloudTarget, say: Say) -> Drill | None:
    if not config.drill:
        return None
    return Drill(DrillPlan(nodes=config.most), target.faults(), say)


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
    if config.keep or (stays and not cluster.target.owns(cluster.name)):
        cluster.leave()  # it was stopped to go on later, or its failed node is to be inspected
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
    if failure_log.failed(result):
        print(f"spotelastic: {failure_log.describe(result, log)}", file=sys.stderr)
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
