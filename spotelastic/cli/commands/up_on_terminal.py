"""Runs `up` on a terminal: shows the plan, the job and its report, and ends what is to end.

client/bringing_up/ does what this shows. Whatever is started registers at once how it is
undone, so an error, a signal and an ordinary end share one clean-up path.

With `--detach` or `--keep` the cluster outlives the command. On AWS it also keeps running if the
command is interrupted while it watches or changes the cluster (detach.py).
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from spotelastic import wrapping
from spotelastic.aws.base import slow_calls
from spotelastic.cli.commands.detach import LeftRunning
from spotelastic.cli.render import plan_view as render_plan
from spotelastic.cli.render import tables
from spotelastic.cli.render.confirmation import asking
from spotelastic.cli.render.progress_view import ProgressView, show, view
from spotelastic.client import failure_log, kept_files, storage
from spotelastic.client.bringing_up import bring_up, list_prices, preflight, region_choice
from spotelastic.client.bringing_up.bring_up import PreparedUp
from spotelastic.client.bringing_up.script_check import findings
from spotelastic.client.cluster import Cluster
from spotelastic.client.config.job_config import JobConfig
from spotelastic.client.config.validated_job import ValidatedJob, check
from spotelastic.client.progress import Beginning, Say, ended
from spotelastic.client.published import running_cost_of
from spotelastic.client.targets.choice import chosen
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.client.watch import JobOutcome, outcome
from spotelastic.clock import Clock, steady, wall
from spotelastic.errors import SpotelasticError, Unavailable
from spotelastic.local.drill import Drill, DrillPlan
from spotelastic.model.counting import counted, size
from spotelastic.model.progress import Cost, Status
from spotelastic.signals import Signals

COST_EVERY = 10.0
"""Seconds between two looks at the cost."""


def launch(config: JobConfig) -> int:
    """Run `up` and return the command's exit code."""
    job = check(config, Path.cwd())
    if config.plan and not chosen(config).has_account():
        plan = list_prices.planned(job)
        lines = (tables.to_json(plan),) if config.json else render_plan.without_account(plan)
        for line in lines:
            wrapping.say(line)
        return 0
    return guarded(partial(carry_through, job))


def guarded(carry_through: Callable[[ExitStack, Signals], int]) -> int:
    """Carry an `up` through, undo what is to be undone, and return the exit code."""
    with Signals() as signals:
        try:
            with ExitStack() as undo:
                return carry_through(undo, signals)
        except KeyboardInterrupt:
            return signals.exit_code
        except SpotelasticError as error:
            if not signals.stopping:
                raise
            print(f"spotelastic: {error}", file=sys.stderr)  # from the clean-up, not from the job
            return signals.exit_code


# -- from nothing to the report ------------------------------------------------------------------


def carry_through(job: ValidatedJob, undo: ExitStack, signals: Signals) -> int:
    config = job.config
    with view() as shown:
        say = _to_stderr if config.json else shown.say
        with slow_calls.told(say):
            target, compared = region_choice.enter(job, say)
            last = _to_stderr if config.json else wrapping.say
            undo.callback(undoing(signals, lambda: target.leave(last)))
            known = bring_up.look(target, job, asking(yes=config.yes or config.plan))
        stays = LeftRunning(job.name, target, job.spec.linger, undo, signals, shown.say)
        with stays.changed() if known is not None and not config.plan else nullcontext():
            with slow_calls.told(say):
                prepared = bring_up.prepare(target, job, known, compared)
            _say_headline(prepared, say)
            if config.plan:
                _show_plan(prepared, say)
                return 0
            confirm = asking(yes=config.yes, before_price=lambda: _say_plan(prepared, say))
            cluster = bring_up.carry_out(prepared, confirm, partial(show, shown))
        plan = DrillPlan(nodes=config.most)
        drill = Drill(plan, target.faults(), say) if config.drill else None
        result = shown_to_the_end(config, cluster, stays, shown, drill)
    if result is None:
        return 0
    return conclude(config, cluster, result, replace(stays, say=wrapping.say), drill)


def shown_to_the_end(
    config: JobConfig,
    cluster: Cluster,
    stays: LeftRunning,
    shown: ProgressView,
    drill: Drill | None = None,
) -> JobOutcome | None:
    """Show the job until it has ended; None where it is left running (--detach)."""
    is_new = cluster.first is not None
    last_step = undoing(stays.signals, partial(finish, stays, wrapping.say))
    if config.keep:
        cluster.keep()
    if is_new:
        stays.undo.callback(last_step)
    status = watch(config, cluster, stays, shown, drill)
    if config.detach and not ended(status):
        detach(cluster, stays, shown.say)
        return None
    if config.keep:
        stays.undo.pop_all()
    elif not is_new:
        stays.undo.callback(last_step)
    return outcome(cluster.record, status)


def _say_headline(prepared: PreparedUp, say: Say) -> None:
    headline = render_plan.headline(prepared.job, prepared.found, prepared.target.price_label)
    hints = (f"warning: {each}" for each in findings(prepared.job))
    for line in (*headline, *preflight.versions(prepared.known), *hints):
        say(line)


def _show_plan(prepared: PreparedUp, say: Say) -> None:
    """Show what would be created or changed, as JSON or for people."""
    if prepared.job.config.json:
        print(tables.to_json(prepared.plan()))
        return
    _say_plan(prepared, say)
    say("nothing was created or changed")


