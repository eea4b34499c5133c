"""The handle of a cluster: what can be seen of it, and what can be done with it."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from spotelastic.client import commands, dump_archive, failure_log, kept_files, logs, watch
from spotelastic.client.commands import CommandResult
from spotelastic.client.confirmation import (
    Confirm,
    ConfirmationRequest,
    agreed,
    ensure,
    nobody_asked,
)
from spotelastic.client.dump_archive import Dump
from spotelastic.client.interrupt import (
    CausedInterruption,
    InterruptionRequest,
    interrupt,
    node_named,
)
from spotelastic.client.kept_files import FetchedFiles, ListedFile
from spotelastic.client.last_status import last_report, last_status
from spotelastic.client.logs import OutputLine, Wanted
from spotelastic.client.moving import move as moving
from spotelastic.client.moving.move import MoveResult
from spotelastic.client.progress import (
    FirstStepTimer,
    OnUpdate,
    ProgressMessage,
    Say,
    Update,
    ended,
    ignored,
    saying,
)
from spotelastic.client.published import (
    cost_of,
    is_gone,
    newest_commit,
    regions_of,
    status_of,
)
from spotelastic.client.storage import retried
from spotelastic.client.targets.cloud_target import ClusterTarget
from spotelastic.client.targets.find import moved_to
from spotelastic.client.targets.shown_cluster import ShownCluster
from spotelastic.clock import steady, wall
from spotelastic.controller.model.regions import RegionsRecord
from spotelastic.errors import JobFailed, SpotelasticError, Unavailable, UsageError
from spotelastic.model.measured import Series
from spotelastic.model.progress import Cost, Event, Point, Report, Status

if TYPE_CHECKING:
    from spotelastic.web.page.render import SvgPicture


class Cluster:
    """A cluster with its job. `spotelastic.up` and `spotelastic.client.find` return one.

    In a `with` statement, the cluster is taken down at the end of the block. Otherwise a cluster on
    AWS stays until `down`, or until some time after its job (`linger`). A local cluster that this
    process has brought up ends with the process, unless `keep` was called.

    Methods that ask the cluster raise `spotelastic.client.Unavailable` if it does not answer, and
    `spotelastic.client.UsageError` if what is asked for makes no sense.
    """

    def __init__(
        self,
        target: ClusterTarget,
        record: ShownCluster,
        *,
        told: Iterable[Event] = (),
        first: FirstStepTimer | None = None,
    ) -> None:
        self.target = target
        self.record = record
        self.first = first
        """Measures the time to the first step, if this process has created the cluster."""
        self._told = watch.EventsTold(told)
        self._is_down = False
        self._left: tuple[Status, Status] | None = None
        """The status that a cluster has left that is gone, and what is shown of it."""

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.record.name

    def __repr__(self) -> str:
        return f"<spotelastic.client.Cluster {self.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_down:
            self.down()

    # -- what can be seen ------------------------------------------------------------------------

    def status(self) -> Status:
        """Return the state of the job: its round, step and loss, and every node.

        Of a cluster that is gone all nodes are, and a job that had not ended is "taken down".
        """
        with self._asking():
            status = status_of(self.record)
            return self._last_status(status) or status

    def events(self) -> tuple[Event, ...]:
        """Return what has happened to the job: notices, losses, rounds, replacements."""
        with self._asking():
            return tuple(self.record.objects.events())

    def logs(
        self,
        *,
        rank: int | None = None,
        node: str | None = None,
        since: float = 0.0,
        previous: int = 0,
        follow: bool = False,
        note: Say | None = None,
    ) -> Iterator[OutputLine]:
        """Yield the lines that workers have written, in the order of their time.

        `rank`, `node` and `since` (seconds since the epoch) select. With `follow`, it goes on until
        the job has ended. `previous`: those of the cluster of this name that many before it.
        `note` is called if there is nothing to show yet; with it, an unknown node or rank raises
        `UsageError`.

        Lines are kept for 14 days, also when the cluster is gone: use
        `spotelastic.client.find(name, gone=True)`.
        """
        wanted = Wanted(rank, node, since)
        return logs.tail(self.record, wanted, previous=previous, follow=follow, note=note)

    def report(self) -> Report:
        """Return the cost of every interruption, the goodput and the bill.

        It is complete once the job has ended; until then it tells what is known so far.
        """
        with self._asking():
            report = self.record.objects.report()
            if report is None:
                raise UsageError(f"{self.name} has no report yet: its first round has not begun")
            last = self._last_status(status_of(self.record))
            return report if last is None else last_report(report, last, cost_of(self.record))

    def cost(self) -> Cost:
        """Return what the cluster has cost, costs now, and would have cost on demand."""
        with self._asking():
            return cost_of(self.record)

    def regions(self) -> RegionsRecord | None:
        """Return why a job that moves by itself stays or moved; None for any other job."""
        with self._asking():
            return regions_of(self.record)

    def curve(self) -> tuple[Point, ...]:
        """Return every step that was executed, with its loss; repeated steps come twice."""
        with self._asking():
            return tuple(self.record.objects.curve())

    def measured(self) -> dict[str, Series]:
        """Return what the script logs, and how busy GPUs are, over the run's time, by name."""
        with self._asking():
            return self.record.objects.measured()

    def plot(self, file: str | Path | None = None) -> "SvgPicture":
        """Draw loss over steps, with every interruption marked, and return the SVG as text.

        A notebook shows it as an image. With `file` it is also written there.
        """
        from spotelastic.web.page.render import curve_picture

        with self._asking():
            report = self.record.objects.report()
        rows = () if report is None else report.interruptions
        picture = curve_picture(self.curve(), rows, self.events(), wall())
        if file is not None:
            Path(file).write_text(picture, "utf-8")
        return picture

    def updates(self) -> Iterator[Update]:
        """Yield what is new, until the job has ended: events, and the status at each look.

        What was yielded or told before is not repeated. A job that moves to another region by
        itself is followed there.
        """
        with self._asking():
            while True:
                for update in self._updates():
                    if isinstance(update, Status) and self.first is not None:
                        first = self.first.feed(update)
                        if first is not None:
                            yield first
                    yield update
                region = watch.goes_to(self.record)
                if not region:
                    return
                yield ProgressMessage(f"{self.name} moves to {region}")
                self._follow()

    def _updates(self) -> Iterator[Update]:
        """Yield what is new. A new cluster whose control nodes do not come is taken down."""
        is_new = self.first is not None and not self.first.is_over
        try:
            for update in watch.updates(self.target, self.record, self._told, is_new=is_new):
                if is_new and isinstance(update, Status):
                    is_new = False
                    self.target.note_worked(self.record)
                yield update
        except watch.ControlNodesMissing:
            yield ProgressMessage(f"the control nodes do not start: taking {self.name} down")
            told: list[str] = []
            try:
                self.target.down(self.name, told.append)
                self._is_down = True
            except SpotelasticError as other:
                told.append(
                    f"{self.name} was only partly deleted, and the rest costs money: {other}"
                )
            yield from map(ProgressMessage, told)
            raise

    def _follow(self) -> None:
        """Wait until the job is led in the region that it moves to, or does not move any more."""
        while watch.goes_to(self.record):
            home = self.target.account("following the job")
            home.check()
            there = moved_to(home, self.record)
            if there is not None:
                self.target, self.record = there, there.cluster(self.name)
                return
            threading.Event().wait(watch.EVERY)

    def wait(self, *, timeout: float | None = None, on_update: OnUpdate = ignored) -> Status:
        """Wait until the job has ended, and return its last status, "succeeded" or "stopped".

        Raises `JobFailed` if the job has failed, and `Unavailable` if it has not ended
        after `timeout` seconds. Then the job goes on. `on_update` is called with what is new
        meanwhile.
        """
        until = None if timeout is None else steady() + timeout
        status = self.status()
        for update in self.updates():
            on_update(update)
            if isinstance(update, Status):
                status = update
            if until is not None and steady() > until and not ended(status):
                raise Unavailable(f"{self.name} has not ended within {timeout:g} s")
        with self._asking():
            outcome = watch.outcome(self.record, status)
            if status.state == "failed":
                log = failure_log.keep(self.record, outcome)
                raise JobFailed(failure_log.describe(outcome, log))
        return status

    def dump(self, *, file: str | Path | None = None) -> Dump:
        """Write what is known of a cluster to an archive for a bug report, without secrets.

        It is written to `file`, or to one in this folder that is named by cluster and time. The
        result names what could not be had.
        """
        with self._asking():
            return dump_archive.write(self.record, None if file is None else Path(file))

    def files(self, *, on_update: OnUpdate = ignored) -> tuple[ListedFile, ...]:
        """Return the files that the script has kept (`output`), by path."""
        url = self.record.spec.storage
        with self._asking(), retried(lambda: self.target.storage(url), saying(on_update)) as there:
            return tuple(kept_files.listed(there))

    def fetch(
        self,
        path: str | None = None,
        *,
        to: str | Path | None = None,
        on_update: OnUpdate = ignored,
    ) -> FetchedFiles:
        """Fetch a kept file, a folder of them, or all, into the folder `to`, by default NAME-files.

        A newer file that is there is left. Raises `UsageError` if nothing of that path is kept.
        """
        url, into = self.record.spec.storage, Path(f"{self.name}-files" if to is None else to)
        with self._asking(), retried(lambda: self.target.storage(url), saying(on_update)) as there:
            return kept_files.fetch(there, into, path)

    # -- what can be done ------------------------------------------------------------------------

    def interrupt(
        self, node: str = "any", *, kind: str = "notice", seconds: float = 120.0
    ) -> CausedInterruption:
        """Interrupt a node as AWS would: give notice, then take it away when the time is up.

        `node` is a name, "rank 0", or "any" node that trains. `kind` is notice, rebalance or loss
        (without notice). `seconds` are those of the notice; AWS gives 120. Returns at once; the job
        goes on meanwhile.
        """
        with self._asking():
            chosen = node_named(node, status_of(self.record))
            request = InterruptionRequest.asked(chosen, kind, seconds)
            return interrupt(self.target, self.record, request)

    def scale(
        self, *, min: int | None = None, max: int | None = None, on_update: OnUpdate = ignored
    ) -> CommandResult:
        """Change the fewest and the most nodes while the job trains; None leaves one unchanged."""
        with self._asking():
            self._refresh()
            return commands.scale(self.target, self.record, min, max, say=saying(on_update))

    def stop(self, *, wait: bool = True, on_update: OnUpdate = ignored) -> CommandResult:
        """Stop the job after it has committed its last step; `restart` continues from there.

        The cluster stays up, without worker nodes. `wait`: return only when the job has ended.
        """
        with self._asking():
            return commands.stop(self.record, wait=wait, say=saying(on_update))

    def restart(
        self,
        *,
        same_code: bool = False,
        environment: str | None = None,
        deadline: str | None = None,
        max_cost: float | None = None,
        yes: bool = False,
        confirm: Confirm = nobody_asked,
    ) -> CommandResult:
        """Restart a job that has ended from its newest checkpoint.

        It gets the code of the current folder, unless `same_code`. `confirm` is asked if the job
        was started in another folder; `yes` answers it.
        """
        with self._asking():
            self._refresh()
            return commands.restart(
                self.record,
                Path.cwd(),
                same_code=same_code,
                environment=environment,
                deadline=deadline,
                max_cost=max_cost,
                confirm=agreed if yes else confirm,
            )

    def move(
        self,
        region: str | None = None,
        *,
        back: bool = False,
        yes: bool = False,
        confirm: Confirm = nobody_asked,
        on_update: OnUpdate = ignored,
    ) -> MoveResult:
        """Move the job to another region of the account, from its newest checkpoint.

        After that, this handle is of the cluster there.

        With `back`, undo a move in whose region nothing was trained yet. `confirm` is asked about
        the price; `yes` answers it. A move that was cut off is gone on with by the same call.
        """
        with self._asking():
            home = self.target.account("moving a job")
            moved = moving.move(
                home,
                self.name,
                region,
                back=back,
                confirm=agreed if yes else confirm,
                say=saying(on_update),
            )
            self.target = home.in_region(moved.region)
            self._refresh()
        return moved

    def keep(self) -> None:
        """Let a local cluster outlive the process that has brought it up.

        It then ends by `down`, or some time after its job. On AWS every cluster outlives that
        process.
        """
        self.target.keep(self.name)

    def down(
        self,
        *,
        delete_data: bool = False,
        yes: bool = False,
        confirm: Confirm = nobody_asked,
        on_update: OnUpdate = ignored,
    ) -> None:
        """Take the cluster down. Its checkpoints stay, unless `delete_data`.

        `confirm` is asked before data is deleted; `yes` answers it.
        """
        with self._asking():
            if delete_data:
                ensure(_deletion(*self.target.data_of(self.name)), agreed if yes else confirm)
            self.target.down(self.name, saying(on_update), keep_data=not delete_data)
        self._is_down = True

    # -- inside ----------------------------------------------------------------------------------

    def _last_status(self, stored: Status) -> Status | None:
        """Return what is shown as the status if the cluster is gone; None while it exists.

        What was stored last does not change any more, so it is looked into once.
        """
        if self._left is None or self._left[0] != stored:
            if not is_gone(self.record, stored):
                return None
            committed = newest_commit(self.target.storage, self.record.spec.storage)
            self._left = stored, last_status(stored, committed)
        return self._left[1]

    def _refresh(self) -> None:
        """Read the job's description again, which others may have changed."""
        self.record = self.target.cluster(self.name)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Say that the local cloud has ended, if that is why it does not answer."""
        try:
            yield
        except Unavailable:
            self.target.check()
            raise


def _deletion(run: str, url: str) -> ConfirmationRequest:
    return ConfirmationRequest(
        about="data",
        what=f"this deletes all checkpoints of the run {run}, {url}",
        question="Delete them?",
        declined="nothing was deleted",
    )
