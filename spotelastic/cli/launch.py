"""`up`, in stages: check everything, bring up, watch (and drill), report, take down.

Nothing is started before all checks have passed, and whatever was started registers at once how it
is undone, so that an error, a signal and an ordinary end all leave by the same door. Two things
outlive the command on request: `--detach` and `--keep`. And one without: a job on AWS that trains
goes on when only its watcher is interrupted.
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from spotelastic.aws import cluster as clusters
from spotelastic.aws import workdir
from spotelastic.aws.cluster import Cluster
from spotelastic.aws.names import CLIENT_PORT, PEER_PORT, Names
from spotelastic.aws.provisions import ETCD
from spotelastic.cli import chart, checks, failures, output
from spotelastic.cli.place import Place
from spotelastic.cli.signals import Signals
from spotelastic.cli.view import view
from spotelastic.cli.watch import Outcome, ended, outcome, training, watch
from spotelastic.errors import EnvironmentFailure, SpotelasticError, UsageError
from spotelastic.local import cloud as local
from spotelastic.local.drill import Drill
from spotelastic.local.drill import Plan as DrillPlan
from spotelastic.local.faults import Faults
from spotelastic.model.job import Settings

Say = Callable[[str], None]


SHARED_LEASE, SHARED_SEEN_WITHIN = 3.0, 1.0
"""Seconds. On the local cloud all nodes share this machine's cores: a node that starts may hold up
the others for longer than a machine of its own ever would."""


@dataclass(frozen=True, slots=True)
class Request:
    """The command line of `up`."""

    script: Path
    args: tuple[str, ...]
    local: bool
    region: str | None
    minimum: int
    maximum: int
    name: str | None
    types: tuple[str, ...]
    nproc_per_node: int | None
    snapshot_every: str
    checkpoint_every: str
    keep_last: int
    keep_every: int
    max_restarts: int
    gang: bool
    stall_timeout: float
    exit_barrier_timeout: float
    drill: bool
    detach: bool
    keep: bool
    report: Path | None
    curve: Path | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that has been checked."""

    name: str
    script: str
    archive: workdir.Archive
    settings: Settings


def launch(request: Request) -> int:
    """Returns the command's exit code."""
    plan = check(request, Path.cwd())
    with Signals() as signals:
        try:
            with ExitStack() as undo:
                return _carry_through(request, plan, undo, signals)
        except KeyboardInterrupt:
            return signals.exit_code
        except SpotelasticError as error:
            if not signals.stopping:
                raise
            print(f"spotelastic: {error}", file=sys.stderr)  # of the clean-up, not of the job
            return signals.exit_code


def check(request: Request, folder: Path) -> Plan:
    """Everything that can be known to be wrong before anything starts."""
    checks.linux()
    checks.script(request.script, folder)
    script = checks.within(request.script, folder)
    checks.sizes(
        minimum=request.minimum,
        maximum=request.maximum,
        per_node=request.nproc_per_node,
    )
    checks.at_least_one(keep_last=request.keep_last)
    checks.not_negative(
        keep_every=request.keep_every,
        max_restarts=request.max_restarts,
        stall_timeout=request.stall_timeout,
        exit_barrier_timeout=request.exit_barrier_timeout,
    )
    if not request.types:
        raise UsageError("--instance-types: name at least one")
    name = checks.default_name(request.script) if request.name is None else request.name
    name = Names(name).cluster
    _check_combination(request)
    checks.writable(report=request.report, curve=request.curve)
    if request.curve:
        checks.installed("matplotlib", "--curve needs matplotlib", "local")
    if request.local:
        checks.local_parts()
        checks.local_types(request.types)
        checks.ports(CLIENT_PORT, PEER_PORT)
        workers = request.nproc_per_node or 1
        checks.room(request.maximum, workers, folder=Path(tempfile.gettempdir()))
    settings = Settings(
        min_nodes=request.minimum,
        max_nodes=request.maximum,
        # 0 lets AWS tell the number of GPUs; a local node is a process on this machine.
        workers=request.nproc_per_node or (1 if request.local else 0),
        max_restarts=request.max_restarts,
        gang=request.gang,
        stall_timeout=request.stall_timeout,
        exit_barrier=request.exit_barrier_timeout,
        snapshot_every=checks.interval("--snapshot-every", request.snapshot_every),
        checkpoint_every=checks.interval("--checkpoint-every", request.checkpoint_every),
        keep_last=request.keep_last,
        keep_every=request.keep_every,
    )
    if request.local:
        settings = replace(settings, lease=SHARED_LEASE, seen_within=SHARED_SEEN_WITHIN)
    return Plan(name, script, workdir.pack(folder), settings)


