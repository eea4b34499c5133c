"""Performs what `decisions/decide.py` decided: one handler per action.

A failed action does not stop the others. The messages that caused it stay in the queue, and the
next observation leads to the same action again. Every write to etcd carries the leadership as its
precondition.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from spotelastic.clock import unbroken
from spotelastic.cloud.events import Malformed
from spotelastic.cloud.port import Cloud
from spotelastic.controller.decisions import housekeeping
from spotelastic.controller.effects.complaint import Complaint
from spotelastic.controller.model.observation import (
    Action,
    AskToEnd,
    CompleteDrain,
    Discard,
    DrainNode,
    EndJobAtOnce,
    EndMachine,
    Forget,
    Remove,
    Replace,
    Reply,
    Rescale,
    Resettle,
    ResumeLaunches,
    Revive,
    SetDesired,
    SetSubnets,
    Tell,
    account,
)
from spotelastic.errors import EnvironmentFailure, LeaseLost, Unavailable
from spotelastic.model.job import ENDED, Job, JobSpec, Reference, Settings
from spotelastic.model.node import Node
from spotelastic.model.progress import Event
from spotelastic.model.round import Round, RoundRecord
from spotelastic.rendezvous.membership import event_name
from spotelastic.store.codec import decode, encode
from spotelastic.store.election import Leadership
from spotelastic.store.keys import Keys
from spotelastic.store.port import Compare, Delete, Put, Store, StoredValue, Write

T = TypeVar("T")

logger = logging.getLogger(__name__)


class ControllerExecutor:
    """Performs actions while `leadership` holds.

    Raises `LeaseLost` at the first write after it was lost.
    """

    def __init__(
        self,
        cloud: Cloud,
        store: Store,
        leadership: Leadership,
        run: str,
        alive: Callable[[], bool],
    ) -> None:
        """`alive` tells from memory whether the leadership's lease is still held."""
        self._provider = cloud.provider
        self._events = cloud.events
        self._commands = cloud.commands
        self._objects = cloud.objects
        self._store = store
        self._keys = Keys(run)
        self._leadership = leadership
        self._complain = Complaint(logger.warning)
        self._unsure: dict[tuple[str, str, str], str] = {}
        self._alive = alive
        self._handlers: Mapping[type[Action | housekeeping.Action], Callable[[Any], None]] = {
            DrainNode: self._write_drain,
            Replace: self._replace,
            Remove: self._remove,
            CompleteDrain: self._complete_drain,
            EndMachine: self._end_machine,
            Forget: self._forget,
            SetDesired: self._set_desired,
            SetSubnets: self._set_subnets,
            ResumeLaunches: self._resume,
            AskToEnd: self._ask_to_end,
            EndJobAtOnce: self._end_job,
            Revive: self._revive,
            Rescale: self._rescale,
            Resettle: self._resettle,
            Tell: self._tell,
            Discard: self._discard,
            Reply: self._reply,
            housekeeping.Postpone: self._postpone,
            housekeeping.Examine: self._examine,
            housekeeping.Teardown: self._dissolve,
        }

    def perform(
        self, actions: Sequence[Action | housekeeping.Action]
    ) -> tuple[Action | housekeeping.Action, ...]:
        """Perform the actions and return those that succeeded.

        The cloud knows nothing of leadership. The leader's key is therefore read once before, and
        the lease is checked before each action, as a call may take longer than the lease lives.
        """
        if actions:
            self._check_leadership()
        failed: set[str] = set()
        done: list[Action | housekeeping.Action] = []
        for action in actions:
            if isinstance(action, Discard | Reply) and action.cause in failed:
                continue
            if isinstance(action, Tell) and not all(each in done for each in action.after):
                continue
            if not self._alive():
                raise LeaseLost("its lease was lost while it acted")
            try:
                self._handlers[type(action)](action)
                done.append(action)
            except (Unavailable, EnvironmentFailure) as error:
                if action.cause:
                    failed.add(action.cause)
                self._complain(str(error))
        return tuple(done)

    def _write_drain(self, action: DrainNode) -> None:
        """Write the node's drain, unless its agent was faster."""
        key = self._keys.drain(action.drain.node)
        self._write(_put(key, action.drain), Compare(key, "created", 0))

    def _tell(self, action: Tell) -> None:
        """Record an event.

        A write without an answer may have succeeded. It is repeated under the same name, so that
        the event is recorded once. An event that happens repeatedly (a zone is left, a command is
        given) gets a name of its own each time.
        """
        event, which = action.event, account(action.event)
        name = event_name(event.at)
        if event.data.get("id") or event.kind == "loss":
            name = self._unsure.setdefault(which, name)
        self._write(_put(self._keys.event(name), event))
        self._unsure.pop(which, None)

    def _forget(self, action: Forget) -> None:
        """Remove the node's registration, unless the node has come back as another incarnation."""
        key = self._keys.live(action.node.id)
        held = self._store.get(key)
        if held is None or _read(held, Node).incarnation != action.node.incarnation:
            return
        self._write(Delete(key), Compare(key, "modified", held.modified))

    def _ask_to_end(self, action: AskToEnd) -> None:
        key = self._keys.ending
        self._write(_put(key, action.ending), Compare(key, "created", 0))

    def _end_job(self, action: EndJobAtOnce) -> None:
        """End the job, unless it has ended by itself meanwhile."""
        held = self._store.get(self._keys.job)
        if held is not None and _read(held, Job).state in ENDED:
            return
        same = Compare(self._keys.job, "modified", 0 if held is None else held.modified)
        self._write(_put(self._keys.job, action.job), same)

    def _write(self, write: Write, *compares: Compare) -> None:
        """Write to etcd; nothing if something has changed meanwhile."""
        if not self._store.commit((self._leadership.compare, *compares), (write,)).succeeded:
            self._check_leadership()

    def _check_leadership(self) -> None:
        held = self._store.get(self._leadership.key)
        if held is None or held.created != self._leadership.created:
            raise LeaseLost("another controller leads")

    def _replace(self, action: Replace) -> None:
        logger.info(f"{action.instance} goes: {action.reason}")
        self._provider.replace(action.instance)

    def _remove(self, action: Remove) -> None:
        logger.info(f"{action.instance} goes: {action.reason}")
        self._provider.remove(action.instance)

    def _complete_drain(self, action: CompleteDrain) -> None:
        self._provider.complete_drain(action.group, action.instance)

    def _end_machine(self, action: EndMachine) -> None:
        logger.info(f"{action.instance} is ended: {action.reason}")
        self._provider.end((action.instance,))

    def _set_desired(self, action: SetDesired) -> None:
        logger.info(f"{action.group} is set to {action.size}: {action.reason}")
        self._provider.set_desired(action.group, action.size)

    def _set_subnets(self, action: SetSubnets) -> None:
        logger.info(f"{action.group} goes to other subnets: {action.reason}")
        self._provider.set_subnets(action.group, action.subnets)

    def _resume(self, action: ResumeLaunches) -> None:
        logger.info(f"{action.group} may launch again")
        self._provider.resume(action.group)

    def _revive(self, action: Revive) -> None:
        """Restarts a job that has ended.

        Of the round that it ended with, only the number counts. The next round resumes from the
        newest commit, with a new restart budget.
        """
        logger.info("the job goes on")
        job, round_ = self._store.get(self._keys.job), self._store.get(self._keys.round)
        if job is None or _read(job, Job).state not in ENDED:
            return
        compares, writes = self._settle(action.settings)
        compares.append(Compare(self._keys.job, "modified", job.modified))
        writes += [_put(self._keys.job, action.job), Delete(self._keys.ending)]
        writes.append(Delete(self._keys.proposal))
        if round_ is not None:
            compares.append(Compare(self._keys.round, "modified", round_.modified))
            writes += self._lay_to_rest(_read(round_, Round), _read(job, Job).at)
        if not self._store.commit(compares, writes).succeeded:
            self._check_leadership()
            raise Unavailable("cannot restart the job: its state has just changed")

    def _lay_to_rest(self, round_: Round, ended_at: float) -> list[Write]:
        over = Round(
            round_.number, round_.incarnation, "over", (), round_.cause, round_.reason,
            past=round_.past, lineage=round_.lineage, run_id=round_.run_id,
        )  # fmt: skip
        writes: list[Write] = [_put(self._keys.round, over)]
        record = self._keys.history(round_.number)
        if round_.phase == "started" and self._store.get(record) is None:
            known = RoundRecord(round_, 0.0, round_.resume.step, 0.0, ended_at)
            writes.append(_put(record, known))
        return writes

    def _rescale(self, action: Rescale) -> None:
        """Store the new size. The next observation reads it, and hands it to the nodes."""

        def resized(spec: JobSpec) -> JobSpec:
            low, high = action.command.sizes(spec.settings)
            if low > high:  # by what somebody else has written since it was looked at
                raise Unavailable("cannot scale the job: its description has just changed")
            settings = replace(spec.settings, min_nodes=low, max_nodes=high)
            return replace(spec, settings=settings)

        self._objects.change_job(resized)

    def _resettle(self, action: Resettle) -> None:
        logger.info("the settings are changed")
        compares, writes = self._settle(action.settings)
        if not self._store.commit(compares, writes).succeeded:
            self._check_leadership()

    def _settle(self, settings: Settings) -> tuple[list[Compare], list[Write]]:
        """Return preconditions and writes for the settings and for the nodes' measure.

        New nodes must match that measure. If it were not written, those that join next would be
        refused.
        """
        known = self._store.get(self._keys.reference)
        compares: list[Compare] = [self._leadership.compare]
        writes: list[Write] = [_put(self._keys.settings, settings)]
        if known is not None:
            reference = _read(known, Reference)
            measure = replace(reference.node.fingerprint, code=settings.code)
            node = replace(reference.node, fingerprint=measure)
            compares.append(Compare(self._keys.reference, "modified", known.modified))
            writes.append(_put(self._keys.reference, Reference(node, settings)))
        return compares, writes

    def _discard(self, action: Discard) -> None:
        event = action.message.event
        if isinstance(event, Malformed):
            self._complain(f"a message of the event bus cannot be read: {event.problem}")
        self._events.delete(action.message.receipt)

    def _reply(self, action: Reply) -> None:
        if action.answer is not None:
            self._objects.put_answer(action.answer)
        self._commands.delete(action.order.receipt)

    # -- upkeep ----------------------------------------------------------------------------------

    def _postpone(self, action: housekeeping.Postpone) -> None:
        self._provider.postpone(action.until)

    def _examine(self, action: housekeeping.Examine) -> None:
        machine = action.machine
        console = self._console(machine.id)
        if not console.strip() and unbroken() < action.until:
            raise Unavailable(f"{machine.id} did not boot, and no console of it is shown yet")
        lines = [line for line in console.splitlines() if line.strip()]
        why = housekeeping.said(console)
        event = Event(
            unbroken(),
            housekeeping.BOOT,
            f"{machine.id} did not boot: {action.why}; {why}",
            machine.id,
            {
                "said": why,
                "cause": housekeeping.cause(why),
                "console": "\n".join(lines[-housekeeping.CONSOLE_LINES :]),
                "launched": machine.launched_at,
            },
        )
        self._tell(Tell(event))

    def _console(self, instance: str) -> str:
        """Return the instance's console, or why it can never be read.

        A failed boot that is not recorded would be repeated, and paid for, again and again.
        """
        try:
            return self._provider.console(instance)
        except EnvironmentFailure as error:
            return f"controller: {error}"

    def _dissolve(self, action: housekeeping.Teardown) -> None:
        logger.info(f"the cluster is taken down: {action.reason}")
        self._provider.tear_down()


def _read(value: StoredValue, kind: type[T]) -> T:
    """Raise `EnvironmentFailure` for what this version cannot read: it is not to be replaced."""
    try:
        return decode(value.data, kind)
    except msgspec.DecodeError as error:
        raise EnvironmentFailure(
            f"{value.key} in etcd holds what this version of spotelastic cannot read: {error}"
        ) from error


def _put(key: str, value: object) -> Put:
    return Put(key, encode(value))