def _say_plan(prepared: PreparedUp, say: Say) -> None:
    job, found = prepared.job, prepared.found
    about_prices = prepared.target.about_prices(found.prices_of)
    for line in render_plan.plan(job, found, prepared.plan(), about_prices):
        say(line)


def watch(
    config: JobConfig,
    cluster: Cluster,
    stays: LeftRunning,
    shown: ProgressView,
    drill: Drill | None,
) -> Status:
    """Show the job until it has ended, or with --detach until it trains; return the last status."""
    until, last = Beginning(cluster.first).is_over if config.detach else ended, None
    costs = CostWatch(lambda: cluster.record)
    if cluster.first is None:  # it was up before
        with suppress(Unavailable):
            shown.earlier(cluster.curve())
    with nullcontext() if stays.target.owns(cluster.name) else stays.watched():
        for update in cluster.updates():
            show(shown, update)
            if isinstance(update, Status):
                last = update
                if (cost := costs.due()) is not None:
                    shown.cost(cost)
                if drill is not None:
                    drill.feed(update)
                if until(update):
                    break
    assert last is not None, "the updates end with the status of a job that has ended"
    return last


class CostWatch:
    """Looks up what a cluster costs, now and then."""

    def __init__(self, cluster: Callable[[], ShownCluster], clock: Clock = steady) -> None:
        self._cluster = cluster
        self._clock = clock
        self._next = 0.0

    def due(self) -> Cost | None:
        """Return the cost if it is time; None if it is not, or if the bucket does not answer."""
        if self._clock() < self._next:
            return None
        self._next = self._clock() + COST_EVERY
        with suppress(Unavailable):
            return running_cost_of(self._cluster())
        return None


def finish(stays: LeftRunning, say: Say) -> None:
    """End a cluster whose job is over."""
    with stays.ended():
        stays.target.finish(stays.name, say)


def detach(cluster: Cluster, stays: LeftRunning, say: Say) -> None:
    """Leave the cluster running with its job."""
    if cluster.first is not None and not cluster.first.is_over:
        say(f"no training step reported yet: `spotelastic status {stays.named}` shows the progress")
    cluster.keep()
    stays.leave()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def undoing(signals: Signals, undo: Callable[[], object]) -> Callable[[], None]:
    def undone() -> None:
        signals.ignore()
        undo()

    return undone


# -- the end -------------------------------------------------------------------------------------


def conclude(
    config: JobConfig,
    cluster: Cluster,
    result: JobOutcome,
    stays: LeftRunning,
    drill: Drill | None = None,
) -> int:
    """Fetch files, show and write the report, and return the exit code.

    Then it is decided what happens to the cluster. Reports come first, so that a failing clean-up
    cannot cost the report.
    """
    log = failure_log.keep(cluster.record, result) if failure_log.failed(result) else None
    fetch_files(config, cluster, stays.say)
    tables.display(tables.report_table(result.report))
    written = _write(config, cluster, result)
    kept = [node.id for node in result.status.nodes if node.state == "failed"]
    goes_on = result.status.state == "stopped" or (config.keep_failed and kept)
    if config.keep or (goes_on and not stays.target.owns(stays.name)):
        stays.leave()  # it was stopped to go on later, or its failed node is to be inspected
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


def fetch_files(config: JobConfig, cluster: Cluster, say: Say) -> None:
    """Fetch the files that the script has kept, if that was asked for or if they are small.

    A failure is told: they stay where they are.
    """
    name = cluster.name
    if not cluster.record.spec.settings.outputs or config.fetch == "off":
        return
    try:
        with storage.opened(cluster.record.spec.storage, say) as there:
            found = kept_files.listed(there)
            total = sum(file.nbytes for file in found)
            if not found:
                say(f"no file was kept: the script wrote none into {', '.join(config.output)}")
            elif config.fetch == "auto" and total > kept_files.SMALL:
                many = f"{counted(len(found), 'file')} of the script, {size(total)}, are kept"
                say(f"{many}: spotelastic files {name} --fetch")
            else:
                auto = config.fetch == "auto"
                to = Path(f"{name}-files" if auto else config.fetch)
                say(kept_files.fetch(there, to).line)
    except SpotelasticError as error:
        say(f"the files of the script stay in {cluster.record.spec.storage}: {error}")


def _page(cluster: Cluster) -> str | None:
    """Return the report as a page; None, with a line, if its parts cannot be read any more."""
    from spotelastic.web.reading import html_report

    try:
        return html_report(cluster)
    except SpotelasticError as error:
        print(f"spotelastic: the report could not be written as a page: {error}", file=sys.stderr)
        return None


def _write(config: JobConfig, cluster: Cluster, result: JobOutcome) -> bool:
    """Write the files that were asked for; return False if one could not be written.

    The page comes last, as it asks the cluster once more.
    """
    from spotelastic.web.page.render import curve_picture
    from spotelastic.web.reading import write_html

    try:
        if config.report:
            report = Path(config.report)
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(tables.to_json(result.report) + "\n")
        if config.curve:
            curve = Path(config.curve)
            curve.parent.mkdir(parents=True, exist_ok=True)
            rows = result.report.interruptions
            curve.write_text(curve_picture(result.points, rows, result.events, wall()), "utf-8")
        if config.report and (written := _page(cluster)) is not None:
            write_html(written, Path(config.report).with_suffix(".html"))
    except OSError as error:
        print(f"spotelastic: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return False
    return True