def _check_combination(request: Request) -> None:
    if request.drill and not request.local:
        raise UsageError("--drill interrupts nodes of the local cloud: add --local")
    if request.drill and request.maximum < 2:
        raise UsageError("--drill takes nodes away from a job that goes on: --max 2 at least")
    for flag in ("drill", "report", "curve"):
        if request.detach and getattr(request, flag):
            raise UsageError(f"--{flag} needs a command that stays until the end: drop --detach")


# -- from nothing to the report ------------------------------------------------------------------


def _carry_through(request: Request, plan: Plan, undo: ExitStack, signals: Signals) -> int:
    with view() as shown:
        place = _place(request, undo, signals, shown.say)
        checks.unused(plan.name, place.names())
        cluster = _create(request, plan, place, undo, signals, shown.say)
        drill = _drill(request, place, shown.say)
        try:
            status = watch(
                cluster,
                shown,
                until=training if request.detach else ended,
                look=drill.feed if drill else lambda status: None,
                alive=place.check,
                silent=place.where_to_look,
            )
        except BaseException as error:
            # A local cloud that has ended has nothing left that could stay up.
            gone = place.cloud is not None and isinstance(error, EnvironmentFailure)
            if (place.cloud is None or request.keep) and not gone:
                _leave(plan, undo, shown.say)
            raise
        if request.detach and not ended(status):
            _leave(plan, undo, shown.say)
            return 0
        result = outcome(cluster, status)
        log = failures.keep_log(cluster, result) if failures.failed(result) else None
    return _conclude(request, plan, result, log, drill, undo)


def _place(request: Request, undo: ExitStack, signals: Signals, say: Say) -> Place:
    """AWS, the local cloud that already runs, or a new one of our own, which ends with us."""
    if not request.local:
        return Place.find(False, request.region)
    cloud = local.find()
    if cloud is not None:
        say(f"using the local cloud that runs already ({cloud.endpoint})")
        return Place.of(cloud)
    say("starting the local cloud")
    cloud = local.start(detach=request.detach or request.keep)

    def end() -> None:
        print("ending the local cloud")
        local.stop(cloud)

    undo.callback(_undoing(signals, end))
    say(f"local cloud at {cloud.endpoint}: {', '.join(cloud.zones)}")
    return replace(Place.of(cloud), shared=False)


def _create(
    request: Request, plan: Plan, place: Place, undo: ExitStack, signals: Signals, say: Say
) -> Cluster:
    wanted = clusters.Request(
        name=plan.name,
        script=plan.script,
        args=request.args,
        code=plan.archive.sha256,
        archive=plan.archive.data,
        settings=plan.settings,
        instance_types=request.types,
        etcd=ETCD,
    )
    if place.cloud is not None:  # its instances are this machine, which has an etcd
        wanted = replace(wanted, network=place.cloud.net, etcd=None)
    cluster = clusters.create(wanted, say, place.aws)
    if place.shared:
        undo.callback(_undoing(signals, lambda: place.down(plan.name, print)))
    return cluster


def _undoing(signals: Signals, undo: Callable[[], None]) -> Callable[[], None]:
    def undone() -> None:
        signals.ignore()
        undo()

    return undone


def _leave(plan: Plan, undo: ExitStack, say: Say) -> None:
    undo.pop_all()
    say(
        f"{plan.name} stays up: spotelastic status {plan.name}, spotelastic logs -f {plan.name}; "
        f"end it with spotelastic down {plan.name}"
    )


def _drill(request: Request, place: Place, say: Say) -> Drill | None:
    if not request.drill or place.cloud is None:
        return None
    return Drill(DrillPlan(nodes=request.maximum), Faults(place.cloud), say)


# -- the end -------------------------------------------------------------------------------------


def _conclude(
    request: Request,
    plan: Plan,
    result: Outcome,
    log: Path | None,
    drill: Drill | None,
    undo: ExitStack,
) -> int:
    """Reports first, so that a failing clean-up cannot cost the report."""
    output.console().print(output.report_table(result.report))
    written = _write(request, result)
    if request.keep:
        _leave(plan, undo, print)
    missed = drill.missing if drill else ()
    if missed:
        print(
            f"spotelastic: training ended before the drill did: no {', '.join(missed)}; "
            "give the script more steps",
            file=sys.stderr,
        )
    if failures.failed(result):
        print(f"spotelastic: {failures.describe(result, log)}", file=sys.stderr)
        return 1
    return 0 if written and not missed else 1


def _write(request: Request, result: Outcome) -> bool:
    """The files that were asked for; False if one could not be written."""
    try:
        if request.report:
            request.report.parent.mkdir(parents=True, exist_ok=True)
            request.report.write_text(output.to_json(result.report) + "\n")
        if request.curve:
            chart.draw(result.points, result.report.interruptions, request.curve)
    except OSError as error:
        print(f"spotelastic: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        return False
    return True
